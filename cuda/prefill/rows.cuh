/* The ends of a tile: queries to A operands, accumulators to the caller's rows. */
#ifndef TQI_CUDA_PREFILL_ROWS_CUH
#define TQI_CUDA_PREFILL_ROWS_CUH

#include "attend/merge_row.cuh"
#include "attend/prepare_row.cuh"
#include "prefill/halves.cuh"
#include "prefill/prefill_job.h"

namespace tqi {

/* What a block works on. */
struct TileWork {
    tqi_segment segment;
    const uint32_t *ids; /* of the sequence's pages */
    ItemRows rows;
    uint32_t first_page, n_pages; /* of the part */
    uint32_t item, part, n_parts;
};

/* Queries stay in registers, but for head dims that leave no room for them. */
template <int D> __host__ __device__ constexpr bool queries_in_registers() {
    return D <= 128;
}

/* Bytes of 64 rows in shared memory, a multiple of 1024: stored as products read them, or padded
 * so that loads meet all banks. */
template <int D> __host__ __device__ constexpr uint32_t query_bytes() {
    return 64 * (queries_in_registers<D>() ? D * 2 + 16 : D * 2);
}

/* Offset of a column of a row among them. */
template <int D> TQI_INLINE uint32_t query_offset(uint32_t row, uint32_t column) {
    if constexpr (queries_in_registers<D>())
        return row * (D * 2 + 16) + column * 2;
    uint32_t piece = column / 8 % 8 ^ row % 8;
    return column / 64 * 8192 + row * 128 + piece * 16 + column % 8 * 2;
}

TQI_INLINE uint32_t half_pair(float a, float b) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}

template <int D> struct QueryRow { using Row = RegisterRow<D == 64 ? 16 : 32, D == 256 ? 8 : 4>; };

/* Columns in the order of PlaceOfKeys. */
template <int D> TQI_INLINE uint32_t query_column(uint32_t dim) {
    uint32_t t = dim / (D / 4), in_lane = dim % (D / 4);
    return 8 * (4 * (in_lane / 8) + t) + in_lane % 8;
}

/* A row's factor of scores and its share of the mean. */
struct QueryUnit {
    float scale, shift;
};

/*
 * 16 rows of the tile from `first` on, by a warp, to its warpgroup's 64 rows: rotated, against a
 * power of two so that the largest magnitude is in [1, 2), as halves. Rows that the tile lacks
 * become zeros.
 */
template <int D>
TQI_INLINE void load_queries(const PrefillJob &job, const TileWork &work, uint32_t first,
                             uint32_t lane, uint8_t *to, QueryUnit *units) {
    using Row = typename QueryRow<D>::Row;
    const AttendJob &call = job.call;
    const Side &s = call.k;
    float unit = fabsf((float)call.scale) * TQI_LOG2E * job.k_step;
    Row row(lane, D, nullptr);
    unit *= s.rotates ? 1 / sqrtf((float)D) : 1;
    unit *= s.layout.kind == TQI_KIND_FP8 ? s.scale[work.rows.kv_head] : 1;
    row.prefetch(s);
    for (uint32_t i = lane / Row::LANES; i < 16; i += 32 / Row::LANES) {
        bool in = first + i < work.rows.n_rows;
        RowPlace p = place_of(call, work.segment, work.rows, 0, in ? first + i : 0);
        float shift = load_row(call, p, in, row);
        if (s.rotates)
            row.rotate_row(s);
        float largest = largest_of_row(row);
        int e = largest > 0 ? ilogbf(largest) : 0;
        float factor = call.scale < 0 ? -1.0f : 1.0f;
        row.each([&](uint32_t dim, float *x) {
            uint2 h = make_uint2(half_pair(factor * ldexpf(x[0], -e), factor * ldexpf(x[1], -e)),
                                 half_pair(factor * ldexpf(x[2], -e), factor * ldexpf(x[3], -e)));
            *(uint2 *)(to + query_offset<D>(first % 64 + i, query_column<D>(dim))) = h;
        });
        if (row.lane == 0) /* what is not finite shows in the unit: NaN */
            units[i] = QueryUnit{ldexpf(unit, e) + (largest - largest), shift};
    }
    __syncwarp();
}

/* A operands of a warp's 16 rows from row `first` of its warpgroup on, for all D / 16 steps. */
template <int D>
TQI_INLINE void load_operands(const uint8_t *from, uint32_t first, uint32_t lane, uint32_t *a) {
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[4 * k + i] =
                *(const uint32_t *)(from + query_offset<D>(first + lane / 4 + i % 2 * 8,
                                                           16 * k + lane % 4 * 2 + i / 2 * 8));
}

/* ---- accumulators to rows ---------------------------------------------------------------------
 */

/* Where references begin, in powers of two: below every score, far above -infinity. */
#define TQI_NO_REFERENCE -1e30f

/* State of softmax of the thread's rows g and g + 8: reference in powers of two, sum. */
struct SoftmaxState {
    float reference[2], sum[2];
};

/* A warp leaves its 16 rows of a part; the warp of the last part to do so joins all, in order, and
 * goes on: true. */
template <int D>
TQI_INLINE bool join_parts(const PrefillJob &job, const TileWork &work, uint32_t warp,
                           uint32_t lane, float (&o)[D / 2], SoftmaxState &state) {
    const uint32_t first = (work.item * work.n_parts) * TILE_WARPS + warp;
    const uint32_t mine = first + work.part * TILE_WARPS;
    float *partial = job.partial + (size_t)mine * (D / 2) * 32 + lane;
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        __stcg(partial + i * 32, o[i]);
    __stcg(job.states + (size_t)mine * 32 + lane,
           make_float4(state.reference[0], state.reference[1], state.sum[0], state.sum[1]));
    __threadfence();
    __syncwarp();
    uint32_t *arrived = job.arrived + work.item * TILE_WARPS + warp, before = 0;
    if (lane == 0)
        before = atomicAdd(arrived, 1);
    if (__shfl_sync(~0u, before, 0) + 1 < work.n_parts)
        return false;
    __threadfence();
    if (lane == 0)
        *arrived = 0;
    float4 joint = make_float4(TQI_NO_REFERENCE, TQI_NO_REFERENCE, 0, 0);
    for (uint32_t p = 0; p < work.n_parts; p++) {
        float4 s = __ldcg(job.states + (size_t)(first + p * TILE_WARPS) * 32 + lane);
        joint.x = fmaxf(joint.x, s.x);
        joint.y = fmaxf(joint.y, s.y);
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        o[i] = 0;
    for (uint32_t p = 0; p < work.n_parts; p++) {
        size_t at = (size_t)(first + p * TILE_WARPS) * 32 + lane;
        float4 s = __ldcg(job.states + at);
        const float weight[2] = {exp2_fast(s.x - joint.x), exp2_fast(s.y - joint.y)};
        const float *from = job.partial + (at - lane) * (D / 2) + lane;
        joint.z = fmaf(s.z, weight[0], joint.z);
        joint.w = fmaf(s.w, weight[1], joint.w);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = fmaf(__ldcg(from + i * 32), weight[i / 2 % 2], o[i]);
    }
    state = SoftmaxState{{joint.x, joint.y}, {joint.z, joint.w}};
    return true;
}

/* x <- H x along the columns of both rows, not normalised: bit 0 of a column is in a pair, bits 1
 * and 2 are the lane's, the others count blocks of eight. */
template <int D> TQI_INLINE void transform_columns(float (&o)[D / 2], uint32_t lane) {
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        float a = o[i], b = o[i + 1];
        o[i] = a + b;
        o[i + 1] = a - b;
    }
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
        float sign = lane & d ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            o[i] = fmaf(o[i], sign, __shfl_xor_sync(~0u, o[i], d));
    }
#pragma unroll
    for (int d = 4; d < D / 2; d *= 2)
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            if ((i & d) == 0) {
                float a = o[i], b = o[i + d];
                o[i] = a + b;
                o[i + d] = a - b;
            }
}

/* Dim of the first of the thread's two columns in block j. The values' place has bit 2 of a dim
 * flipped with the odd bit; behind the transform, columns are the transpose of that. */
template <int D> TQI_INLINE uint32_t dim_of_column(bool rotated, int j, uint32_t t) {
    constexpr uint32_t odd = odd_bit<D>();
    uint32_t m = 8 * j + 2 * t;
    return rotated ? m ^ (m >> 2 & 1) << odd : m ^ (m >> odd & 1) << 2;
}

TQI_INLINE void store_pair(const AttendJob &job, int64_t at, float a, float b) {
    const RowsOut &out = job.out;
    if (!job.out_aligned) {
        store_element(out, at, a);
        store_element(out, at + 1, b);
    } else if (out.dtype == TQ_F32) {
        *(float2 *)((float *)out.data + at) = make_float2(a, b);
    } else {
        *(uint32_t *)((uint16_t *)out.data + at) = pack16(out.dtype, a, b);
    }
}

/* One of the thread's two rows (h) to the caller; o: its accumulators, transformed. */
template <int D>
TQI_INLINE void store_row(const AttendJob &call, const RowPlace &p, const float (&o)[D / 2], int h,
                          uint32_t t, float reference, float sum, float shift) {
    const Side &s = call.v;
    float unit = call.v_unit * (s.rotates ? 1 / sqrtf((float)D) : 1.0f) *
                 (s.layout.kind == TQI_KIND_FP8 ? s.scale[p.kv_head] : 1.0f);
    float factor = sum == 0 ? 0 : unit / sum;
    float lse = (reference + log2f(sum)) * TQI_LN2 + shift;
    float keep = sum == 0 ? 0 : add_sink(call.sinks[p.q_head], &lse);
    const float *mean = s.mean && sum != 0 ? s.mean + (size_t)p.kv_head * D : nullptr;
    int64_t at = row_start(call.out, p);
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        uint32_t dim = dim_of_column<D>(s.rotates, j, t);
        float y[2] = {o[4 * j + 2 * h] * factor, o[4 * j + 2 * h + 1] * factor};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (s.rotates)
                y[e] = __uint_as_float(__float_as_uint(y[e]) ^ s.flips[dim + e]);
            y[e] = (y[e] + (mean ? mean[dim + e] : 0)) * keep;
        }
        store_pair(call, at + dim, y[0], y[1]);
    }
    if (call.lse && t == 0)
        call.lse[(size_t)p.row * call.n_heads * call.group + p.q_head] = sum == 0 ? -INFINITY : lse;
}

/* A warp's 16 rows from `first` on. */
template <int D>
TQI_INLINE void store_rows(const PrefillJob &job, const TileWork &work, uint32_t first,
                           uint32_t lane, float (&o)[D / 2], const SoftmaxState &state,
                           const QueryUnit *units) {
    if (job.call.v.rotates)
        transform_columns<D>(o, lane);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t row = lane / 4 + 8 * h;
        float sum = state.sum[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (first + row >= work.rows.n_rows)
            continue;
        RowPlace p = place_of(job.call, work.segment, work.rows, 0, first + row);
        store_row<D>(job.call, p, o, h, lane % 4, state.reference[h], sum, units[row].shift);
    }
}

} /* namespace tqi */

#endif
