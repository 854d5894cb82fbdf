/* Words of codes to operands of the sums: a register is 8 words, of 8 tokens (keys) or 8 dims
 * (values), and becomes two registers of bytes, four of whose codes lie in a lane of 32 bits. */
#ifndef TQI_KERNEL_AVX2_CODES_H
#define TQI_KERNEL_AVX2_CODES_H

#include "kernel/avx2/avx2.h"

/* ---- words -------------------------------------------------------------------------------- */

/* Where words are, how far the two pieces of a register lie apart, and the values of all codes. */
struct tqk_codes_avx2 {
    const struct tqi_layout *l;
    const uint8_t *at;
    size_t slab, apart; /* bytes */
    __m256i table;
};

/* Values plus `bias`, 128 or 0: bytes without sign or with it. */
TQK_INLINE struct tqk_codes_avx2 tqk_codes_of_avx2(const struct tqi_rows *rows,
                                                   const struct tqi_tile *tile, int bias) {
    const struct tqi_layout *l = &rows->layout;
    struct tqk_codes_avx2 c = {l, tile->blob + l->codes, (size_t)tqi_slab_lanes(l) * 4, 0,
                               _mm256_set1_epi8((char)bias)};
    if (rows->format->kind == TQI_KIND_INT8)
        return c;
    __m256i v2 = _mm256_loadu_si256((const __m256i *)(const void *)rows->book.code_v2);
    /* 4 bits: floor(v2 / 2), the other half is added later; else v2 is even. */
    __m256i half = _mm256_srai_epi16(v2, 1);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    c.table = _mm256_xor_si256(_mm256_broadcastsi128_si256(bytes), c.table);
    return c;
}

TQK_INLINE __m256i tqk_line_avx2(const struct tqk_codes_avx2 *c, uint32_t slab, size_t at) {
    const uint8_t *from = c->at + slab * c->slab + at;
    __m128i first = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i second = _mm_loadu_si128((const __m128i *)(const void *)(from + c->apart));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

/* One bit of 8 codes to bit 0 of 8 nibbles, from a plane of bytes. */
static inline __m256i tqk_plane_avx2(const struct tqk_codes_avx2 *c, size_t at) {
    int32_t first, second;
    memcpy(&first, c->at + at, 4);
    memcpy(&second, c->at + at + c->apart / 4, 4);
    __m256i x = _mm256_cvtepu8_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(first), second, 1));
    x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 12)),
                         _mm256_set1_epi32(0x000f000f));
    x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 6)),
                         _mm256_set1_epi32(0x03030303));
    return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 3)),
                            _mm256_set1_epi32(0x11111111));
}

/* The last word of an incomplete set of 3-bit codes: spare bits of the others, then planes. */
static inline __m256i tqk_last_line3_avx2(const struct tqk_codes_avx2 *c, uint32_t set,
                                          uint32_t members, size_t at) {
    size_t planes = (size_t)(set * 3 + members - 1) * c->slab + at / 4;
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t bit = 0; bit < 3; bit++) {
        __m256i x;
        if (bit < members - 1)
            x = _mm256_and_si256(_mm256_srli_epi32(tqk_line_avx2(c, set * 3 + bit, at), 3),
                                 _mm256_set1_epi32(0x11111111));
        else
            x = tqk_plane_avx2(c, planes + (bit - (members - 1)) * (c->slab / 4));
        sum = _mm256_or_si256(sum, _mm256_slli_epi32(x, (int)bit));
    }
    return sum;
}

/* Word `word` of 3-bit codes in the low three bits of nibbles, the fourth is noise. */
TQK_INLINE __m256i tqk_line3_avx2(const struct tqk_codes_avx2 *c, uint32_t word, size_t at) {
    uint32_t set = word / 4, member = word % 4;
    if (set == c->l->words / 4 && member == c->l->words % 4 - 1)
        return tqk_last_line3_avx2(c, set, member + 1, at);
    if (member < 3)
        return tqk_line_avx2(c, set * 3 + member, at);
    __m256i x = _mm256_srli_epi32(tqk_line_avx2(c, set * 3, at), 3);
    __m256i y = _mm256_srli_epi32(tqk_line_avx2(c, set * 3 + 1, at), 2);
    __m256i z = _mm256_srli_epi32(tqk_line_avx2(c, set * 3 + 2, at), 1);
    x = _mm256_and_si256(x, _mm256_set1_epi32(0x11111111));
    y = _mm256_and_si256(y, _mm256_set1_epi32(0x22222222));
    z = _mm256_and_si256(z, _mm256_set1_epi32(0x44444444));
    return _mm256_or_si256(_mm256_or_si256(x, y), z);
}

/* Word `word` of 2-bit codes in the low two bits of nibbles, the others are noise. */
static inline __m256i tqk_line2_avx2(const struct tqk_codes_avx2 *c, uint32_t word, size_t at) {
    uint32_t set = word / 2;
    if (set == c->l->words / 2) {
        size_t planes = set * c->slab + at / 4;
        return _mm256_or_si256(tqk_plane_avx2(c, planes),
                               _mm256_slli_epi32(tqk_plane_avx2(c, planes + c->slab / 4), 1));
    }
    return _mm256_srli_epi32(tqk_line_avx2(c, set, at), (int)(word % 2 * 2));
}

/* ---- words to operands -------------------------------------------------------------------- */

/* Operands that stay the same: where sums take most registers, they come from memory. */
struct tqk_masks_avx2 {
    uint64_t levels[4]; /* of 3 and 4 bits */
    uint8_t order[32];  /* see tqk_signs_avx2() */
    uint64_t bit[4], bit_7_to_3[4];
    uint64_t low[4]; /* bytes of 16 bits */
};
static const struct tqk_masks_avx2 tqk_masks_avx2 __attribute__((aligned(32))) = {
#define TQK_4_TIMES(x) \
    { x, x, x, x }
    .levels = TQK_4_TIMES(0x7777777777777777),
    .order = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,
              0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15},
    .bit = TQK_4_TIMES(0x0808080808080808),
    .bit_7_to_3 = TQK_4_TIMES((uint64_t)0x80 << 32), /* a matrix */
    .low = TQK_4_TIMES(0x00ff00ff00ff00ff),
#undef TQK_4_TIMES
};
TQK_INLINE __m256i tqk_mask_avx2(const void *mask) {
    return _mm256_load_si256(mask);
}

/* Low three bits of the even codes, and of the odd ones, to their bytes; the bits above bit 3 are
 * noise, except for bit 7. */
TQK_INLINE void tqk_levels_avx2(const struct tqk_masks_avx2 *masks, __m256i word, uint32_t bits,
                                __m256i x[2]) {
    x[0] =
        _mm256_and_si256(word, bits == 2 ? _mm256_set1_epi8(0x33) : tqk_mask_avx2(masks->levels));
    x[1] = _mm256_srli_epi16(x[0], 4);
}

/* Signs of codes 0..3 of a word stand in bit 7 of its bytes 0..3, of 4..7 in bit 3. To bit 3 of
 * the bytes that have the levels: bytes 0 and 2 of all words, then bytes 1 and 3, beside the same
 * shifted. */
TQK_INLINE void tqk_signs_avx2(const struct tqk_masks_avx2 *masks, __m256i word, __m256i x[2]) {
    __m256i last = _mm256_shuffle_epi8(word, tqk_mask_avx2(masks->order));
#ifdef __GFNI__ /* bit 7 to bit 3 in one operation */
    __m256i first = _mm256_gf2p8affine_epi64_epi8(last, tqk_mask_avx2(masks->bit_7_to_3), 0);
#else
    __m256i first = _mm256_and_si256(_mm256_srli_epi16(last, 4), tqk_mask_avx2(masks->bit));
#endif
    last = _mm256_and_si256(last, tqk_mask_avx2(masks->bit));
    x[0] = _mm256_or_si256(x[0], _mm256_unpacklo_epi16(first, last));
    x[1] = _mm256_or_si256(x[1], _mm256_unpackhi_epi16(first, last));
}

/* 8 codes of the 8 words `word` at `at`: the even ones in x[0], the odd ones in x[1]. 8-bit codes
 * come from two slabs, `second` further, codes 0..3 in x[0], 4..7 in x[1]. */
TQK_INLINE void tqk_decode_avx2(const struct tqk_codes_avx2 *c, const struct tqk_masks_avx2 *masks,
                                uint32_t bits, uint32_t word, uint32_t second, size_t at,
                                __m256i x[2]) {
    if (bits == 8) {
        x[0] = _mm256_xor_si256(tqk_line_avx2(c, word, at), c->table);
        x[1] = _mm256_xor_si256(tqk_line_avx2(c, word + second, at), c->table);
        return;
    }
    __m256i w = bits == 3   ? tqk_line3_avx2(c, word, at)
                : bits == 2 ? tqk_line2_avx2(c, word, at)
                            : tqk_line_avx2(c, word, at);
    tqk_levels_avx2(masks, w, bits, x);
    if (bits == 4)
        tqk_signs_avx2(masks, w, x);
    x[0] = _mm256_shuffle_epi8(c->table, x[0]);
    x[1] = _mm256_shuffle_epi8(c->table, x[1]);
}

#endif
