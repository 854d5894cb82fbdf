/* What the kernels of the fast write path get. */
#ifndef TQI_CUDA_ENCODE_FAST_JOB_H
#define TQI_CUDA_ENCODE_FAST_JOB_H

#include "encode/buckets.h"
#include "encode/encode_job.h"

namespace tqi {

enum {
    FAST_WARPS = 4,
    FEW_ROWS = 2,          /* of a piece on average: a kernel of its own */
    FEW_WARPS_PER_SM = 64, /* the same of slots: no more rows than for so many warps */
};

/* A book for branch-free code, see quantize.cuh. */
struct FastBook {
    uint32_t step[8];                 /* of buckets; the last is that of all beyond as well */
    uint32_t square_low, square_high; /* twice the magnitudes as bytes, by level */
};

struct FastEncodeJob {
    EncodeJob job;
    FastBook book[2];
    uint64_t launch_start;           /* of the simple path: token at which the first page begins */
    uint32_t first_token;            /* of the first group with new ones, from there */
    uint32_t sides;                  /* bit side: to encode */
    uint32_t simple;                 /* bit side: rows of 16 bits, aligned, without means */
    uint32_t slot_bytes, room_bytes; /* of a warp's shared memory */
    uint32_t inverse_heads, inverse_warps; /* for divide() */
    uint32_t log2_parts;                   /* of a token group, a unit each */
    uint32_t log2_window;                  /* rows of slots that a warp looks at */
    uint32_t joins; /* the kernel in front is of the same append: waits for it at the end */
};

typedef tq_status fast_encode_fn(const FastEncodeJob &f, cudaStream_t stream);
typedef tq_status fast_prepare_fn();

/* Instantiations, one file each (inst/). */
#define TQI_FAST_ENCODE_DIMS(X) X(64) X(96) X(128) X(192) X(256)
#define TQI_FAST_ENCODE_DECLARE(d)                             \
    extern fast_encode_fn encode_fast_d##d, encode_slots_d##d; \
    extern fast_prepare_fn prepare_encode_fast_d##d, prepare_encode_slots_d##d;
TQI_FAST_ENCODE_DIMS(TQI_FAST_ENCODE_DECLARE)

} /* namespace tqi */

#endif
