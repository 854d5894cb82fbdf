/* The register of this level under the names that lib/kernel/simd uses: v_ of binary32, i_ of
 * 32-bit integers. */
#ifndef TQI_KERNEL_NEON_VEC_H
#define TQI_KERNEL_NEON_VEC_H

#include "kernel/neon/neon.h"

enum { LANES = 4 };
typedef float32x4_t vec;
typedef uint32x4_t ivec;

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

#endif
