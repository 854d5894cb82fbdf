/*
 * Integer formats (int8, lm), for this level and for i8mm, whose folder has the flag of the matrix
 * instructions; both give the same bits.
 *
 * Decoded codes stand in panels of 16 columns (tokens of keys, dims of values) by steps of 8 along
 * the sum (dims of keys, tokens of values). The left operand has 8 high bytes and 8 low bytes for
 * every step, value = 256 * high + low. A vector of a panel is, where 16 bytes of a slab give two,
 *
 *   SDOT    4 columns by half a step; a lane of the left operand multiplies all
 *   SMMLA   2 columns by a step; both planes of the left operand multiply both
 *
 * so that sums of columns are lanes, and nothing is added across.
 */
#ifndef TQI_KERNEL_NEON_INT_H
#define TQI_KERNEL_NEON_INT_H

#include "kernel/neon/neon.h"

#ifdef __ARM_FEATURE_MATMUL_INT8
enum { TQK_PAIRS = 1 };
#define TQK_KERNEL(stage, format) tqk_##stage##_##format##_i8mm
#else
enum { TQK_PAIRS = 0 };
#define TQK_KERNEL(stage, format) tqk_##stage##_##format##_neon
#endif

enum {
    TQK_STEP_NEON = 8,   /* along the sum */
    TQK_QUADS_NEON = 4,  /* of columns in a panel */
    TQK_PIECE_NEON = 32, /* bytes of a quad of columns at a step */
    TQK_LINE_NEON = TQK_QUADS_NEON * TQK_PIECE_NEON
};

/* ---- words -------------------------------------------------------------------------------- */

/* Where words are, and the values of all codes. */
struct tqk_codes_neon {
    const uint8_t *at;
    size_t slab;    /* bytes */
    uint32_t words; /* of a lane */
    int8x16_t table;
};

TQK_INLINE struct tqk_codes_neon tqk_codes_of_neon(const struct tqi_rows *rows,
                                                   const struct tqi_tile *tile) {
    const struct tqi_layout *l = &rows->layout;
    struct tqk_codes_neon c = {
        .at = tile->blob + l->codes, .slab = (size_t)tqi_slab_lanes(l) * 4, .words = l->words};
    /* 4 bits: floor(v2 / 2), the other half is added later; else v2 is even. */
    int16x8_t low = vshrq_n_s16(vld1q_s16(rows->book.code_v2), 1);
    int16x8_t high = vshrq_n_s16(vld1q_s16(rows->book.code_v2 + 8), 1);
    c.table = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
    return c;
}

TQK_INLINE uint8x16_t tqk_line_neon(const struct tqk_codes_neon *c, uint32_t slab, size_t at) {
    return vld1q_u8(c->at + slab * c->slab + at);
}

/* One bit of 8 codes to bit 0 of 8 nibbles, from a plane of 4 bytes. */
TQK_INLINE uint8x16_t tqk_plane_neon(const struct tqk_codes_neon *c, size_t at) {
    uint32_t four;
    memcpy(&four, c->at + at, sizeof four);
    uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    uint32x4_t x = vmovl_u16(vget_low_u16(wide));
    x = vandq_u32(vorrq_u32(x, vshlq_n_u32(x, 12)), vdupq_n_u32(0x000f000f));
    x = vandq_u32(vorrq_u32(x, vshlq_n_u32(x, 6)), vdupq_n_u32(0x03030303));
    return vreinterpretq_u8_u32(
        vandq_u32(vorrq_u32(x, vshlq_n_u32(x, 3)), vdupq_n_u32(0x11111111)));
}

/* The last word of a set of 3-bit codes: spare bits of the others, then planes. */
static inline uint8x16_t tqk_last_line3_neon(const struct tqk_codes_neon *c, uint32_t set,
                                             uint32_t members, size_t at) {
    size_t planes = (size_t)(set * 3 + members - 1) * c->slab + at / 4;
    uint8x16_t sum = vdupq_n_u8(0);
    for (uint32_t bit = 0; bit < 3; bit++) {
        uint8x16_t x;
        if (bit < members - 1)
            x = vandq_u8(vshrq_n_u8(tqk_line_neon(c, set * 3 + bit, at), 3), vdupq_n_u8(0x11));
        else
            x = tqk_plane_neon(c, planes + (bit - (members - 1)) * (c->slab / 4));
        sum = vorrq_u8(sum, vshlq_u8(x, vdupq_n_s8((int8_t)bit)));
    }
    return sum;
}

/* Word `word` of 3-bit codes in the low three bits of nibbles. */
static inline uint8x16_t tqk_line3_neon(const struct tqk_codes_neon *c, uint32_t word, size_t at) {
    uint32_t set = word / 4, member = word % 4, left = c->words - set * 4;
    uint32_t members = left < 4 ? left : 4;
    if (member == members - 1)
        return tqk_last_line3_neon(c, set, members, at);
    return tqk_line_neon(c, set * 3 + member, at);
}

/* 2-bit codes in the low bits of nibbles. */
static inline uint8x16_t tqk_line2_neon(const struct tqk_codes_neon *c, uint32_t word, size_t at) {
    uint32_t set = word / 2;
    if (set == c->words / 2) {
        size_t planes = set * c->slab + at / 4;
        uint8x16_t high = vshlq_n_u8(tqk_plane_neon(c, planes + c->slab / 4), 1);
        return vorrq_u8(tqk_plane_neon(c, planes), high);
    }
    uint8x16_t x = tqk_line_neon(c, set, at);
    return word % 2 ? vshrq_n_u8(x, 2) : x;
}

/* ---- words to bytes ----------------------------------------------------------------------- */

TQK_INLINE uint8x16_t tqk_zip_words_neon(uint8x16_t a, uint8x16_t b, bool upper) {
    uint32x4_t x = vreinterpretq_u32_u8(a), y = vreinterpretq_u32_u8(b);
    return vreinterpretq_u8_u32(upper ? vzip2q_u32(x, y) : vzip1q_u32(x, y));
}

TQK_INLINE uint8x16_t tqk_part_words_neon(uint8x16_t a, uint8x16_t b, bool odd) {
    uint32x4_t x = vreinterpretq_u32_u8(a), y = vreinterpretq_u32_u8(b);
    return vreinterpretq_u8_u32(odd ? vuzp2q_u32(x, y) : vuzp1q_u32(x, y));
}

/* 4-bit codes. Signs of codes 0..3 stand in bit 7 of bytes 0..3, of 4..7 in bit 3. */
TQK_INLINE void tqk_expand4_neon(int8x16_t table, uint8x16_t word, int8_t *to) {
    const uint8x16_t level = vdupq_n_u8(7);
    uint8x16_t shifted = vshrq_n_u8(word, 4), second = vandq_u8(word, vdupq_n_u8(8));
    uint8x16_t a = vzip1q_u8(word, shifted), b = vzip2q_u8(word, shifted), first = shifted;
    if (TQK_PAIRS) {
        first = tqk_zip_words_neon(shifted, second, false);
        second = tqk_zip_words_neon(shifted, second, true);
    } else {
        uint8x16_t both = a;
        a = tqk_part_words_neon(both, b, false);
        b = tqk_part_words_neon(both, b, true);
    }
    vst1q_s8(to, vqtbl1q_s8(table, vbslq_u8(level, a, first)));
    vst1q_s8(to + 16, vqtbl1q_s8(table, vbslq_u8(level, b, second)));
}

/* Codes of 2 or 3 bits in nibbles; for SDOT the even ones come first. */
TQK_INLINE void tqk_expand3_neon(int8x16_t table, uint32_t bits, uint8x16_t word, int8_t *to) {
    const uint8x16_t level = vdupq_n_u8(bits == 2 ? 3 : 7);
    uint8x16_t shifted = vshrq_n_u8(word, 4);
    uint8x16_t a = TQK_PAIRS ? vzip1q_u8(word, shifted) : word;
    uint8x16_t b = TQK_PAIRS ? vzip2q_u8(word, shifted) : shifted;
    vst1q_s8(to, vqtbl1q_s8(table, vandq_u8(a, level)));
    vst1q_s8(to + 16, vqtbl1q_s8(table, vandq_u8(b, level)));
}

/* 8-bit codes come from two slabs. */
TQK_INLINE void tqk_put8_neon(uint8x16_t a, uint8x16_t b, int8_t *to) {
    vst1q_s8(to, vreinterpretq_s8_u8(TQK_PAIRS ? tqk_zip_words_neon(a, b, false) : a));
    vst1q_s8(to + 16, vreinterpretq_s8_u8(TQK_PAIRS ? tqk_zip_words_neon(a, b, true) : b));
}

/* A whole set of 3-bit words: bit 3 of the nibbles of three slabs are bits of the fourth. */
TQK_INLINE void tqk_put_set3_neon(const struct tqk_codes_neon *c, const uint8_t *at, int8_t *to,
                                  size_t step) {
    uint8x16_t x[3];
    TQK_UNROLL
    for (uint32_t i = 0; i < 3; i++) {
        x[i] = vld1q_u8(at + i * c->slab);
        tqk_expand3_neon(c->table, 3, x[i], to + i * step);
    }
    uint8x16_t last = vbslq_u8(vdupq_n_u8(0x44), vshrq_n_u8(x[2], 1), vshrq_n_u8(x[1], 2));
    last = vbslq_u8(vdupq_n_u8(0x66), last, vshrq_n_u8(x[0], 3));
    tqk_expand3_neon(c->table, 3, last, to + 3 * step);
}

/* Words [word, word + n) of a lane, n a constant but for rare dims, to pieces `step` bytes apart.
 * 8-bit codes: every word has its second slab `second` slabs behind the first, and the next word is
 * `next` slabs on. */
TQK_INLINE void tqk_put_words_neon(const struct tqk_codes_neon *c, uint32_t bits, uint32_t word,
                                   uint32_t n, uint32_t next, uint32_t second, size_t at,
                                   int8_t *to, size_t step) {
    const uint8_t *from = c->at + word * c->slab + at;
    uint32_t i = 0;
    if (bits == 3 && word % 4 == 0)
        for (from = c->at + (size_t)word / 4 * 3 * c->slab + at; i + 4 <= n; i += 4) {
            tqk_put_set3_neon(c, from, to + i * step, step);
            from += 3 * c->slab;
        }
    if (bits == 2 && word % 2 == 0)
        for (from = c->at + (size_t)word / 2 * c->slab + at; i + 2 <= n; i += 2) {
            uint8x16_t x = vld1q_u8(from);
            tqk_expand3_neon(c->table, 2, x, to + i * step);
            tqk_expand3_neon(c->table, 2, vshrq_n_u8(x, 2), to + (i + 1) * step);
            from += c->slab;
        }
    TQK_UNROLL
    for (; i < n; i++) {
        int8_t *here = to + i * step;
        if (bits == 8)
            tqk_put8_neon(vld1q_u8(from + i * next * c->slab),
                          vld1q_u8(from + (i * next + second) * c->slab), here);
        else if (bits == 4)
            tqk_expand4_neon(c->table, vld1q_u8(from + i * c->slab), here);
        else
            tqk_expand3_neon(c->table, bits,
                             bits == 3 ? tqk_line3_neon(c, word + i, at)
                                       : tqk_line2_neon(c, word + i, at),
                             here);
    }
}

/* ---- products ----------------------------------------------------------------------------- */

/* Places of the 8 integers of a step in its planes. */
TQK_INLINE uint8x16_t tqk_places_neon(uint32_t bits, bool values) {
    /* Of pairs of bytes; values hold tokens 0 1 4 5 2 3 6 7. */
    static const uint8_t natural[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                         even[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15},
                         token[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15},
                         both[16] = {0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15};
    bool parted = !TQK_PAIRS && bits < 4;
    return vld1q_u8(parted ? (values ? both : even) : (values ? token : natural));
}

/* 8 integers of at most TQK_MOST_NEON in magnitude to the planes of a step. */
TQK_INLINE void tqk_put_step_neon(int16x8_t x, uint8x16_t places, int8_t *to) {
    x = vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(x), places));
    vst1q_s8(to, vcombine_s8(vrshrn_n_s16(x, 8), vmovn_s16(x)));
}

enum { TQK_INT_ROWS_NEON = 4, TQK_INT_SUMS_NEON = 12 }; /* of a block at most */

/* Quads of columns that a block of rows takes at a time: all, while registers last. */
TQK_INLINE uint32_t tqk_quads_neon(uint32_t rows) {
    return rows > 3 ? 2 : 4;
}

TQK_INLINE void tqk_step_neon(int32x4_t sum[2], const int8x16_t right[2], int8x16_t left) {
#ifdef __ARM_FEATURE_MATMUL_INT8
    sum[0] = vmmlaq_s32(sum[0], left, right[0]);
    sum[1] = vmmlaq_s32(sum[1], left, right[1]);
#else
    sum[0] = vdotq_laneq_s32(sum[0], right[0], left, 0);
    sum[1] = vdotq_laneq_s32(sum[1], right[0], left, 2);
    sum[0] = vdotq_laneq_s32(sum[0], right[1], left, 1);
    sum[1] = vdotq_laneq_s32(sum[1], right[1], left, 3);
#endif
}

/* high * 256 + low of a quad of columns. */
TQK_INLINE int32x4_t tqk_join_planes_neon(const int32x4_t sum[2]) {
    int32x4_t high = sum[0], low = sum[1];
#ifdef __ARM_FEATURE_MATMUL_INT8
    high = vreinterpretq_s32_s64(
        vzip1q_s64(vreinterpretq_s64_s32(sum[0]), vreinterpretq_s64_s32(sum[1])));
    low = vreinterpretq_s32_s64(
        vzip2q_s64(vreinterpretq_s64_s32(sum[0]), vreinterpretq_s64_s32(sum[1])));
#endif
    return vaddq_s32(vshlq_n_s32(high, 8), low);
}

/* out[r * quads + c] = left row r . quad c of the panel, from `panel` on, over n steps; exact
 * modulo 2^32. */
TQK_INLINE void tqk_dot_neon(const char *const *left, const int8_t *panel, uint32_t n,
                             uint32_t rows, int32x4_t *out) {
    const uint32_t quads = tqk_quads_neon(rows);
    int32x4_t sum[TQK_INT_SUMS_NEON][2];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * quads; i++) {
        sum[i][0] = sum[i][1] = vdupq_n_s32(0);
    }
    for (size_t at = 0; at < (size_t)n * 16; at += 16, panel += TQK_LINE_NEON) {
        TQK_UNROLL
        for (uint32_t c = 0; c < quads; c++) {
            const int8x16_t right[2] = {vld1q_s8(panel + c * TQK_PIECE_NEON),
                                        vld1q_s8(panel + c * TQK_PIECE_NEON + 16)};
            TQK_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                int8x16_t q = vld1q_s8((const int8_t *)(const void *)(left[r] + at));
                tqk_step_neon(sum[r * quads + c], right, q);
            }
        }
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * quads; i++) {
        out[i] = tqk_join_planes_neon(sum[i]);
    }
}

#endif
