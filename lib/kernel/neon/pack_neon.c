#include "kernel/neon/pack_neon.h"

#include "spec/codes.h"

/* ---- the set of words that 3-bit and 2-bit codes share ------------------------------------ */

/* As in spec/codes.c: where a word lives. */
struct shared {
    uint32_t slab, member, members;
    bool last; /* of a set: its bits are in the spare bits of the others, or in planes */
};

static struct shared share(const struct tqi_layout *l, uint32_t bits, uint32_t word) {
    uint32_t size = bits == 3 ? 4 : 2, set = word / size, left = l->words - set * size;
    struct shared s = {.slab = set * (bits == 3 ? 3 : 1), .member = word % size};
    s.members = left < size ? left : size;
    s.last = s.member == s.members - 1 && (bits == 3 || s.members < size);
    return s;
}

/* ---- keys --------------------------------------------------------------------------------- */

/* Bit 0 of every nibble to a byte. */
static uint8_t squeeze(uint32_t x) {
    x = (x | x >> 3) & 0x03030303u;
    x = (x | x >> 6) & 0x000f000fu;
    return (uint8_t)(x | x >> 12);
}

/* One word of nibbles (sign placement done) to element `lane` of its slab. */
static void put_word(const struct tqi_layout *l, uint32_t bits, uint8_t *codes, uint32_t word,
                     uint32_t lane, uint32_t nibbles) {
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, at = (size_t)lane * 4;
    if (bits == 4) {
        tqi_store32(codes + word * slab + at, nibbles);
        return;
    }
    struct shared s = share(l, bits, word);
    uint32_t mask = bits == 3 ? 0x77777777u : 0x33333333u;
    uint8_t *first = codes + s.slab * slab;
    if (!s.last) {
        uint32_t up = bits == 3 ? 0 : 2 * s.member;
        uint8_t *to = first + (bits == 3 ? s.member * slab : 0) + at;
        tqi_put_bits(to, mask << up, nibbles << up);
        return;
    }
    uint32_t spare = s.members - 1; /* slabs with a spare bit; the other bits go to planes */
    uint8_t *planes = first + spare * slab + lane;
    for (uint32_t bit = 0; bit < bits; bit++) {
        uint32_t x = nibbles >> bit & 0x11111111u;
        if (bit < spare)
            tqi_put_bits(first + bit * slab + at, 0x88888888u, x << 3);
        else
            planes[(bit - spare) * (slab / 4)] = squeeze(x);
    }
}

/* 32 codes to 4 words of nibbles. */
static void nibbles_of(const uint8_t *codes, uint32_t bits, uint32_t words[4]) {
    uint8x16_t a = vld1q_u8(codes), b = vld1q_u8(codes + 16);
    uint8x16_t level = vdupq_n_u8(bits == 4 ? 7 : 15), sign = vdupq_n_u8(8);
    uint8x16_t even = vandq_u8(vuzp1q_u8(a, b), level), odd = vandq_u8(vuzp2q_u8(a, b), level);
    uint32x4_t x = vreinterpretq_u32_u8(vorrq_u8(even, vshlq_n_u8(odd, 4)));
    if (bits == 4) { /* signs of codes 0..3 to bit 7 of bytes 0..3, of codes 4..7 to bit 3 */
        uint32x4_t s = vreinterpretq_u32_u8(vandq_u8(a, sign));
        uint32x4_t t = vreinterpretq_u32_u8(vandq_u8(b, sign));
        x = vorrq_u32(x, vshlq_n_u32(vuzp1q_u32(s, t), 4));
        x = vorrq_u32(x, vuzp2q_u32(s, t));
    }
    vst1q_u32(words, x);
}

/* Element of the token in the slabs of its group, lane 0; lanes are `step` apart. */
struct slot {
    uint32_t word, lane, step;
};

static struct slot slot_of(const struct tqi_layout *l, uint32_t token) {
    uint32_t granule = l->group < 4 ? l->group : 4, in_group = token % l->group;
    struct slot s = {token / l->group * (l->dim_pad / 32),
                     in_group / granule * 4 * granule + in_group % granule, granule};
    return s;
}

void tqk_pack_k_neon(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    uint32_t words[TQK_DIM_LIMIT_NEON / 8], per_lane = l->dim_pad / 32;
    struct slot s = slot_of(l, token);
    uint8_t *to = blob + l->codes;
    if (bits == 8) {
        size_t slab = (size_t)tqi_slab_lanes(l) * 4;
        for (uint32_t i = 0; i < l->dim_pad / 4; i++) {
            uint32_t t = i / (per_lane * 2), half = i % (per_lane * 2);
            memcpy(to + (s.word * 2 + half) * slab + (s.lane + t * s.step) * 4, codes + i * 4, 4);
        }
        return;
    }
    for (uint32_t i = 0; i < l->dim_pad; i += 32)
        nibbles_of(codes + i, bits, words + i / 8);
    uint32_t t = 0, j = 0;
    for (uint32_t i = 0; i < l->dim_pad / 8; i++) {
        put_word(l, bits, to, s.word + j, s.lane + t * s.step, words[i]);
        t += ++j == per_lane;
        j = j == per_lane ? 0 : j;
    }
}

/* ---- values ------------------------------------------------------------------------------- */

/* Replaces the bits of `mask` in 4 words. */
TQK_INLINE void merge(uint8_t *at, uint32_t mask, uint32x4_t bits) {
    uint32x4_t old = vreinterpretq_u32_u8(vld1q_u8(at));
    vst1q_u8(at, vreinterpretq_u8_u32(vbslq_u32(vdupq_n_u32(mask), bits, old)));
}

TQK_INLINE uint32x4_t up_by(uint32x4_t x, uint32_t n) {
    return vshlq_u32(x, vdupq_n_s32((int32_t)n));
}

/* Bit n of 4 bytes. */
static void merge_bytes(uint8_t *at, uint32_t n, uint32x4_t bits) {
    uint8x8_t bytes = vmovn_u16(vcombine_u16(vmovn_u32(up_by(bits, n)), vdup_n_u16(0)));
    tqi_put_bits(at, 0x01010101u << n, vget_lane_u32(vreinterpret_u32_u8(bytes), 0));
}

/* The token's code is number `place` of the words of 4 dims from `lane` on. */
static void put_quad(const struct tqi_layout *l, uint32_t bits, uint8_t *codes, uint32_t word,
                     uint32_t lane, uint32_t place, uint32x4_t code) {
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, at = (size_t)lane * 4;
    struct shared s = share(l, bits, word);
    uint8_t *first = codes + s.slab * slab;
    if (!s.last) {
        uint32_t add = bits == 3 ? 0 : 2 * s.member, mask = bits == 3 ? 7 : 3;
        uint8_t *to = first + (bits == 3 ? s.member * slab : 0) + at;
        merge(to, mask << (4 * place + add), up_by(code, 4 * place + add));
        return;
    }
    uint32_t spare = s.members - 1;
    uint8_t *planes = first + spare * slab + lane;
    for (uint32_t bit = 0; bit < bits; bit++) {
        uint32x4_t x = vandq_u32(vshlq_u32(code, vdupq_n_s32(-(int32_t)bit)), vdupq_n_u32(1));
        if (bit < spare)
            merge(first + bit * slab + at, 8u << 4 * place, up_by(x, 4 * place + 3));
        else
            merge_bytes(planes + (bit - spare) * (slab / 4), place, x);
    }
}

/* 4-bit and 8-bit codes: one place in one word. */
static void put_whole(uint32_t bits, uint8_t *at, uint32_t place, uint32x4_t code) {
    if (bits == 8) {
        uint32_t up = 8 * (place % 4);
        merge(at, 255u << up, up_by(code, up));
        return;
    }
    uint32_t sign = tqi_sign_bit4(place);
    uint32x4_t level = up_by(vandq_u32(code, vdupq_n_u32(7)), 4 * place);
    uint32x4_t minus = up_by(vshrq_n_u32(code, 3), sign);
    merge(at, 7u << 4 * place | 1u << sign, vorrq_u32(level, minus));
}

void tqk_pack_v_neon(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    struct tqi_place p = tqi_place_v(l, token, 0);
    uint32_t per_lane = l->dim_pad / 32, x = 0, lane = p.lane;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    uint8_t *to = blob + l->codes;
    for (uint32_t i = 0; i < l->dim_pad; i += 4) {
        uint8x8_t four = vreinterpret_u8_u32(vdup_n_u32(tqi_load32(codes + i)));
        uint32x4_t code = vmovl_u16(vget_low_u16(vmovl_u8(four)));
        if (bits == 4) {
            put_whole(bits, to + (p.word + x) * slab + (size_t)lane * 4, p.code, code);
        } else if (bits == 8) { /* [group][half][dims] */
            uint32_t at = p.word * 2 + p.code / 4 * per_lane + x;
            put_whole(bits, to + at * slab + (size_t)lane * 4, p.code, code);
        } else {
            put_quad(l, bits, to, p.word + x, lane, p.code, code);
        }
        bool wrap = ++x == per_lane;
        x = wrap ? 0 : x;
        lane += wrap ? l->group / 2 : 0;
    }
}
