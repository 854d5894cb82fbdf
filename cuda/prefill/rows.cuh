/* The end of a tile: accumulators to the caller's rows. */
#ifndef TQI_CUDA_PREFILL_ROWS_CUH
#define TQI_CUDA_PREFILL_ROWS_CUH

#include "attend/merge_row.cuh"
#include "prefill/queries.cuh"

namespace tqi {

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

/* Where the thread's columns of block 0 lie in a row of shared memory, in floats; those of block j
 * in row r are this ^ column_of_block(j) ^ 8 (r % 4), so that stores meet all banks. The values'
 * place has bit 2 of a dim flipped with the odd bit; behind the transform, columns are the
 * transpose of that. */
template <int D, bool ROTATED> TQI_INLINE uint32_t first_column(uint32_t t) {
    return 2 * t ^ (ROTATED ? (t >> 1) << odd_bit<D>() : 0);
}

template <int D, bool ROTATED> __host__ __device__ constexpr uint32_t column_of_block(int j) {
    return 8 * j ^ (ROTATED ? 0 : (8 * j >> odd_bit<D>() & 1) << 2);
}

/* The factor of a row's accumulators. lse is written, and in the place of the unit of scores what
 * a sink leaves of the row. */
TQI_INLINE float finish_row(const AttendJob &call, RowNote *note, bool in, bool writes, float unit,
                            float reference, float sum) {
    float lse = (reference + log2f(sum)) * TQI_LN2;
    lse += call.softcap == 0 ? note->shift : 0; /* with a cap it went in before it */
    float keep = sum == 0 || !in ? 0 : add_sink(call.sinks[note->q_head], &lse);
    if (!writes)
        return sum == 0 ? 0 : unit / sum;
    note->unit = keep;
    if (call.lse && in)
        call.lse[(size_t)note->row * call.n_heads * call.group + note->q_head] =
            sum == 0 ? -INFINITY : lse;
    return sum == 0 ? 0 : unit / sum;
}

/* Up to eight rows of shared memory to the caller, with signs and mean. */
template <int D>
TQI_INLINE void copy_rows(const AttendJob &call, uint32_t kv_head, const float *from,
                          const RowNote *notes, int n, uint32_t lane) {
    constexpr int QUADS = D / 4, LANES = QUADS < 32 ? QUADS : 32, ROWS = 32 / LANES;
    const Side &s = call.v;
#pragma unroll 1
    for (int q = lane % LANES; q < QUADS; q += LANES) {
        uint4 flips = s.rotates ? *(const uint4 *)(s.flips + 4 * q) : make_uint4(0, 0, 0, 0);
        float mean[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++)
            mean[i] = s.mean ? s.mean[(size_t)kv_head * D + 4 * q + i] : 0;
#pragma unroll 2
        for (int r = lane / LANES; r < n; r += ROWS) {
            uint4 x = *(const uint4 *)(from + r * D + (4 * q ^ 8 * (r % 4)));
            float keep = notes[r].unit;
            float y[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                y[i] = (__uint_as_float(word_of(x, i) ^ word_of(flips, i)) + mean[i]) * keep;
            int64_t at = (int64_t)notes[r].row * call.out.token_stride +
                         (int64_t)notes[r].q_head * call.out.head_stride;
            store_quad(call.out, call.out_aligned, at + 4 * q, y);
        }
    }
}

/* A warp's 16 rows from `first` on; room: for 8 rows of binary32. */
template <int VF, int D>
TQI_INLINE void store_rows(const PrefillJob &job, const TileWork &work, uint32_t first,
                           uint32_t lane, float (&o)[D / 2], const SoftmaxState &state,
                           RowNote *notes, float *room) {
    constexpr bool ROTATED = has_gains(VF);
    const AttendJob &call = job.call;
    const uint32_t g = lane / 4, t = lane % 4, kv_head = work.rows.kv_head;
    float unit = call.v_unit;
    unit *= ROTATED ? 1 / sqrtf((float)D) : 1.0f;
    unit *= VF == TQ_FORMAT_FP8 ? call.v.scale[kv_head] : 1.0f;
    if constexpr (ROTATED)
        transform_columns<D>(o, lane);
    float *row = room + g * D;
    const uint32_t column = first_column<D, ROTATED>(t) ^ 8 * (g % 4);
#pragma unroll 1 /* code that runs once is waited for */
    for (int h = 0; h < 2; h++) {
        int n = min((int)work.rows.n_rows - (int)first - 8 * h, 8);
        float sum = h ? state.sum[1] : state.sum[0];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        float factor = finish_row(call, notes + 8 * h + g, (int)g < n, t == 0, unit,
                                  h ? state.reference[1] : state.reference[0], sum);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *(float2 *)(row + (column ^ column_of_block<D, ROTATED>(j))) = make_float2(
                (h ? o[4 * j + 2] : o[4 * j]) * factor, (h ? o[4 * j + 3] : o[4 * j + 1]) * factor);
        __syncwarp();
        copy_rows<D>(call, kv_head, room, notes + 8 * h, n, lane);
    }
}

} /* namespace tqi */

#endif
