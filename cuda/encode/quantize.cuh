/*
 * Rotated coordinates of a lane to code words: H words of a chunk of 8 dims, H = 1 for up to
 * 4 bits, 2 for 8 bits, 4 for 16 bits. Word h holds dims 8/H h.. of its chunk, lowest first.
 */
#ifndef TQI_CUDA_ENCODE_QUANTIZE_CUH
#define TQI_CUDA_ENCODE_QUANTIZE_CUH

#include "encode/fast_job.h"
#include "encode/row.cuh"

namespace tqi {

/* ---- Lloyd-Max ------------------------------------------------------------------------------ */

/* [a > threshold] as 0 or 1, exactly: the scaled difference is rounded once, and the least
 * one saturates. */
TQI_ENCODE_INLINE float above(float a, float scaled) {
    return __saturatef(fmaf(a, 0x1p60f, scaled));
}

/* The subnormal number whose bits are an integer. Sums of such numbers below 2^24 are exact,
 * so that code words are put together by the units of floating point. */
TQI_ENCODE_INLINE float bits_of(uint32_t integer) {
    return __uint_as_float(integer);
}

/* Adds the level of |y| times `unit`, as bits; 3 and 2 bits. */
template <int BITS>
TQI_ENCODE_INLINE float add_level(float y, uint32_t unit, const FastBook &b, float sum) {
#pragma unroll
    for (int t = 0; t < (1 << (BITS - 1)) - 1; t++)
        sum = t == 0 && unit == 1 ? above(fabsf(y), b.scaled[t]) * bits_of(unit)
                                  : fmaf(above(fabsf(y), b.scaled[t]), bits_of(unit), sum);
    return sum;
}

/* The sign bits of two words in the lower bytes: a byte permute that copies the top bit of byte 3.
 * __byte_perm() does not know that mode. */
TQI_ENCODE_INLINE uint32_t byte_signs(uint32_t a, uint32_t b) {
    uint32_t signs;
    asm("prmt.b32 %0, %1, %2, 0x00fb;" : "=r"(signs) : "r"(a), "r"(b));
    return signs;
}

/* Sign bits of four floats, each in all bits of a byte. */
TQI_ENCODE_INLINE uint32_t sign_bytes(float a, float b, float c, float d) {
    uint32_t low = byte_signs(__float_as_uint(a), __float_as_uint(b));
    uint32_t high = byte_signs(__float_as_uint(c), __float_as_uint(d));
    return __byte_perm(low, high, 0x5410);
}

/* Signs of 8 numbers at bit 3 of their nibbles, or placed as 4 bits store them
 * (tqi_sign_bit4): those of 0..3 at the top of the bytes, those of 4..7 four bits lower. */
template <bool PLACED> TQI_ENCODE_INLINE uint32_t sign_nibbles(const float *x) {
    uint32_t top = PLACED ? sign_bytes(x[0], x[1], x[2], x[3]) : sign_bytes(x[1], x[3], x[5], x[7]);
    uint32_t low = PLACED ? sign_bytes(x[4], x[5], x[6], x[7]) : sign_bytes(x[0], x[2], x[4], x[6]);
    return (low ^ ((top ^ low) & 0xf0f0f0f0u)) & 0x88888888u;
}

/* Levels and signs to codes in nibbles. */
template <int BITS> TQI_ENCODE_INLINE uint32_t join_signs(uint32_t levels, uint32_t signs) {
    if (BITS == 4)
        return levels | signs;
    if (BITS == 3) /* ascending: level ^ 4, or level ^ 3 for negatives */
        return levels ^ 0x44444444u ^ (signs - (signs >> 3));
    return levels ^ 0x22222222u ^ (signs >> 2 | signs >> 3);
}

/* The levels of a chunk of which four make a float, to its word; adds the squares of its codes'
 * values. */
template <int BITS>
TQI_ENCODE_INLINE uint32_t join_chunk(const float *half, const float *y, const FastBook &b,
                                      uint32_t *squares) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t v; /* no level sets the top bit of its nibble, which would copy signs */
        asm("prmt.b32 %0, %1, %2, %3;"
            : "=r"(v)
            : "r"(b.square_low), "r"(b.square_high), "r"(__float_as_uint(half[i])));
        *squares = __dp4a(v, v, *squares);
    }
    uint32_t levels = __byte_perm(__float_as_uint(half[0]), __float_as_uint(half[1]), 0x5410);
    return join_signs<BITS>(levels, sign_nibbles<BITS == 4>(y));
}

/* 4 bits: the bucket says which threshold is left to compare with. Lane i of the warp holds the
 * scaled threshold i; those of a chunk are on their way while another chunk is worked on. */
struct Chunk4 {
    float y[8], threshold[8], half[2];

    TQI_ENCODE_INLINE void begin(const float *x, float inv, const FastBook &b, float scaled) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            y[i] = x[i] * inv;
            float place = __saturatef(fmaf(fabsf(y[i]), b.buckets.scale, b.buckets.offset));
            float bucket = place * bits_of(TQI_BUCKETS - 1);
            half[i / 4] = i % 4 == 0 ? bucket : fmaf(bucket, (float)(1 << i % 4 * 4), half[i / 4]);
            threshold[i] = __shfl_sync(~0u, scaled, (int)__float_as_uint(bucket));
        }
    }
    TQI_ENCODE_INLINE uint32_t end(const FastBook &b, uint32_t *squares) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            half[i / 4] =
                fmaf(above(fabsf(y[i]), threshold[i]), bits_of(1u << i % 4 * 4), half[i / 4]);
        return join_chunk<4>(half, y, b, squares);
    }
};

template <class R>
TQI_ENCODE_INLINE void quantize_4(const float *x, float inv, const FastBook &b, float scaled,
                                  uint32_t *squares, uint32_t *w) {
    Chunk4 chunk[2];
    chunk[0].begin(x, inv, b, scaled);
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        if (c + 1 < R::CHUNKS)
            chunk[(c + 1) % 2].begin(x + 8 * (c + 1), inv, b, scaled);
        w[c] = chunk[c % 2].end(b, squares);
    }
}

template <class R, int BITS>
TQI_ENCODE_INLINE void quantize_few_bits(const float *x, float inv, const FastBook &b,
                                         uint32_t *squares, uint32_t *w) {
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        float half[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++)
            half[i / 4] = add_level<BITS>(x[8 * c + i] * inv, 1u << i % 4 * 4, b, half[i / 4]);
        w[c] = join_chunk<BITS>(half, x + 8 * c, b, squares);
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
TQI_ENCODE_INLINE GainParts quantize_lm(const Side &s, const FastBook &b, float scaled,
                                        const float *x, float sum, uint32_t *w) {
    float norm = __fsqrt_rn(sum), inv = norm > 0 ? __frcp_rn(norm) : 0;
    uint32_t squares = 0;
    if constexpr (BITS == 4)
        quantize_4<R>(x, inv, b, scaled, &squares, w);
    else
        quantize_few_bits<R, BITS>(x, inv, b, &squares, w);
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

/* Words of a lane's numbers times `inv`; adds their squares. */
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
    float largest = row_max<R>(largest_of_lane<R::N>(x));
    round_8<R::N>(x, largest > 0 ? __fdiv_rn(127.0f, largest) : 0, w, sum_of_squares);
}

template <class R>
TQI_ENCODE_INLINE GainParts quantize_int8(const Side &s, const float *x, float sum, uint32_t *w) {
    uint32_t squares = 0;
    quantize_8<R>(x, w, &squares);
    return GainParts{__fsqrt_rn(sum) * s.gain_factor, row_sum<R>(squares)};
}

} /* namespace tqi */

#endif
