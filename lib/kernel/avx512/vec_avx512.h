/* The register of this level under the names that lib/kernel/simd uses: v_ of binary32, i_ of
 * 32-bit integers. */
#ifndef TQI_KERNEL_AVX512_VEC_H
#define TQI_KERNEL_AVX512_VEC_H

#include "kernel/avx512/avx512.h"
#include "spec/codes.h"

enum { LANES = 16 };
typedef __m512 vec;
typedef __m512i ivec;
typedef struct tqk_query_avx512 query_head;
typedef struct tqk_state_avx512 state_head;

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
TQK_INLINE ivec i_sub(ivec a, ivec b) {
    return _mm512_sub_epi32(a, b);
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

TQK_INLINE vec v_fma(vec a, vec b, vec c) {
    return _mm512_fmadd_ps(a, b, c);
}
TQK_INLINE vec v_sqrt(vec x) {
    return _mm512_sqrt_ps(x);
}
TQK_INLINE ivec i_xor(ivec a, ivec b) {
    return _mm512_xor_si512(a, b);
}
TQK_INLINE ivec i_larger(ivec a, ivec b) {
    return _mm512_max_epu32(a, b);
}
TQK_INLINE ivec i_load(const uint32_t *at) {
    return _mm512_loadu_si512(at);
}
TQK_INLINE void i_store(uint32_t *at, ivec x) {
    _mm512_storeu_si512(at, x);
}
/* Every lane by its own number of bits. */
TQK_INLINE ivec i_down_each(ivec x, ivec n) {
    return _mm512_srlv_epi32(x, n);
}
/* x + 1 where a > b. */
TQK_INLINE ivec i_count_greater(ivec x, vec a, vec b) {
    __mmask16 above = _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
    return _mm512_mask_add_epi32(x, above, x, _mm512_set1_epi32(1));
}
TQK_INLINE ivec i_bytes(const uint8_t *at) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
}
TQK_INLINE vec v_ieee_halves(const uint8_t *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
/* Even and odd elements of two registers in memory, and back. */
TQK_INLINE void v_load_pairs(const float *at, vec *even, vec *odd) {
    const __m512i first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 a = v_load(at), b = v_load(at + 16);
    *even = _mm512_permutex2var_ps(a, first, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(1)), b);
}
TQK_INLINE void v_store_pairs(float *at, vec even, vec odd) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    v_store(at, _mm512_permutex2var_ps(even, low, odd));
    v_store(at + 16,
            _mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd));
}
/* The signs of 8 elements, bit n of element n. */
TQK_INLINE uint8_t v_signs(const float *at) {
    return (uint8_t)_mm256_movemask_ps(_mm256_loadu_ps(at));
}

/* ---- tables ------------------------------------------------------------------------------- */

/* Four numbers, and an index of them: two bits from bit n of every lane on. */
TQK_INLINE vec v_four(const float *at) {
    return _mm512_broadcast_f32x4(_mm_loadu_ps(at));
}
TQK_INLINE ivec i_two_bits(ivec x, uint32_t n) {
    return _mm512_srli_epi32(x, n);
}
TQK_INLINE vec v_of_four(vec table, ivec index) {
    return _mm512_permutevar_ps(table, index);
}
/* Eight numbers by lanes below 8. */
TQK_INLINE vec v_of_eight(const float *table, ivec index) {
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(table)));
}
/* Numbers by four bits from bit n of every lane on: a register holds sixteen. */
#define TQK_TABLE_BITS 4
TQK_INLINE ivec i_table_index(ivec x, uint32_t n) {
    return _mm512_srli_epi32(x, n);
}
TQK_INLINE vec v_of_table(const float *table, ivec index) {
    return _mm512_permutexvar_ps(index, v_load(table));
}

/* ---- tokens of a page in lanes ------------------------------------------------------------ */

/* Pieces of 16 bytes for every four tokens. */
TQK_INLINE __m128i piece_at(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}
TQK_INLINE ivec i_pieces16(const uint8_t *at, size_t step) {
    if (step == 16)
        return _mm512_loadu_si512(at);
    __m512i x = _mm512_castsi128_si512(piece_at(at));
    x = _mm512_inserti32x4(x, piece_at(at + step), 1);
    x = _mm512_inserti32x4(x, piece_at(at + 2 * step), 2);
    return _mm512_inserti32x4(x, piece_at(at + 3 * step), 3);
}
/* Pieces of 8 and of 4 bytes in the first 12 bytes of the place of one of 16. */
TQK_INLINE ivec i_pieces12(const uint8_t *eight, size_t step8, const uint8_t *four, size_t step4) {
    __m512i x = _mm512_setzero_si512();
    __m128i part[4];
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        part[i] = _mm_loadl_epi64((const __m128i *)(const void *)(eight + i * step8));
        part[i] = _mm_insert_epi32(part[i], (int)tqi_load32(four + i * step4), 2);
    }
    x = _mm512_inserti32x4(x, part[0], 0);
    x = _mm512_inserti32x4(x, part[1], 1);
    x = _mm512_inserti32x4(x, part[2], 2);
    return _mm512_inserti32x4(x, part[3], 3);
}
/* Bytes of every 16 by the same 16 indices; 0x80 gives 0. */
TQK_INLINE ivec i_choose(ivec x, const uint8_t *index) {
    __m128i i = _mm_loadu_si128((const __m128i *)(const void *)index);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(i));
}
/* Four halves, IEEE or bfloat16, for every four tokens. */
TQK_INLINE vec v_piece_halves(const uint8_t *at, size_t step, bool bf16) {
    __m128i a = _mm_loadl_epi64((const __m128i *)(const void *)at);
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(at + step));
    __m128i c = _mm_loadl_epi64((const __m128i *)(const void *)(at + 2 * step));
    __m128i d = _mm_loadl_epi64((const __m128i *)(const void *)(at + 3 * step));
    __m256i x = _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b));
    return bf16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))
                : _mm512_cvtph_ps(x);
}

/* The sums of the lanes of eight registers. */
TQK_INLINE void v_sums_of_eight(const vec x[8], float out[8]) {
    __m256 y[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        y[i] = _mm256_add_ps(_mm512_castps512_ps256(x[i]), _mm512_extractf32x8_ps(x[i], 1));
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        y[i] = _mm256_hadd_ps(y[2 * i], y[2 * i + 1]);
    }
    __m256 a = _mm256_hadd_ps(y[0], y[1]), b = _mm256_hadd_ps(y[2], y[3]);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    _mm256_storeu_ps(out, _mm256_add_ps(low, high));
}

#endif
