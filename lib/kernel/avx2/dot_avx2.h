/* Sums of products of 16-bit integers, lanes side by side: no step across a register until the end
 * of a sum. */
#ifndef TQI_KERNEL_AVX2_DOT_H
#define TQI_KERNEL_AVX2_DOT_H

#include "kernel/avx2/avx2.h"

/* sum += products of pairs, modulo 2^32; and how many sums of a row are kept, so that a multiply
 * need not wait for the one before: VPDPWSSD adds only when it has multiplied. */
#ifdef __AVXVNNI__
#define TQK_ADD_PRODUCTS(sum, x, y) _mm256_dpwssd_avx_epi32(sum, x, y)
#define TQK_CHAINS(rows) ((rows) > 3 ? 1u : (rows) > 1 ? 2u : 4u)
#else
#define TQK_ADD_PRODUCTS(sum, x, y) _mm256_add_epi32(sum, _mm256_madd_epi16(x, y))
#define TQK_CHAINS(rows) 1u
#endif

/* Rows that are taken together when so many are left: as many sums as hide the latency of a
 * multiply, 12 of VPDPWSSD for 6 rows, or for 3 twice. */
static inline uint32_t tqk_rows_together(uint32_t left) {
#ifdef __AVXVNNI__
    return left >= 8 ? 5 : left >= 6 ? 6 : left;
#else
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
#endif
}
enum { TQK_SUMS_AVX2 = 12 };

/* A function of its own for every number of rows that are taken together, so that each has all
 * registers, and the table `name` of them: wants ROWS(name, width, rows), which makes one, and
 * their type rows_fn. */
#ifdef __AVXVNNI__
#define TQK_BLOCKS_AVX2(name, width)                                         \
    ROWS(name, width, 1)                                                     \
    ROWS(name, width, 2)                                                     \
    ROWS(name, width, 3)                                                     \
    ROWS(name, width, 4)                                                     \
    ROWS(name, width, 5)                                                     \
    ROWS(name, width, 6)                                                     \
    static rows_fn *const name[7] = {NULL,     name##_1, name##_2, name##_3, \
                                     name##_4, name##_5, name##_6};
#else
#define TQK_BLOCKS_AVX2(name, width) \
    ROWS(name, width, 1)             \
    ROWS(name, width, 2)             \
    ROWS(name, width, 4)             \
    static rows_fn *const name[5] = {NULL, name##_1, name##_2, NULL, name##_4};
#endif

/* Keeps a sum in its register: compilers else go round the loop with a copy of it. */
#define TQK_KEEP_AVX2(x) __asm__("" : "+x"(x))

/* `width` bytes (4 or 8) over a register, by the load port. */
TQK_INLINE __m256i tqk_spread_avx2(const char *at, uint32_t width) {
    return width == 8 ? _mm256_castpd_si256(_mm256_broadcast_sd((const double *)(const void *)at))
                      : _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)at));
}

/* sum[2 r + i] = sum over steps s, a multiple of 4, of register i of step s times element s of row
 * r, spread. A step is two registers; elements have `width` bytes; rows lie row_bytes
 * apart. */
TQK_INLINE void tqk_dot_avx2(const int16_t *x, uint32_t steps, const char *row, size_t row_bytes,
                             uint32_t width, uint32_t rows, __m256i *sum) {
    const uint32_t chains = TQK_CHAINS(rows);
    __m256i acc[TQK_SUMS_AVX2];
    TQK_UNROLL
    for (uint32_t i = 0; i < chains * rows * 2; i++) {
        acc[i] = _mm256_setzero_si256();
    }
    for (uint32_t s = 0; s < steps; s += chains) {
        TQK_UNROLL
        for (uint32_t c = 0; c < chains; c++) {
            __m256i x0 = _mm256_load_si256((const __m256i *)(const void *)(x + 32 * c));
            __m256i x1 = _mm256_load_si256((const __m256i *)(const void *)(x + 32 * c + 16));
            TQK_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                __m256i y = tqk_spread_avx2(row + r * row_bytes + c * width, width);
                __m256i *to = acc + (c * rows + r) * 2;
                to[0] = TQK_ADD_PRODUCTS(to[0], x0, y);
                to[1] = TQK_ADD_PRODUCTS(to[1], x1, y);
            }
        }
        TQK_UNROLL
        for (uint32_t i = 0; i < chains * rows * 2; i++) {
            TQK_KEEP_AVX2(acc[i]);
        }
        x += 32 * chains;
        row += (size_t)chains * width;
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 2; i++) {
        sum[i] = acc[i];
        TQK_UNROLL
        for (uint32_t c = 1; c < chains; c++) {
            sum[i] = _mm256_add_epi32(sum[i], acc[c * rows * 2 + i]);
        }
    }
}

#endif
