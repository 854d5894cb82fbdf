/*
 * Partial states to output rows: the pieces of an item joined in order, the inverse rotation,
 * 1 / sum, means, lse. A group of lanes per row.
 */
#include "attend/attend_job.h"
#include "attend/instructions.cuh"
#include "attend/row_group.cuh"
#include "attend/row_index.cuh"
#include "common/rows.cuh"

namespace tqi {
namespace {

enum { BATCH = 8 }; /* loads in flight */
#define LN2 0.69314718055994531f

/* The pieces of a row: states `stride` rows apart. */
struct RowPieces {
    const float2 *ml;
    const float *acc;
    uint32_t n, stride;
};

__device__ RowPieces pieces_of_row(const AttendJob &job, const RowPlace &p) {
    tqi_pieces pieces = fresh(&job.schedule.pieces[p.item]);
    size_t at = (size_t)pieces.first * job.item_rows + p.in_item;
    return RowPieces{job.partial_ml + at, job.partial + at * job.v.layout.dim, pieces.n,
                     job.item_rows};
}

__device__ float weight_of(float2 ml, float joint) {
    return ml.y == 0 ? 0 : exp2_fast(ml.x - joint);
}

/* Maximum over the pieces, and the sum against it. */
template <int LANES> __device__ float2 joint_state(const RowPieces &r, uint32_t lane) {
    float m = -INFINITY, sum = 0;
    for (uint32_t i = lane; i < r.n; i += LANES)
        m = fmaxf(m, __ldcg(&r.ml[(size_t)i * r.stride].x));
    m = group_max<LANES>(m);
    for (uint32_t i = lane; i < r.n; i += LANES) {
        float2 v = __ldcg(&r.ml[(size_t)i * r.stride]);
        sum += v.y * weight_of(v, m);
    }
    return make_float2(m, group_sum<LANES>(sum));
}

/* Sum of the accumulators of a quad, BATCH loads at a time. */
__device__ __forceinline__ void join_quad(const RowPieces &r, uint32_t dim, uint32_t first,
                                          float joint, float x[4]) {
    x[0] = x[1] = x[2] = x[3] = 0;
    for (uint32_t i = 0; i < r.n; i += BATCH) {
        float4 a[BATCH];
        float w[BATCH];
#pragma unroll
        for (uint32_t b = 0; b < BATCH; b++) {
            bool in = i + b < r.n;
            size_t at = (size_t)(in ? i + b : 0) * r.stride;
            w[b] = in ? weight_of(__ldcg(&r.ml[at]), joint) : 0;
            a[b] = in ? __ldcg((const float4 *)(r.acc + at * dim + first)) : float4{0, 0, 0, 0};
        }
#pragma unroll
        for (uint32_t b = 0; b < BATCH; b++) {
            bool counts = w[b] != 0; /* what an empty piece holds does not */
            x[0] = counts ? fmaf(a[b].x, w[b], x[0]) : x[0];
            x[1] = counts ? fmaf(a[b].y, w[b], x[1]) : x[1];
            x[2] = counts ? fmaf(a[b].z, w[b], x[2]) : x[2];
            x[3] = counts ? fmaf(a[b].w, w[b], x[3]) : x[3];
        }
    }
}

__device__ __forceinline__ void store_quad(const AttendJob &job, int64_t at, const float x[4]) {
    for (int i = 0; i < 4; i++)
        store_element(job.out, at + i, x[i]);
}

/* Share of the weight that a sink leaves to the values; it joins lse. */
__device__ float add_sink(float sink, float *lse) {
    if (isnan(sink))
        return 1;
    float low = fminf(sink, *lse), high = fmaxf(sink, *lse), keep = 1 / (1 + expf(sink - *lse));
    *lse = isnan(*lse) ? *lse : high + log1pf(expf(low - high));
    return keep;
}

template <class Row>
__global__ void __launch_bounds__(128)
    tqk_merge_pieces(const __grid_constant__ AttendJob job, uint32_t row_bytes) {
    extern __shared__ float shared[];
    constexpr uint32_t per_warp = 32 / Row::LANES;
    const Side &s = job.v;
    uint32_t dim = s.layout.dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t index = (blockIdx.x * (blockDim.x / 32) + warp) * per_warp + lane / Row::LANES;
    Row row(lane, dim, (float *)((uint8_t *)shared + warp * row_bytes));
    RowPlace p = {};
    RowPieces r = {};
    /* the plan was there before the kernel in front began */
    bool in = find_row(job, index, &p);
    if (in)
        r = pieces_of_row(job, p);
    wait_for_last_kernel();
    allow_next_kernel();
    float2 joint = joint_state<Row::LANES>(r, row.lane);
    row.each([&](uint32_t first, float *x) { join_quad(r, dim, first, joint.x, x); });
    if (s.rotates)
        row.unrotate_row(s);
    if (!in)
        return;
    float unit = job.v_unit * (s.rotates ? 1 / sqrtf((float)dim) : 1.0f) *
                 (s.layout.kind == TQI_KIND_FP8 ? s.scale[p.kv_head] : 1.0f);
    float factor = joint.y == 0 ? 0 : unit / joint.y;
    const float *mean = s.mean && joint.y != 0 ? s.mean + (size_t)p.kv_head * dim : nullptr;
    /* with a cap the mean's share went in before it */
    float shift = job.softcap == 0 ? job.shift[(size_t)p.item * job.item_rows + p.in_item] : 0;
    float lse = (joint.x + log2f(joint.y)) * LN2 + shift;
    float keep = joint.y == 0 ? 0 : add_sink(job.sinks[p.q_head], &lse);
    int64_t at = row_start(job.out, p);
    row.each([&](uint32_t first, float *x) {
        float y[4];
        for (int i = 0; i < 4; i++)
            y[i] = (x[i] * factor + (mean ? mean[first + i] : 0)) * keep;
        store_quad(job, at + first, y);
    });
    if (job.lse && row.lane == 0)
        job.lse[(size_t)p.row * job.n_heads * job.group + p.q_head] =
            joint.y == 0 ? -INFINITY : lse;
}

template <class Row> tq_status run(const AttendJob &job, uint32_t row_bytes, cudaStream_t stream) {
    const uint32_t warps = 4;
    uint64_t rows = (uint64_t)job.range.n_rows * job.n_heads * job.group;
    uint64_t per_block = warps * (32 / Row::LANES);
    LaunchShape shape = {(rows + per_block - 1) / per_block, warps * 32, warps * row_bytes, stream,
                         job.overlap != 0};
    return launch(tqk_merge_pieces<Row>, shape, "tqk_merge_pieces", job, row_bytes);
}

} /* namespace */

tq_status merge_pieces(const AttendJob &job, cudaStream_t stream) {
    uint32_t dim = job.v.layout.dim;
    bool mixes = job.v.rotates && job.v.order > 1;
    if (dim == 64 && !mixes)
        return run<RegisterRow<16, 4>>(job, 0, stream);
    if (dim == 128 && !mixes)
        return run<RegisterRow<32, 4>>(job, 0, stream);
    if (dim == 256 && !mixes)
        return run<RegisterRow<32, 8>>(job, 0, stream);
    return run<SharedRow>(job, 2 * dim * sizeof(float), stream);
}

} /* namespace tqi */
