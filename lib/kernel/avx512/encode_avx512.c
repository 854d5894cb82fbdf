/* The write path of one row: norm, rotate, quantize, pack. Every rounded operation is the
 * one of the contract in spec/rows.h. Rows outside the plain range go to the reference. */
#include <math.h>
#include <string.h>

#include "kernel/avx512/avx512.h"
#include "kernel/avx512/pack_avx512.h"
#include "kernel/avx512/vec_avx512.h"

/* ---- norm --------------------------------------------------------------------------------- */

/* Sums of neighbours of 32 values, in order. */
TQK_INLINE __m512 fold(__m512 a, __m512 b) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
}

/* The tree over 16 values. */
TQK_INLINE float fold16(__m512 x) {
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4e));
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    return _mm512_cvtss_f32(x);
}

/* What the tree sums. */
TQK_INLINE __m512 term(__m512 x, bool squares) {
    return squares ? _mm512_mul_ps(x, x) : _mm512_abs_ps(x);
}

/* Sum over the tree, which has room for n rounded up to a power of two. */
TQK_INLINE float sum_tree(const float *x, uint32_t n, float *tree, bool squares) {
    uint32_t size = 32;
    while (size < n)
        size *= 2;
    for (uint32_t i = 0; i < size; i += 32) {
        __m512 a = i < n ? _mm512_loadu_ps(x + i) : _mm512_setzero_ps();
        __m512 b = i + 16 < n ? _mm512_loadu_ps(x + i + 16) : _mm512_setzero_ps();
        _mm512_storeu_ps(tree + i / 2, fold(term(a, squares), term(b, squares)));
    }
    for (size /= 2; size > 16; size /= 2)
        for (uint32_t i = 0; i < size; i += 32)
            _mm512_storeu_ps(tree + i / 2,
                             fold(_mm512_loadu_ps(tree + i), _mm512_loadu_ps(tree + i + 16)));
    return fold16(_mm512_loadu_ps(tree));
}

static float sum_squares(const float *x, uint32_t n, float *tree) {
    return sum_tree(x, n, tree, true);
}

static float sum_abs(const float *x, uint32_t n, float *tree) {
    return sum_tree(x, n, tree, false);
}

/* ---- quantize ----------------------------------------------------------------------------- */

/* Rotated row to codes, one a byte; returns the sum of squared code values. Thresholds are
 * searched by halves, which counts those below as the plain loop does. */
TQK_INLINE uint32_t quantize_lm(const struct tqi_book *book, uint32_t bits, const float *u,
                                uint32_t dim, float inv, uint8_t *codes) {
    const uint32_t levels = 1u << (bits - 1);
    const __m512 bounds = _mm512_castps256_ps512(_mm256_maskz_loadu_ps(0x7f, book->threshold));
    const __m512i v2 = _mm512_cvtepi16_epi32(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)book->v2)));
    const __m512i squares = _mm512_mullo_epi32(v2, v2);
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t i = 0; i < dim; i += 16) {
        __m512 y = _mm512_mul_ps(_mm512_loadu_ps(u + i), _mm512_set1_ps(inv));
        __m512 magnitude = _mm512_abs_ps(y);
        __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(y));
        __m512i level = _mm512_setzero_si512();
        TQK_UNROLL
        for (uint32_t step = levels / 2; step > 0; step /= 2) {
            __m512i next = _mm512_add_epi32(level, _mm512_set1_epi32((int)step));
            __m512i index = _mm512_sub_epi32(next, _mm512_set1_epi32(1));
            __m512 bound = _mm512_permutexvar_ps(index, bounds);
            __mmask16 above = _mm512_cmp_ps_mask(magnitude, bound, _CMP_GT_OQ);
            level = _mm512_mask_mov_epi32(level, above, next);
        }
        sum = _mm512_add_epi32(sum, _mm512_permutexvar_epi32(level, squares));
        __m512i code;
        if (bits == 4) {
            code = _mm512_mask_or_epi32(level, negative, level, _mm512_set1_epi32(8));
        } else {
            __m512i flip = _mm512_mask_mov_epi32(_mm512_set1_epi32((int)levels), negative,
                                                 _mm512_set1_epi32((int)levels - 1));
            code = _mm512_xor_epi32(level, flip);
        }
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return (uint32_t)_mm512_reduce_add_epi32(sum);
}

static uint32_t quantize_int8(const float *u, uint32_t dim, uint8_t *codes) {
    __m512 most = _mm512_setzero_ps();
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t i = 0; i < dim; i += 16)
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(u + i)));
    float largest = _mm512_reduce_max_ps(most), inv = largest > 0 ? 127.0f / largest : 0;
    for (uint32_t i = 0; i < dim; i += 16) {
        __m512 y = _mm512_mul_ps(_mm512_loadu_ps(u + i), _mm512_set1_ps(inv));
        __m512i code = _mm512_cvtps_epi32(y);
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(code, code));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return (uint32_t)_mm512_reduce_add_epi32(sum);
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Scratch as the reference has it: behind the row a copy, a tree, codes. */
struct scratch {
    float *tree;
    uint8_t *codes;
};

size_t tqk_encode_scratch_avx512(const struct tqi_rows *rows) {
    return tqk_encode_scratch_ref(rows) + TQI_PAD_DIMS / sizeof(float); /* codes of padding */
}

static struct scratch split(const struct tqi_rows *rows, float *x) {
    uint32_t dim = rows->layout.dim, size = 1;
    while (size < dim)
        size *= 2;
    struct scratch s = {x + 2 * (size_t)dim, (uint8_t *)(x + 2 * (size_t)dim + size)};
    memset(s.codes + dim, 0, rows->layout.dim_pad - dim);
    return s;
}

#include "kernel/simd/encode_rows.h"

#include "kernel/simd/encode_polar.h"
