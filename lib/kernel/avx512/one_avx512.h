/* One query row of the integer formats: lines as they lie. */
#ifndef TQI_KERNEL_AVX512_ONE_H
#define TQI_KERNEL_AVX512_ONE_H

#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

/* 256 * high + low of four lines: the pieces of 16 bytes of each are summed, one line's behind
 * the other's. */
TQK_INLINE __m512i tqk_join_pieces_avx512(const __m512i high[4], const __m512i low[4]) {
    __m512i x[4];
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
    }
    __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(x[0], x[1], 0x44),
                                 _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(x[2], x[3], 0x44),
                                 _mm512_shuffle_i32x4(x[2], x[3], 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* What scores of a page want of the scratch: a spread query. */
static inline size_t tqk_one_scratch_avx512(const struct tqi_rows *k) {
    return (size_t)k->layout.dim_pad * 8;
}

/* Scores of a page, and sums of the block of tokens from `token` on that has been weighed. */
typedef void tqk_score_one_fn_avx512(const struct tqi_rows *k, const struct tqi_tile *tile,
                                     const void *query, float *scores, __m512i *scratch);
typedef void tqk_accumulate_one_fn_avx512(const struct tqi_rows *v, const struct tqi_tile *tile,
                                          const struct tqk_weights_avx512 *weights, uint32_t token,
                                          void *state);
tqk_score_one_fn_avx512 tqk_score_one_lm4_avx512, tqk_score_one_lm3_avx512,
    tqk_score_one_lm2_avx512, tqk_score_one_int8_avx512;
tqk_accumulate_one_fn_avx512 tqk_accumulate_one_lm4_avx512, tqk_accumulate_one_lm3_avx512,
    tqk_accumulate_one_lm2_avx512, tqk_accumulate_one_int8_avx512;

#endif
