#!/usr/bin/env python3
"""Tables and charts of the GPU benchmark.

    gpu_tables.py DOCUMENT PLOTS BENCH.json PEERS.json

Replaces the text between <!-- gpu: begin --> and <!-- gpu: end --> of DOCUMENT and writes SVG
files into the folder PLOTS. The JSON files are those of bench_cuda and of peers_torch.py.
"""
import json
import os
import re
import sys

from plots import line_chart

VARIANTS = ("bf16", "fp8", "int8", "k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")
SHAPES = ((1, 32768), (4, 32768), (16, 32768), (64, 32768), (64, 4096))


def pick(rows, op, **wanted):
    found = []
    for row in rows:
        if row["op"] == op and all(row.get(key) == value for key, value in wanted.items()):
            found.append(row)
    return found


def one(rows, op, **wanted):
    found = pick(rows, op, **wanted)
    return found[-1] if found else None


def table(head, lines):
    out = ["| %s |" % " | ".join(head), "|%s|" % "|".join(["---"] * len(head))]
    return out + ["| %s |" % " | ".join(line) for line in lines]


def percent(row):
    return 100 * row["read_ms"] / row["ms"]


def shape_name(shape):
    return "%d x %dK" % (shape[0], shape[1] // 1024)


def peer_ms(peers, name, shape):
    row = one(peers, "attend", peer=name, batch=shape[0], tokens=shape[1])
    return row["ms"] if row else None


def attention(rows, peers):
    """A line per variant: ms, share of the read, speed against cuDNN."""
    lines = []
    for variant in VARIANTS:
        line = ["`%s`" % variant]
        for shape in SHAPES:
            row = one(rows, "attend", variant=variant, batch=shape[0], tokens=shape[1], group=8,
                      dim=128, ragged=0)
            cudnn = peer_ms(peers, "cudnn", shape)
            cell = "%.4f, %.0f %%" % (row["ms"], percent(row)) if row else ""
            if row and cudnn:
                cell += ", **%.2fx**" % (cudnn / row["ms"])
            line.append(cell)
        lines.append(line)
    for peer, label in (("cudnn", "cuDNN, bf16"), ("flash", "FlashAttention-2, bf16")):
        times = [peer_ms(peers, peer, shape) for shape in SHAPES]
        lines.append([label] + ["%.4f" % ms if ms else "" for ms in times])
    return table(["variant"] + [shape_name(s) for s in SHAPES], lines)


def steps(rows):
    """Append and attention of one layer, beside attention alone."""
    lines = []
    for variant in VARIANTS:
        line = ["`%s`" % variant]
        for shape in SHAPES:
            wanted = {"variant": variant, "batch": shape[0], "tokens": shape[1], "group": 8,
                      "dim": 128, "ragged": 0}
            step, alone = one(rows, "step", **wanted), one(rows, "attend", **wanted)
            line.append("%.4f (+%.1f us)" % (step["ms"], 1e3 * (step["ms"] - alone["ms"]))
                        if step and alone else "")
        lines.append(line)
    return table(["variant"] + [shape_name(s) for s in SHAPES], lines)


def other_shapes(rows):
    lines = []
    for row in pick(rows, "attend"):
        shape = (row["batch"], row["tokens"])
        if shape in SHAPES and row["group"] == 8 and row["dim"] == 128 and not row["ragged"]:
            continue
        name = "%d x %s%gK, group %d, head_dim %d" % (
            row["batch"], "up to " if row["ragged"] else "", row["tokens"] / 1024, row["group"],
            row["dim"])
        lines.append(["`%s`" % row["variant"], name, "%.4f" % row["ms"], "%.0f %%" % percent(row)])
    return table(["variant", "shape", "ms", "of plain read"], lines)


def teraflops(row):
    """Of the pairs that causal rows at the end of the sequence see."""
    pairs = row["queries"] * (row["tokens"] - (row["queries"] - 1) / 2)
    return 4e-9 * row["kv_heads"] * row["group"] * row["dim"] * pairs / row["ms"]


def prefill(rows, peers):
    """TFLOP/s by variant, head dim and shape; the peers' lines first."""
    shapes = sorted({(row["queries"], row["tokens"]) for row in pick(rows, "prefill", dim=128)
                     if row["queries"] >= 1024})
    found = [(row, row["variant"]) for row in pick(rows, "prefill")]
    found += [(dict(row, kv_heads=8, group=8, dim=128), row["peer"] + " bf16")
              for row in pick(peers, "prefill")]
    lines = {}
    for row, name in found:
        shape = (row["queries"], row["tokens"])
        if shape in shapes:
            line = lines.setdefault((name, row["dim"]), [""] * len(shapes))
            line[shapes.index(shape)] = "%.0f" % teraflops(row)
    return table(["", "head_dim"] + ["%d of %d" % shape for shape in shapes],
                 [["`%s`" % name, "%d" % dim] + line for (name, dim), line in lines.items()])


def appends(rows):
    lines = []
    for row in pick(rows, "append"):
        lines.append(["`%s`" % row["variant"], "%d x %d" % (row["batch"], row["tokens"]),
                      "%d" % row["dim"], "%.2f" % (1e3 * row["ms"]),
                      "%.0f" % (row["bytes"] / row["ms"] / 1e6)])
    return table(["variant", "sequences x tokens", "head_dim", "us", "rows in, GB/s"], lines)


def draw(folder, rows, peers):
    os.makedirs(folder, exist_ok=True)
    speed, share, append = {}, {}, {}
    for variant in VARIANTS:
        for row in pick(rows, "attend", variant=variant, group=8, dim=128, ragged=0):
            cudnn = peer_ms(peers, "cudnn", (row["batch"], row["tokens"]))
            if row["tokens"] == 32768 and cudnn:
                speed.setdefault(variant, []).append((row["batch"], cudnn / row["ms"]))
            if row["batch"] == 16:
                share.setdefault(variant, []).append((row["tokens"], percent(row)))
    for row in pick(rows, "append", variant="4bit_nc", batch=1, dim=128):
        append.setdefault("4bit_nc", []).append((row["tokens"], row["bytes"] / row["ms"] / 1e6))
    share = {name: points for name, points in share.items() if len(points) > 1}
    for points in [*speed.values(), *share.values(), *append.values()]:
        points.sort()
    line_chart(os.path.join(folder, "gpu_speed_up.svg"), "Decode attention at 32K tokens",
               "sequences", "speed against cuDNN bf16", speed)
    line_chart(os.path.join(folder, "gpu_share_of_read.svg"), "Decode attention, 16 sequences",
               "tokens of context", "percent of a plain read", share, y_max=100)
    line_chart(os.path.join(folder, "gpu_append.svg"), "Append, 8 kv heads", "tokens",
               "rows in, GB/s", append)


def document(data, peers):
    torch = sorted({row["torch"] for row in peers})
    out = ["Commit %s, %s, %s (%d multiprocessors), driver for CUDA %s, runtime %s; peers through "
           "torch %s in the same run. One query token per sequence, 8 kv heads." % (
               data["commit"], data["date"], data["machine"], data["multiprocessors"],
               data["driver"], data["runtime"], ", ".join(torch) or "(not run)"), "",
           "Decode attention: milliseconds, share of a plain read of the same bytes, speed against "
           "cuDNN in bf16. Group 8, head_dim 128.", ""]
    rows = data["rows"]
    out += attention(rows, peers)
    out += ["", "![Speed against cuDNN](plots/gpu_speed_up.svg)", "",
            "![Share of a plain read](plots/gpu_share_of_read.svg)", "",
            "One layer of a step, append and attention (in brackets what the append adds):", ""]
    out += steps(rows)
    out += ["", "Other shapes:", ""] + other_shapes(rows)
    out += ["", "Prompts: query tokens of a sequence's tokens, causal at its end, group 8, TFLOP/s of "
            "the visible pairs:", ""] + prefill(rows, peers)
    out += ["", "Append, 8 kv heads, bf16 rows of keys and values:", ""] + appends(rows)
    out += ["", "![Append](plots/gpu_append.svg)"]
    return "\n".join(out)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    path, folder, bench, peers_path = sys.argv[1:]
    with open(bench, encoding="ascii") as file:
        data = json.load(file)
    with open(peers_path, encoding="ascii") as file:
        peers = json.load(file)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    block = "<!-- gpu: begin -->\n\n%s\n\n<!-- gpu: end -->" % document(data, peers)
    new, n = re.subn(r"<!-- gpu: begin -->.*<!-- gpu: end -->", lambda _: block, text, flags=re.S)
    if n != 1:
        sys.exit("%s: no place for the tables" % path)
    draw(folder, data["rows"], peers)
    with open(path, "w", encoding="utf-8") as file:
        file.write(new)


if __name__ == "__main__":
    main()
