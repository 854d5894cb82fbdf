/* What polar keys and sketches have to agree on with their queries (polar.cuh, sketch.cuh,
 * prepare_row.cuh); plain C, for tests too. */
#ifndef TQI_CUDA_ATTEND_KEY_OPERANDS_H
#define TQI_CUDA_ATTEND_KEY_OPERANDS_H

#include <stdint.h>

#include "spec/layout.h"

/* Polar keys become integers: the unit of the largest radius of a token. A coordinate is at most
 * 0.7361 of a radius. */
#define TQI_POLAR_UNITS 44000.0f

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
