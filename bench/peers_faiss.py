#!/usr/bin/env python3
"""Product quantization of faiss on the rows of examples/vector_search.c.

    peers_faiss.py VECTORS.f32 DIM [--queries N] [--pq M ...]

The last N rows ask (200). M bytes a row: M parts with 256 centroids each, trained on the rows
themselves, asymmetric distances. Where M does not divide DIM rows are padded with zeros and turned
by a random rotation, as the codec does it. Times are those of the processor, of one thread. Needs faiss-cpu and numpy.
"""
import argparse
import time

import faiss
import numpy as np

CUTS = (1, 2, 4, 8, 16, 32, 64)


def rotated(x, parts):
    """Rows padded to a multiple of `parts` dims, and turned where that is needed."""
    dim = x.shape[1]
    padded = (dim + parts - 1) // parts * parts
    if padded == dim:
        return x
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((padded, padded)))[0]
    return np.ascontiguousarray(x @ turn[:dim].astype("float32"))


def recalls(scores, truth):
    own = scores[np.arange(len(truth)), truth][:, None]
    rank = (scores > own).sum(1)
    return [(rank < k).mean() for k in CUTS]


def run(x, queries, truth, parts):
    x = rotated(x, parts)
    rows, asked = x[:-queries], x[-queries:]
    index = faiss.IndexPQ(x.shape[1], parts, 8, faiss.METRIC_INNER_PRODUCT)
    start = time.process_time()
    index.train(rows)
    trained = time.process_time() - start
    start = time.process_time()
    index.add(rows)
    encode = (time.process_time() - start) / len(rows)
    start = time.process_time()
    index.search(asked, CUTS[-1])
    search = (time.process_time() - start) / len(rows) / queries
    scores = asked @ index.reconstruct_n(0, len(rows)).T
    cells = "  ".join("%6.3f" % r for r in recalls(scores, truth))
    print("pq%-7s %5d %10.2f %7.1f  %s  training %.1f s" %
          ("%dx8" % parts, parts, encode * 1e6, search * 1e9, cells, trained), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vectors")
    parser.add_argument("dim", type=int)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--pq", type=int, nargs="+", default=[])
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    x = np.fromfile(args.vectors, "<f4").reshape(-1, args.dim)
    x = np.ascontiguousarray(x / np.linalg.norm(x, axis=1, keepdims=True))
    truth = (x[-args.queries:] @ x[:-args.queries].T).argmax(1)
    print("faiss %s, %d rows of %d dims, %d queries" %
          (faiss.__version__, len(x) - args.queries, args.dim, args.queries))
    for parts in args.pq:
        run(x, args.queries, truth, parts)


if __name__ == "__main__":
    main()
