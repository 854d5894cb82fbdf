/* The register of this level under the names that lib/kernel/simd uses: v_ of binary32, i_ of
 * 32-bit integers. */
#ifndef TQI_KERNEL_NEON_VEC_H
#define TQI_KERNEL_NEON_VEC_H

#include "kernel/neon/neon.h"
#include "spec/codes.h"

enum { LANES = 4 };
typedef float32x4_t vec;
typedef uint32x4_t ivec;
typedef struct tqk_query_neon query_head;
typedef struct tqk_state_neon state_head;

#define TQK_OF(stage) tqk_##stage##_neon

TQK_INLINE vec v_load(const float *at) {
    return vld1q_f32(at);
}
TQK_INLINE void v_store(float *at, vec x) {
    vst1q_f32(at, x);
}
TQK_INLINE vec v_all(float x) {
    return vdupq_n_f32(x);
}
TQK_INLINE vec v_add(vec a, vec b) {
    return vaddq_f32(a, b);
}
TQK_INLINE vec v_sub(vec a, vec b) {
    return vsubq_f32(a, b);
}
TQK_INLINE vec v_mul(vec a, vec b) {
    return vmulq_f32(a, b);
}
TQK_INLINE vec v_min(vec a, vec b) {
    return vminq_f32(a, b);
}
TQK_INLINE vec v_max(vec a, vec b) {
    return vmaxq_f32(a, b);
}
TQK_INLINE ivec v_bits(vec x) {
    return vreinterpretq_u32_f32(x);
}
TQK_INLINE vec i_float(ivec x) {
    return vreinterpretq_f32_u32(x);
}
TQK_INLINE ivec i_all(uint32_t x) {
    return vdupq_n_u32(x);
}
TQK_INLINE ivec i_add(ivec a, ivec b) {
    return vaddq_u32(a, b);
}
TQK_INLINE ivec i_sub(ivec a, ivec b) {
    return vsubq_u32(a, b);
}
TQK_INLINE ivec i_and(ivec a, ivec b) {
    return vandq_u32(a, b);
}
TQK_INLINE ivec i_or(ivec a, ivec b) {
    return vorrq_u32(a, b);
}
TQK_INLINE ivec i_up(ivec x, uint32_t n) {
    return vshlq_u32(x, vdupq_n_s32((int32_t)n));
}
TQK_INLINE ivec i_down(ivec x, uint32_t n) {
    return vshlq_u32(x, vdupq_n_s32(-(int32_t)n));
}
/* The nearest integers, ties to even. */
TQK_INLINE ivec v_nearest(vec x) {
    return vreinterpretq_u32_s32(vcvtnq_s32_f32(x));
}
/* a < b ? x : y. */
TQK_INLINE ivec i_where_less(vec a, vec b, ivec x, ivec y) {
    return vbslq_u32(vcltq_f32(a, b), x, y);
}
/* The low byte, the low half of every lane. */
TQK_INLINE void i_put_halves(uint8_t *to, ivec x) {
    vst1_u8(to, vreinterpret_u8_u16(vmovn_u32(x)));
}
TQK_INLINE void i_put_bytes(uint8_t *to, ivec x) {
    uint16x4_t halves = vmovn_u32(x);
    uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
    vst1_lane_u32((uint32_t *)(void *)to, vreinterpret_u32_u8(bytes), 0);
}
/* To IEEE halves, nearest even. */
TQK_INLINE void v_put_ieee_halves(uint8_t *to, vec x) {
    vst1_u8(to, vreinterpret_u8_f16(vcvt_f16_f32(x)));
}

TQK_INLINE vec v_fma(vec a, vec b, vec c) {
    return vfmaq_f32(c, a, b);
}
TQK_INLINE vec v_sqrt(vec x) {
    return vsqrtq_f32(x);
}
TQK_INLINE ivec i_xor(ivec a, ivec b) {
    return veorq_u32(a, b);
}
TQK_INLINE ivec i_larger(ivec a, ivec b) {
    return vmaxq_u32(a, b);
}
TQK_INLINE ivec i_load(const uint32_t *at) {
    return vld1q_u32(at);
}
TQK_INLINE void i_store(uint32_t *at, ivec x) {
    vst1q_u32(at, x);
}
/* Every lane by its own number of bits. */
TQK_INLINE ivec i_down_each(ivec x, ivec n) {
    return vshlq_u32(x, vnegq_s32(vreinterpretq_s32_u32(n)));
}
/* x + 1 where a > b. */
TQK_INLINE ivec i_count_greater(ivec x, vec a, vec b) {
    return vsubq_u32(x, vcgtq_f32(a, b));
}
TQK_INLINE ivec i_bytes(const uint8_t *at) {
    uint8x8_t four = vreinterpret_u8_u32(vdup_n_u32(tqi_load32(at)));
    return vmovl_u16(vget_low_u16(vmovl_u8(four)));
}
TQK_INLINE vec v_ieee_halves(const uint8_t *at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}
/* Even and odd elements of two registers in memory, and back. */
TQK_INLINE void v_load_pairs(const float *at, vec *even, vec *odd) {
    float32x4x2_t x = vld2q_f32(at);
    *even = x.val[0];
    *odd = x.val[1];
}
TQK_INLINE void v_store_pairs(float *at, vec even, vec odd) {
    float32x4x2_t x = {{even, odd}};
    vst2q_f32(at, x);
}
/* The signs of 8 elements, bit n of element n. */
TQK_INLINE uint8_t v_signs(const float *at) {
    const int32x4_t place = {0, 1, 2, 3};
    uint32x4_t a = vshrq_n_u32(v_bits(v_load(at)), 31), b = vshrq_n_u32(v_bits(v_load(at + 4)), 31);
    return (uint8_t)vaddvq_u32(vshlq_u32(vorrq_u32(a, vshlq_n_u32(b, 4)), place));
}

/* ---- tables ------------------------------------------------------------------------------- */

/* Numbers below 64 / 4 to the indices of the four bytes of a number. */
TQK_INLINE uint8x16_t byte_index(ivec number) {
    return vreinterpretq_u8_u32(vmlaq_n_u32(vdupq_n_u32(0x03020100), number, 0x04040404));
}
/* Four numbers, and an index of them: two bits from bit n of every lane on. */
TQK_INLINE vec v_four(const float *at) {
    return v_load(at);
}
TQK_INLINE ivec i_two_bits(ivec x, uint32_t n) {
    return vreinterpretq_u32_u8(byte_index(i_and(i_down(x, n), i_all(3))));
}
TQK_INLINE vec v_of_four(vec table, ivec index) {
    return vreinterpretq_f32_u8(
        vqtbl1q_u8(vreinterpretq_u8_f32(table), vreinterpretq_u8_u32(index)));
}
/* Eight numbers by lanes below 8. */
TQK_INLINE vec v_of_eight(const float *table, ivec index) {
    uint8x16x2_t t = {
        {vreinterpretq_u8_f32(v_load(table)), vreinterpretq_u8_f32(v_load(table + 4))}};
    return vreinterpretq_f32_u8(vqtbl2q_u8(t, byte_index(index)));
}
/* Numbers by three bits from bit n of every lane on: two registers hold eight. */
#define TQK_TABLE_BITS 3
TQK_INLINE ivec i_table_index(ivec x, uint32_t n) {
    return vreinterpretq_u32_u8(byte_index(i_and(i_down(x, n), i_all(7))));
}
TQK_INLINE vec v_of_table(const float *table, ivec index) {
    uint8x16x2_t t = {
        {vreinterpretq_u8_f32(v_load(table)), vreinterpretq_u8_f32(v_load(table + 4))}};
    return vreinterpretq_f32_u8(vqtbl2q_u8(t, vreinterpretq_u8_u32(index)));
}

/* ---- tokens of a page in lanes ------------------------------------------------------------ */

/* Pieces of 16 bytes for every four tokens. */
TQK_INLINE ivec i_pieces16(const uint8_t *at, size_t step) {
    (void)step;
    return vreinterpretq_u32_u8(vld1q_u8(at));
}
/* Pieces of 8 and of 4 bytes in the first 12 bytes of the place of one of 16. */
TQK_INLINE ivec i_pieces12(const uint8_t *eight, size_t step8, const uint8_t *four, size_t step4) {
    (void)step8;
    (void)step4;
    return vcombine_u32(vreinterpret_u32_u8(vld1_u8(eight)), vdup_n_u32(tqi_load32(four)));
}
/* Bytes of every 16 by the same 16 indices; 0x80 gives 0. */
TQK_INLINE ivec i_choose(ivec x, const uint8_t *index) {
    return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(x), vld1q_u8(index)));
}
/* Four halves, IEEE or bfloat16, for every four tokens. */
TQK_INLINE vec v_piece_halves(const uint8_t *at, size_t step, bool bf16) {
    uint8x8_t x = vld1_u8(at);
    (void)step;
    return bf16 ? vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(x), 16))
                : vcvt_f32_f16(vreinterpret_f16_u8(x));
}

/* The sums of the lanes of eight registers. */
TQK_INLINE void v_sums_of_eight(const vec x[8], float out[8]) {
    v_store(out, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
    v_store(out + 4, vpaddq_f32(vpaddq_f32(x[4], x[5]), vpaddq_f32(x[6], x[7])));
}

#endif
