#include "kernel/avx2/pack_avx2.h"

#include "kernel/simd/words.h"

/* ---- keys --------------------------------------------------------------------------------- */

/* 32 codes to 4 words of nibbles. */
static __m128i nibbles_of(__m256i codes, uint32_t bits) {
    __m256i level = bits == 4 ? _mm256_and_si256(codes, _mm256_set1_epi8(7)) : codes;
    __m256i pairs = _mm256_maddubs_epi16(level, _mm256_set1_epi16(0x1001));
    __m128i words =
        _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    if (bits != 4)
        return words;
    /* Signs of codes 0..3 to bit 7 of byte 0..3, of codes 4..7 to bit 3. */
    __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi8(8));
    sign = _mm256_or_si256(_mm256_slli_epi16(sign, 4), _mm256_srli_epi64(sign, 32));
    sign = _mm256_permutevar8x32_epi32(sign, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    return _mm_or_si128(words, _mm256_castsi256_si128(sign));
}

void tqk_pack_k_avx2(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    uint32_t words[TQK_DIM_LIMIT_AVX2 / 4];
    struct tqk_slot s = tqk_slot_of(l, token);
    uint8_t *to = blob + l->codes;
    if (bits >= 8) {
        tqk_put_key_bytes(l, bits, to, s, codes);
        return;
    }
    for (uint32_t i = 0; i < l->dim_pad; i += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i));
        _mm_storeu_si128((__m128i *)(void *)(words + i / 8), nibbles_of(x, bits));
    }
    tqk_put_key_words(l, bits, to, s, words);
}

/* ---- values ------------------------------------------------------------------------------- */

typedef __m128i quad;

/* Replaces the bits of `mask` in 4 words. */
TQK_INLINE void merge(uint8_t *at, uint32_t mask, quad bits) {
    __m128i *to = (__m128i *)(void *)at;
    __m128i keep = _mm_andnot_si128(_mm_set1_epi32((int)mask), _mm_loadu_si128(to));
    _mm_storeu_si128(to, _mm_or_si128(keep, bits));
}

/* Bit n of 4 bytes. */
static void merge_bytes(uint8_t *at, uint32_t n, quad bits) {
    uint32_t x;
    const __m128i first =
        _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m128i bytes = _mm_shuffle_epi8(_mm_sll_epi32(bits, _mm_cvtsi32_si128((int)n)), first);
    x = (uint32_t)_mm_cvtsi128_si32(bytes);
    tqi_put_bits(at, 0x01010101u << n, x);
}

TQK_INLINE quad up_by(quad x, uint32_t n) {
    return _mm_sll_epi32(x, _mm_cvtsi32_si128((int)n));
}

TQK_INLINE quad down_by(quad x, uint32_t n) {
    return _mm_srl_epi32(x, _mm_cvtsi32_si128((int)n));
}

TQK_INLINE quad masked(quad x, uint32_t mask) {
    return _mm_and_si128(x, _mm_set1_epi32((int)mask));
}

TQK_INLINE quad joined(quad x, quad y) {
    return _mm_or_si128(x, y);
}

TQK_INLINE quad quad_of(const uint8_t *at) {
    return _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)tqi_load32(at)));
}

TQK_INLINE quad quad_of_halves(const uint8_t *at) {
    return _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}

#include "kernel/simd/values.h"

void tqk_pack_v_avx2(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    put_values(l, bits, codes, blob, token);
}
