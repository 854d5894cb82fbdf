/* The register of this level under the names that lib/kernel/simd uses: v_ of binary32, i_ of
 * 32-bit integers. */
#ifndef TQI_KERNEL_AVX2_VEC_H
#define TQI_KERNEL_AVX2_VEC_H

#include "kernel/avx2/avx2.h"

enum { LANES = 8 };
typedef __m256 vec;
typedef __m256i ivec;

#define TQK_OF(stage) tqk_##stage##_avx2

TQK_INLINE vec v_load(const float *at) {
    return _mm256_loadu_ps(at);
}
TQK_INLINE void v_store(float *at, vec x) {
    _mm256_storeu_ps(at, x);
}
TQK_INLINE vec v_all(float x) {
    return _mm256_set1_ps(x);
}
TQK_INLINE vec v_add(vec a, vec b) {
    return _mm256_add_ps(a, b);
}
TQK_INLINE vec v_sub(vec a, vec b) {
    return _mm256_sub_ps(a, b);
}
TQK_INLINE vec v_mul(vec a, vec b) {
    return _mm256_mul_ps(a, b);
}
TQK_INLINE vec v_min(vec a, vec b) {
    return _mm256_min_ps(a, b);
}
TQK_INLINE vec v_max(vec a, vec b) {
    return _mm256_max_ps(a, b);
}
TQK_INLINE ivec v_bits(vec x) {
    return _mm256_castps_si256(x);
}
TQK_INLINE vec i_float(ivec x) {
    return _mm256_castsi256_ps(x);
}
TQK_INLINE ivec i_all(uint32_t x) {
    return _mm256_set1_epi32((int)x);
}
TQK_INLINE ivec i_add(ivec a, ivec b) {
    return _mm256_add_epi32(a, b);
}
TQK_INLINE ivec i_and(ivec a, ivec b) {
    return _mm256_and_si256(a, b);
}
TQK_INLINE ivec i_or(ivec a, ivec b) {
    return _mm256_or_si256(a, b);
}
TQK_INLINE ivec i_up(ivec x, uint32_t n) {
    return _mm256_slli_epi32(x, (int)n);
}
TQK_INLINE ivec i_down(ivec x, uint32_t n) {
    return _mm256_srli_epi32(x, (int)n);
}
/* The nearest integers, ties to even. */
TQK_INLINE ivec v_nearest(vec x) {
    return _mm256_cvtps_epi32(x);
}
/* a < b ? x : y. */
TQK_INLINE ivec i_where_less(vec a, vec b, ivec x, ivec y) {
    return _mm256_blendv_epi8(y, x, v_bits(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
/* The low byte, the low half of every lane. */
TQK_INLINE void i_put_bytes(uint8_t *to, ivec x) {
    const __m256i first =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    x = _mm256_shuffle_epi8(x, first);
    _mm_storel_epi64((__m128i *)(void *)to,
                     _mm_unpacklo_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
TQK_INLINE void i_put_halves(uint8_t *to, ivec x) {
    x = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    _mm_storeu_si128((__m128i *)(void *)to,
                     _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
/* To IEEE halves, nearest even. */
TQK_INLINE void v_put_ieee_halves(uint8_t *to, vec x) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#endif
