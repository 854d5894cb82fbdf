/* Launching the write path: rows to codes in pages. */
#ifndef TQI_CUDA_ENCODE_ENCODE_H
#define TQI_CUDA_ENCODE_ENCODE_H

#include "host.h"
#include "params.h"

namespace tqi {

/* A run of consecutive pages of one sequence. */
struct EncodeJob {
    Side side[2];
    RowsIn rows[2];
    Pages pages;
    uint32_t n_heads;
    uint32_t n_pages;    /* of this launch */
    uint64_t first_page; /* index in the sequence */
    uint64_t length;     /* tokens before the append */
    uint64_t end;        /* and after */
    uint64_t *counts;    /* replaced NaNs, infinities */
    uint32_t aligned;    /* bit side: rows can be read 16 bytes at a time */
    PageIds ids;
};

/* Whether the build has code for the current GPU. */
bool encode_any_runs();
/* Allows the shared memory that rows of this length need; once per device and layer. */
tq_status encode_any_prepare(uint32_t dim);
/* The fastest kernel for the layer. */
tq_status encode(const EncodeJob &job, cudaStream_t stream);
/* Name of the fast kernel, NULL when encode_any() serves. */
const char *fast_encoder_name(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                              const tqi_layout &v);
/* Any format, head dim and page size. */
tq_status encode_any(const EncodeJob &job, cudaStream_t stream);

} /* namespace tqi */

#endif
