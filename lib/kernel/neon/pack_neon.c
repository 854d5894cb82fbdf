#include "kernel/neon/pack_neon.h"

#include "kernel/simd/words.h"

/* ---- keys --------------------------------------------------------------------------------- */

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

void tqk_pack_k_neon(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    uint32_t words[TQK_DIM_LIMIT_NEON / 8];
    struct tqk_slot s = tqk_slot_of(l, token);
    uint8_t *to = blob + l->codes;
    if (bits >= 8) {
        tqk_put_key_bytes(l, bits, to, s, codes);
        return;
    }
    for (uint32_t i = 0; i < l->dim_pad; i += 32)
        nibbles_of(codes + i, bits, words + i / 8);
    tqk_put_key_words(l, bits, to, s, words);
}

/* ---- values ------------------------------------------------------------------------------- */

typedef uint32x4_t quad;

/* Replaces the bits of `mask` in 4 words. */
TQK_INLINE void merge(uint8_t *at, uint32_t mask, quad bits) {
    uint32x4_t old = vreinterpretq_u32_u8(vld1q_u8(at));
    vst1q_u8(at, vreinterpretq_u8_u32(vbslq_u32(vdupq_n_u32(mask), bits, old)));
}

TQK_INLINE quad up_by(quad x, uint32_t n) {
    return vshlq_u32(x, vdupq_n_s32((int32_t)n));
}

/* Bit n of 4 bytes. */
static void merge_bytes(uint8_t *at, uint32_t n, quad bits) {
    uint8x8_t bytes = vmovn_u16(vcombine_u16(vmovn_u32(up_by(bits, n)), vdup_n_u16(0)));
    tqi_put_bits(at, 0x01010101u << n, vget_lane_u32(vreinterpret_u32_u8(bytes), 0));
}

TQK_INLINE quad down_by(quad x, uint32_t n) {
    return vshlq_u32(x, vdupq_n_s32(-(int32_t)n));
}

TQK_INLINE quad masked(quad x, uint32_t mask) {
    return vandq_u32(x, vdupq_n_u32(mask));
}

TQK_INLINE quad joined(quad x, quad y) {
    return vorrq_u32(x, y);
}

TQK_INLINE quad quad_of(const uint8_t *at) {
    uint8x8_t four = vreinterpret_u8_u32(vdup_n_u32(tqi_load32(at)));
    return vmovl_u16(vget_low_u16(vmovl_u8(four)));
}

TQK_INLINE quad quad_of_halves(const uint8_t *at) {
    return vmovl_u16(vreinterpret_u16_u8(vld1_u8(at)));
}

#include "kernel/simd/values.h"

void tqk_pack_v_neon(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token) {
    put_values(l, bits, codes, blob, token);
}
