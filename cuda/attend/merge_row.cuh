/* Joining the pieces of a row, and what follows. */
#ifndef TQI_CUDA_ATTEND_MERGE_ROW_CUH
#define TQI_CUDA_ATTEND_MERGE_ROW_CUH

#include "attend/instructions.cuh"
#include "attend/row_group.cuh"
#include "attend/row_index.cuh"
#include "common/rows.cuh"

namespace tqi {

#define TQI_LN2 0.69314718055994531f

/* The pieces of a row: states `stride` rows apart. */
struct RowPieces {
    const float2 *ml;
    const float *acc;
    uint32_t n, stride;
};

TQI_INLINE RowPieces pieces_at(const AttendJob &job, const tqi_pieces &pieces, uint32_t in_item) {
    size_t at = (size_t)pieces.first * job.item_rows + in_item;
    return RowPieces{job.partial_ml + at, job.partial + at * job.v.layout.dim, pieces.n,
                     job.item_rows};
}

TQI_INLINE RowPieces pieces_of_row(const AttendJob &job, const RowPlace &p) {
    return pieces_at(job, fresh(&job.schedule.pieces[p.item]), p.in_item);
}

/* What joins a row in the end; shift: scale * q.mean. */
struct RowEnd {
    float sink, shift;
};

TQI_INLINE RowEnd end_of_row(const AttendJob &job, const RowPlace &p) {
    /* with a cap the mean's share went in before it */
    float shift =
        job.softcap == 0 ? __ldcg(&job.shift[(size_t)p.item * job.item_rows + p.in_item]) : 0;
    return RowEnd{job.sinks[p.q_head], shift};
}

TQI_INLINE float weight_of(float2 ml, float joint) {
    return ml.y == 0 ? 0 : exp2_fast(ml.x - joint);
}

TQI_INLINE float2 state_of_piece(const RowPieces &r, uint32_t i) {
    return i < r.n ? __ldcg(&r.ml[(size_t)i * r.stride]) : make_float2(-INFINITY, 0);
}

TQI_INLINE float4 quad_of_piece(const RowPieces &r, uint32_t dim, uint32_t i, uint32_t first) {
    return i < r.n ? __ldcg((const float4 *)(r.acc + (size_t)i * r.stride * dim + first))
                   : make_float4(0, 0, 0, 0);
}

/* What a piece without weight holds does not count. */
TQI_INLINE void add_quad(float4 a, float w, float *x) {
    x[0] = w != 0 ? fmaf(a.x, w, x[0]) : x[0];
    x[1] = w != 0 ? fmaf(a.y, w, x[1]) : x[1];
    x[2] = w != 0 ? fmaf(a.z, w, x[2]) : x[2];
    x[3] = w != 0 ? fmaf(a.w, w, x[3]) : x[3];
}

/* ---- joining ----------------------------------------------------------------------------------
 */

/* Joint maximum; first: of the lane's first piece. */
template <int LANES>
TQI_INLINE float joint_maximum(const RowPieces &r, float first, uint32_t lane) {
    float m = first;
    for (uint32_t i = lane + LANES; i < r.n; i += LANES)
        m = fmaxf(m, __ldcg(&r.ml[(size_t)i * r.stride].x));
    return group_max<LANES>(m);
}

/* Joins the pieces of a row in registers, BATCH at a time; returns maximum and sum. A lane weighs
 * one piece of LANES, and the first accumulators are under way before the weights are known. */
template <int BATCH, int LANES, int PER>
TQI_INLINE float2 join_batches(const RowPieces &r, uint32_t dim, RegisterRow<LANES, PER> &row) {
    constexpr int QUADS = PER / 4;
    const uint32_t most = __reduce_max_sync(~0u, r.n), from = row.lane * PER;
    float4 a[BATCH][QUADS];
    auto load = [&](uint32_t first) {
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int q = 0; q < QUADS; q++)
                a[b][q] = quad_of_piece(r, dim, first + b, from + 4 * q);
    };
    float2 mine = state_of_piece(r, row.lane);
    load(0);
    float m = joint_maximum<LANES>(r, mine.x, row.lane), sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++)
        row.x[i] = 0;
    for (uint32_t base = 0; base < most; base += LANES) {
        mine = base ? state_of_piece(r, base + row.lane) : mine;
        float weight = weight_of(mine, m);
        sum += mine.y * weight;
        for (uint32_t j = 0; j < LANES && base + j < most; j += BATCH) {
            if (base + j)
                load(base + j);
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                float w = __shfl_sync(~0u, weight, j + b, LANES);
#pragma unroll
                for (int q = 0; q < QUADS; q++)
                    add_quad(a[b][q], w, row.x + 4 * q);
            }
        }
    }
    return make_float2(m, group_sum<LANES>(sum));
}

template <int LANES, int PER>
TQI_INLINE float2 join_pieces(const RowPieces &r, uint32_t dim, RegisterRow<LANES, PER> &row) {
    return join_batches<32 / PER>(r, dim, row);
}

/* The same for a row in shared memory. */
TQI_INLINE float2 join_pieces(const RowPieces &r, uint32_t dim, SharedRow &row) {
    float m = joint_maximum<32>(r, state_of_piece(r, row.lane).x, row.lane), sum = 0;
    for (uint32_t i = row.lane; i < r.n; i += 32) {
        float2 v = state_of_piece(r, i);
        sum += v.y * weight_of(v, m);
    }
    row.each([&](uint32_t first, float *x) {
        float y[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (uint32_t i = 0; i < r.n; i++)
            add_quad(quad_of_piece(r, dim, i, first), weight_of(state_of_piece(r, i), m), y);
        *(float4 *)x = make_float4(y[0], y[1], y[2], y[3]);
    });
    return make_float2(m, group_sum<32>(sum));
}

/* ---- the end of a row ---------------------------------------------------------------------------
 */

/* Share of the weight that a sink leaves to the values; it joins lse. */
TQI_INLINE float add_sink(float sink, float *lse) {
    if (isnan(sink))
        return 1;
    float low = fminf(sink, *lse), high = fmaxf(sink, *lse), keep = 1 / (1 + expf(sink - *lse));
    *lse = isnan(*lse) ? *lse : high + log1pf(expf(low - high));
    return keep;
}

/* A row whose pieces are joined to the caller; joint: maximum and sum. Every lane of a warp takes
 * part; `in` says whose row exists. */
template <class Row>
TQI_INLINE void finish_row(const AttendJob &job, const RowPlace &p, bool in, float2 joint,
                           const RowEnd &end, Row &row) {
    const Side &s = job.v;
    const uint32_t dim = s.layout.dim;
    if (s.rotates)
        row.unrotate_row(s);
    if (!in)
        return;
    float unit = job.v_unit * (s.rotates ? 1 / sqrtf((float)dim) : 1.0f) *
                 (s.layout.kind == TQI_KIND_FP8 ? s.scale[p.kv_head] : 1.0f);
    float factor = joint.y == 0 ? 0 : unit / joint.y;
    float lse = (joint.x + log2f(joint.y)) * TQI_LN2 + end.shift;
    float keep = joint.y == 0 ? 0 : add_sink(end.sink, &lse);
    const float *mean = s.mean && joint.y != 0 ? s.mean + (size_t)p.kv_head * dim : nullptr;
    int64_t at = row_start(job.out, p);
    row.each([&](uint32_t first, float *x) {
        float y[4];
        for (int i = 0; i < 4; i++)
            y[i] = (x[i] * factor + (mean ? mean[first + i] : 0)) * keep;
        store_quad(job.out, job.out_aligned, at + first, y);
    });
    if (job.lse && row.lane == 0)
        job.lse[(size_t)p.row * job.n_heads * job.group + p.q_head] =
            joint.y == 0 ? -INFINITY : lse;
}

/* The same for a row in pieces. */
template <class Row>
TQI_INLINE void merge_row(const AttendJob &job, const RowPlace &p, bool in, const RowPieces &r,
                          const RowEnd &end, Row &row) {
    float2 joint = join_pieces(r, job.v.layout.dim, row);
    finish_row(job, p, in, joint, end, row);
}

} /* namespace tqi */

#endif
