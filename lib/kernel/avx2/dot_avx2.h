/* Inner products of 16-bit rows, held in registers. */
#ifndef TQI_KERNEL_AVX2_DOT_H
#define TQI_KERNEL_AVX2_DOT_H

#include "kernel/avx2/avx2.h"

/* sum[r] lane c = left row r . right row c over n integers, n a multiple of 16; rows (1 or 2)
 * left rows lie left_bytes apart, 4 right rows right_bytes. */
TQK_INLINE void tqk_dot_avx2(const char *left, size_t left_bytes, const char *right,
                             size_t right_bytes, uint32_t n, uint32_t rows, __m128i *sum) {
    __m256i acc[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 4; i++) {
        acc[i] = _mm256_setzero_si256();
    }
    for (size_t at = 0; at < (size_t)n * 2; at += 32) {
        __m256i a[2];
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            a[r] = _mm256_loadu_si256((const __m256i *)(const void *)(left + r * left_bytes + at));
        }
        TQK_UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            const char *from = right + c * right_bytes + at;
            __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)from);
            TQK_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                acc[r * 4 + c] = _mm256_add_epi32(acc[r * 4 + c], _mm256_madd_epi16(a[r], b));
            }
        }
    }
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        __m256i x = _mm256_hadd_epi32(_mm256_hadd_epi32(acc[r * 4], acc[r * 4 + 1]),
                                      _mm256_hadd_epi32(acc[r * 4 + 2], acc[r * 4 + 3]));
        sum[r] = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    }
}

#endif
