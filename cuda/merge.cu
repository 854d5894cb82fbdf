/* Joining attention over disjoint tokens: a warp per row. Shares are double, as on the CPU. */
#include "common/rows.cuh"
#include "state.h"

namespace tqi {
namespace {

enum { WARPS = 4 };

struct MergeJob {
    RowsIn part[2];
    RowsOut out;
    const float *lse[2];
    float *lse_out; /* or NULL */
    uint64_t n_rows;
    uint32_t n_heads, dim;
    uint32_t aligned[2], out_aligned; /* four elements can be read and written at a time */
};

/* Shares of the parts in the whole; returns its lse. An empty part has none, so that nothing is
 * rounded where the other is all there is. */
__device__ double shares_of(const double lse[2], double share[2]) {
    int high = lse[1] > lse[0], low = !high;
    if (lse[low] == -INFINITY) {
        share[high] = lse[high] == -INFINITY ? 0 : 1;
        share[low] = 0;
        return lse[high];
    }
    double ratio = exp(lse[low] - lse[high]);
    share[high] = 1 / (1 + ratio);
    share[low] = ratio / (1 + ratio);
    return lse[high] + log1p(ratio);
}

template <class Rows> __device__ int64_t start_of(const Rows &rows, uint64_t token, uint32_t head) {
    return (int64_t)token * rows.token_stride + (int64_t)head * rows.head_stride;
}

/* n elements from `first` on; four are loaded where there are four. What an empty part holds
 * does not matter, NaN included. */
__device__ void merge_elements(const MergeJob &job, const double share[2], const int64_t at[2],
                               int64_t to, uint32_t first, uint32_t n) {
    float x[4], y[4];
    double sum[4] = {0, 0, 0, 0};
    for (int p = 0; p < 2; p++) {
        if (share[p] == 0)
            continue;
        if (n == 4)
            load_quad(job.part[p], job.aligned[p], at[p] + first, x);
        else
            for (uint32_t i = 0; i < n; i++)
                x[i] = load_element(job.part[p].data, job.part[p].dtype, at[p] + first + i);
        for (uint32_t i = 0; i < n; i++)
            sum[i] += share[p] * (double)x[i];
    }
    for (uint32_t i = 0; i < n; i++)
        y[i] = narrowed(job.out.dtype, sum[i]);
    if (n == 4)
        store_quad(job.out, job.out_aligned, to + first, y);
    else
        for (uint32_t i = 0; i < n; i++)
            store_element(job.out, to + first + i, y[i]);
}

__global__ void __launch_bounds__(WARPS * 32) tqk_merge(const __grid_constant__ MergeJob job) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint64_t row = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < job.n_rows;
         row += (uint64_t)gridDim.x * WARPS) {
        uint64_t token = row / job.n_heads;
        uint32_t head = (uint32_t)(row - token * job.n_heads);
        double share[2], lse[2] = {(double)job.lse[0][row], (double)job.lse[1][row]};
        double whole = shares_of(lse, share);
        int64_t at[2];
        for (int p = 0; p < 2; p++)
            at[p] = start_of(job.part[p], token, head);
        for (uint32_t i = lane * 4; i < job.dim; i += 128)
            merge_elements(job, share, at, start_of(job.out, token, head), i, min(4u, job.dim - i));
        __syncwarp(); /* lse may be where a part's is */
        if (job.lse_out && lane == 0)
            job.lse_out[row] = (float)whole;
    }
}

} /* namespace */

tq_status merge(const tqi_device *device, const tqi_merge_job *from, tq_stream stream) {
    DeviceGuard guard(device->index);
    const uint64_t most_blocks = 1 << 20;
    MergeJob job = {};
    TQI_TRY(guard.status());
    for (int p = 0; p < 2; p++) {
        job.part[p] = rows_in(from->part[p]);
        job.lse[p] = from->lse[p];
        job.aligned[p] = takes_quads(from->part[p]);
    }
    job.out = rows_out(from->out);
    job.out_aligned = takes_quads(from->out);
    job.lse_out = from->lse_out;
    job.n_rows = (uint64_t)from->n_tokens * from->n_heads;
    job.n_heads = from->n_heads;
    job.dim = from->dim;
    uint64_t blocks = (job.n_rows + WARPS - 1) / WARPS;
    LaunchShape shape = {blocks < most_blocks ? blocks : most_blocks, WARPS * 32, 0,
                         static_cast<cudaStream_t>(stream), false};
    return launch(tqk_merge, shape, "tqk_merge", job);
}

} /* namespace tqi */
