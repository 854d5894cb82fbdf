#!/usr/bin/env python3
"""Decode and prefill attention of the peers in BF16: what torch's scaled_dot_product_attention
runs, and the flash_attn package where it is installed.

Same shapes and timing as bench_cuda: graphs of back-to-back calls, rotated key/value sets,
medians. Prints milliseconds per call; --json FILE writes them as well, --prefill leaves decode
out.
"""
import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

HEADS, DIM = 8, 128
BACKENDS = [("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)]


def time_graph(call, sets, n):
    """Median milliseconds of a call inside a graph of n."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            call(i % sets)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(n):
            call(i % sets)
    times = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / n)
    return statistics.median(times[1:])


def measure(backend, batch, tokens, group):
    """Milliseconds of one shape, or None where the backend refuses it."""
    bytes_of_call = 2 * batch * HEADS * tokens * DIM * 2
    sets = min(8, int(4e8 / bytes_of_call) + 1)
    shape = (sets, batch, HEADS, tokens, DIM)
    k = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    q = torch.randn((batch, HEADS * group, 1, DIM), device="cuda", dtype=torch.bfloat16)

    def call(i):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k[i], v[i],
                                                                    enable_gqa=group > 1)
    try:
        return time_graph(call, sets, max(sets, min(60, int(1.6e10 / bytes_of_call) + 1)))
    except RuntimeError as refused:
        print("refused: %s" % str(refused).split("\n", maxsplit=1)[0])
        return None


def flash_package():
    """The function of the flash_attn package and its name, or None."""
    for module in ("flash_attn_interface", "flash_attn"):
        try:
            found = __import__(module)
            return "%s %s" % (module, getattr(found, "__version__", "")), found.flash_attn_func
        except (ImportError, AttributeError):
            continue
    return None


def prefill_calls(q, k, v, n, tokens):
    """Ways to attend n causal query tokens at the end of `tokens`, bottom right."""
    wide = [x.repeat_interleave(q.shape[1] // HEADS, dim=1) for x in (k, v)]
    mask = causal_lower_right(n, tokens)
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def flash(_):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return sdpa(q, wide[0], wide[1], attn_mask=mask)

    def cudnn(_):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return sdpa(q, k, v, is_causal=True, enable_gqa=True)

    calls = [("flash", flash)]
    if n == tokens:
        calls.append(("cudnn", cudnn))
    package = flash_package()
    if package:
        turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        calls.append((package[0], lambda _: package[1](*turned, causal=True)))
    return calls


def measure_prefill(n, tokens, group, rows):
    """All peers on one shape."""
    def make(heads, length):
        return torch.randn((1, heads, length, DIM), device="cuda", dtype=torch.bfloat16)
    flop = 4.0 * HEADS * group * DIM * n * (tokens - (n - 1) / 2)
    for name, call in prefill_calls(make(HEADS * group, n), make(HEADS, tokens),
                                    make(HEADS, tokens), n, tokens):
        try:
            ms = time_graph(call, 1, 4)
        except RuntimeError as refused:
            print("%s refused: %s" % (name, str(refused).split("\n", maxsplit=1)[0]))
            continue
        print("%-6s bf16 prefill %5d of %6d  group %d dim %d  %8.4f ms  %6.1f TFLOP/s"
              % (name, n, tokens, group, DIM, ms, flop / ms / 1e9), flush=True)
        rows.append({"op": "prefill", "peer": name, "batch": 1, "tokens": tokens, "queries": n,
                     "ms": ms, "torch": torch.__version__})
    torch.cuda.empty_cache()


def measure_logits(dtype, batch, tokens, group):
    """Milliseconds of q . k for all keys, by torch.matmul; float32 without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    k = torch.randn((batch * HEADS, tokens, DIM), device="cuda", dtype=dtype)
    q = torch.randn((batch * HEADS, group, DIM), device="cuda", dtype=dtype)
    out = torch.empty((batch * HEADS, group, tokens), device="cuda", dtype=dtype)
    return time_graph(lambda i: torch.matmul(q, k.transpose(1, 2), out=out), 1, 10)


def all_logits(rows):
    for group in (1, 8):
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            ms = measure_logits(dtype, 16, 32768, group)
            print("logits %-8s  16 x  32768  group %d dim 128  %8.4f ms" % (name, group, ms))
            rows.append({"op": "logits", "peer": "matmul " + name, "batch": 16, "tokens": 32768,
                         "group": group, "ms": ms, "torch": torch.__version__})
            torch.cuda.empty_cache()


def measure_decode(rows):
    """All peers on the shapes of decode."""
    for batch, tokens in [(1, 32768), (4, 32768), (16, 32768), (64, 32768), (64, 4096)]:
        for name, backend in BACKENDS:
            ms = measure(backend, batch, tokens, 8)
            if ms:
                print("%-6s bf16 %3d x %6d  group 8 dim 128  %8.4f ms" % (name, batch, tokens, ms))
                rows.append({"op": "attend", "peer": name, "batch": batch, "tokens": tokens,
                             "ms": ms, "torch": torch.__version__})
            torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--logits", action="store_true", help="logits alone")
    parser.add_argument("--prefill", action="store_true", help="prefill alone")
    args = parser.parse_args()
    rows = []
    print("torch %s, CUDA %s, cuDNN %s, %s" % (torch.__version__, torch.version.cuda,
                                               torch.backends.cudnn.version(),
                                               torch.cuda.get_device_name()))
    if not args.logits and not args.prefill:
        measure_decode(rows)
    if not args.prefill:
        all_logits(rows)
    if not args.logits:
        for n, tokens in [(2048, 10240), (2048, 34816), (8192, 8192), (8192, 40960)]:
            measure_prefill(n, tokens, 8, rows)
    if args.json:
        with open(args.json, "w", encoding="ascii") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
