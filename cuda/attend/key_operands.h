/* What polar keys and sketches have to agree on with their queries (polar.cuh, sketch.cuh,
 * prepare_row.cuh); plain C, for tests too. */
#ifndef TQI_CUDA_ATTEND_KEY_OPERANDS_H
#define TQI_CUDA_ATTEND_KEY_OPERANDS_H

#include <stdint.h>

#include "spec/codebook_data.h"
#include "spec/layout.h"

/* Polar keys become halves: directions of four levels are integers times 2^-7, and a token's radii
 * are multiplied by the power of two that brings the exponent of the largest, at least 2^-2, to
 * that of 2^13. Both tokens of a word at a time: the power is SCALE - exponent, its inverse as a
 * binary32 the exponent of a half moved to its place, + UNIT. */
#define TQI_POLAR_LEAST 0x34003400u
#define TQI_POLAR_SCALE 0xac00ac00u
#define TQI_POLAR_UNIT (99u << 23)
#define TQI_POLAR_STEP \
    (268435456.0 * TQI_POLAR1_STEP * TQI_POLAR2_STEP * TQI_POLAR3_STEP * TQI_POLAR4_STEP)

/* Where the sign of a dim is in a lane's operands: the word, its byte, the power k. */
struct tqi_sketch_place {
    uint32_t t, word, byte, power;
};

TQI_HD static inline struct tqi_sketch_place tqi_sketch_place_of(uint32_t head_dim, uint32_t dim) {
    uint32_t t = dim / (head_dim / 4), j = dim % (head_dim / 4) / 8, n = dim % 8;
    struct tqi_sketch_place wide = {t, n, j, n % 2};
    struct tqi_sketch_place narrow = {t, n % 4, j + n / 4 * 2, n % 2};
    return head_dim == 64 ? narrow : wide; /* 64: two bytes, and their upper halves */
}

#endif
