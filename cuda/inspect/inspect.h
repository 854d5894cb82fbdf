/* Work beside the two paths: stored rows back in the caller's basis, channel means. */
#ifndef TQI_CUDA_INSPECT_INSPECT_H
#define TQI_CUDA_INSPECT_INSPECT_H

#include "host.h"
#include "params.h"

namespace tqi {

struct DecodeJob {
    Side side;
    RowsOut rows;
    Pages pages;
    uint32_t n_heads, n_pages;
    uint64_t first_page; /* of this launch */
    uint64_t first, end; /* tokens wanted */
    PageIds ids;
};

tq_status decode_rows(const DecodeJob &job, cudaStream_t stream);

struct MeansJob {
    RowsIn rows;
    uint32_t n_tokens, n_heads, dim;
    float *mean; /* [n_heads][dim], device memory */
};

tq_status channel_means(const MeansJob &job, cudaStream_t stream);

} /* namespace tqi */

#endif
