/* The inner products of the level: rows times panels, held in registers. */
#ifndef TQI_KERNEL_AVX512_DOT_H
#define TQI_KERNEL_AVX512_DOT_H

#include <string.h>

#include "kernel/avx512/avx512.h"

/* 4 bytes to every lane. */
TQK_INLINE __m512i tqk_spread32_avx512(const uint8_t *at) {
    int32_t x;
    memcpy(&x, at, sizeof x);
    return _mm512_set1_epi32(x);
}

/* Where the scores of a tile go. */
struct tqk_target_avx512 {
    float *scores; /* of the first token of the tile */
    uint32_t stride;
    uint32_t first, last; /* of the tile */
};

/* Scores of tokens [token, + 16) of one row, those in the tile. */
TQK_INLINE void tqk_put_scores_avx512(const struct tqk_target_avx512 *t, uint32_t r, uint32_t token,
                                      __m512 s) {
    float *to = t->scores + (size_t)r * t->stride;
    if (token >= t->first) {
        uint32_t n = t->last - token;
        __mmask16 mask = (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
        _mm512_mask_storeu_ps(to + (token - t->first), mask, s);
        return;
    }
    uint32_t skip = t->first - token, n = t->last - t->first;
    __mmask16 keep = (__mmask16)(0xffffu << skip), mask = (__mmask16)(0xffffu >> skip);
    mask = (__mmask16)(n >= 16 ? mask : mask & ((1u << n) - 1));
    _mm512_mask_storeu_ps(to, mask, _mm512_maskz_compress_ps(keep, s));
}

/* sum[r * columns + c] = row r . panel c. Rows lie row_bytes apart, panels panel_bytes. */
TQK_INLINE void tqk_dot_float_avx512(const float *panel, size_t panel_bytes, uint32_t steps,
                                     const float *row, size_t row_bytes, uint32_t rows,
                                     uint32_t columns, __m512 *sum) {
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * columns; i++) {
        sum[i] = _mm512_setzero_ps();
    }
    for (uint32_t s = 0; s < steps; s++) {
        __m512 x[2];
        TQK_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            x[c] = _mm512_load_ps(panel + c * panel_bytes / 4 + (size_t)s * 16);
        }
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m512 a = _mm512_set1_ps(row[r * row_bytes / 4 + s]);
            TQK_UNROLL
            for (uint32_t c = 0; c < columns; c++) {
                sum[r * columns + c] = _mm512_fmadd_ps(a, x[c], sum[r * columns + c]);
            }
        }
    }
}

/* Probabilities of tokens [token, + 16) of the page; 0 outside the tile. */
static inline __m512 tqk_probabilities_at_avx512(const struct tqi_tile *tile, const float *p,
                                                 uint32_t token) {
    uint32_t n = tile->last - tile->first;
    if (token >= tile->last || token + 16 <= tile->first)
        return _mm512_setzero_ps();
    if (token >= tile->first) {
        uint32_t left = tile->last - token;
        __mmask16 mask = (__mmask16)(left >= 16 ? 0xffffu : (1u << left) - 1);
        return _mm512_maskz_loadu_ps(mask, p + (token - tile->first));
    }
    uint32_t skip = tile->first - token;
    __mmask16 keep = (__mmask16)(0xffffu << skip);
    __mmask16 mask = (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
    return _mm512_maskz_expand_ps(keep, _mm512_maskz_loadu_ps(mask, p));
}

/* acc = acc * factor + sum * scale, 16 dims. */
TQK_INLINE void tqk_join_avx512(struct tqk_state_avx512 *s, uint32_t dim, __m512 sum,
                                __m512 scale) {
    __m512 acc = _mm512_mul_ps(_mm512_loadu_ps(s->acc + dim), _mm512_set1_ps(s->factor));
    _mm512_storeu_ps(s->acc + dim, _mm512_fmadd_ps(sum, scale, acc));
}

#endif
