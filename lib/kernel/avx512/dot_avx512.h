/* The inner products of the level: rows times panels, held in registers. */
#ifndef TQI_KERNEL_AVX512_DOT_H
#define TQI_KERNEL_AVX512_DOT_H

#include <string.h>

#include "kernel/avx512/avx512.h"

TQK_INLINE __m512i tqk_spread32_avx512(const uint8_t *at) {
    int32_t x;
    memcpy(&x, at, sizeof x);
    return _mm512_set1_epi32(x);
}

/* sum[r * columns + c] = row r . panel c as integers. Planes of a row lie plane_bytes
 * apart, rows row_bytes, panels panel_bytes. */
TQK_INLINE void tqk_dot_int_avx512(const uint8_t *panel, size_t panel_bytes, uint32_t steps,
                                   const uint8_t *row, size_t row_bytes, size_t plane_bytes,
                                   uint32_t rows, uint32_t columns, __m512i *sum) {
    __m512i high[TQK_ROW_BLOCK_AVX512 * 2], low[TQK_ROW_BLOCK_AVX512 * 2];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * columns; i++) {
        high[i] = low[i] = _mm512_setzero_si512();
    }
    for (uint32_t s = 0; s < steps; s++) {
        __m512i x[2];
        TQK_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            x[c] = _mm512_load_si512(panel + c * panel_bytes + (size_t)s * 64);
        }
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *at = row + r * row_bytes + (size_t)s * 4;
            TQK_UNROLL
            for (uint32_t c = 0; c < columns; c++) {
                uint32_t i = r * columns + c;
                high[i] = _mm512_dpbusd_epi32(high[i], x[c], tqk_spread32_avx512(at));
                low[i] = _mm512_dpbusd_epi32(low[i], x[c], tqk_spread32_avx512(at + plane_bytes));
            }
        }
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * columns; i++) {
        sum[i] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
    }
}

/* The same in binary32; row is floats. */
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

#endif
