/*
 * Rotated coordinates of a lane to code words: H words of a chunk of 8 dims, H = 1 for up to
 * 4 bits, 2 for 8 bits, 4 for 16 bits. Word h holds dims 8/H h.. of its chunk, lowest first.
 */
#ifndef TQI_CUDA_ENCODE_QUANTIZE_CUH
#define TQI_CUDA_ENCODE_QUANTIZE_CUH

#include "encode/fast_job.h"
#include "encode/row.cuh"

namespace tqi {

/* ---- Lloyd-Max ------------------------------------------------------------------------------
 *
 * The bucket of a number tells which threshold is left to compare with (buckets.h). y times 2^-95,
 * as an integer, plus the step of its bucket has the level in bits 28 to 30 and the sign above: the
 * comparison is a carry. Lane i of a warp holds the step of bucket i, so a shuffle fetches one.
 */

/* |x| in buckets, as bits; 1 / width is `scale`. Which of two buckets it is doesn't matter near the
 * bound between them, so rounding doesn't either. */
template <int D, int BITS> TQI_ENCODE_INLINE uint32_t bucket_of(float x, float scale) {
    if constexpr (tqi_buckets_fit(D, BITS)) /* the last bits of the integer: lanes of the warp */
        return __float_as_uint(__fmaf_rz(fabsf(x), scale, 0x1p23f));
    constexpr float LAST = (float)TQI_LAST_BUCKET; /* times the least float is an integer's bits */
    float place = __saturatef(fabsf(x) * (scale / LAST));
    return __float_as_uint(__fmul_rz(place, __uint_as_float(TQI_LAST_BUCKET)));
}

/* Levels and signs of a chunk, in nibbles; those of 2 bits have one threshold. The steps of a chunk
 * are on their way while another is worked on. */
template <int D, int BITS> struct LevelChunk {
    uint32_t step[8];

    TQI_ENCODE_INLINE void begin(const float *x, float scale, uint32_t lane_step) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            step[i] = BITS == 2 ? lane_step
                                : __shfl_sync(~0u, lane_step, (int)bucket_of<D, BITS>(x[i], scale));
    }
    /* inv: times 2^-95, or else `apart` is that and y is rounded first. zero: see no_zero(). */
    TQI_ENCODE_INLINE void end(const float *x, float inv, float zero, float apart,
                               uint32_t half[2]) const {
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            uint32_t y = __float_as_uint(fmaf(x[i], inv, zero) * apart) + step[i];
            half[i / 4] = i % 4 == 3 ? y >> 28 : __funnelshift_l(y, half[i / 4], 4);
        }
    }
};

/* Levels and signs to codes; signs of 4 bits stay with their levels, see place_signs(). */
template <int BITS> TQI_ENCODE_INLINE uint32_t join_signs(uint32_t w) {
    const uint32_t signs = w & 0x88888888u;
    if (BITS == 4)
        return w;
    if (BITS == 3) /* ascending: level ^ 4, or level ^ 3 for negatives */
        return (w & 0x33333333u) ^ 0x44444444u ^ (signs - (signs >> 3));
    return (w & 0x11111111u) ^ 0x22222222u ^ (signs >> 2 | signs >> 3);
}

/* Halves of a chunk's word; adds the squares of its codes' values. */
template <int BITS>
TQI_ENCODE_INLINE uint32_t join_chunk(const uint32_t half[2], const FastBook &b,
                                      uint32_t *squares) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t v; /* the top bit of a nibble would copy signs */
        asm("prmt.b32 %0, %1, %2, %3;"
            : "=r"(v)
            : "r"(b.square_low), "r"(b.square_high), "r"(half[i] & 0x7777u));
        *squares = __dp4a(v, v, *squares);
    }
    return join_signs<BITS>(__byte_perm(half[0], half[1], 0x5410));
}

/* Codes of a lane's chunks; adds the squares of their values. IN_RANGE: the norm is below 2^30, so
 * that 1 / norm times 2^-95 is exact. */
template <class R, int BITS, bool IN_RANGE>
TQI_ENCODE_INLINE void quantize_levels(const float *x, float inv, float zero, const FastBook &b,
                                       uint32_t lane_step, uint32_t *squares, uint32_t *w) {
    const ChunkScale<R> y(IN_RANGE ? inv * 0x1p-95f : inv, part_of_lane<R>());
    const float scale = inv * tqi_bucket_scale(BITS);
    LevelChunk<R::D, BITS> chunk[2];
    chunk[0].begin(x, scale, lane_step);
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        uint32_t half[2];
        if (c + 1 < R::CHUNKS)
            chunk[(c + 1) % 2].begin(x + 8 * (c + 1), scale, lane_step);
        chunk[c % 2].end(x + 8 * c, y.of[c], zero, IN_RANGE ? 1 : 0x1p-95f, half);
        w[c] = join_chunk<BITS>(half, b, squares);
    }
}

/* What a gain is made of: the row's norm times the format's factor, before the range's exponent,
 * and the sum of its codes' squares. */
struct GainParts {
    float norm;
    uint32_t squares;
    TQI_ENCODE_INLINE float gain() const { /* rows of zeros have no squares of 8 bits */
        return squares ? __fdiv_rn(norm, __fsqrt_rn((float)squares)) : 0;
    }
};

/* Words of a row. */
template <class R, int BITS>
TQI_ENCODE_INLINE GainParts quantize_lm(const Side &s, const FastBook &b, uint32_t lane_step,
                                        const float *x, float zero, float sum, uint32_t *w) {
    float norm = __fsqrt_rn(sum), inv = norm > 0 ? __frcp_rn(norm) : 0;
    uint32_t squares = 0;
    quantize_levels<R, BITS, false>(x, inv, zero, b, lane_step, &squares, w);
    return GainParts{norm * s.gain_factor, row_sum<R>(squares)};
}

/* ---- 8 bits ------------------------------------------------------------------------------------
 */

template <int N> TQI_ENCODE_INLINE float largest_of_lane(const float *x) {
    float most[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < N; i++)
        most[i % 4] = fmaxf(most[i % 4], fabsf(x[i]));
    return fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
}

/* Words of numbers times `inv`; adds their squares. */
template <int N>
TQI_ENCODE_INLINE void round_8(const float *x, float inv, uint32_t *w, uint32_t *sum_of_squares) {
    int squares = 0;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        uint32_t b[4]; /* adding 1.5 x 2^23 rounds to the nearest integer, ties to even */
#pragma unroll
        for (int k = 0; k < 4; k++)
            b[k] = __float_as_uint(x[4 * i + k] * inv + 12582912.0f);
        w[i] =
            __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
        squares = __dp4a((int)w[i], (int)w[i], squares);
    }
    *sum_of_squares += (uint32_t)squares;
}

/* The same of a lane's part of a row. */
template <class R>
TQI_ENCODE_INLINE void quantize_8(const float *x, uint32_t *w, uint32_t *sum_of_squares) {
    const float largest = row_max<R>(largest_of_lane<R::N>(x));
    const ChunkScale<R> inv(largest > 0 ? __fdiv_rn(127.0f, largest) : 0, part_of_lane<R>());
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++)
        round_8<8>(x + 8 * c, inv.of[c], w + 2 * c, sum_of_squares);
}

template <class R>
TQI_ENCODE_INLINE GainParts quantize_int8(const Side &s, const float *x, float sum, uint32_t *w) {
    uint32_t squares = 0;
    quantize_8<R>(x, w, &squares);
    return GainParts{__fsqrt_rn(sum) * s.gain_factor, row_sum<R>(squares)};
}

} /* namespace tqi */

#endif
