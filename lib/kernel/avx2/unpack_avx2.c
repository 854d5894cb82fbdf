/* Stage unpack: words of codes to operands of the sums, see avx2.h. Two pieces of 16 bytes, 8
 * words, are decoded at a time. */
#include "kernel/avx2/avx2.h"
#include "kernel/simd/ahead.h"

/* ---- words -------------------------------------------------------------------------------- */

/* Where words are, how far the two pieces of a register lie apart, and the values of all codes. */
struct codes {
    const struct tqi_layout *l;
    const uint8_t *at;
    size_t slab, apart; /* bytes */
    __m256i table;
};

/* Values plus 128: bytes without sign become 16-bit integers in one operation. */
static struct codes codes_of(const struct tqi_rows *rows, const struct tqi_tile *tile,
                             size_t apart) {
    const struct tqi_layout *l = &rows->layout;
    struct codes c = {l, tile->blob + l->codes, (size_t)tqi_slab_lanes(l) * 4, apart,
                      _mm256_set1_epi8(-128)};
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

TQK_INLINE __m256i line(const struct codes *c, uint32_t slab, size_t at) {
    const uint8_t *from = c->at + slab * c->slab + at;
    __m128i first = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i second = _mm_loadu_si128((const __m128i *)(const void *)(from + c->apart));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

/* One bit of 8 codes to bit 0 of 8 nibbles, from a plane of bytes. */
static __m256i plane(const struct codes *c, size_t at) {
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
static __m256i last_line3(const struct codes *c, uint32_t set, uint32_t members, size_t at) {
    size_t planes = (size_t)(set * 3 + members - 1) * c->slab + at / 4;
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t bit = 0; bit < 3; bit++) {
        __m256i x;
        if (bit < members - 1)
            x = _mm256_and_si256(_mm256_srli_epi32(line(c, set * 3 + bit, at), 3),
                                 _mm256_set1_epi32(0x11111111));
        else
            x = plane(c, planes + (bit - (members - 1)) * (c->slab / 4));
        sum = _mm256_or_si256(sum, _mm256_slli_epi32(x, (int)bit));
    }
    return sum;
}

/* Word `word` of 3-bit codes in the low three bits of nibbles, the fourth is noise. */
TQK_INLINE __m256i line3(const struct codes *c, uint32_t word, size_t at) {
    uint32_t set = word / 4, member = word % 4;
    if (set == c->l->words / 4 && member == c->l->words % 4 - 1)
        return last_line3(c, set, member + 1, at);
    if (member < 3)
        return line(c, set * 3 + member, at);
    __m256i x = _mm256_srli_epi32(line(c, set * 3, at), 3);
    __m256i y = _mm256_srli_epi32(line(c, set * 3 + 1, at), 2);
    __m256i z = _mm256_srli_epi32(line(c, set * 3 + 2, at), 1);
    x = _mm256_and_si256(x, _mm256_set1_epi32(0x11111111));
    y = _mm256_and_si256(y, _mm256_set1_epi32(0x22222222));
    z = _mm256_and_si256(z, _mm256_set1_epi32(0x44444444));
    return _mm256_or_si256(_mm256_or_si256(x, y), z);
}

/* Word `word` of 2-bit codes in the low two bits of nibbles, the others are noise. */
static __m256i line2(const struct codes *c, uint32_t word, size_t at) {
    uint32_t set = word / 2;
    if (set == c->l->words / 2) {
        size_t planes = set * c->slab + at / 4;
        return _mm256_or_si256(plane(c, planes),
                               _mm256_slli_epi32(plane(c, planes + c->slab / 4), 1));
    }
    return _mm256_srli_epi32(line(c, set, at), (int)(word % 2 * 2));
}

/* ---- words to operands -------------------------------------------------------------------- */

/* 8 codes of 8 words to bytes: of 4 bits words 0 1 | 4 5 in x[0], 2 3 | 6 7 in x[1], codes in
 * order; of 3 and 2 bits the even codes in x[0], the odd ones in x[1]. */
TQK_INLINE void nibbles_to_bytes(const struct codes *c, uint32_t bits, __m256i word, __m256i x[2]) {
    __m256i level = _mm256_set1_epi8(bits == 2 ? 3 : 7), sign = _mm256_set1_epi8(8);
    __m256i shifted = _mm256_srli_epi16(word, 4);
    __m256i even = _mm256_and_si256(word, level), odd = _mm256_and_si256(shifted, level);
    x[0] = even;
    x[1] = odd;
    if (bits == 4) { /* signs of codes 0..3 stand in bit 7 of bytes 0..3, of 4..7 in bit 3 */
        __m256i first = _mm256_and_si256(shifted, sign), second = _mm256_and_si256(word, sign);
        x[0] =
            _mm256_or_si256(_mm256_unpacklo_epi8(even, odd), _mm256_unpacklo_epi32(first, second));
        x[1] =
            _mm256_or_si256(_mm256_unpackhi_epi8(even, odd), _mm256_unpackhi_epi32(first, second));
    }
    x[0] = _mm256_shuffle_epi8(c->table, x[0]);
    x[1] = _mm256_shuffle_epi8(c->table, x[1]);
}

/* Bytes of 8 words; 8-bit codes come from two slabs, codes 0..3 in x[0], 4..7 in x[1]. */
TQK_INLINE void bytes_of(const struct codes *c, uint32_t bits, uint32_t word, uint32_t half_step,
                         size_t at, __m256i x[2]) {
    if (bits == 8) {
        x[0] = _mm256_xor_si256(line(c, word, at), c->table);
        x[1] = _mm256_xor_si256(line(c, word + half_step, at), c->table);
        return;
    }
    __m256i w = bits == 3 ? line3(c, word, at) : bits == 2 ? line2(c, word, at) : line(c, word, at);
    nibbles_to_bytes(c, bits, w, x);
}

TQK_INLINE void put(int16_t *to, __m256i x) {
    _mm256_store_si256((__m256i *)(void *)to, x);
}

/* Even and odd bytes of a register to 16-bit integers `step` registers apart. */
TQK_INLINE void put_bytes(int16_t *to, uint32_t step, __m256i x) {
    put(to, _mm256_and_si256(x, _mm256_set1_epi16(255)));
    put(to + 16 * step, _mm256_srli_epi16(x, 8));
}

/* 8 words to 4 registers: both of two steps, or of 4 steps the one at `to`. */
TQK_INLINE void put_word(int16_t *to, uint32_t bits, const __m256i x[2]) {
    put_bytes(to, 2, x[0]);
    put_bytes(to + (bits == 4 ? 16 : 64), 2, x[1]);
}

/* From the first register of 8 words to the next: behind the `words` words of the first, or between
 * its registers. */
TQK_INLINE uint32_t second_of(uint32_t bits, uint32_t words) {
    return bits == 4 ? 64 * words : 16;
}

/* From word to word. */
TQK_INLINE uint32_t word_room(uint32_t bits) {
    return bits == 4 ? 64 : 128;
}

TQK_INLINE void unpack_k(const struct tqi_rows *k, uint32_t bits, const struct tqi_tile *tile,
                         uint32_t token, int16_t *to) {
    const struct tqi_layout *l = &k->layout;
    struct codes c = codes_of(k, tile, 64);
    uint32_t per_lane = l->dim_pad / 32;
    uint32_t group = l->group == 32 ? token / 32 : token / 16;
    size_t at = (size_t)(token - group * l->group) * 16;
    const uint8_t *ahead = c.at + l->codes_size + (size_t)token * l->dim_pad * bits / 8;
    const ptrdiff_t far = tqk_far_keys(l, tile);
    for (uint32_t j = 0; j < per_lane; j++) {
        uint32_t word = (group * per_lane + j) * (bits == 8 ? 2 : 1);
        for (uint32_t t = 0; t < 4; t++) {
            int16_t *first = to + (size_t)(t * per_lane + j) * word_room(bits);
            tqk_ahead(ahead, far);
            ahead += bits * 16;
            TQK_UNROLL
            for (uint32_t half = 0; half < 2; half++) {
                __m256i x[2];
                bytes_of(&c, bits, word, 1, at + half * 128 + t * 16, x);
                put_word(first + half * second_of(bits, 4 * per_lane), bits, x);
            }
        }
    }
}

/* Lanes 2p and 2p + 1 of the slab are a register. */
TQK_INLINE void unpack_v(const struct tqi_rows *v, uint32_t bits, const struct tqi_tile *tile,
                         uint32_t x_word, uint32_t token, uint32_t n_tokens, int16_t *to) {
    const struct tqi_layout *l = &v->layout;
    const size_t lane = (size_t)l->group * 2;
    const struct codes c = codes_of(v, tile, lane);
    const uint32_t octets = n_tokens / 8, in_group = l->group / 8;
    const uint32_t group_words = l->dim_pad / 32 * (bits == 8 ? 2 : 1);
    uint32_t word = (l->group == 32 ? token / 32 : token / 16) * group_words + x_word;
    const uint8_t *ahead = (tile->next ? tile->next : tile->blob) +
                           ((size_t)token * l->dim_pad + (size_t)x_word * 32 * n_tokens) * bits / 8;
    for (uint32_t o = 0; o < octets; o++) {
        size_t at = (size_t)(o & (in_group - 1)) * 16;
        int16_t *first = to + (size_t)o * word_room(bits);
        TQK_UNROLL
        for (uint32_t pair = 0; pair < 4; pair++) {
            __m256i x[2];
            if (pair % 2 == 0) {
                tqk_ahead(ahead, (ptrdiff_t)l->codes);
                ahead += bits * 16;
            }
            bytes_of(&c, bits, word, l->dim_pad / 32, at + pair * 2 * lane, x);
            put_word(first + (size_t)(pair / 2) * octets * 128 + pair % 2 * second_of(bits, octets),
                     bits, x);
        }
        word += (o & (in_group - 1)) == in_group - 1 ? group_words : 0;
    }
}

#define UNPACK(name, bits)                                                                 \
    void tqk_unpack_k_##name##_avx2(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                    uint32_t token, int16_t *to) {                         \
        unpack_k(k, bits, tile, token, to);                                                \
    }                                                                                      \
    void tqk_unpack_v_##name##_avx2(const struct tqi_rows *v, const struct tqi_tile *tile, \
                                    uint32_t word, uint32_t token, uint32_t n_tokens,      \
                                    int16_t *to) {                                         \
        unpack_v(v, bits, tile, word, token, n_tokens, to);                                \
    }
UNPACK(lm4, 4)
UNPACK(lm3, 3)
UNPACK(lm2, 2)
UNPACK(int8, 8)
