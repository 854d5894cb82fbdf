/* Stage unpack: words of codes to bytes. A piece of 16 bytes, 4 words, is decoded at a time; a
 * word becomes 8 neighbouring bytes of its row. */
#include "kernel/neon/neon.h"

/* ---- words -------------------------------------------------------------------------------- */

/* Where words are, and the values of all codes. */
struct codes {
    const struct tqi_layout *l;
    const uint8_t *at;
    size_t slab; /* bytes */
    int8x16_t table;
};

static struct codes codes_of(const struct tqi_rows *rows, const struct tqi_tile *tile) {
    const struct tqi_layout *l = &rows->layout;
    struct codes c = {.l = l, .at = tile->blob + l->codes, .slab = (size_t)tqi_slab_lanes(l) * 4};
    /* 4 bits: floor(v2 / 2), the other half is added later; else v2 is even. */
    int16x8_t low = vshrq_n_s16(vld1q_s16(rows->book.code_v2), 1);
    int16x8_t high = vshrq_n_s16(vld1q_s16(rows->book.code_v2 + 8), 1);
    c.table = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
    return c;
}

TQK_INLINE uint8x16_t line(const struct codes *c, uint32_t slab, size_t at) {
    return vld1q_u8(c->at + slab * c->slab + at);
}

TQK_INLINE uint32x4_t words(uint8x16_t x) {
    return vreinterpretq_u32_u8(x);
}

/* One bit of 8 codes to bit 0 of 8 nibbles, from a plane of 4 bytes. */
static uint32x4_t plane(const struct codes *c, size_t at) {
    uint32_t four;
    memcpy(&four, c->at + at, sizeof four);
    uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    uint32x4_t x = vmovl_u16(vget_low_u16(wide));
    x = vandq_u32(vorrq_u32(x, vshlq_n_u32(x, 12)), vdupq_n_u32(0x000f000f));
    x = vandq_u32(vorrq_u32(x, vshlq_n_u32(x, 6)), vdupq_n_u32(0x03030303));
    return vandq_u32(vorrq_u32(x, vshlq_n_u32(x, 3)), vdupq_n_u32(0x11111111));
}

/* The last word of a set of 3-bit codes: spare bits of the others, then planes. */
static uint8x16_t last_line3(const struct codes *c, uint32_t set, uint32_t members, size_t at) {
    size_t planes = (size_t)(set * 3 + members - 1) * c->slab + at / 4;
    uint32x4_t sum = vdupq_n_u32(0);
    for (uint32_t bit = 0; bit < 3; bit++) {
        uint32x4_t x;
        if (bit < members - 1)
            x = vandq_u32(vshrq_n_u32(words(line(c, set * 3 + bit, at)), 3),
                          vdupq_n_u32(0x11111111));
        else
            x = plane(c, planes + (bit - (members - 1)) * (c->slab / 4));
        sum = vorrq_u32(sum, vshlq_u32(x, vdupq_n_s32((int32_t)bit)));
    }
    return vreinterpretq_u8_u32(sum);
}

/* Word `word` of 3-bit codes in the low three bits of nibbles. */
static uint8x16_t line3(const struct codes *c, uint32_t word, size_t at) {
    uint32_t set = word / 4, member = word % 4, left = c->l->words - set * 4;
    uint32_t members = left < 4 ? left : 4;
    if (member == members - 1)
        return last_line3(c, set, members, at);
    return line(c, set * 3 + member, at);
}

static uint8x16_t line2(const struct codes *c, uint32_t word, size_t at) {
    uint32_t set = word / 2;
    if (set == c->l->words / 2) {
        size_t planes = set * c->slab + at / 4;
        uint32x4_t high = vshlq_n_u32(plane(c, planes + c->slab / 4), 1);
        return vreinterpretq_u8_u32(vorrq_u32(plane(c, planes), high));
    }
    uint8x16_t x = line(c, set, at);
    return word % 2 ? vshrq_n_u8(x, 2) : x;
}

/* ---- words to bytes ----------------------------------------------------------------------- */

/* 8 values of a word: of words 0 and 1 in x[0], 2 and 3 in x[1]. */
TQK_INLINE void nibbles_to_bytes(const struct codes *c, uint32_t bits, uint8x16_t word,
                                 int8x16_t x[2]) {
    uint8x16_t level = vdupq_n_u8(bits == 2 ? 3 : 7), sign = vdupq_n_u8(8);
    uint8x16_t shifted = vshrq_n_u8(word, 4);
    uint8x16_t even = vandq_u8(word, level), odd = vandq_u8(shifted, level);
    uint8x16_t a = vzip1q_u8(even, odd), b = vzip2q_u8(even, odd);
    if (bits == 4) { /* signs of codes 0..3 stand in bit 7 of bytes 0..3, of 4..7 in bit 3 */
        uint32x4_t first = words(vandq_u8(shifted, sign)), second = words(vandq_u8(word, sign));
        a = vorrq_u8(a, vreinterpretq_u8_u32(vzip1q_u32(first, second)));
        b = vorrq_u8(b, vreinterpretq_u8_u32(vzip2q_u32(first, second)));
    }
    x[0] = vqtbl1q_s8(c->table, a);
    x[1] = vqtbl1q_s8(c->table, b);
}

/* Bytes of 4 words; 8-bit codes come from two slabs. */
TQK_INLINE void bytes_of(const struct codes *c, uint32_t bits, uint32_t word, uint32_t half_step,
                         size_t at, int8x16_t x[2]) {
    if (bits == 8) {
        uint32x4_t a = words(line(c, word, at)), b = words(line(c, word + half_step, at));
        x[0] = vreinterpretq_s8_u32(vzip1q_u32(a, b));
        x[1] = vreinterpretq_s8_u32(vzip2q_u32(a, b));
        return;
    }
    uint8x16_t w = bits == 3   ? line3(c, word, at)
                   : bits == 2 ? line2(c, word, at)
                               : line(c, word, at);
    nibbles_to_bytes(c, bits, w, x);
}

/* 4 words of bytes to 4 rows. */
TQK_INLINE void put_rows(const int8x16_t x[2], int8_t *to, size_t row) {
    vst1_s8(to, vget_low_s8(x[0]));
    vst1_s8(to + row, vget_high_s8(x[0]));
    vst1_s8(to + 2 * row, vget_low_s8(x[1]));
    vst1_s8(to + 3 * row, vget_high_s8(x[1]));
}

/* ---- rows --------------------------------------------------------------------------------- */

TQK_INLINE void unpack_k(const struct tqi_rows *k, uint32_t bits, const struct tqi_tile *tile,
                         uint32_t token, int8_t *rows) {
    const struct tqi_layout *l = &k->layout;
    struct codes c = codes_of(k, tile);
    uint32_t per_lane = l->dim_pad / 32, lane_dims = l->dim_pad / 4, row = l->dim_pad;
    uint32_t group = l->group == 32 ? token / 32 : token / 16;
    size_t at = (size_t)(token - group * l->group) * 16;
    for (uint32_t j = 0; j < per_lane; j++) {
        uint32_t word = (group * per_lane + j) * (bits == 8 ? 2 : 1);
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t t = 0; t < 4; t++) {
                int8x16_t x[2];
                bytes_of(&c, bits, word, 1, at + i * 64 + t * 16, x);
                put_rows(x, rows + (size_t)i * 4 * row + t * lane_dims + j * 8, row);
            }
    }
}

TQK_INLINE void unpack_v(const struct tqi_rows *v, uint32_t bits, const struct tqi_tile *tile,
                         uint32_t dim, uint32_t n_tokens, int8_t *rows) {
    const struct tqi_layout *l = &v->layout;
    struct codes c = codes_of(v, tile);
    uint32_t per_lane = l->dim_pad / 32, groups = n_tokens / l->group;
    uint32_t x_word = dim / 4 % per_lane;
    size_t at = (size_t)(dim / 4 / per_lane) * l->group * 2;
    for (uint32_t quad = 0; quad < 8; quad++) {
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t word = bits == 8 ? g * 2 * per_lane + x_word : g * per_lane + x_word;
            for (uint32_t o = 0; o < l->group / 8; o++) {
                int8x16_t x[2];
                bytes_of(&c, bits, word, per_lane, at + o * 16, x);
                put_rows(x, rows + (size_t)quad * 4 * n_tokens + g * l->group + o * 8, n_tokens);
            }
        }
        bool wrap = ++x_word == per_lane;
        x_word = wrap ? 0 : x_word;
        at += wrap ? (size_t)l->group * 2 : 0;
    }
}

#define UNPACK(name, bits)                                                                 \
    void tqk_unpack_k_##name##_neon(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                    uint32_t token, int8_t *rows) {                        \
        unpack_k(k, bits, tile, token, rows);                                              \
    }                                                                                      \
    void tqk_unpack_v_##name##_neon(const struct tqi_rows *v, const struct tqi_tile *tile, \
                                    uint32_t dim, uint32_t n_tokens, int8_t *rows) {       \
        unpack_v(v, bits, tile, dim, n_tokens, rows);                                      \
    }
UNPACK(lm4, 4)
UNPACK(lm3, 3)
UNPACK(lm2, 2)
UNPACK(int8, 8)
