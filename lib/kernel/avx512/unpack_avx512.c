/* Stage unpack: codes of a page to panels. A 64-byte line of a slab is 4 x 4 words: keys
 * 4 lanes of dims by 4 tokens, values 4 octets of tokens by 4 dims. Four lines transposed
 * in pieces of 16 bytes give registers of 16 tokens of one lane, or 16 dims of one octet,
 * and the codes of a word then become bytes in place. */
#include "kernel/avx512/avx512.h"
#include "kernel/avx512/lines_avx512.h"

/* ---- lines ------------------------------------------------------------------------------ */

/* One bit of 8 codes to bit `bit` of 8 nibbles, from a plane of bytes. */
TQK_INLINE __m512i plane(const struct tqk_codes_avx512 *c, size_t at, int bit) {
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
static __m512i last_line3(const struct tqk_codes_avx512 *c, uint32_t set, uint32_t members, size_t at) {
    size_t planes = (size_t)(set * 3 + members - 1) * c->slab + at / 4;
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t bit = 0; bit < 3; bit++) {
        __m512i x;
        if (bit < members - 1) {
            x = _mm512_and_si512(tqk_line_avx512(c, set * 3 + bit, at), _mm512_set1_epi32((int)0x88888888u));
            x = _mm512_srl_epi32(x, _mm_cvtsi32_si128((int)(3 - bit)));
        } else {
            x = plane(c, planes + (bit - (members - 1)) * (c->slab / 4), (int)bit);
        }
        sum = _mm512_or_si512(sum, x);
    }
    return sum;
}

/* Word `word` of 3-bit codes: the low three bits of every nibble, the fourth is noise. */
TQK_INLINE __m512i line3(const struct tqk_codes_avx512 *c, uint32_t word, size_t at) {
    uint32_t set = word / 4, member = word % 4;
    if (set == c->l->words / 4 && member == c->l->words % 4 - 1)
        return last_line3(c, set, member + 1, at);
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
TQK_INLINE __m512i line2(const struct tqk_codes_avx512 *c, uint32_t word, size_t at) {
    uint32_t set = word / 2;
    if (set == c->l->words / 2) {
        size_t planes = set * c->slab + at / 4;
        return _mm512_or_si512(plane(c, planes, 0), plane(c, planes + c->slab / 4, 1));
    }
    __m512i x = tqk_line_avx512(c, set, at);
    return word % 2 ? _mm512_srli_epi32(x, 2) : x;
}

TQK_INLINE __m512i line_of(const struct tqk_codes_avx512 *c, uint32_t bits, uint32_t word, size_t at) {
    return bits == 3 ? line3(c, word, at) : bits == 2 ? line2(c, word, at) : tqk_line_avx512(c, word, at);
}

/* ---- words to bytes ----------------------------------------------------------------------- */

/* Panel bytes of every code, repeated: the permutation reads six bits of an index and only
 * the low ones are the code. */
struct table {
    __m512i bytes, low, high;
};

/* Nibbles 0..3 or 4..7 of both words of a 64-bit lane to the low bits of their bytes. */
static __m512i nibble_control(int first) {
    char at[8];
    for (int i = 0; i < 8; i++)
        at[i] = (char)(4 * (first + i % 4) + 32 * (i / 4));
    int64_t x;
    __builtin_memcpy(&x, at, sizeof x);
    return _mm512_set1_epi64(x);
}

static struct table table_of(const struct tqi_rows *rows) {
    const struct tqi_book *b = &rows->book;
    uint8_t bytes[64];
    for (uint32_t i = 0; i < 64; i++) {
        int v2 = b->code_v2[i % (2 * b->levels)];
        /* 4 bits: floor(v2 / 2), the other half is added later; else v2 is even. */
        bytes[i] = (uint8_t)(128 + (v2 >= 0 ? v2 / 2 : -((1 - v2) / 2)));
    }
    struct table t = {_mm512_loadu_si512(bytes), nibble_control(0), nibble_control(4)};
    return t;
}

/* Two steps: codes 0..3 and 4..7 of every word. */
TQK_INLINE void expand(const struct table *t, uint32_t bits, __m512i word, uint8_t *first,
                       uint8_t *second) {
    __m512i low = _mm512_multishift_epi64_epi8(t->low, word);
    __m512i high = _mm512_multishift_epi64_epi8(t->high, word);
    if (bits == 4) { /* XOR placement: signs stand in the byte of their code */
        __m512i level = _mm512_set1_epi8(7);
        low = _mm512_ternarylogic_epi32(level, low, _mm512_srli_epi16(word, 4), 0xca);
        high = _mm512_ternarylogic_epi32(level, high, word, 0xca);
    }
    _mm512_store_si512(first, _mm512_permutexvar_epi8(low, t->bytes));
    _mm512_store_si512(second, _mm512_permutexvar_epi8(high, t->bytes));
}

/* ---- integer panels ------------------------------------------------------------------------ */

TQK_INLINE void unpack_k_lm(const struct tqi_rows *k, uint32_t bits, const uint8_t *blob,
                            uint32_t token, uint32_t panels, void *panel) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_codes_avx512 c = tqk_codes_of_avx512(l, blob);
    struct table table = table_of(k);
    uint32_t per_lane = l->dim_pad / 32, first = token / l->group * per_lane;
    size_t lane_bytes = (size_t)per_lane * 2 * 64, panel_bytes = lane_bytes * 4;
    for (uint32_t p = 0; p < panels; p++) {
        size_t at = (token % l->group + p * 16) * 16;
        for (uint32_t j = 0; j < per_lane; j++) {
            uint8_t *to = (uint8_t *)panel + p * panel_bytes + j * 128;
            __m512i x[4];
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = line_of(&c, bits, first + j, at + i * 64);
            }
            tqk_transpose_avx512(x);
            TQK_UNROLL
            for (uint32_t t = 0; t < 4; t++) {
                expand(&table, bits, x[t], to + t * lane_bytes, to + t * lane_bytes + 64);
            }
        }
    }
}

TQK_INLINE void unpack_v_lm(const struct tqi_rows *v, uint32_t bits, const uint8_t *blob,
                            uint32_t dim, uint32_t panels, uint32_t n_tokens, void *panel) {
    const struct tqi_layout *l = &v->layout;
    struct tqk_codes_avx512 c = tqk_codes_of_avx512(l, blob);
    struct table table = table_of(v);
    uint32_t per_lane = l->dim_pad / 32, groups = (n_tokens + l->group - 1) / l->group;
    uint32_t octets = l->group / 8;
    uint8_t *to = panel;
    for (uint32_t p = 0; p < panels; p++) {
        struct tqk_quads_avx512 q = tqk_quads_of_avx512(l, dim + 16 * p);
        for (uint32_t g = 0; g < groups; g++) {
            __m512i x[4];
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = line_of(&c, bits, g * per_lane + q.word[i], q.at[i]);
            }
            tqk_transpose_avx512(x);
            TQK_UNROLL
            for (uint32_t o = 0; o < 4; o++) {
                if (o < octets)
                    expand(&table, bits, x[o], to + o * 128, to + o * 128 + 64);
            }
            to += octets * 128;
        }
    }
}

static void unpack_k_int8(const struct tqi_rows *k, const uint8_t *blob, uint32_t token,
                          uint32_t panels, void *panel) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_codes_avx512 c = tqk_codes_of_avx512(l, blob);
    uint32_t halves = l->dim_pad / 16, first = token / l->group * halves;
    size_t panel_bytes = (size_t)l->dim_pad * 16;
    __m512i bias = _mm512_set1_epi8(-128);
    for (uint32_t p = 0; p < panels; p++) {
        size_t at = (token % l->group + p * 16) * 16;
        for (uint32_t j = 0; j < halves; j++) {
            uint8_t *to = (uint8_t *)panel + p * panel_bytes + j * 64;
            __m512i x[4];
            for (uint32_t i = 0; i < 4; i++)
                x[i] = tqk_line_avx512(&c, first + j, at + i * 64);
            tqk_transpose_avx512(x);
            for (uint32_t t = 0; t < 4; t++)
                _mm512_store_si512(to + t * panel_bytes / 4, _mm512_xor_si512(x[t], bias));
        }
    }
}

static void unpack_v_int8(const struct tqi_rows *v, const uint8_t *blob, uint32_t dim,
                          uint32_t panels, uint32_t n_tokens, void *panel) {
    const struct tqi_layout *l = &v->layout;
    struct tqk_codes_avx512 c = tqk_codes_of_avx512(l, blob);
    uint32_t per_lane = l->dim_pad / 32, groups = (n_tokens + l->group - 1) / l->group;
    uint32_t octets = l->group / 8;
    uint8_t *to = panel;
    __m512i bias = _mm512_set1_epi8(-128);
    for (uint32_t p = 0; p < panels; p++) {
        struct tqk_quads_avx512 q = tqk_quads_of_avx512(l, dim + 16 * p);
        for (uint32_t g = 0; g < groups; g++) {
            for (uint32_t h = 0; h < 2; h++) {
                __m512i x[4];
                for (uint32_t i = 0; i < 4; i++)
                    x[i] = tqk_line_avx512(&c, (g * 2 + h) * per_lane + q.word[i], q.at[i]);
                tqk_transpose_avx512(x);
                for (uint32_t o = 0; o < octets; o++)
                    _mm512_store_si512(to + o * 128 + h * 64, _mm512_xor_si512(x[o], bias));
            }
            to += octets * 128;
        }
    }
}

#define LM(name, bits)                                                                           \
    void tqk_unpack_k_##name##_avx512(const struct tqi_rows *k, const uint8_t *blob,             \
                                      uint32_t token, uint32_t panels, void *panel) {            \
        unpack_k_lm(k, bits, blob, token, panels, panel);                                        \
    }                                                                                            \
    void tqk_unpack_v_##name##_avx512(const struct tqi_rows *v, const uint8_t *blob,             \
                                      uint32_t dim, uint32_t panels, uint32_t n_tokens,          \
                                      void *panel) {                                             \
        unpack_v_lm(v, bits, blob, dim, panels, n_tokens, panel);                                \
    }
LM(lm4, 4)
LM(lm3, 3)
LM(lm2, 2)

void tqk_unpack_k_int8_avx512(const struct tqi_rows *k, const uint8_t *blob, uint32_t token,
                              uint32_t panels, void *panel) {
    unpack_k_int8(k, blob, token, panels, panel);
}

void tqk_unpack_v_int8_avx512(const struct tqi_rows *v, const uint8_t *blob, uint32_t dim,
                              uint32_t panels, uint32_t n_tokens, void *panel) {
    unpack_v_int8(v, blob, dim, panels, n_tokens, panel);
}
