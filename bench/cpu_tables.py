#!/usr/bin/env python3
"""Tables and charts of the CPU benchmark.

    cpu_tables.py DOCUMENT PLOTS RESULT.json...

Replaces the text between <!-- cpu: begin --> and <!-- cpu: end --> of DOCUMENT and writes SVG
files into the folder PLOTS.
"""
import datetime
import json
import os
import re
import sys

from plots import line_chart

GROUPS = (1, 2, 4, 8)
CHARTED = ("4bit_nc", "3bit_nc", "int8", "bf16")
PEERS = ("f16", "q8_0", "q4_0")


def load(paths):
    """(what the files say of themselves, all rows)."""
    rows, head = [], {}
    for path in paths:
        with open(path) as file:
            data = json.load(file)
        head = {"library": data["library"], "peer": data["peer"]}
        rows += data["rows"]
    return head, rows


def pick(rows, **wanted):
    return [r for r in rows if all(r[key] == value for key, value in wanted.items())]


def one(rows, **wanted):
    found = pick(rows, **wanted)
    return found[-1] if found else None


def cell(row):
    if not row:
        return ""
    return "%.3g (%.0f %%)" % (row["ms"], row["percent_of_read"])


def table(head, lines):
    out = ["| %s |" % " | ".join(head), "|%s|" % "|".join(["---"] * len(head))]
    return out + ["| %s |" % " | ".join(line) for line in lines]


# In the order of the tables.
LEVELS = {"amx": "AMX", "avx512": "AVX-512", "avxvnni": "AVX-VNNI", "avx2": "AVX2", "i8mm": "i8mm",
          "neon": "NEON", "ref": "reference", "ggml": "ggml"}


def kinds(rows):
    """(level, variant) in the order of the run."""
    seen = []
    for r in rows:
        if (r["level"], r["variant"]) not in seen:
            seen.append((r["level"], r["variant"]))
    return sorted(seen, key=lambda k: list(LEVELS).index(k[0]))


def name_of(level, variant):
    return "%s `%s`" % (LEVELS[level], variant)


def decode_table(rows, threads):
    here = pick(rows, what="decode", dim=128, threads=threads)
    here = [r for r in here if r["context"] == 32768 or r["level"] == "ref"]
    lines = []
    for level, variant in kinds(here):
        mine = pick(here, level=level, variant=variant)
        note = "" if mine[0]["context"] == 32768 else ", %d tokens" % mine[0]["context"]
        lines.append([name_of(level, variant) + note] + [cell(one(mine, group=g)) for g in GROUPS])
    return table(["%d thread%s" % (threads, "s" * (threads > 1))]
                 + ["group %d" % g for g in GROUPS], lines)


def ratio_table(rows, threads):
    """Times faster than the peer, by context, at group 4."""
    here = pick(rows, what="decode", dim=128, threads=threads, group=4)
    contexts = sorted({r["context"] for r in pick(here, level="ggml")})
    lines = []
    for variant in CHARTED:
        for peer in PEERS:
            line = ["`%s` over ggml `%s`" % (variant, peer)]
            for context in contexts:
                ours = [r for r in pick(here, variant=variant, context=context)
                        if r["level"] not in ("ggml", "ref")]
                theirs = one(here, level="ggml", variant=peer, context=context)
                best = min((r["ms"] for r in ours), default=None)
                line.append("%.1fx" % (theirs["ms"] / best) if best and theirs else "")
            lines.append(line)
    return table(["%d threads, group 4" % threads] + ["%dK" % (c // 1024) for c in contexts], lines)


def dim_table(rows, threads):
    here = pick(rows, what="decode", threads=threads, context=32768)
    lines = []
    for dim in sorted({r["dim"] for r in here} - {128}):
        for level, variant in kinds(pick(here, dim=dim)):
            mine = pick(here, dim=dim, level=level, variant=variant)
            lines.append(["%d, %s" % (dim, name_of(level, variant))]
                         + [cell(one(mine, group=g)) for g in GROUPS])
    return table(["head dim, %d threads" % threads] + ["group %d" % g for g in GROUPS], lines)


def append_table(rows, threads):
    here = pick(rows, what="append", dim=128, heads=8)
    here = [r for r in here if r["context"] == 32768 or r["level"] == "ref"]
    lines = []
    for level, variant in kinds(here):
        cells = []
        for t in threads:
            r = one(here, level=level, variant=variant, threads=t)
            tokens = min(r["context"], 4096) if r else 1
            cells.append("%.0f" % (r["ms"] * 1e6 / (tokens * 2 * r["heads"])) if r else "")
        lines.append([name_of(level, variant)] + cells)
    return table(["append, ns a row"] + ["%d thread%s" % (t, "s" * (t > 1)) for t in threads], lines)


def chart(folder, rows, threads):
    """The files written."""
    decode = [r for r in pick(rows, what="decode", threads=threads)
              if r["level"] not in ("avx2", "avxvnni")]
    best = [r for r in decode if (r["level"] == "ggml" and r["variant"] in PEERS)
            or (r["level"] not in ("ggml", "ref") and r["variant"] in CHARTED)]

    def lines(key, value, **fixed):
        """By library and variant, of every point the fastest level."""
        series = {}
        for level, variant in kinds(best):
            name = ("ggml " if level == "ggml" else "") + variant
            points = series.setdefault(name, {})
            for r in pick(best, level=level, variant=variant, **fixed):
                if r[key] not in points or r["ms"] < points[r[key]]["ms"]:
                    points[r[key]] = r
        return {name: sorted((x, r[value]) for x, r in points.items())
                for name, points in series.items() if len(points) > 1}
    plots = [("cpu_context.svg", "Decode attention, head dim 128, group 4, %d threads" % threads,
              "tokens of context", "milliseconds a call", True,
              lines("context", "ms", dim=128, group=4)),
             ("cpu_group.svg", "Decode attention, head dim 128, 32K tokens, %d threads" % threads,
              "query heads of a kv head", "% of a plain read of its bytes", False,
              lines("group", "percent_of_read", dim=128, context=32768)),
             ("cpu_dim.svg", "Decode attention, group 4, 32K tokens, %d threads" % threads,
              "head dim", "% of a plain read of its bytes", False,
              lines("dim", "percent_of_read", group=4, context=32768))]
    written = []
    for name, title, x_label, y_label, log_y, series in plots:
        if series:
            line_chart(os.path.join(folder, name), title, x_label, y_label, series, log_y=log_y)
            written.append((name, title))
    return written


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            return re.search(r"^model name\s*: (.*)$", file.read(), re.M).group(1)
    except (OSError, AttributeError):
        return "unknown CPU"


def section(head, rows, folder, plot_path):
    threads = sorted({r["threads"] for r in rows})
    most = threads[-1]
    speeds = ", ".join("%.1f GB/s with %d" % (max(r["gb_per_s"] for r in pick(rows, what="read",
                                                                              threads=t)), t)
                       for t in threads)
    out = ["%s, %d CPUs, libturboquant %s, %s; %s, one run. Plain read by threads: %s."
           % (cpu_name(), os.cpu_count(), head["library"], head["peer"] or "no peer",
              datetime.date.today().isoformat(), speeds), "",
           "8 kv heads, head dim 128, 32K tokens, one query token: milliseconds a call, in brackets "
           "the speed against a plain read of the same bytes.", ""]
    for t in threads:
        out += decode_table(rows, t) + [""]
    if head["peer"]:
        out += ratio_table(rows, most) + [""]
    out += dim_table(rows, most) + [""] + append_table(rows, threads) + [""]
    for name, title in chart(folder, rows, most):
        out += ["![%s](%s/%s)" % (title, plot_path, name), ""]
    return out


def main():
    document, folder = sys.argv[1:3]
    head, rows = load(sys.argv[3:])
    os.makedirs(folder, exist_ok=True)
    text = "\n".join(section(head, rows, folder, os.path.relpath(folder, os.path.dirname(document))))
    with open(document) as file:
        old = file.read()
    new, n = re.subn(r"(<!-- cpu: begin -->\n).*?(<!-- cpu: end -->)",
                     lambda m: m.group(1) + "\n" + text.rstrip() + "\n\n" + m.group(2), old, flags=re.S)
    if n != 1:
        print("%s has no <!-- cpu: begin --> and <!-- cpu: end -->" % document)
        return 1
    with open(document, "w") as file:
        file.write(new)
    print("%d rows into %s and %s" % (len(rows), document, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
