/*
 * A row by a warp, in shared memory: the encode contract (spec/rows.h) for every format and head
 * dim. Compiled without contraction.
 */
#ifndef TQI_CUDA_ENCODE_ROW_ANY_CUH
#define TQI_CUDA_ENCODE_ROW_ANY_CUH

#include "common/codes.cuh"
#include "common/rotate.cuh"
#include "encode/encode_job.h"

namespace tqi {
namespace {

__host__ __device__ inline uint32_t tree_size(uint32_t dim) {
    uint32_t size = 1;
    while (size < dim)
        size *= 2;
    return size;
}

struct RowWork {
    WarpGroup warp;
    float *x, *tree;
    uint8_t *codes; /* [dim_pad] of the token, where its group packs from */
};

/* Sum over a full binary tree in natural order, neighbours first. */
__device__ inline float fold(const WarpGroup &w, float *tree, uint32_t n) {
    uint32_t size = tree_size(n);
    for (uint32_t i = n + w.rank; i < size; i += 32)
        tree[i] = 0;
    w.sync();
    for (uint32_t half = 1; half < size; half *= 2) {
        for (uint32_t i = w.rank * 2 * half; i < size; i += 64 * half)
            tree[i] = tree[i] + tree[i + half];
        w.sync();
    }
    return tree[0];
}

__device__ inline float sum_squares(const RowWork &r, uint32_t n) {
    r.warp.sync();
    for (uint32_t i = r.warp.rank; i < n; i += 32)
        r.tree[i] = r.x[i] * r.x[i];
    return fold(r.warp, r.tree, n);
}

__device__ inline float sum_magnitudes(const RowWork &r, uint32_t n) {
    r.warp.sync();
    for (uint32_t i = r.warp.rank; i < n; i += 32)
        r.tree[i] = fabsf(r.x[i]);
    return fold(r.warp, r.tree, n);
}

__device__ inline float warp_max(float v) {
    for (uint32_t o = 16; o; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

__device__ inline float largest_magnitude(const RowWork &r, uint32_t n) {
    float v = 0;
    for (uint32_t i = r.warp.rank; i < n; i += 32)
        v = fmaxf(v, fabsf(r.x[i]));
    return warp_max(v);
}

/* As a row that is kept in 16 bits has it. */
__device__ inline float rounded(uint32_t format, float x) {
    uint16_t h = to_16_bits(format, x);
    return format == TQ_FORMAT_F16 ? f16_bits(h) : bf16_bits(h);
}

__device__ inline void load_row(const RowWork &r, const EncodeJob &job, uint32_t side,
                                uint64_t token, uint32_t head) {
    const RowsIn &rows = job.rows[side];
    const Side &s = job.side[side];
    int64_t at = (int64_t)token * rows.token_stride + (int64_t)head * rows.head_stride;
    uint32_t bad = 0, dim = s.layout.dim;
    for (uint32_t i = r.warp.rank; i < dim; i += 32) {
        float x = replace_nonfinite(load_element(rows.data, rows.dtype, at + i), rows.dtype, bad);
        x = job.rounds[side] ? rounded(job.rounds[side], x) : x;
        r.x[i] = s.mean ? subtract_mean(x, s.mean[(size_t)head * dim + i]) : x;
    }
    bad = __reduce_add_sync(~0u, bad);
    if (bad && r.warp.rank == 0) {
        if (bad & 0xffffu)
            atomicAdd((unsigned long long *)&job.counts[0], (unsigned long long)(bad & 0xffffu));
        if (bad >> 16)
            atomicAdd((unsigned long long *)&job.counts[1], (unsigned long long)(bad >> 16));
    }
    r.warp.sync();
}

/* Step "range": returns the exponent taken out, *sum the sum of squares. */
__device__ inline int bring_into_range(const RowWork &r, uint32_t n, float *sum) {
    *sum = sum_squares(r, n);
    if (*sum >= 0x1p-80f && *sum <= 0x1p100f)
        return 0;
    float largest = largest_magnitude(r, n);
    if (largest == 0)
        return 0;
    int e = ilogbf(largest);
    for (uint32_t i = r.warp.rank; i < n; i += 32)
        r.x[i] = ldexpf(r.x[i], -e);
    *sum = sum_squares(r, n);
    return e;
}

__device__ inline uint32_t quantize_lm(const RowWork &r, const Side &s, float inv) {
    uint32_t sum = 0;
    for (uint32_t i = s.layout.dim + r.warp.rank; i < s.layout.dim_pad; i += 32)
        r.codes[i] = 0;
    for (uint32_t i = r.warp.rank; i < s.layout.dim; i += 32) {
        float y = r.x[i] * inv, magnitude = fabsf(y);
        uint32_t level = 0, negative = __float_as_uint(y) >> 31;
        for (uint32_t t = 0; t + 1 < s.levels; t++)
            level += magnitude > s.threshold[t];
        uint32_t code = s.layout.bits == 4 ? negative << 3 | level
                        : negative         ? s.levels - 1 - level
                                           : s.levels + level;
        r.codes[i] = (uint8_t)code;
        sum += (uint32_t)(s.v2[level] * s.v2[level]);
    }
    return __reduce_add_sync(~0u, sum);
}

/* The 16 bits of a gain: keys fp16, values bf16, saturating. */
__device__ inline uint16_t gain_to_bits(const Side &s, float gain) {
    if (s.layout.side == TQI_SIDE_V)
        return __bfloat16_as_ushort(__float2bfloat16_rn(fminf(gain, 3.38953139e38f)));
    return __half_as_ushort(__float2half_rn(fminf(gain, 65504.0f)));
}

/* Returns what was stored, as the decoder sees it. */
__device__ inline float store_gain(const RowWork &r, const Side &s, uint8_t *blob, uint32_t token,
                                   float gain) {
    uint16_t bits = gain_to_bits(s, gain);
    if (r.warp.rank == 0)
        ((uint16_t *)(blob + s.layout.gains))[token] = bits;
    return gain_bits(s, bits);
}

/* Step "sketch" of the residual in x, which is destroyed; e: exponent that was taken out. */
__device__ inline void encode_sketch(const RowWork &r, const Side &s, uint8_t *blob, uint32_t token,
                                     int e) {
    const tqi_layout &l = s.layout;
    float energy = sum_squares(r, l.dim);
    rotate(r.warp, s, s.sketch_flips, r.x, r.tree);
    rotate(r.warp, s, s.sketch_flips + l.dim, r.x, r.tree);
    for (uint32_t i = r.warp.rank * 8; i < l.dim_pad; i += 32 * 8) {
        uint32_t bits = 0;
        for (uint32_t n = 0; n < 8; n++)
            bits |= i + n < l.dim ? __float_as_uint(r.x[i + n]) >> 31 << n : 0;
        blob[l.sketch + tqi_sketch_byte(&l, tqi_place_k(&l, token, i))] = (uint8_t)bits;
    }
    float sum = sum_magnitudes(r, l.dim);
    float gain = sum > 0 ? energy * s.sketch_factor / sum : 0;
    if (r.warp.rank == 0)
        ((uint16_t *)(blob + l.sketch_gains))[token] = gain_to_bits(s, ldexpf(gain, e));
}

/* x less what its lm codes and the stored gain decode to. */
__device__ inline void subtract_lm(const RowWork &r, const Side &s, float gain) {
    for (uint32_t i = r.warp.rank; i < s.layout.dim; i += 32) {
        uint32_t code = r.codes[i];
        bool negative = code < s.levels; /* codes of less than 4 bits ascend */
        float value = s.value[negative ? s.levels - 1 - code : code - s.levels];
        float decoded = gain * (negative ? -value : value);
        r.x[i] = r.x[i] - decoded;
    }
}

__device__ inline void encode_lm(const RowWork &r, const Side &s, uint8_t *blob, uint32_t token) {
    float sum;
    int e = bring_into_range(r, s.layout.dim, &sum);
    rotate(r.warp, s, s.flips, r.x, r.tree);
    float norm = sqrtf(sum), inv = norm > 0 ? 1.0f / norm : 0;
    uint32_t squares = quantize_lm(r, s, inv);
    float gain = norm * s.gain_factor / sqrtf((float)squares);
    float stored = store_gain(r, s, blob, token, ldexpf(gain, e));
    if (!s.sketch_flips)
        return;
    subtract_lm(r, s, ldexpf(stored, -e));
    encode_sketch(r, s, blob, token, e);
}

__device__ inline void encode_int8(const RowWork &r, const Side &s, uint8_t *blob, uint32_t token) {
    float sum;
    int e = bring_into_range(r, s.layout.dim, &sum);
    rotate(r.warp, s, s.flips, r.x, r.tree);
    float largest = largest_magnitude(r, s.layout.dim);
    float inv = largest > 0 ? 127.0f / largest : 0;
    uint32_t squares = 0;
    for (uint32_t i = r.warp.rank; i < s.layout.dim; i += 32) {
        int code = (int)rintf(r.x[i] * inv);
        blob[s.layout.codes + tqi_wide_element(&s.layout, token, i)] = (uint8_t)code;
        squares += (uint32_t)(code * code);
    }
    for (uint32_t i = s.layout.dim + r.warp.rank; i < s.layout.dim_pad; i += 32)
        blob[s.layout.codes + tqi_wide_element(&s.layout, token, i)] = 0;
    squares = __reduce_add_sync(~0u, squares);
    float gain = squares ? sqrtf(sum) * s.gain_factor / sqrtf((float)squares) : 0;
    store_gain(r, s, blob, token, ldexpf(gain, e));
}

/* Nearest even, saturating at 448. */
__device__ inline uint8_t to_e4m3(float f) {
    uint32_t u = __float_as_uint(f), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a >= 0x43e00000u)
        return (uint8_t)(sign | 0x7e);
    if (a < 0x3a800000u) /* below half of the smallest subnormal */
        return (uint8_t)sign;
    bool normal = a >= 0x3c800000u;
    uint32_t shift = normal ? 20 : 141 - (a >> 23);
    uint32_t m = normal ? a - (120u << 23) : (a & 0x7fffffu) | 0x800000u;
    return (uint8_t)(sign | (m + (1u << (shift - 1)) - 1 + (m >> shift & 1)) >> shift);
}

__device__ inline void encode_plain(const RowWork &r, const Side &s, uint8_t *blob, uint32_t token,
                                    float inv_scale) {
    const tqi_layout &l = s.layout;
    for (uint32_t i = r.warp.rank; i < l.dim_pad; i += 32) {
        size_t e = tqi_wide_element(&l, token, i);
        float x = i < l.dim ? r.x[i] : 0;
        if (l.kind == TQI_KIND_FP8)
            blob[l.codes + e] = to_e4m3(x * inv_scale);
        else
            ((uint16_t *)(blob + l.codes))[e] = to_16_bits(s.format, x);
    }
}

} /* namespace */
} /* namespace tqi */

#endif
