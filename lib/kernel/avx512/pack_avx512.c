#include "kernel/avx512/pack_avx512.h"

#include "kernel/simd/words.h"

/* ---- keys --------------------------------------------------------------------------------- */

/* 64 codes to 8 words of nibbles. */
static __m256i nibbles_of(__m512i codes, uint32_t bits) {
    __m512i level = bits == 4 ? _mm512_and_si512(codes, _mm512_set1_epi8(7)) : codes;
    __m256i words = _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(level, _mm512_set1_epi16(0x1001)));
    if (bits != 4)
        return words;
    /* Signs of codes 0..3 to bit 7 of byte 0..3, of codes 4..7 to bit 3. */
    __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8(8));
    sign = _mm512_or_si512(_mm512_slli_epi16(sign, 4), _mm512_srli_epi64(sign, 32));
    return _mm256_or_si256(words, _mm512_cvtepi64_epi32(sign));
}

void tqk_pack_k_avx512(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes,
                       uint8_t *blob, uint32_t token) {
    uint32_t words[TQK_DIM_LIMIT_AVX512 / 4];
    struct tqk_slot s = tqk_slot_of(l, token);
    uint8_t *to = blob + l->codes;
    if (bits >= 8) {
        tqk_put_key_bytes(l, bits, to, s, codes);
        return;
    }
    for (uint32_t i = 0; i < l->dim_pad; i += 64) {
        uint32_t n = l->dim_pad - i;
        __mmask64 mask = n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
        __m256i x = nibbles_of(_mm512_maskz_loadu_epi8(mask, codes + i), bits);
        _mm256_storeu_si256((__m256i *)(void *)(words + i / 8), x);
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
    __m128i bytes = _mm_cvtepi32_epi8(_mm_slli_epi32(bits, (int)n));
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

void tqk_pack_v_avx512(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes,
                       uint8_t *blob, uint32_t token) {
    put_values(l, bits, codes, blob, token);
}
