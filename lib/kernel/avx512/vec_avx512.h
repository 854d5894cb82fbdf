/* The register of this level under the names that lib/kernel/simd uses: v_ of binary32, i_ of
 * 32-bit integers. */
#ifndef TQI_KERNEL_AVX512_VEC_H
#define TQI_KERNEL_AVX512_VEC_H

#include "kernel/avx512/avx512.h"

enum { LANES = 16 };
typedef __m512 vec;
typedef __m512i ivec;

#define TQK_OF(stage) tqk_##stage##_avx512

TQK_INLINE vec v_load(const float *at) {
    return _mm512_loadu_ps(at);
}
TQK_INLINE void v_store(float *at, vec x) {
    _mm512_storeu_ps(at, x);
}
TQK_INLINE vec v_all(float x) {
    return _mm512_set1_ps(x);
}
TQK_INLINE vec v_add(vec a, vec b) {
    return _mm512_add_ps(a, b);
}
TQK_INLINE vec v_sub(vec a, vec b) {
    return _mm512_sub_ps(a, b);
}
TQK_INLINE vec v_mul(vec a, vec b) {
    return _mm512_mul_ps(a, b);
}
TQK_INLINE vec v_min(vec a, vec b) {
    return _mm512_min_ps(a, b);
}
TQK_INLINE vec v_max(vec a, vec b) {
    return _mm512_max_ps(a, b);
}
TQK_INLINE ivec v_bits(vec x) {
    return _mm512_castps_si512(x);
}
TQK_INLINE vec i_float(ivec x) {
    return _mm512_castsi512_ps(x);
}
TQK_INLINE ivec i_all(uint32_t x) {
    return _mm512_set1_epi32((int)x);
}
TQK_INLINE ivec i_add(ivec a, ivec b) {
    return _mm512_add_epi32(a, b);
}
TQK_INLINE ivec i_and(ivec a, ivec b) {
    return _mm512_and_si512(a, b);
}
TQK_INLINE ivec i_or(ivec a, ivec b) {
    return _mm512_or_si512(a, b);
}
TQK_INLINE ivec i_up(ivec x, uint32_t n) {
    return _mm512_slli_epi32(x, n);
}
TQK_INLINE ivec i_down(ivec x, uint32_t n) {
    return _mm512_srli_epi32(x, n);
}
/* The nearest integers, ties to even. */
TQK_INLINE ivec v_nearest(vec x) {
    return _mm512_cvtps_epi32(x);
}
/* a < b ? x : y. */
TQK_INLINE ivec i_where_less(vec a, vec b, ivec x, ivec y) {
    return _mm512_mask_mov_epi32(y, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), x);
}
/* The low byte, the low half of every lane. */
TQK_INLINE void i_put_bytes(uint8_t *to, ivec x) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(x));
}
TQK_INLINE void i_put_halves(uint8_t *to, ivec x) {
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(x));
}
/* To IEEE halves, nearest even. */
TQK_INLINE void v_put_ieee_halves(uint8_t *to, vec x) {
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#endif
