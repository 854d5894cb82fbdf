/* Stored rows back in the caller's basis, in double like the CPU. */
#include "common/codes.cuh"
#include "common/rotate.cuh"
#include "inspect/inspect.h"

namespace tqi {
namespace {

/* Adds what the sketch says of the residual to a row of rotated coordinates times 1 / norm.
 * room: two rows. */
__device__ void add_sketch(const BlockGroup &block, const Side &s, const uint8_t *blob,
                           uint32_t slot, double norm, double *row, double *room) {
    uint32_t dim = s.layout.dim;
    double *signs = room + dim, gain = sketch_gain_at(s, blob, slot) * norm * norm * norm;
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x)
        signs[i] = sketch_byte_at(s, blob, slot, i / 8 * 8) >> i % 8 & 1 ? -1 : 1;
    __syncthreads();
    unrotate(block, s, s.sketch_flips + dim, signs, room);
    unrotate(block, s, s.sketch_flips, signs, room);
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x)
        row[i] += signs[i] * gain;
    __syncthreads();
}

/* A block per (page, head), a token at a time. */
__global__ void tqk_decode_rows(const __grid_constant__ DecodeJob job) {
    extern __shared__ double row[];
    const Side &s = job.side;
    uint32_t dim = s.layout.dim, head = blockIdx.x % job.n_heads, page = blockIdx.x / job.n_heads;
    BlockGroup block = {threadIdx.x, blockDim.x};
    const uint8_t *blob = job.pages.base + job.ids.id[page] * job.pages.page_bytes +
                          (size_t)head * job.pages.blob_bytes;
    uint64_t start = (job.first_page + page) * job.pages.page_tokens;
    uint64_t from = max(start, job.first), to = min(start + job.pages.page_tokens, job.end);
    double norm = s.rotates ? 1 / sqrt((double)dim) : 1;
    for (uint64_t token = from; token < to; token++) {
        uint32_t slot = (uint32_t)(token - start);
        double gain = gain_at<double>(s, blob, slot, head) * norm;
        for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x)
            row[i] = (double)number_at(s, blob, slot, i) * gain;
        __syncthreads();
        if (s.sketch_flips)
            add_sketch(block, s, blob, slot, norm, row, row + dim);
        if (s.rotates)
            unrotate(block, s, s.flips, row, row + dim);
        int64_t at = (int64_t)(token - job.first) * job.rows.token_stride +
                     (int64_t)head * job.rows.head_stride;
        for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) {
            double mean = s.mean ? (double)s.mean[(size_t)head * dim + i] : 0;
            store_element(job.rows, at + i, row[i] + mean);
        }
        __syncthreads();
    }
}

} /* namespace */

tq_status decode_rows(const DecodeJob &job, cudaStream_t stream) {
    LaunchShape shape = {(uint64_t)job.n_pages * job.n_heads, 128,
                         job.side.layout.dim * 3 * sizeof(double), stream, false};
    return launch(tqk_decode_rows, shape, "tqk_decode_rows", job);
}

} /* namespace tqi */
