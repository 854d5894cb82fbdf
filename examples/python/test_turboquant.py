"""Runs against an installed library: TURBOQUANT_LIB=/path/libturboquant.so.0 python3 this."""
import math
import random
import unittest
from array import array

import turboquant

try:
    import numpy
except ImportError:
    numpy = None

HEADS, GROUP, DIM = 2, 3, 64


def rows(n, seed):
    r = random.Random(seed)
    return array("f", (r.gauss(0, 1) for _ in range(n)))


def plain(q, k, v, n_tokens, kv_head):
    """Attention of one query row in Python."""
    at = [(t * HEADS + kv_head) * DIM for t in range(n_tokens)]
    scores = [sum(a * b for a, b in zip(q, k[i:i + DIM])) / math.sqrt(DIM) for i in at]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = sum(weights)
    out = [sum(w * v[i + d] for w, i in zip(weights, at)) / total for d in range(DIM)]
    return out, top + math.log(total)


class Attention(unittest.TestCase):
    def run_variant(self, variant, tolerance):
        tokens = 40
        k, v = rows(tokens * HEADS * DIM, 1), rows(tokens * HEADS * DIM, 2)
        q = rows(HEADS * GROUP * DIM, 3)
        with turboquant.Cache(variant, 1, HEADS, DIM, HEADS * GROUP) as cache:
            seq = cache.sequence()
            cache.append(seq, 0, tokens, k, v)
            self.assertEqual(cache.length(seq), tokens)
            out, lse = cache.attend(seq, 0, 1, q)
        error = energy = 0
        for head in range(HEADS * GROUP):
            want, want_lse = plain(q[head * DIM:(head + 1) * DIM], k, v, tokens, head // GROUP)
            got = out[head * DIM:(head + 1) * DIM]
            error += sum((a - b) ** 2 for a, b in zip(want, got))
            energy += sum(a * a for a in want)
            self.assertAlmostEqual(lse[head], want_lse, delta=10 * tolerance)
        self.assertLess(math.sqrt(error / energy), tolerance)

    def test_16_bits(self):
        self.run_variant("f16", 0.002)

    def test_8_bits(self):
        self.run_variant("int8", 0.03)

    def test_4_bits(self):
        self.run_variant("4bit_nc", 0.25)

    def test_threads_give_the_same_bits(self):
        tokens, answers = 5000, []
        k, q = rows(tokens * DIM, 1), rows(DIM, 3)
        for threads in (1, 0, 3):
            with turboquant.Cache("4bit_nc", 1, 1, DIM, threads=threads) as cache:
                seq = cache.sequence()
                cache.append(seq, 0, tokens, k, k)
                answers.append(cache.attend(seq, 0, 1, q))
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])
        with self.assertRaises(turboquant.Error):
            turboquant.Cache("4bit_nc", 1, 1, DIM, threads=100000)


class Batches(unittest.TestCase):
    def test_a_step_gives_what_sequences_give_alone(self):
        counts, queries = [30, 1, 0, 7], [2, 1, 1, 7]
        k = rows(sum(counts) * HEADS * DIM, 1)
        q = rows(sum(queries) * HEADS * GROUP * DIM, 2)
        with turboquant.Cache("3bit_nc", 1, HEADS, DIM, HEADS * GROUP) as cache:
            seqs = [cache.sequence() for _ in counts]
            batch = cache.batch(4, 64)
            batch.plan(seqs, counts, queries)
            batch.append(0, k, k)
            out, lse = batch.attend(0, q)
            batch.commit()
            row = query = 0
            for seq, n, n_query in zip(seqs, counts, queries):
                self.assertEqual(cache.length(seq), n)
                alone = cache.sequence()
                part = k[row * HEADS * DIM:(row + n) * HEADS * DIM]
                cache.append(alone, 0, n, part, part)
                size = HEADS * GROUP * DIM
                want, want_lse = cache.attend(alone, 0, n_query,
                                              q[query * size:(query + n_query) * size])
                self.assertEqual(out[query * size:(query + n_query) * size], want)
                self.assertEqual(lse[query * HEADS * GROUP:(query + n_query) * HEADS * GROUP],
                                 want_lse)
                row, query = row + n, query + n_query

    def test_rejected_tokens_and_errors(self):
        with turboquant.Cache("int8", 1, 1, DIM, max_pages=2) as cache:
            seqs = [cache.sequence(), cache.sequence()]
            batch = cache.batch(2, 300)
            batch.plan(seqs, [4, 4])
            batch.append(0, rows(8 * DIM, 1), rows(8 * DIM, 2))
            with self.assertRaises(turboquant.Error):
                cache.drop(seqs[0])
            batch.commit([1, 4])
            self.assertEqual([cache.length(s) for s in seqs], [1, 4])
            with self.assertRaises(turboquant.Error) as caught:
                batch.plan(seqs, [200, 1])
            self.assertEqual(caught.exception.name, "TQ_ERR_OUT_OF_PAGES")
            batch.plan(seqs)
            with self.assertRaises(ValueError):
                batch.append(0, rows(DIM, 1), rows(DIM, 2))
            batch.cancel()
        with self.assertRaises(ValueError):
            batch.cancel()


class Snapshots(unittest.TestCase):
    def test_save_and_load(self):
        tokens = 40
        k, v, q = rows(tokens * DIM, 1), rows(tokens * DIM, 2), rows(DIM, 3)
        with turboquant.Cache("k3v4_nc", 1, 1, DIM, seed=7) as a, \
                turboquant.Cache("k3v4_nc", 1, 1, DIM, seed=7) as b:
            seq = a.sequence()
            a.append(seq, 0, tokens, k, v)
            blob = a.save(seq)
            loaded = b.load(blob)
            self.assertEqual(b.save(loaded), blob)
            self.assertEqual(b.attend(loaded, 0, 1, q), a.attend(seq, 0, 1, q))
            halves = b.load(a.save(seq, 0, 13))
            self.assertEqual(b.load(memoryview(a.save(seq, 13)), halves), halves)
            self.assertEqual(b.length(halves), tokens)
            self.assertEqual(b.attend(halves, 0, 1, q), a.attend(seq, 0, 1, q))
            copied = b.copy(a, seq)
            self.assertEqual(b.save(copied), blob)
            blob[len(blob) // 2] ^= 1
            with self.assertRaises(turboquant.Error) as caught:
                b.load(blob)
            self.assertEqual(caught.exception.name, "TQ_ERR_CORRUPT")
        with turboquant.Cache("k3v4_nc", 1, 1, DIM, seed=8) as other:
            blob[len(blob) // 2] ^= 1
            with self.assertRaises(turboquant.Error) as caught:
                other.load(blob)
            self.assertEqual(caught.exception.name, "TQ_ERR_MISMATCH")
            self.assertIn("seed", str(caught.exception))

    def test_cut_and_reorder(self):
        k = rows(30 * DIM, 1)
        with turboquant.Cache("int8", 1, 1, DIM) as cache:
            a, b = cache.sequence(), cache.sequence()
            cache.append(a, 0, 30, k, k)
            cache.append(b, 0, 10, k[:10 * DIM], k[:10 * DIM])
            cache.append(b, 0, 15, k[15 * DIM:], k[15 * DIM:])
            want = cache.save(b)
            cache.remove(a, 10, 5)
            self.assertEqual(cache.save(a), want)
            cache.truncate(b, 3)
            cache.reorder([a, b], [1, 0])
            self.assertEqual((cache.length(a), cache.length(b)), (3, 25))
            with self.assertRaises(ValueError):
                cache.reorder([a, b], [0])
            with self.assertRaises(turboquant.Error):
                cache.remove(a, 2, 2)


class Errors(unittest.TestCase):
    def test_status_becomes_exception(self):
        with self.assertRaises(turboquant.Error) as caught:
            turboquant.Cache("no_such_variant", 1, 1, 64)
        self.assertEqual(caught.exception.name, "TQ_ERR_NOT_FOUND")
        with self.assertRaises(turboquant.Error):
            turboquant.Cache("4bit_nc", 1, 1, 65)

    def test_wrong_rows(self):
        with turboquant.Cache("int8", 1, 1, 64) as cache:
            seq = cache.sequence()
            with self.assertRaises(ValueError):
                cache.append(seq, 0, 1, array("f", [0] * 63), array("f", [0] * 64))
            with self.assertRaises(TypeError):
                cache.append(seq, 0, 1, array("d", [0] * 64), array("f", [0] * 64))
            with self.assertRaises(turboquant.Error):
                cache.append(seq, 7, 1, array("f", [0] * 64), array("f", [0] * 64))
            self.assertEqual(cache.length(seq), 0)

    def test_stale_sequence_and_closed_cache(self):
        cache = turboquant.Cache("int8", 1, 1, 64)
        seq = cache.sequence()
        fork = cache.fork(seq)
        cache.drop(seq)
        with self.assertRaises(turboquant.Error) as caught:
            cache.length(seq)
        self.assertEqual(caught.exception.name, "TQ_ERR_NOT_FOUND")
        self.assertEqual(cache.length(fork), 0)
        cache.close()
        cache.close()
        with self.assertRaises(ValueError):
            cache.sequence()


@unittest.skipUnless(numpy, "numpy is not installed")
class Numpy(unittest.TestCase):
    def test_arrays_and_strided_views(self):
        rng = numpy.random.default_rng(1)
        wide = rng.standard_normal((10, 1, 128)).astype("f4")
        with turboquant.Cache("bf16", 1, 1, 64) as cache:
            a, b = cache.sequence(), cache.sequence()
            cache.append(a, 0, 10, wide[:, :, ::2], wide[:, :, ::2])
            half = numpy.ascontiguousarray(wide[:, :, ::2])
            cache.append(b, 0, 10, half, half)
            q = rng.standard_normal(64).astype("f4")
            self.assertEqual(cache.attend(a, 0, 1, q), cache.attend(b, 0, 1, q))
            with self.assertRaises(TypeError):
                cache.append(a, 0, 10, wide.astype("f8"), half)


if __name__ == "__main__":
    unittest.main()
