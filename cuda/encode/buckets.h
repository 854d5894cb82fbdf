/*
 * Buckets of |y| for the levels of a book. Bounds at multiples of a width keep its thresholds
 * apart, so that the bucket of a number is the index of the one threshold that it must still be
 * compared with, and buckets beyond the last threshold are as good as its own. The comparison is
 * the carry of an addition: (bits of |y| * 2^-95) + step of the bucket has the level in bits 28
 * to 30, for |y| from 0 to far beyond the last bucket. test/unit/test_buckets.c.
 */
#ifndef TQI_CUDA_ENCODE_BUCKETS_H
#define TQI_CUDA_ENCODE_BUCKETS_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TQI_BUCKETS_FN __host__ __device__ constexpr
#else
#define TQI_BUCKETS_FN static inline
#endif

enum { TQI_BUCKET_LANES = 32, TQI_LAST_BUCKET = 7 };

/* 1 / width, of 4 or 3 bits. */
TQI_BUCKETS_FN float tqi_bucket_scale(int bits) {
    return bits == 4 ? 1 / 0.356f : 1 / 0.7f;
}

/* Whether a warp has a lane for every bucket of a row's coordinates, which are at most sqrt(dim);
 * else the last buckets are one. */
TQI_BUCKETS_FN int tqi_buckets_fit(int dim, int bits) {
    return bits == 4 ? dim <= 128 : dim <= 256;
}

/* The step of a bucket; `last` is the index of the last threshold. */
static inline uint32_t tqi_bucket_step(const float *threshold, uint32_t last, uint32_t bucket) {
    const uint32_t t = bucket < last ? bucket : last;
    const float scaled = threshold[t] * 0x1p-95f;
    uint32_t bits;
    memcpy(&bits, &scaled, 4);
    return (t << 28) + 0x0fffffffu - bits;
}

#endif
