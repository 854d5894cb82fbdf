/* The register of this level under the names that lib/kernel/simd uses: v_ of binary32, i_ of
 * 32-bit integers. */
#ifndef TQI_KERNEL_AVX2_VEC_H
#define TQI_KERNEL_AVX2_VEC_H

#include "kernel/avx2/avx2.h"
#include "spec/codes.h"

enum { LANES = 8 };
typedef __m256 vec;
typedef __m256i ivec;
typedef struct tqk_query_avx2 query_head;
typedef struct tqk_state_avx2 state_head;

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
TQK_INLINE ivec i_sub(ivec a, ivec b) {
    return _mm256_sub_epi32(a, b);
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

TQK_INLINE vec v_fma(vec a, vec b, vec c) {
    return _mm256_fmadd_ps(a, b, c);
}
TQK_INLINE vec v_sqrt(vec x) {
    return _mm256_sqrt_ps(x);
}
TQK_INLINE ivec i_xor(ivec a, ivec b) {
    return _mm256_xor_si256(a, b);
}
TQK_INLINE ivec i_larger(ivec a, ivec b) {
    return _mm256_max_epu32(a, b);
}
TQK_INLINE ivec i_load(const uint32_t *at) {
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
TQK_INLINE void i_store(uint32_t *at, ivec x) {
    _mm256_storeu_si256((__m256i *)(void *)at, x);
}
/* Every lane by its own number of bits. */
TQK_INLINE ivec i_down_each(ivec x, ivec n) {
    return _mm256_srlv_epi32(x, n);
}
/* x + 1 where a > b. */
TQK_INLINE ivec i_count_greater(ivec x, vec a, vec b) {
    return _mm256_sub_epi32(x, v_bits(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}
TQK_INLINE ivec i_bytes(const uint8_t *at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}
TQK_INLINE vec v_ieee_halves(const uint8_t *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}
/* Even and odd elements of two registers in memory, and back. */
TQK_INLINE void v_load_pairs(const float *at, vec *even, vec *odd) {
    __m256 a = v_load(at), b = v_load(at + 8);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    __m256 x = _mm256_shuffle_ps(low, high, 0x88), y = _mm256_shuffle_ps(low, high, 0xdd);
    *even = x;
    *odd = y;
}
TQK_INLINE void v_store_pairs(float *at, vec even, vec odd) {
    __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    v_store(at, _mm256_permute2f128_ps(low, high, 0x20));
    v_store(at + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
/* The signs of 8 elements, bit n of element n. */
TQK_INLINE uint8_t v_signs(const float *at) {
    return (uint8_t)_mm256_movemask_ps(_mm256_loadu_ps(at));
}

/* ---- tables ------------------------------------------------------------------------------- */

/* Four numbers, and an index of them: two bits from bit n of every lane on. */
TQK_INLINE vec v_four(const float *at) {
    return _mm256_broadcast_ps((const __m128 *)(const void *)at);
}
TQK_INLINE ivec i_two_bits(ivec x, uint32_t n) {
    return _mm256_srli_epi32(x, (int)n);
}
TQK_INLINE vec v_of_four(vec table, ivec index) {
    return _mm256_permutevar_ps(table, index);
}
/* Eight numbers by lanes below 8. */
TQK_INLINE vec v_of_eight(const float *table, ivec index) {
    return _mm256_permutevar8x32_ps(v_load(table), index);
}
/* Numbers by three bits from bit n of every lane on: a register holds eight. */
#define TQK_TABLE_BITS 3
TQK_INLINE ivec i_table_index(ivec x, uint32_t n) {
    return _mm256_srli_epi32(x, (int)n);
}
TQK_INLINE vec v_of_table(const float *table, ivec index) {
    return _mm256_permutevar8x32_ps(v_load(table), index);
}

/* ---- tokens of a page in lanes ------------------------------------------------------------ */

/* Pieces of 16 bytes for every four tokens. */
TQK_INLINE ivec i_pieces16(const uint8_t *at, size_t step) {
    return _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(const void *)(at + step)),
                            _mm_loadu_si128((const __m128i *)(const void *)at));
}
/* Pieces of 8 and of 4 bytes in the first 12 bytes of the place of one of 16. */
TQK_INLINE ivec i_pieces12(const uint8_t *eight, size_t step8, const uint8_t *four, size_t step4) {
    __m128i a = _mm_loadl_epi64((const __m128i *)(const void *)eight);
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(eight + step8));
    a = _mm_insert_epi32(a, (int)tqi_load32(four), 2);
    return _mm256_set_m128i(_mm_insert_epi32(b, (int)tqi_load32(four + step4), 2), a);
}
/* Bytes of every 16 by the same 16 indices; 0x80 gives 0. */
TQK_INLINE ivec i_choose(ivec x, const uint8_t *index) {
    __m128i i = _mm_loadu_si128((const __m128i *)(const void *)index);
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(i));
}
/* Four halves, IEEE or bfloat16, for every four tokens. */
TQK_INLINE vec v_piece_halves(const uint8_t *at, size_t step, bool bf16) {
    __m128i a = _mm_loadl_epi64((const __m128i *)(const void *)at);
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(at + step));
    __m128i x = _mm_unpacklo_epi64(a, b);
    return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16))
                : _mm256_cvtph_ps(x);
}

/* The sums of the lanes of eight registers. */
TQK_INLINE void v_sums_of_eight(const vec x[8], float out[8]) {
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    v_store(out, _mm256_add_ps(low, high));
}

#endif
