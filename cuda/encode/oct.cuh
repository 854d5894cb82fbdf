/*
 * Eight consecutive tokens of one kv head by a warp: lane 4 g + t holds dims (D/4) t + 0.. of
 * token g of the eight. The encode contract (spec/rows.h) on registers and shuffles; compiled
 * without contraction, explicit fmaf only where the product is exact.
 */
#ifndef TQI_CUDA_ENCODE_OCT_CUH
#define TQI_CUDA_ENCODE_OCT_CUH

#include "common/rows.cuh"
#include "encode/encode_job.h"

namespace tqi {

#define TQI_ENCODE_INLINE __device__ __forceinline__

/* What a lane knows of its row. */
struct OctPlace {
    uint32_t g, t;
    uint32_t slot; /* of the token in its page */
    uint64_t row;  /* of the token in the caller's rows */
    uint32_t head;
    uint8_t *blob;
    uint32_t fresh; /* bit i: token i of the eight is new */
    __device__ bool is_fresh() const {
        return fresh >> g & 1;
    }
};

/* ---- loading ------------------------------------------------------------------------------- */

template <int N> TQI_ENCODE_INLINE void unpack16(const uint4 &q, int32_t dtype, float *x) {
    const uint32_t w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = dtype == TQ_BF16 ? __uint_as_float(w[i] << 16) : f16_bits((uint16_t)w[i]);
        x[2 * i + 1] = dtype == TQ_BF16 ? __uint_as_float(w[i] & 0xffff0000u)
                                        : f16_bits((uint16_t)(w[i] >> 16));
    }
}

/* N elements from `at` on; aligned: in 16-byte pieces. */
template <int N>
TQI_ENCODE_INLINE void load_lane(const RowsIn &rows, int64_t at, bool aligned, float x[N]) {
    if (!aligned) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = load_element(rows.data, rows.dtype, at + i);
    } else if (rows.dtype == TQ_F32) {
        const float4 *from = (const float4 *)((const float *)rows.data + at);
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            float4 v = __ldcs(from + i);
            x[4 * i] = v.x;
            x[4 * i + 1] = v.y;
            x[4 * i + 2] = v.z;
            x[4 * i + 3] = v.w;
        }
    } else {
        const uint4 *from = (const uint4 *)((const uint16_t *)rows.data + at);
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            unpack16<N>(__ldcs(from + i), rows.dtype, x + 8 * i);
    }
}

template <int N>
TQI_ENCODE_INLINE void subtract_means(const Side &s, const OctPlace &p, int dims, float x[N]) {
    if (!s.mean)
        return;
    const float *mean = s.mean + (size_t)p.head * dims + p.t * N;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = subtract_mean(x[i], mean[i]);
}

/* The lanes of a row. */
TQI_ENCODE_INLINE float row_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

TQI_ENCODE_INLINE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

TQI_ENCODE_INLINE uint32_t row_sum(uint32_t x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* The full binary tree over the dims in natural order. */
template <int N> TQI_ENCODE_INLINE float sum_squares(const float x[N]) {
    float s[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        s[i] = x[2 * i] * x[2 * i] + x[2 * i + 1] * x[2 * i + 1];
#pragma unroll
    for (int n = N / 4; n; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++)
            s[i] = s[2 * i] + s[2 * i + 1];
    return row_sum(s[0]);
}

/* Replaces what is not finite, counts it for fresh rows, means again. Rare. */
template <int N>
__device__ __noinline__ void load_careful(const EncodeJob &job, uint32_t side, const OctPlace &p,
                                          int dims, float x[N]) {
    const RowsIn &rows = job.rows[side];
    int64_t at =
        (int64_t)p.row * rows.token_stride + (int64_t)p.head * rows.head_stride + (int64_t)p.t * N;
    uint32_t bad = 0;
    for (int i = 0; i < N; i++)
        x[i] = p.is_fresh()
                   ? replace_nonfinite(load_element(rows.data, rows.dtype, at + i), rows.dtype, bad)
                   : 0;
    subtract_means<N>(job.side[side], p, dims, x);
    bad = __reduce_add_sync(~0u, bad);
    if (bad && threadIdx.x % 32 == 0) {
        atomicAdd((unsigned long long *)&job.counts[0], (unsigned long long)(bad & 0xffffu));
        atomicAdd((unsigned long long *)&job.counts[1], (unsigned long long)(bad >> 16));
    }
}

/* Rows of tokens that are not fresh read as zeros. */
template <int N>
TQI_ENCODE_INLINE void load_row(const EncodeJob &job, uint32_t side, const OctPlace &p, int dims,
                                float x[N]) {
    const RowsIn &rows = job.rows[side];
    int64_t at =
        (int64_t)p.row * rows.token_stride + (int64_t)p.head * rows.head_stride + (int64_t)p.t * N;
    if (p.is_fresh()) {
        load_lane<N>(rows, at, job.aligned >> side & 1, x);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = 0;
    }
    subtract_means<N>(job.side[side], p, dims, x);
}

/* ---- range and rotation --------------------------------------------------------------------- */

TQI_ENCODE_INLINE bool in_range(float sum) {
    return sum >= 0x1p-80f && sum <= 0x1p100f;
}

/* Step "range" for rows outside the range, the others pass unchanged; exponent taken out. */
template <int N> __device__ __noinline__ int bring_into_range(float x[N], float *sum) {
    float largest = 0;
    for (int i = 0; i < N; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    largest = row_max(largest);
    int e = in_range(*sum) || largest == 0 ? 0 : ilogbf(largest);
    for (int i = 0; i < N; i++)
        x[i] = ldexpf(x[i], -e);
    *sum = sum_squares<N>(x);
    return e;
}

/* Sign flips and Walsh-Hadamard over the D dims of a row. */
template <int N> TQI_ENCODE_INLINE void rotate_row(const Side &s, const OctPlace &p, float x[N]) {
    const uint4 *flips = (const uint4 *)(s.flips + p.t * N);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        uint4 f = __ldg(flips + i);
        x[4 * i] = __uint_as_float(__float_as_uint(x[4 * i]) ^ f.x);
        x[4 * i + 1] = __uint_as_float(__float_as_uint(x[4 * i + 1]) ^ f.y);
        x[4 * i + 2] = __uint_as_float(__float_as_uint(x[4 * i + 2]) ^ f.z);
        x[4 * i + 3] = __uint_as_float(__float_as_uint(x[4 * i + 3]) ^ f.w);
    }
#pragma unroll
    for (int h = 1; h < N; h *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!(i & h)) {
                float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
#pragma unroll
    for (uint32_t h = 1; h < 4; h *= 2) {
        float sign = p.t & h ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < N; i++) /* the product is exact */
            x[i] = fmaf(x[i], sign, __shfl_xor_sync(~0u, x[i], h));
    }
}

/* Loads, checks, rotates. Returns the exponent; sum: of squares before the rotation. */
template <int N>
TQI_ENCODE_INLINE int rotated_row(const EncodeJob &job, uint32_t side, const OctPlace &p, int dims,
                                  float x[N], float *sum) {
    int e = 0;
    load_row<N>(job, side, p, dims, x);
    *sum = sum_squares<N>(x);
    /* what is not finite shows in the sum */
    if (__any_sync(~0u, p.is_fresh() && !in_range(*sum))) {
        load_careful<N>(job, side, p, dims, x);
        *sum = sum_squares<N>(x);
        e = bring_into_range<N>(x, sum);
    }
    rotate_row<N>(job.side[side], p, x);
    return e;
}

TQI_ENCODE_INLINE void store_gain(const Side &s, const OctPlace &p, float gain) {
    if (p.t != 0 || !p.is_fresh())
        return;
    uint8_t *at = p.blob + s.layout.gains + p.slot * 2;
    if (s.layout.side == TQI_SIDE_V)
        *(__nv_bfloat16 *)at = __float2bfloat16_rn(fminf(gain, 3.38953139e38f));
    else
        *(__half *)at = __float2half_rn(fminf(gain, 65504.0f));
}

} /* namespace tqi */

#endif
