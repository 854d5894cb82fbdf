/* The contract between host and kernels: plain structs, passed by value. */
#ifndef TQI_CUDA_PARAMS_H
#define TQI_CUDA_PARAMS_H

#include <stdint.h>

extern "C" {
#include "spec/book.h"
#include "spec/layout.h"
}

namespace tqi {

/* One side (K or V) of a layer. Pointers are the device's. */
struct Side {
    tqi_layout layout;
    uint32_t format;
    uint32_t rotates;
    uint32_t order, log2_block; /* of the Hadamard matrix, spec/rotation.h */
    const uint32_t *flips;      /* [dim] sign bits */
    const uint64_t *rows;       /* [order] of the Paley matrix */
    const float *mean;          /* [heads][dim] or NULL */
    const float *scale;         /* [heads] of fp8 */
    const float *inv_scale;
    uint32_t levels;    /* positive values of the book */
    float threshold[7]; /* between levels */
    int16_t v2[8];      /* twice the values, in steps */
    float gain_factor;
    float unit; /* a stored integer times gain times this is a rotated coordinate */
    double unit_exact;
    /* Of polar formats and sketches, spec/rows.h: */
    const struct tqi_polar_book *polar; /* [TQI_POLAR_LEVELS] */
    const uint32_t *sketch_flips;       /* [2][dim]: rounds of the projection; NULL: no sketch */
    float value[8];                     /* of the book's levels, rounded once */
    float sqrt_dim, inv_sqrt_dim, sketch_factor;
    double sketch_unit;
};

/* Where the blobs of a layer lie. */
struct Pages {
    uint8_t *base; /* of the layer */
    uint64_t page_bytes;
    uint32_t blob_bytes;
    uint32_t page_tokens;
};

/* Rows of the caller; strides in elements. */
struct RowsIn {
    const void *data;
    int64_t token_stride, head_stride;
    int32_t dtype;
};
struct RowsOut {
    void *data;
    int64_t token_stride, head_stride;
    int32_t dtype;
};

/* Page ids that travel as kernel parameters: no staging memory whose reuse would have to
 * wait for the device. */
enum { ID_CHUNK = 512 };
struct PageIds {
    uint32_t id[ID_CHUNK];
};

} /* namespace tqi */

#endif
