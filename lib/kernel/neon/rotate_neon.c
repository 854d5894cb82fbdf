/* Stage rotate: signs and a Hadamard matrix, in the order of spec/rotation.h. Every sum is
 * the one that the reference makes: codes are cut from them. */
#include "kernel/neon/neon.h"

TQK_INLINE float32x4_t flipped(float32x4_t x, uint32x4_t sign) {
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), sign));
}

static void butterflies(float *x, uint32_t dim, uint32_t block) {
    static const uint32_t odd[4] = {0, 0x80000000u, 0, 0x80000000u};
    static const uint32_t upper[4] = {0, 0, 0x80000000u, 0x80000000u};
    const uint32x4_t s1 = vld1q_u32(odd), s2 = vld1q_u32(upper);
    for (uint32_t i = 0; i < dim; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        if (block > 1) /* (a, b) -> (a + b, a - b): the neighbour plus or minus oneself */
            v = vaddq_f32(vrev64q_f32(v), flipped(v, s1));
        if (block > 2)
            v = vaddq_f32(vextq_f32(v, v, 2), flipped(v, s2));
        vst1q_f32(x + i, v);
    }
    for (uint32_t stride = 4; stride < block; stride *= 2)
        for (uint32_t base = 0; base < dim; base += 2 * stride)
            for (uint32_t i = base; i < base + stride; i += 4) {
                float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(x + i + stride);
                vst1q_f32(x + i, vaddq_f32(a, b));
                vst1q_f32(x + i + stride, vsubq_f32(a, b));
            }
}

static bool is_minus(const struct tqi_rotation *r, uint32_t row, uint32_t a, bool transpose) {
    return transpose ? r->rows[a] >> row & 1 : r->rows[row] >> a & 1;
}

/* Columns b to b + 3 of every block. H_m or its transpose. */
static void mix_lanes(const struct tqi_rotation *r, float *x, uint32_t block, bool transpose) {
    float32x4_t in[36];
    for (uint32_t a = 0; a < r->order; a++)
        in[a] = vld1q_f32(x + (size_t)a * block);
    for (uint32_t row = 0; row < r->order; row++) {
        float32x4_t sum = vdupq_n_f32(0);
        for (uint32_t a = 0; a < r->order; a++) {
            float32x4_t v = is_minus(r, row, a, transpose) ? vnegq_f32(in[a]) : in[a];
            sum = a == 0 ? v : vaddq_f32(sum, v);
        }
        vst1q_f32(x + (size_t)row * block, sum);
    }
}

/* The same for one column. */
static void mix_column(const struct tqi_rotation *r, float *x, uint32_t block, bool transpose) {
    float in[36];
    for (uint32_t a = 0; a < r->order; a++)
        in[a] = x[(size_t)a * block];
    for (uint32_t row = 0; row < r->order; row++) {
        float sum = 0;
        for (uint32_t a = 0; a < r->order; a++) {
            float v = is_minus(r, row, a, transpose) ? -in[a] : in[a];
            sum = a == 0 ? v : sum + v;
        }
        x[(size_t)row * block] = sum;
    }
}

static void mix_blocks(const struct tqi_rotation *r, float *x, bool transpose) {
    uint32_t block = 1u << r->log2_block, b = 0;
    for (; b + 4 <= block; b += 4)
        mix_lanes(r, x + b, block, transpose);
    for (; b < block; b++)
        mix_column(r, x + b, block, transpose);
}

static void flip_signs(const struct tqi_rotation *r, float *x) {
    for (uint32_t i = 0; i < r->dim; i += 4)
        vst1q_f32(x + i, flipped(vld1q_f32(x + i), vld1q_u32(r->flips + i)));
}

void tqk_rotate_neon(const struct tqi_rotation *r, float *x) {
    flip_signs(r, x);
    butterflies(x, r->dim, 1u << r->log2_block);
    if (r->order > 1)
        mix_blocks(r, x, false);
}

void tqk_unrotate_neon(const struct tqi_rotation *r, float *x) {
    if (r->order > 1)
        mix_blocks(r, x, true);
    butterflies(x, r->dim, 1u << r->log2_block);
    flip_signs(r, x);
}
