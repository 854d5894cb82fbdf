/* Float formats (bf16, f16, fp8): elements become binary32 in registers, where they are multiplied
 * by all query rows of a block.
 *
 * 16 bytes of a slab are four columns (tokens of keys, dims of values) by two or four steps along
 * the sum (dims of keys, tokens of values), so nothing is transposed: a vector holds a step of
 * four columns, and FMLA multiplies it by one lane of the left operand. Every sum takes its steps
 * in the same order, whatever the rows of its block are. */
#ifndef TQI_KERNEL_NEON_FLOAT_H
#define TQI_KERNEL_NEON_FLOAT_H

#include "kernel/neon/neon.h"

enum tqk_source_neon { TQK_E4M3_NEON, TQK_BF16_NEON, TQK_F16_NEON };

enum {
    TQK_STEPS_NEON = 4, /* that are decoded together */
    TQK_ROWS_NEON = 8,  /* of a block at most */
    TQK_SUMS_NEON = 16  /* vectors of sums of a block at most */
};

/* Vectors of four columns that a block of rows takes at a time: so many sums hide the latency of
 * FMLA and leave registers for the operands. */
TQK_INLINE uint32_t tqk_columns_neon(uint32_t rows) {
    return rows > 4 ? 2 : 4;
}

/* Slabs that 4 steps take. */
TQK_INLINE uint32_t tqk_slabs_neon(enum tqk_source_neon source) {
    return source == TQK_E4M3_NEON ? 1 : 2;
}

/* Decoded e4m3 is too small by this, see below. */
TQK_INLINE float tqk_missing_neon(enum tqk_source_neon source) {
    return source == TQK_E4M3_NEON ? 256 : 1;
}

TQK_INLINE float32x4_t tqk_wide_low_neon(uint16x8_t halves) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves)));
}

TQK_INLINE float32x4_t tqk_wide_high_neon(uint16x8_t halves) {
    return vcvt_high_f32_f16(vreinterpretq_f16_u16(halves));
}

/* Four steps of four columns from `at` on; 16-bit formats have two in each of two slabs, `slab`
 * bytes apart. The bits of e4m3 land in IEEE halves with an exponent too small by 8. */
TQK_INLINE void tqk_steps_neon(enum tqk_source_neon source, const uint8_t *at, size_t slab,
                               float32x4_t x[4]) {
    if (source == TQK_E4M3_NEON) {
        /* Bytes to the upper bytes of halves, by step; no byte has the number 255. */
        static const uint8_t place[2][16] = {
            {255, 0, 255, 4, 255, 8, 255, 12, 255, 1, 255, 5, 255, 9, 255, 13},
            {255, 2, 255, 6, 255, 10, 255, 14, 255, 3, 255, 7, 255, 11, 255, 15}};
        uint8x16_t bytes = vld1q_u8(at);
        TQK_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            int16x8_t y = vreinterpretq_s16_u8(vqtbl1q_u8(bytes, vld1q_u8(place[i])));
            uint16x8_t halves = vreinterpretq_u16_s16(vshrq_n_s16(y, 1));
            halves = vbicq_u16(halves, vdupq_n_u16(0x4000)); /* the copy of the sign */
            x[2 * i] = tqk_wide_low_neon(halves);
            x[2 * i + 1] = tqk_wide_high_neon(halves);
        }
        return;
    }
    uint8x16_t a = vld1q_u8(at), b = vld1q_u8(at + slab);
    if (source == TQK_BF16_NEON) {
        uint32x4_t first = vreinterpretq_u32_u8(a), second = vreinterpretq_u32_u8(b);
        const uint32x4_t high = vdupq_n_u32(0xffff0000u);
        x[0] = vreinterpretq_f32_u32(vshlq_n_u32(first, 16));
        x[1] = vreinterpretq_f32_u32(vandq_u32(first, high));
        x[2] = vreinterpretq_f32_u32(vshlq_n_u32(second, 16));
        x[3] = vreinterpretq_f32_u32(vandq_u32(second, high));
        return;
    }
    uint16x8_t even = vuzp1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
    uint16x8_t odd = vuzp2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b));
    x[0] = tqk_wide_low_neon(even);
    x[1] = tqk_wide_low_neon(odd);
    x[2] = tqk_wide_high_neon(even);
    x[3] = tqk_wide_high_neon(odd);
}

/* A float at an address of bytes. */
TQK_INLINE const float *tqk_floats_neon(const char *at) {
    return (const float *)(const void *)at;
}

/* sum[r * columns + c] += 4 floats at left[r] + step times the four steps of columns c at at[c] +
 * offset, all in bytes. */
TQK_INLINE void tqk_multiply_neon(enum tqk_source_neon source, const uint8_t *const at[4],
                                  size_t offset, size_t slab, const char *const *left, size_t step,
                                  uint32_t rows, float32x4_t *sum) {
    const uint32_t columns = tqk_columns_neon(rows);
    TQK_UNROLL
    for (uint32_t c = 0; c < columns; c++) {
        float32x4_t x[TQK_STEPS_NEON];
        tqk_steps_neon(source, at[c] + offset, slab, x);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            float32x4_t q = vld1q_f32(tqk_floats_neon(left[r] + step)), s = sum[r * columns + c];
            s = vfmaq_laneq_f32(s, x[0], q, 0);
            s = vfmaq_laneq_f32(s, x[1], q, 1);
            s = vfmaq_laneq_f32(s, x[2], q, 2);
            sum[r * columns + c] = vfmaq_laneq_f32(s, x[3], q, 3);
        }
    }
    __asm__ volatile("" ::: "memory"); /* no loads of the next steps here: registers are full */
}

#endif
