/* Float formats (bf16, f16, fp8): rows of binary32, keys [token][dim], values [dim][token]. */
#ifndef TQI_KERNEL_AVX2_FLOAT_H
#define TQI_KERNEL_AVX2_FLOAT_H

#include "kernel/avx2/avx2.h"

/* As the integer ones; values stand in token order. */
typedef void tqk_unpack_k_float_fn_avx2(const struct tqi_rows *k, const struct tqi_tile *tile,
                                        uint32_t token, float *rows);
typedef void tqk_unpack_v_float_fn_avx2(const struct tqi_rows *v, const struct tqi_tile *tile,
                                        uint32_t dim, uint32_t n_tokens, float *rows);
tqk_unpack_k_float_fn_avx2 tqk_unpack_k_fp8_avx2, tqk_unpack_k_bf16_avx2, tqk_unpack_k_f16_avx2;
tqk_unpack_v_float_fn_avx2 tqk_unpack_v_fp8_avx2, tqk_unpack_v_bf16_avx2, tqk_unpack_v_f16_avx2;

/* sum[r] lane c = left row r . right row c over n floats, n a multiple of 8; rows (1 or 2) left
 * rows lie `left_row` apart, 4 right rows `right_row`. */
TQK_INLINE void tqk_dot_float_avx2(const float *left, size_t left_row, const float *right,
                                   size_t right_row, uint32_t n, uint32_t rows, __m128 *sum) {
    __m256 acc[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 4; i++) {
        acc[i] = _mm256_setzero_ps();
    }
    for (uint32_t at = 0; at < n; at += 8) {
        __m256 a[2];
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            a[r] = _mm256_loadu_ps(left + r * left_row + at);
        }
        TQK_UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            __m256 b = _mm256_loadu_ps(right + c * right_row + at);
            TQK_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                acc[r * 4 + c] = _mm256_fmadd_ps(a[r], b, acc[r * 4 + c]);
            }
        }
    }
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(acc[r * 4], acc[r * 4 + 1]),
                                  _mm256_hadd_ps(acc[r * 4 + 2], acc[r * 4 + 3]));
        sum[r] = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    }
}

#endif
