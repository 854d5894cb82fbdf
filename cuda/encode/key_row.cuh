/*
 * A row of keys by four lanes: lane t has the dims of lane t of the page (spec/layout.h), t D/4
 * and on, so that its words of codes and of the sketch are its own. The encode contract
 * (spec/rows.h) on that form; compiled without contraction, explicit fmaf only where a product is
 * exact.
 */
#ifndef TQI_CUDA_ENCODE_KEY_ROW_CUH
#define TQI_CUDA_ENCODE_KEY_ROW_CUH

#include "common/rotate.cuh"
#include "common/rows.cuh"
#include "encode/key_job.h"

namespace tqi {

#define TQI_KEY_INLINE __device__ __forceinline__

/* Rows of a warp, and where a lane stands. */
enum { KEY_LANES = 4, KEY_ROWS = 32 / KEY_LANES };

struct KeyLane {
    uint32_t row, t; /* of the warp; quarter of the row */
    TQI_KEY_INLINE KeyLane() : row(threadIdx.x % 32 / KEY_LANES), t(threadIdx.x % KEY_LANES) {}
};

template <class T> TQI_KEY_INLINE T sum_of_row(T x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Sum of f over a full binary tree in natural order. */
template <int N, class F> TQI_KEY_INLINE float tree_sum(const float *x, F f) {
    float s[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = f(x[i]);
#pragma unroll
    for (int n = N / 2; n; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++)
            s[i] = s[2 * i] + s[2 * i + 1];
    return sum_of_row(s[0]);
}

template <int N> TQI_KEY_INLINE float square_sum(const float *x) {
    return tree_sum<N>(x, [](float v) { return v * v; });
}

/* H D x, not normalised; signs: bit i flips element i. */
template <int N> TQI_KEY_INLINE void rotate_key(uint32_t signs, uint32_t t, float *x) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (signs >> i << 31));
    butterflies_of_lanes<KEY_LANES, N>(t, x);
}

/* ---- loading ------------------------------------------------------------------------------- */

/* What a lane loads: elements from `at` on, in the caller's rows. */
struct KeySource {
    const RowsIn *rows;
    const float *mean; /* of the lane's dims, or NULL */
    int64_t at;
    bool fresh, aligned; /* the row exists; it can be read 16 bytes at a time */
};

/* Eight elements of 16 bits. */
template <bool HALF> TQI_KEY_INLINE void load_eight(const KeySource &s, int64_t at, float *x) {
    const uint16_t *from = (const uint16_t *)s.rows->data + at;
    uint4 v = *(const uint4 *)from;
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint16_t h = (uint16_t)(w[i / 2] >> i % 2 * 16);
        x[i] = HALF ? f16_bits(h) : bf16_bits(h);
    }
}

/* As they are, means subtracted: what is not finite, or becomes so, shows in the sum of squares. */
template <int N> TQI_KEY_INLINE void load_key(const KeySource &s, float *x) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = 0;
    if (!s.fresh)
        return;
    if (s.aligned && s.rows->dtype == TQ_BF16) {
#pragma unroll
        for (int i = 0; i < N; i += 8)
            load_eight<false>(s, s.at + i, x + i);
    } else if (s.aligned && s.rows->dtype == TQ_F16) {
#pragma unroll
        for (int i = 0; i < N; i += 8)
            load_eight<true>(s, s.at + i, x + i);
    } else if (s.aligned) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 v = *(const float4 *)((const float *)s.rows->data + s.at + i);
            x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = load_element(s.rows->data, s.rows->dtype, s.at + i);
    }
    if (s.mean)
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] -= s.mean[i];
}

TQI_KEY_INLINE bool key_in_range(float sum) {
    return sum >= 0x1p-80f && sum <= 0x1p100f;
}

/* Sum of squares of a row, and the exponent that has been taken out. */
struct KeyNorm {
    float sum;
    int exponent;
};

__device__ inline void count_bad(uint64_t *counts, uint32_t bad) {
    bad = __reduce_add_sync(~0u, bad);
    if (bad == 0 || threadIdx.x % 32 != 0)
        return;
    atomicAdd((unsigned long long *)&counts[0], (unsigned long long)(bad & 0xffffu));
    atomicAdd((unsigned long long *)&counts[1], (unsigned long long)(bad >> 16));
}

/* Rows of a warp again, slowly: replaces what is not finite and counts it, brings rows into range.
 * Rare, for the whole warp. */
template <int N>
__device__ __noinline__ KeyNorm load_with_care(KeySource s, uint64_t *counts, float *x) {
    KeyNorm norm = {0, 0};
    uint32_t bad = 0;
    float largest = 0;
    for (int i = 0; i < N; i++) {
        x[i] = 0;
        if (!s.fresh)
            continue;
        float v = load_element(s.rows->data, s.rows->dtype, s.at + i);
        v = replace_nonfinite(v, s.rows->dtype, bad);
        x[i] = s.mean ? subtract_mean(v, s.mean[i]) : v;
        largest = fmaxf(largest, fabsf(x[i]));
    }
    count_bad(counts, bad);
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    norm.sum = square_sum<N>(x);
    norm.exponent = key_in_range(norm.sum) || largest == 0 ? 0 : ilogbf(largest);
    for (int i = 0; i < N; i++)
        x[i] = ldexpf(x[i], -norm.exponent);
    norm.sum = square_sum<N>(x);
    return norm;
}

template <int N> TQI_KEY_INLINE KeyNorm load_row(const KeySource &s, uint64_t *counts, float *x) {
    load_key<N>(s, x);
    KeyNorm norm = {square_sum<N>(x), 0};
    if (!__any_sync(~0u, s.fresh && !key_in_range(norm.sum)))
        return norm;
    float again[N]; /* so that x need not have an address */
    norm = load_with_care<N>(s, counts, again);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = again[i];
    return norm;
}

} /* namespace tqi */

#endif
