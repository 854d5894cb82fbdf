/* The write path of one row: norm, rotate, quantize, pack. Every rounded operation is the
 * one of the contract in spec/rows.h. Rows outside the plain range go to the reference. */
#include <math.h>
#include <string.h>

#include "kernel/avx2/avx2.h"
#include "kernel/avx2/pack_avx2.h"
#include "kernel/avx2/vec_avx2.h"

/* ---- norm --------------------------------------------------------------------------------- */

/* Sums of neighbours of 16 values, in order. */
TQK_INLINE __m256 fold(__m256 a, __m256 b) {
    __m256i x = _mm256_castps_si256(_mm256_hadd_ps(a, b)); /* by halves: a b a b */
    return _mm256_castsi256_ps(_mm256_permute4x64_epi64(x, 0xd8));
}

/* The tree over 8 values. */
TQK_INLINE float fold8(__m256 x) {
    x = _mm256_add_ps(x, _mm256_permute_ps(x, 0xb1));
    x = _mm256_add_ps(x, _mm256_permute_ps(x, 0x4e));
    x = _mm256_add_ps(x, _mm256_permute2f128_ps(x, x, 0x01));
    return _mm256_cvtss_f32(x);
}

/* What the tree sums. */
TQK_INLINE __m256 term(__m256 x, bool squares) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    return squares ? _mm256_mul_ps(x, x) : _mm256_and_ps(x, magnitude);
}

/* Sum over the tree, which has room for n rounded up to a power of two. */
TQK_INLINE float sum_tree(const float *x, uint32_t n, float *tree, bool squares) {
    uint32_t size = 16;
    while (size < n)
        size *= 2;
    for (uint32_t i = 0; i < size; i += 16) {
        __m256 a = i < n ? _mm256_loadu_ps(x + i) : _mm256_setzero_ps();
        __m256 b = i < n ? _mm256_loadu_ps(x + i + 8) : _mm256_setzero_ps();
        _mm256_storeu_ps(tree + i / 2, fold(term(a, squares), term(b, squares)));
    }
    for (size /= 2; size > 8; size /= 2)
        for (uint32_t i = 0; i < size; i += 16)
            _mm256_storeu_ps(tree + i / 2,
                             fold(_mm256_loadu_ps(tree + i), _mm256_loadu_ps(tree + i + 8)));
    return fold8(_mm256_loadu_ps(tree));
}

static float sum_squares(const float *x, uint32_t n, float *tree) {
    return sum_tree(x, n, tree, true);
}

static float sum_abs(const float *x, uint32_t n, float *tree) {
    return sum_tree(x, n, tree, false);
}

/* ---- quantize ----------------------------------------------------------------------------- */

/* 8 integers from -128 to 127 to bytes. */
TQK_INLINE void put_bytes(uint8_t *to, __m256i x) {
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packs_epi16(words, words));
}

static uint32_t sum_lanes(__m256i x) {
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_hadd_epi32(y, y);
    return (uint32_t)_mm_cvtsi128_si32(_mm_hadd_epi32(y, y));
}

/* Rotated row to codes, one a byte; returns the sum of squared code values. Thresholds are
 * searched by halves, which counts those below as the plain loop does. */
TQK_INLINE uint32_t quantize_lm(const struct tqi_book *book, uint32_t bits, const float *u,
                                uint32_t dim, float inv, uint8_t *codes) {
    const uint32_t levels = 1u << (bits - 1);
    const __m256 bounds = _mm256_maskload_ps(book->threshold, tqk_first_avx2(7));
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    const __m256i v2 =
        _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)book->v2));
    const __m256i squares = _mm256_mullo_epi32(v2, v2);
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < dim; i += 8) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(u + i), _mm256_set1_ps(inv));
        __m256i negative = _mm256_srai_epi32(_mm256_castps_si256(y), 31);
        __m256i level = _mm256_setzero_si256();
        TQK_UNROLL
        for (uint32_t step = levels / 2; step > 0; step /= 2) {
            __m256i index = _mm256_add_epi32(level, _mm256_set1_epi32((int)step - 1));
            __m256 bound = _mm256_permutevar8x32_ps(bounds, index);
            __m256 above = _mm256_cmp_ps(_mm256_and_ps(y, magnitude), bound, _CMP_GT_OQ);
            level = _mm256_add_epi32(
                level, _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32((int)step)));
        }
        sum = _mm256_add_epi32(sum, _mm256_permutevar8x32_epi32(squares, level));
        if (bits == 4) {
            level = _mm256_or_si256(level, _mm256_and_si256(negative, _mm256_set1_epi32(8)));
        } else { /* levels - 1 - level or levels + level */
            __m256i flip = _mm256_add_epi32(_mm256_set1_epi32((int)levels), negative);
            level = _mm256_xor_si256(level, flip);
        }
        put_bytes(codes + i, level);
    }
    return sum_lanes(sum);
}

static uint32_t quantize_int8(const float *u, uint32_t dim, uint8_t *codes) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    __m256 most = _mm256_setzero_ps();
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < dim; i += 8)
        most = _mm256_max_ps(most, _mm256_and_ps(_mm256_loadu_ps(u + i), magnitude));
    float largest = tqk_largest_of_lanes_avx2(most), inv = largest > 0 ? 127.0f / largest : 0;
    for (uint32_t i = 0; i < dim; i += 8) {
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(u + i), _mm256_set1_ps(inv));
        __m256i code = _mm256_cvtps_epi32(y);
        sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(code, code));
        put_bytes(codes + i, code);
    }
    return sum_lanes(sum);
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Scratch as the reference has it: behind the row a copy, a tree, codes. */
struct scratch {
    float *tree;
    uint8_t *codes;
};

size_t tqk_encode_scratch_avx2(const struct tqi_rows *rows) {
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
