/* What the inner products of the level have in common. */
#ifndef TQI_KERNEL_AVX512_DOT_H
#define TQI_KERNEL_AVX512_DOT_H

#include <float.h>
#include <string.h>

#include "kernel/avx512/avx512.h"

/* 4 bytes to every lane, by the load port: compilers would load them into a general register to
 * use them twice, and the way from there costs a shuffle. */
TQK_INLINE __m512i tqk_spread32_avx512(const uint8_t *at) {
    struct four {
        uint8_t byte[4];
    };
    __m512i x;
    __asm__("vpbroadcastd %1, %0" : "=v"(x) : "m"(*(const struct four *)at));
    return x;
}

/* Where the scores of 16 tokens of a tile go. */
struct tqk_target_avx512 {
    float *scores;   /* of the first row and the first of the tokens in the tile */
    uint32_t stride; /* of rows */
    __mmask16 keep;  /* tokens in the tile */
    __mmask16 mask;  /* as many from 0 on */
};

static inline struct tqk_target_avx512 tqk_target_avx512(const struct tqi_tile *tile, float *scores,
                                                         uint32_t stride, uint32_t token) {
    uint32_t left = tile->last - token, skip = token < tile->first ? tile->first - token : 0;
    uint32_t keep = (left >= 16 ? 0xffffu : (1u << left) - 1) >> skip << skip;
    struct tqk_target_avx512 t = {scores + (token + skip - tile->first), stride, (__mmask16)keep,
                                  (__mmask16)(keep >> skip)};
    return t;
}

/* Scores of one row. What leaves binary32 saturates, so that finite rows stay finite; NaN stays. */
TQK_INLINE void tqk_put_scores_avx512(const struct tqk_target_avx512 *t, uint32_t r, __m512 s) {
    s = _mm512_max_ps(_mm512_set1_ps(-FLT_MAX), _mm512_min_ps(_mm512_set1_ps(FLT_MAX), s));
    float *to = t->scores + (size_t)r * t->stride;
    if (t->keep == 0xffff) { /* masked stores are slow, and so are loads that follow them */
        _mm512_storeu_ps(to, s);
        return;
    }
    _mm512_mask_storeu_ps(to, t->mask, _mm512_maskz_compress_ps(t->keep, s));
}

/* Rows that are taken together when so many are left. */
static inline uint32_t tqk_rows_together_avx512(uint32_t left) {
    return left >= 8 ? 8 : left >= 4 ? 4 : left;
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
