/* Float formats (bf16, f16, fp8): decoded once for all query rows to binary32, lanes are tokens
 * (keys) or dims (values) by pairs along the sum.
 *
 *   a step    four registers, each a pair of dims of 4 tokens (keys) or a pair of tokens of 4 dims
 *             (values), and a pair of every row, which is spread over a register */
#ifndef TQI_KERNEL_AVX2_FLOAT_H
#define TQI_KERNEL_AVX2_FLOAT_H

#include "kernel/avx2/avx2.h"

enum { TQK_STEP_AVX2 = 32 /* floats */ };

/* unpack: the 16 keys from `token` (a multiple of 16) on to a step for every pair of dims. */
typedef void tqk_unpack_k_float_fn_avx2(const struct tqi_rows *k, const struct tqi_tile *tile,
                                        uint32_t token, float *to);
/* Values of word `word` of all lanes, 32 dims, and the first n_tokens tokens (whole groups) to two
 * blocks of 16 dims, each a step for every pair of tokens. */
typedef void tqk_unpack_v_float_fn_avx2(const struct tqi_rows *v, const struct tqi_tile *tile,
                                        uint32_t word, uint32_t n_tokens, float *to);
tqk_unpack_k_float_fn_avx2 tqk_unpack_k_fp8_avx2, tqk_unpack_k_bf16_avx2, tqk_unpack_k_f16_avx2;
tqk_unpack_v_float_fn_avx2 tqk_unpack_v_fp8_avx2, tqk_unpack_v_bf16_avx2, tqk_unpack_v_f16_avx2;

/* Decoded numbers of the format are too small by this. */
static inline float tqk_decoded_unit_avx2(const struct tqi_rows *rows) {
    return rows->format->kind == TQI_KIND_FP8 ? 256 : 1;
}

/* Where element i of 8 of a row stands among its pairs: of the 8 dims of a word of keys, or of 8
 * tokens. It is its own inverse for values. */
static inline __m256i tqk_pairs_avx2(const struct tqi_rows *rows, bool values) {
    if (rows->format->kind != TQI_KIND_FP8)
        return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return values ? _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)
                  : _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7);
}

/* Sums of `rows` rows (1 or 2), row_stride floats apart, with all steps; sum[r][i] lane c is that
 * of token or dim 8 i + c. The order of a sum does not depend on the number of rows. */
TQK_INLINE void tqk_dot_float_avx2(const float *x, uint32_t steps, const float *row,
                                   size_t row_stride, uint32_t rows, __m256 sum[2][2]) {
    __m256 acc[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 4; i++) {
        acc[i] = _mm256_setzero_ps();
    }
    for (uint32_t s = 0; s < steps; s++) {
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const float *pair = row + r * row_stride;
            __m256 y = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)pair));
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                acc[r * 4 + i] = _mm256_fmadd_ps(_mm256_load_ps(x + 8 * i), y, acc[r * 4 + i]);
            }
        }
        x += TQK_STEP_AVX2;
        row += 2;
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 2; i++) {
        __m256 y = _mm256_hadd_ps(acc[2 * i], acc[2 * i + 1]);
        y = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(y), 0xd8));
        sum[i / 2][i % 2] = y;
    }
}

#endif
