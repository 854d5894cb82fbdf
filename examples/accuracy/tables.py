#!/usr/bin/env python3
"""Tables and figures of docs/ACCURACY.md from what accuracy printed.

    tables.py accuracy.tsv DOCS

Writes DOCS/img/*.svg and replaces what stands between the marks in DOCS/ACCURACY.md.
"""
import math
import os
import re
import sys

ORDER = ["bf16", "int8", "fp8", "polar_qjl", "lm3_qjl", "lm4", "polar", "lm2_qjl", "lm3", "lm2"]
COLOURS = {"bf16": "#888888", "fp8": "#7f3c8d", "int8": "#11a579", "lm4": "#3969ac",
           "lm3": "#f2b701", "lm2": "#e73f74", "polar": "#80ba5a", "polar_qjl": "#e68310",
           "lm3_qjl": "#008695", "lm2_qjl": "#cf1c90"}


def read(path):
    rows = []
    with open(path, encoding="ascii") as lines:
        for line in lines:
            if line.startswith("#"):
                continue
            case, tokens, name, centred, *numbers = line.rstrip("\n").split("\t")
            bits, slope, rms, kl, top, output = map(float, numbers)
            rows.append(dict(case=case, tokens=int(tokens), format=name, centred=centred == "1",
                             bits=bits, slope=slope, rms=rms, kl=kl, top=top, output=output))
    return rows


# ---- tables -----------------------------------------------------------------------------


def number(x):
    return "%.2g" % x if x < 0.1 else "%.3g" % x


def synthetic_table(rows):
    rows = [r for r in rows if r["case"] == "synthetic"]
    lengths = sorted({r["tokens"] for r in rows})
    out = ["| K format | bits | slope | deviation, %d | deviation, %d | " % (lengths[0], lengths[-1]) +
           " | ".join("KL, %d" % n for n in lengths) + " | " +
           " | ".join("output, %d" % n for n in lengths) + " | same top, worst |",
           "|---" * (6 + 2 * len(lengths)) + "|"]
    for name in ORDER:
        at = {r["tokens"]: r for r in rows if r["format"] == name}
        out.append("| `%s` | %.3f | %.4f | %s | %s | " %
                   (name, at[lengths[0]]["bits"], at[lengths[-1]]["slope"],
                    number(at[lengths[0]]["rms"]), number(at[lengths[-1]]["rms"])) +
                   " | ".join([number(at[n]["kl"]) for n in lengths] +
                              [number(at[n]["output"]) for n in lengths]) +
                   " | %.3f |" % min(at[n]["top"] for n in lengths))
    return out


def shifted_table(rows):
    rows = [r for r in rows if r["case"] == "shifted"]
    lengths = sorted({r["tokens"] for r in rows})
    out = ["| K format | " + " | ".join("KL, %d" % n for n in lengths) + " | " +
           " | ".join("KL centred, %d" % n for n in lengths) + " | same top, worst | centred, worst |",
           "|---" * (3 + 2 * len(lengths)) + "|"]
    for name in ORDER:
        at = {(r["centred"], r["tokens"]): r for r in rows if r["format"] == name}
        tops = [min(at[c, n]["top"] for n in lengths) for c in (False, True)]
        out.append("| `%s` | " % name +
                   " | ".join(number(at[c, n]["kl"]) for c in (False, True) for n in lengths) +
                   " | %.3f | %.3f |" % tuple(tops))
    return out


def cases_of(rows, model):
    cases = []
    for r in rows:
        if r["case"].startswith(model + " ") and r["case"] not in cases:
            cases.append(r["case"])
    return cases, [case[case.index("layer"):] for case in cases]


def scores_table(rows, model):
    """What happens to scores, and to the output row."""
    cases, names = cases_of(rows, model)
    head = ["%s, %s" % (what, name) for what in ("slope, deviation", "centred", "output", "centred")
            for name in names]
    out = ["| K format | " + " | ".join(head) + " |", "|---" * (1 + len(head)) + "|"]
    for name in ORDER:
        cells = []
        for output in (False, True):
            for centred in (False, True):
                for case in cases:
                    r = next(r for r in rows if r["case"] == case and r["format"] == name and
                             r["centred"] == centred)
                    cells.append(number(r["output"]) if output else
                                 "%.3f, %s" % (r["slope"], number(r["rms"])))
        out.append("| `%s` | %s |" % (name, " | ".join(cells)))
    return out


def model_table(rows, model):
    cases, names = cases_of(rows, model)
    head = ["KL, " + name for name in names] + ["KL centred, " + name for name in names]
    out = ["| K format | bits | " + " | ".join(head) + " | same top, worst | centred, worst |",
           "|---" * (4 + len(head)) + "|"]
    for name in ORDER:
        cells, bits = [], 0
        tops = {False: [], True: []}
        for centred in (False, True):
            for case in cases:
                r = next(r for r in rows if r["case"] == case and r["format"] == name and
                         r["centred"] == centred)
                cells.append(number(r["kl"]))
                tops[centred].append(r["top"])
                bits = r["bits"]
        out.append("| `%s` | %.3f | %s | %.3f | %.3f |" %
                   (name, bits, " | ".join(cells), min(tops[False]), min(tops[True])))
    return out


# ---- figures ----------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 400, 70, 50, 40, 110


def axis(low, high, length, log):
    """Function from a value to a distance, and the values of ticks."""
    if log:
        a, b = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return (lambda v: (math.log10(v) - a) / (b - a) * length), [10.0**i for i in range(a, b + 1)]
    return (lambda v: (v - low) / (high - low) * length), list(range(int(low), int(high) + 1, 2))


def figure(path, title, x_title, y_title, series, log_x, x_ticks=None):
    """series: (name, colour, dashed, [(x, y)])."""
    xs = [x for *_, points in series for x, _ in points]
    ys = [y for *_, points in series for _, y in points]
    low, high = (min(xs), max(xs)) if log_x else (0, 17)
    to_x, ticks = axis(low, high, WIDTH - LEFT - RIGHT, log_x)
    to_y, y_ticks = axis(min(ys), max(ys), HEIGHT - BOTTOM - TOP, True)
    ticks = x_ticks or ticks
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" '
           'font-size="12">' % (WIDTH, HEIGHT),
           '<rect width="%d" height="%d" fill="white"/>' % (WIDTH, HEIGHT),
           '<text x="%d" y="20" font-size="14">%s</text>' % (LEFT, title)]
    for y in y_ticks:
        at = HEIGHT - BOTTOM - to_y(y)
        out.append('<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">'
                   '%g</text>' % (LEFT, at, WIDTH - RIGHT, LEFT - 6, at + 4, y))
    for x in ticks:
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' %
                   (LEFT + to_x(x), HEIGHT - BOTTOM + 18, "%dK" % (x // 1024) if x >= 1024 else x))
    out.append('<text x="%d" y="%d" text-anchor="middle">%s</text>' %
               ((LEFT + WIDTH - RIGHT) // 2, HEIGHT - 10, x_title))
    out.append('<text x="14" y="%d" text-anchor="middle" transform="rotate(-90 14 %d)">%s</text>' %
               (HEIGHT // 2, HEIGHT // 2, y_title))
    for place, (name, colour, dashed, points) in enumerate(series):
        path_text = " ".join("%s%.1f %.1f" % ("L" if i else "M", LEFT + to_x(x),
                                              HEIGHT - BOTTOM - to_y(y))
                             for i, (x, y) in enumerate(points))
        if len(points) > 1:
            out.append('<path d="%s" fill="none" stroke="%s" stroke-width="2"%s/>' %
                       (path_text, colour, ' stroke-dasharray="5 4"' if dashed else ""))
        for x, y in points:
            out.append('<circle cx="%.1f" cy="%.1f" r="4" fill="%s" stroke="%s"/>' %
                       (LEFT + to_x(x), HEIGHT - BOTTOM - to_y(y), "white" if dashed else colour,
                        colour))
        out.append('<text x="%d" y="%d" fill="%s">%s</text>' %
                   (WIDTH - RIGHT + 12, TOP + 14 + 18 * place, colour, name))
    out.append("</svg>")
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(out) + "\n")


def context_figure(rows, path):
    series = [(name, COLOURS[name], "_qjl" in name,
               [(r["tokens"], r["kl"]) for r in rows
                if r["case"] == "synthetic" and r["format"] == name])
              for name in ORDER if name != "bf16"]
    figure(path, "Divergence of attention weights by context, synthetic", "tokens", "KL, nats", series,
           True, [1024, 8192, 65536, 262144])


def bits_figure(rows, model, path):
    series = []
    for centred in (False, True):
        for name in ORDER:
            values = [r for r in rows if r["case"].startswith(model) and r["format"] == name and
                      r["centred"] == centred]
            mean = sum(r["kl"] for r in values) / len(values)
            series.append((name if not centred else "", COLOURS[name], centred,
                           [(values[0]["bits"], mean)]))
    figure(path, "%s: mean KL of three layers; hollow: centred keys" % model, "bits per value of K",
           "KL, nats", series, False)


# ---- document ---------------------------------------------------------------------------


def replace(text, mark, lines):
    pattern = re.compile(r"(<!-- %s -->\n).*?(<!-- end -->)" % mark, re.S)
    if not pattern.search(text):
        sys.exit("tables.py: no mark %s" % mark)
    return pattern.sub(lambda m: m.group(1) + "\n" + "\n".join(lines) + "\n\n" + m.group(2), text)


def main():
    rows, docs = read(sys.argv[1]), sys.argv[2]
    models = []
    for r in rows:
        model = r["case"].split(" ")[0]
        if model not in ("synthetic", "shifted") and model not in models:
            models.append(model)
    os.makedirs(os.path.join(docs, "img"), exist_ok=True)
    context_figure(rows, os.path.join(docs, "img", "accuracy_context.svg"))
    path = os.path.join(docs, "ACCURACY.md")
    with open(path, encoding="utf-8") as file:
        text = replace(file.read(), "synthetic", synthetic_table(rows))
    text = replace(text, "shifted", shifted_table(rows))
    for i, model in enumerate(models):
        bits_figure(rows, model, os.path.join(docs, "img", "accuracy_model%d.svg" % i))
        text = replace(text, "model%d" % i, ["**%s**" % model, ""] + model_table(rows, model) +
                       ["", "Scores and output:", ""] + scores_table(rows, model))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
