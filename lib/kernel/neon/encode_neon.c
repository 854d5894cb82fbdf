/* The write path of one row: norm, rotate, quantize, pack. Every rounded operation is the
 * one of the contract in spec/rows.h. Rows outside the plain range go to the reference. */
#include <math.h>

#include "kernel/neon/neon.h"
#include "kernel/neon/pack_neon.h"
#include "kernel/neon/vec_neon.h"

/* ---- norm --------------------------------------------------------------------------------- */

/* What the tree sums. */
TQK_INLINE float32x4_t term(float32x4_t x, bool squares) {
    return squares ? vmulq_f32(x, x) : vabsq_f32(x);
}

/* Sum over the tree, which has room for n rounded up to a power of two, at least 8. A pairwise
 * addition is a level of it. */
TQK_INLINE float sum_tree(const float *x, uint32_t n, float *tree, bool squares) {
    uint32_t size = 8;
    while (size < n)
        size *= 2;
    for (uint32_t i = 0; i < size; i += 8) {
        float32x4_t a = i < n ? vld1q_f32(x + i) : vdupq_n_f32(0);
        float32x4_t b = i + 4 < n ? vld1q_f32(x + i + 4) : vdupq_n_f32(0);
        vst1q_f32(tree + i / 2, vpaddq_f32(term(a, squares), term(b, squares)));
    }
    for (size /= 2; size > 4; size /= 2)
        for (uint32_t i = 0; i < size; i += 8)
            vst1q_f32(tree + i / 2, vpaddq_f32(vld1q_f32(tree + i), vld1q_f32(tree + i + 4)));
    float32x4_t last = vld1q_f32(tree);
    last = vpaddq_f32(last, last);
    return vgetq_lane_f32(vpaddq_f32(last, last), 0);
}

static float sum_squares(const float *x, uint32_t n, float *tree) {
    return sum_tree(x, n, tree, true);
}

static float sum_abs(const float *x, uint32_t n, float *tree) {
    return sum_tree(x, n, tree, false);
}

/* ---- quantize ----------------------------------------------------------------------------- */

/* Sums of squares of bytes. */
TQK_INLINE uint32x4_t add_squares(uint32x4_t sum, uint8x16_t x) {
    sum = vpadalq_u16(sum, vmull_u8(vget_low_u8(x), vget_low_u8(x)));
    return vpadalq_u16(sum, vmull_u8(vget_high_u8(x), vget_high_u8(x)));
}

/* Thresholds below |y|, in 4 lanes. */
TQK_INLINE uint32x4_t level_of(const struct tqi_book *book, uint32_t levels, float32x4_t y) {
    uint32x4_t level = vdupq_n_u32(0);
    y = vabsq_f32(y);
    TQK_UNROLL
    for (uint32_t i = 0; i + 1 < levels; i++) {
        level = vsubq_u32(level, vcgtq_f32(y, vdupq_n_f32(book->threshold[i])));
    }
    return level;
}

/* 4 times 4 lanes below 256 to bytes. */
TQK_INLINE uint8x16_t bytes_of(const uint32x4_t x[4]) {
    uint16x8_t a = vcombine_u16(vmovn_u32(x[0]), vmovn_u32(x[1]));
    uint16x8_t b = vcombine_u16(vmovn_u32(x[2]), vmovn_u32(x[3]));
    return vcombine_u8(vmovn_u16(a), vmovn_u16(b));
}

/* Rotated row, a multiple of 16, to codes, one a byte; returns the sum of squared code values. */
TQK_INLINE uint32_t quantize_lm(const struct tqi_book *book, uint32_t bits, const float *u,
                                uint32_t dim, float inv, uint8_t *codes) {
    const uint32_t levels = 1u << (bits - 1);
    uint8_t v2[16] = {0};
    uint32x4_t sum = vdupq_n_u32(0);
    for (uint32_t i = 0; i < levels; i++)
        v2[i] = (uint8_t)book->v2[i];
    for (uint32_t i = 0; i < dim; i += 16) {
        uint32x4_t level[4], negative[4];
        TQK_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            float32x4_t y = vmulq_n_f32(vld1q_f32(u + i + 4 * k), inv);
            negative[k] = vshrq_n_u32(vreinterpretq_u32_f32(y), 31);
            level[k] = level_of(book, levels, y);
        }
        uint8x16_t l = bytes_of(level), minus = bytes_of(negative), code;
        uint8x16_t values = vqtbl1q_u8(vld1q_u8(v2), l);
        sum = add_squares(sum, values);
        if (bits == 4) /* levels - 1 - level or levels + level */
            code = vorrq_u8(l, vshlq_n_u8(minus, 3));
        else
            code = veorq_u8(l, vsubq_u8(vdupq_n_u8((uint8_t)levels), minus));
        vst1q_u8(codes + i, code);
    }
    return vaddvq_u32(sum);
}

static uint32_t quantize_int8(const float *u, uint32_t dim, uint8_t *codes) {
    float32x4_t most = vdupq_n_f32(0);
    int32x4_t sum = vdupq_n_s32(0);
    for (uint32_t i = 0; i < dim; i += 4)
        most = vmaxq_f32(most, vabsq_f32(vld1q_f32(u + i)));
    float largest = vmaxvq_f32(most), inv = largest > 0 ? 127.0f / largest : 0;
    for (uint32_t i = 0; i < dim; i += 8) {
        int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(u + i), inv));
        int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(u + i + 4), inv));
        sum = vmlaq_s32(vmlaq_s32(sum, a, a), b, b);
        int8x8_t code = vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b)));
        vst1_u8(codes + i, vreinterpret_u8_s8(code));
    }
    return (uint32_t)vaddvq_s32(sum);
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Behind the row: a residual, a tree, codes. */
static uint32_t tree_floats(uint32_t dim) {
    uint32_t size = 8;
    while (size < dim)
        size *= 2;
    return size;
}

size_t tqk_encode_scratch_neon(const struct tqi_rows *rows) {
    uint32_t dim = rows->layout.dim;
    size_t own = 2 * (size_t)dim + tree_floats(dim) + rows->layout.dim_pad / sizeof(float);
    size_t ref = tqk_encode_scratch_ref(rows);
    return own > ref ? own : ref;
}

struct scratch {
    float *tree;
    uint8_t *codes;
};

static struct scratch split(const struct tqi_rows *rows, float *x) {
    uint32_t dim = rows->layout.dim;
    float *tree = x + 2 * (size_t)dim;
    struct scratch s = {tree, (uint8_t *)(tree + tree_floats(dim))};
    memset(s.codes + dim, 0, rows->layout.dim_pad - dim);
    return s;
}

#include "kernel/simd/encode_rows.h"

#include "kernel/simd/encode_polar.h"
