/* Stage unpack: words of codes to 16-bit integers. Two pieces of 16 bytes, 8 words, are
 * decoded at a time; a word becomes 8 neighbouring integers of its row. */
#include "kernel/avx2/avx2.h"

/* ---- words -------------------------------------------------------------------------------- */

/* Where words are, and the values of all codes. */
struct codes {
    const struct tqi_layout *l;
    const uint8_t *at;
    size_t slab; /* bytes */
    __m256i table;
};

static struct codes codes_of(const struct tqi_rows *rows, const struct tqi_tile *tile) {
    const struct tqi_layout *l = &rows->layout;
    struct codes c = {.l = l, .at = tile->blob + l->codes, .slab = (size_t)tqi_slab_lanes(l) * 4};
    __m256i v2 = _mm256_loadu_si256((const __m256i *)(const void *)rows->book.code_v2);
    /* 4 bits: floor(v2 / 2), the other half is added later; else v2 is even. */
    __m256i half = _mm256_srai_epi16(v2, 1);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    c.table = _mm256_broadcastsi128_si256(bytes);
    return c;
}

TQK_INLINE __m256i line(const struct codes *c, uint32_t slab, size_t at) {
    return _mm256_loadu_si256((const __m256i *)(const void *)(c->at + slab * c->slab + at));
}

/* One bit of 8 codes to bit 0 of 8 nibbles, from a plane of bytes. */
static __m256i plane(const struct codes *c, size_t at) {
    __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(c->at + at)));
    x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 12)),
                         _mm256_set1_epi32(0x000f000f));
    x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 6)),
                         _mm256_set1_epi32(0x03030303));
    return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 3)),
                            _mm256_set1_epi32(0x11111111));
}

/* The last word of a set of 3-bit codes: spare bits of the others, then planes. */
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

/* Word `word` of 3-bit codes in the low three bits of nibbles. */
static __m256i line3(const struct codes *c, uint32_t word, size_t at) {
    uint32_t set = word / 4, member = word % 4, left = c->l->words - set * 4;
    uint32_t members = left < 4 ? left : 4;
    if (member == members - 1)
        return last_line3(c, set, members, at);
    return line(c, set * 3 + member, at);
}

static __m256i line2(const struct codes *c, uint32_t word, size_t at) {
    uint32_t set = word / 2;
    if (set == c->l->words / 2) {
        size_t planes = set * c->slab + at / 4;
        return _mm256_or_si256(plane(c, planes),
                               _mm256_slli_epi32(plane(c, planes + c->slab / 4), 1));
    }
    return _mm256_srli_epi32(line(c, set, at), (int)(word % 2 * 2));
}

/* ---- words to bytes ----------------------------------------------------------------------- */

/* 8 values of a word: of words 0 1 | 4 5 in x[0], 2 3 | 6 7 in x[1]. */
TQK_INLINE void nibbles_to_bytes(const struct codes *c, uint32_t bits, __m256i word, __m256i x[2]) {
    __m256i level = _mm256_set1_epi8(bits == 2 ? 3 : 7), sign = _mm256_set1_epi8(8);
    __m256i shifted = _mm256_srli_epi16(word, 4);
    __m256i even = _mm256_and_si256(word, level), odd = _mm256_and_si256(shifted, level);
    x[0] = _mm256_unpacklo_epi8(even, odd);
    x[1] = _mm256_unpackhi_epi8(even, odd);
    if (bits == 4) { /* signs of codes 0..3 stand in bit 7 of bytes 0..3, of 4..7 in bit 3 */
        __m256i first = _mm256_and_si256(shifted, sign), second = _mm256_and_si256(word, sign);
        x[0] = _mm256_or_si256(x[0], _mm256_unpacklo_epi32(first, second));
        x[1] = _mm256_or_si256(x[1], _mm256_unpackhi_epi32(first, second));
    }
    x[0] = _mm256_shuffle_epi8(c->table, x[0]);
    x[1] = _mm256_shuffle_epi8(c->table, x[1]);
}

/* Bytes of 8 words; 8-bit codes come from two slabs. */
TQK_INLINE void bytes_of(const struct codes *c, uint32_t bits, uint32_t word, uint32_t half_step,
                         size_t at, __m256i x[2]) {
    if (bits == 8) {
        __m256i a = line(c, word, at), b = line(c, word + half_step, at);
        x[0] = _mm256_unpacklo_epi32(a, b);
        x[1] = _mm256_unpackhi_epi32(a, b);
        return;
    }
    __m256i w = bits == 3 ? line3(c, word, at) : bits == 2 ? line2(c, word, at) : line(c, word, at);
    nibbles_to_bytes(c, bits, w, x);
}

/* 4 words of bytes, in either half of x, to 4 rows. */
TQK_INLINE void put_rows(__m128i words01, __m128i words23, int16_t *to, size_t row) {
    __m256i a = _mm256_cvtepi8_epi16(words01), b = _mm256_cvtepi8_epi16(words23);
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(a));
    _mm_storeu_si128((__m128i *)(void *)(to + row), _mm256_extracti128_si256(a, 1));
    _mm_storeu_si128((__m128i *)(void *)(to + 2 * row), _mm256_castsi256_si128(b));
    _mm_storeu_si128((__m128i *)(void *)(to + 3 * row), _mm256_extracti128_si256(b, 1));
}

/* ---- rows --------------------------------------------------------------------------------- */

TQK_INLINE void unpack_k(const struct tqi_rows *k, uint32_t bits, const struct tqi_tile *tile,
                         uint32_t token, int16_t *rows) {
    const struct tqi_layout *l = &k->layout;
    struct codes c = codes_of(k, tile);
    uint32_t per_lane = l->dim_pad / 32, lane_dims = l->dim_pad / 4, row = l->dim_pad;
    uint32_t group = l->group == 32 ? token / 32 : token / 16;
    size_t at = (size_t)(token - group * l->group) * 16;
    const char *ahead = (const char *)c.at + l->codes_size + (size_t)token * row * bits / 8;
    for (uint32_t j = 0; j < per_lane; j++) {
        uint32_t word = (group * per_lane + j) * (bits == 8 ? 2 : 1);
        for (uint32_t i = 0; i < 4; i++) {
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += bits * 16;
            for (uint32_t t = 0; t < 4; t += 2) {
                __m256i x[2];
                int16_t *to = rows + (size_t)i * 4 * row + t * lane_dims + j * 8;
                bytes_of(&c, bits, word, 1, at + i * 64 + t * 16, x);
                put_rows(_mm256_castsi256_si128(x[0]), _mm256_castsi256_si128(x[1]), to, row);
                put_rows(_mm256_extracti128_si256(x[0], 1), _mm256_extracti128_si256(x[1], 1),
                         to + lane_dims, row);
            }
        }
    }
}

TQK_INLINE void unpack_v(const struct tqi_rows *v, uint32_t bits, const struct tqi_tile *tile,
                         uint32_t dim, uint32_t token, uint32_t n_tokens, int16_t *rows) {
    const struct tqi_layout *l = &v->layout;
    struct codes c = codes_of(v, tile);
    uint32_t per_lane = l->dim_pad / 32, groups = n_tokens / l->group;
    uint32_t x_word = dim / 4 % per_lane, first = token / l->group;
    size_t at = (size_t)(dim / 4 / per_lane) * l->group * 2;
    const char *ahead = (const char *)(tile->next ? tile->next : tile->blob) +
                        ((size_t)token * l->dim_pad + (size_t)dim * n_tokens) * bits / 8;
    for (uint32_t quad = 0; quad < 8; quad++) {
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t word = (first + g) * per_lane * (bits == 8 ? 2 : 1) + x_word;
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += bits * 16;
            for (uint32_t o = 0; o < l->group / 8; o += 2) {
                __m256i x[2];
                int16_t *to = rows + (size_t)quad * 4 * n_tokens + g * l->group + o * 8;
                bytes_of(&c, bits, word, per_lane, at + o * 16, x);
                put_rows(_mm256_castsi256_si128(x[0]), _mm256_castsi256_si128(x[1]), to, n_tokens);
                put_rows(_mm256_extracti128_si256(x[0], 1), _mm256_extracti128_si256(x[1], 1),
                         to + 8, n_tokens);
            }
        }
        bool wrap = ++x_word == per_lane;
        x_word = wrap ? 0 : x_word;
        at += wrap ? (size_t)l->group * 2 : 0;
    }
}

#define UNPACK(name, bits)                                                                 \
    void tqk_unpack_k_##name##_avx2(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                    uint32_t token, int16_t *rows) {                       \
        unpack_k(k, bits, tile, token, rows);                                              \
    }                                                                                      \
    void tqk_unpack_v_##name##_avx2(const struct tqi_rows *v, const struct tqi_tile *tile, \
                                    uint32_t dim, uint32_t token, uint32_t n_tokens,       \
                                    int16_t *rows) {                                       \
        unpack_v(v, bits, tile, dim, token, n_tokens, rows);                               \
    }
UNPACK(lm4, 4)
UNPACK(lm3, 3)
UNPACK(lm2, 2)
UNPACK(int8, 8)
