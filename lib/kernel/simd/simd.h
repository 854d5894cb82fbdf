/* What the SIMD levels have in common; their headers include it. */
#ifndef TQI_KERNEL_SIMD_H
#define TQI_KERNEL_SIMD_H

#include "kernel/stages.h"

/* Scores are stored divided by this, and sums of weighted values by the other: rows at the end
 * of the range of binary32 must not overflow on the way. */
#define TQK_SCORE_UNIT 0x1p16
#define TQK_VALUE_UNIT 0x1p24

/* Asks for complete unrolling of loops over register arrays. */
#define TQK_UNROLL _Pragma("GCC unroll 16")
#define TQK_INLINE static inline __attribute__((always_inline))

static inline bool tqk_is_integer(const struct tqi_rows *rows) {
    return rows->format->kind == TQI_KIND_LM || rows->format->kind == TQI_KIND_INT8;
}

static inline bool tqk_is_polar(const struct tqi_rows *rows) {
    return rows->format->kind == TQI_KIND_POLAR;
}

/* lm4 stores n for the value n + 1/2: the sum of the left operand, halved, is missing. */
static inline bool tqk_has_half(const struct tqi_rows *rows) {
    return rows->format->kind == TQI_KIND_LM && rows->format->bits == 4;
}

/* A rotated coordinate is decoded integer * gain * this. */
static inline double tqk_integer_unit(const struct tqi_rows *rows) {
    return rows->format->kind == TQI_KIND_LM ? 2 * rows->unit : rows->unit;
}

#endif
