"""Line charts as self-contained SVG, without packages. Used by the scripts that turn benchmark
results into documents."""
import html
import math

COLOURS = ["#1b6ca8", "#c8553d", "#2f8f5b", "#8458a6", "#b8860b", "#4d4d4d", "#d1689a", "#3aa6a6"]
WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 40, 50


def short(value):
    """A number as a label: 32768 as 32K, 0.5 as 0.5."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "K")):
        if value >= size and value % size == 0:
            return "%d%s" % (value // size, unit)
    return "%g" % value


def log_ticks(low, high, base):
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    return [float(base) ** i for i in range(first, max(last, first + 1) + 1)]


def even_ticks(high):
    step = 10 ** math.floor(math.log10(high / 4))
    step = next(step * m for m in (1, 2, 2.5, 5, 10) if high / (step * m) <= 6)
    return [step * i for i in range(int(math.ceil(high / step - 1e-9)) + 1)]


class Axis:
    """Maps values to a range of pixels."""

    def __init__(self, ticks, log, start, end):
        self.ticks, self.log, self.start, self.end = ticks, log, start, end

    def at(self, value):
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def axes(series, log_x, log_y, y_max):
    points = [p for line in series.values() for p in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_ticks = sorted(set(xs)) if log_x else even_ticks(max(xs))
    y_ticks = log_ticks(min(ys), max(ys), 10) if log_y else even_ticks(y_max or max(ys))
    return (Axis(x_ticks if len(x_ticks) > 1 else [x_ticks[0], x_ticks[0] * 2], log_x, LEFT,
                 WIDTH - RIGHT), Axis(y_ticks, log_y, HEIGHT - BOTTOM, TOP))


def line_chart(path, title, x_label, y_label, series, log_x=True, log_y=False, y_max=None):
    """series: {name: [(x, y), ...]}; writes the file."""
    x_axis, y_axis = axes(series, log_x, log_y, y_max)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" '
           'font-size="13">' % (WIDTH, HEIGHT),
           '<rect width="100%" height="100%" fill="#ffffff"/>',
           '<text x="%d" y="22" font-size="15">%s</text>' % (LEFT, html.escape(title))]
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        out.append('<path d="M%d %.1fH%d" stroke="#dddddd"/>' % (LEFT, y, WIDTH - RIGHT))
        out.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>'
                   % (LEFT - 8, y + 4, short(tick)))
    for tick in x_axis.ticks:
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>'
                   % (x_axis.at(tick), HEIGHT - BOTTOM + 18, short(tick)))
    out.append('<text x="%d" y="%d" text-anchor="middle">%s</text>'
               % ((LEFT + WIDTH - RIGHT) // 2, HEIGHT - 10, html.escape(x_label)))
    middle = (TOP + HEIGHT - BOTTOM) // 2
    out.append('<text x="16" y="%d" text-anchor="middle" transform="rotate(-90 16 %d)">%s</text>'
               % (middle, middle, html.escape(y_label)))
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="6 4"' if i >= len(COLOURS) else ""
        points = ["%.1f %.1f" % (x_axis.at(x), y_axis.at(y)) for x, y in sorted(line)]
        out.append('<path d="M%s" fill="none" stroke="%s" stroke-width="2"%s/>'
                   % ("L".join(points), colour, dash))
        out += ['<circle cx="%s" cy="%s" r="3" fill="%s"/>' % (*p.split(), colour) for p in points]
        y = TOP + 10 + 20 * i
        out.append('<path d="M%d %dh22" stroke="%s" stroke-width="2"%s/>'
                   % (WIDTH - RIGHT + 14, y, colour, dash))
        out.append('<text x="%d" y="%d">%s</text>' % (WIDTH - RIGHT + 42, y + 4, html.escape(name)))
    out.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")
