/*
 * Partial states to output rows: the pieces of an item joined in order, the inverse rotation,
 * 1 / sum, means, lse. A block per row.
 */
#include "attend/fast_job.h"
#include "attend/instructions.cuh"
#include "attend/row_index.cuh"
#include "common/rotate.cuh"
#include "common/rows.cuh"

namespace tqi {
namespace {

enum { THREADS = 128, WARPS = THREADS / 32, BATCH = 8 };
#define LN2 0.69314718055994531f

/* The pieces of an item: `n` of them, `step` apart. */
struct Pieces {
    uint64_t first;
    uint32_t n;
};

/* The share that holds thing x of n, cut into `of` shares: the inverse of share_begin(). */
__device__ uint64_t share_of_thing(uint64_t x, uint64_t n, uint64_t of) {
    return ((x + 1) * of - 1) / n;
}

__device__ Pieces pieces_of(const FastJob &job, uint32_t item) {
    if (job.schedule == SCHEDULE_BLOCK)
        return Pieces{(uint64_t)item * job.parts, job.parts};
    uint64_t total = (uint64_t)job.n_items * job.n_tiles, begin = (uint64_t)item * job.n_tiles;
    uint64_t first = share_of_thing(begin, total, job.workers);
    uint64_t last = share_of_thing(begin + job.n_tiles - 1, total, job.workers);
    return Pieces{warp_piece(first, item), (uint32_t)(last - first + 1)};
}

__device__ float weight_of(float2 ml, float joint) {
    return ml.y == 0 ? 0 : exp2_fast(ml.x - joint);
}

__device__ float joint_maximum(const float2 *ml, const Pieces &p, uint32_t stride, float *room) {
    float m = -INFINITY;
    for (uint32_t i = threadIdx.x; i < p.n; i += THREADS)
        m = fmaxf(m, __ldcg(&ml[(p.first + i) * stride].x));
    return block_reduce<WARPS>(m, room, Larger());
}

/* Sum of the pieces' accumulators of one dim, BATCH loads at a time. */
__device__ float join_dim(const float2 *ml, const float *acc, const Pieces &p, uint32_t stride,
                          uint32_t dim, float joint) {
    float sum = 0;
    for (uint32_t i = 0; i < p.n; i += BATCH) {
        float a[BATCH], w[BATCH];
#pragma unroll
        for (uint32_t b = 0; b < BATCH; b++) {
            bool in = i + b < p.n;
            uint64_t at = (p.first + (in ? i + b : 0)) * stride;
            w[b] = in ? weight_of(__ldcg(&ml[at]), joint) : 0;
            a[b] = in ? __ldcg(&acc[at * dim]) : 0;
        }
#pragma unroll
        for (uint32_t b = 0; b < BATCH; b++)
            sum = w[b] == 0 ? sum : fmaf(a[b], w[b], sum);
    }
    return sum;
}

__global__ void __launch_bounds__(THREADS) tqk_merge_pieces(const __grid_constant__ FastJob job) {
    extern __shared__ float shared[];
    const AttendJob &call = job.call;
    const Side &s = call.v;
    uint32_t dim = s.layout.dim, head = blockIdx.x / call.rows, row = blockIdx.x % call.rows;
    uint32_t item = head * job.items_per_head + row / job.heads_per_item;
    uint32_t in_item = row % job.heads_per_item;
    float *x = shared + WARPS, *room = x + dim;
    allow_next_kernel();
    wait_for_last_kernel();
    Pieces p = pieces_of(job, item);
    const float2 *ml = job.partial_ml + in_item;
    const float *acc = job.partial + (size_t)in_item * dim;
    float joint = joint_maximum(ml, p, job.heads_per_item, shared), sum = 0;
    for (uint32_t i = threadIdx.x; i < p.n; i += THREADS) {
        float2 v = __ldcg(&ml[(p.first + i) * job.heads_per_item]);
        sum += v.y * weight_of(v, joint);
    }
    sum = block_reduce<WARPS>(sum, shared, Add<float>());
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS)
        x[i] = join_dim(ml, acc + i, p, job.heads_per_item, dim, joint);
    __syncthreads();
    if (s.rotates)
        unrotate(BlockGroup{threadIdx.x, THREADS}, s, x, room);
    float unit = job.v_step * (s.rotates ? 1 / sqrtf((float)dim) : 1.0f) *
                 (s.layout.kind == TQI_KIND_FP8 ? s.scale[head] : 1.0f);
    float factor = sum == 0 ? 0 : unit / sum;
    int64_t at = row_start(call, call.out, head, row);
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        float mean = s.mean && sum != 0 ? s.mean[(size_t)head * dim + i] : 0;
        store_element(call.out, at + i, x[i] * factor + mean);
    }
    if (call.lse && threadIdx.x == 0)
        call.lse[lse_index(call, head, row)] =
            sum == 0 ? -INFINITY
                     : (joint + log2f(sum)) * LN2 + job.shift[item * job.heads_per_item + in_item];
}

} /* namespace */

tq_status merge_pieces(const FastJob &job, cudaStream_t stream) {
    uint32_t dim = job.call.v.layout.dim;
    LaunchShape shape = {(uint64_t)job.call.n_heads * job.call.rows, THREADS,
                         (WARPS + 2 * dim) * sizeof(float), stream, job.overlap != 0};
    return launch(tqk_merge_pieces, shape, "tqk_merge_pieces", job);
}

} /* namespace tqi */
