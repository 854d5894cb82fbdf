/* Integer codes to operands of the byte multiply: words of 3 and 2 bits out of their shared
 * slabs, then every code of a word to a byte. */
#ifndef TQI_KERNEL_AVX512_CODES_H
#define TQI_KERNEL_AVX512_CODES_H

#include "kernel/avx512/lines_avx512.h"

/* ---- words -------------------------------------------------------------------------------- */

/* One bit of 8 codes to bit `bit` of 8 nibbles, from a plane of bytes. */
TQK_INLINE __m512i tqk_plane_avx512(const struct tqk_codes_avx512 *c, size_t at, int bit) {
    __mmask16 lanes = c->lanes;
    __m512i x = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, c->at + at));
    x = _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 12)),
                         _mm512_set1_epi32(0x000f000f));
    x = _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 6)),
                         _mm512_set1_epi32(0x03030303));
    x = _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 3)),
                         _mm512_set1_epi32(0x11111111));
    return _mm512_sll_epi32(x, _mm_cvtsi32_si128(bit));
}

/* The last word of an incomplete set of 3-bit codes: spare bits while there are any, then
 * planes. */
static inline __m512i tqk_last_line3_avx512(const struct tqk_codes_avx512 *c, uint32_t set,
                                            uint32_t members, size_t at) {
    size_t planes = (size_t)(set * 3 + members - 1) * c->slab + at / 4;
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t bit = 0; bit < 3; bit++) {
        __m512i x;
        if (bit < members - 1) {
            x = _mm512_and_si512(tqk_line_avx512(c, set * 3 + bit, at),
                                 _mm512_set1_epi32((int)0x88888888u));
            x = _mm512_srl_epi32(x, _mm_cvtsi32_si128((int)(3 - bit)));
        } else {
            x = tqk_plane_avx512(c, planes + (bit - (members - 1)) * (c->slab / 4), (int)bit);
        }
        sum = _mm512_or_si512(sum, x);
    }
    return sum;
}

/* Word `word` of 3-bit codes: the low three bits of every nibble, the fourth is noise. */
TQK_INLINE __m512i tqk_line3_avx512(const struct tqk_codes_avx512 *c, uint32_t word, size_t at) {
    uint32_t set = word / 4, member = word % 4;
    if (set == c->l->words / 4 && member == c->l->words % 4 - 1)
        return tqk_last_line3_avx512(c, set, member + 1, at);
    if (member < 3)
        return tqk_line_avx512(c, set * 3 + member, at);
    __m512i x = _mm512_srli_epi32(tqk_line_avx512(c, set * 3, at), 3);
    __m512i y = _mm512_srli_epi32(tqk_line_avx512(c, set * 3 + 1, at), 2);
    __m512i z = _mm512_srli_epi32(tqk_line_avx512(c, set * 3 + 2, at), 1);
    /* 0xca: first operand ? second : third, bit by bit. */
    x = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x22222222), y, x, 0xca);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x44444444), z, x, 0xca);
}

/* Word `word` of 2-bit codes: the low two bits of every nibble. */
TQK_INLINE __m512i tqk_line2_avx512(const struct tqk_codes_avx512 *c, uint32_t word, size_t at) {
    uint32_t set = word / 2;
    if (set == c->l->words / 2) {
        size_t planes = set * c->slab + at / 4;
        return _mm512_or_si512(tqk_plane_avx512(c, planes, 0),
                               tqk_plane_avx512(c, planes + c->slab / 4, 1));
    }
    __m512i x = tqk_line_avx512(c, set, at);
    return word % 2 ? _mm512_srli_epi32(x, 2) : x;
}

/* ---- words to bytes ----------------------------------------------------------------------- */

/* Integer formats as constants of the inlined kernels. */
enum tqk_source_avx512 { TQK_LM4, TQK_LM3, TQK_LM2, TQK_INT8 };

/* Values of the codes, repeated: the permutation reads six bits of an index and only the low
 * ones are the code. The others spread the nibbles of codes 0..3 and 4..7 over bytes. */
struct tqk_table_avx512 {
    __m512i bytes;
    __m512i low_shift, high_shift; /* of every nibble, for VPMULTISHIFTQB */
    __m512i low_pair, high_pair;   /* its byte in a word or in the word shifted, for VPERMT2B */
};

/* Nibbles first .. first + 3 of both words of a 64-bit lane to the low bits of bytes. */
static inline __m512i tqk_shifts_avx512(int first) {
    int64_t word = (4 * first) * 0x01010101LL + 0x0c080400LL;
    return _mm512_set1_epi64(word | (word + 0x20202020LL) << 32);
}

/* Selects bytes `first` and `first` + 1 of every word of one register, each followed by the
 * same byte of another. */
static inline __m512i tqk_pairs_avx512(int first) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i word = _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x04040404));
    return _mm512_add_epi32(word, _mm512_set1_epi32(0x41014000 + first * 0x01010101));
}

/* bias 128: unsigned operands, for queries, which are signed; 0: signed ones, for weights, which
 * are not. */
static inline struct tqk_table_avx512 tqk_table_of_avx512(const struct tqi_rows *rows, int bias) {
    const struct tqi_book *b = &rows->book;
    if (rows->format->kind == TQI_KIND_INT8) {
        struct tqk_table_avx512 sign = {.bytes = _mm512_set1_epi8((char)bias)};
        return sign;
    }
    const __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m256i index = _mm256_and_si256(lane, _mm256_set1_epi16((short)(2 * b->levels - 1)));
    __m256i v2 = _mm256_loadu_si256((const __m256i *)(const void *)b->code_v2);
    /* 4 bits: floor(v2 / 2), the other half is added later; else v2 is even. */
    __m256i value = _mm256_srai_epi16(_mm256_permutexvar_epi16(index, v2), 1);
    __m128i bytes = _mm256_cvtepi16_epi8(_mm256_add_epi16(value, _mm256_set1_epi16((short)bias)));
    struct tqk_table_avx512 t = {_mm512_broadcast_i32x4(bytes), tqk_shifts_avx512(0),
                                 tqk_shifts_avx512(4), tqk_pairs_avx512(0), tqk_pairs_avx512(2)};
    return t;
}

/* Operands of 4 elements along the sum that one word gives. */
TQK_INLINE uint32_t tqk_operands_avx512(enum tqk_source_avx512 source) {
    return source == TQK_INT8 ? 1 : 2;
}

/* Lines that four words take up in a page (int8: half words). */
TQK_INLINE uint32_t tqk_lines_avx512(enum tqk_source_avx512 source) {
    return source == TQK_LM3 ? 3 : source == TQK_LM2 ? 2 : 4;
}

TQK_INLINE __m512i tqk_word_avx512(const struct tqk_codes_avx512 *c, enum tqk_source_avx512 source,
                                   uint32_t word, size_t at) {
    return source == TQK_LM3   ? tqk_line3_avx512(c, word, at)
           : source == TQK_LM2 ? tqk_line2_avx512(c, word, at)
                               : tqk_line_avx512(c, word, at);
}

/* Whether the operands of a word are its even and its odd codes instead of the first and the last
 * four: 4 bits have signs beside the byte that a permutation makes of a nibble, fewer bits can
 * stay in their bytes. */
static inline bool tqk_splits_nibbles_avx512(const struct tqi_rows *rows) {
    return rows->format->kind == TQI_KIND_LM && rows->format->bits < 4;
}

/* Operands of a word for `rows` rows. VPMULTISHIFTQB takes a turn of the multipliers: with many
 * rows they have none to spare (Zen 4). */
TQK_INLINE void tqk_expand_avx512(const struct tqk_table_avx512 *t, enum tqk_source_avx512 source,
                                  uint32_t rows, __m512i word, __m512i out[2]) {
    if (source == TQK_INT8) {
        out[0] = _mm512_xor_si512(word, t->bytes);
        return;
    }
    __m512i low = word, high = _mm512_srli_epi16(word, 4);
    if (source == TQK_LM4) { /* XOR placement */
        const __m512i level = _mm512_set1_epi8(7);
        __m512i shifted = high;
        low = rows < 8 ? _mm512_multishift_epi64_epi8(t->low_shift, word)
                       : _mm512_permutex2var_epi8(word, t->low_pair, shifted);
        high = rows < 8 ? _mm512_multishift_epi64_epi8(t->high_shift, word)
                        : _mm512_permutex2var_epi8(word, t->high_pair, shifted);
        low = _mm512_ternarylogic_epi32(low, shifted, level, 0xe4); /* level ? low : shifted */
        high = _mm512_ternarylogic_epi32(high, word, level, 0xe4);
    }
    out[0] = _mm512_permutexvar_epi8(low, t->bytes);
    out[1] = _mm512_permutexvar_epi8(high, t->bytes);
}

#endif
