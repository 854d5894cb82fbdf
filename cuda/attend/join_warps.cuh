/* What the warps of a block have of an item, joined through shared memory. */
#ifndef TQI_CUDA_ATTEND_JOIN_WARPS_CUH
#define TQI_CUDA_ATTEND_JOIN_WARPS_CUH

#include "attend/edges.cuh"
#include "attend/fast_job.h"
#include "attend/tile.cuh"

namespace tqi {

/* Floats between rows of accumulators in shared memory: stores of a warp meet all banks. */
template <class T> __host__ __device__ constexpr uint32_t row_stride() {
    return T::D + 4;
}

/* Bytes of a warp: its slots and what edges need, at the end its accumulators. */
template <class T> __host__ __device__ uint32_t warp_bytes_of(uint32_t slots) {
    uint32_t ring = slots * T::PAGES * T::Layout::bytes + EdgeRecord<T::HEADS>::bytes;
    uint32_t accumulators = T::HEADS * row_stride<T>() * 4;
    return ((ring > accumulators ? ring : accumulators) + 127) / 128 * 128;
}

/* The joint state of every row, which warp 0 writes; factors that bring the warp's to it. Lanes
 * share the warps out, and loops stay loops: code that runs once is slow. */
template <class T>
TQI_INLINE void join_states(const FastJob &job, uint32_t piece, uint32_t warp, uint32_t lane,
                            const float2 *ml, const T &t, float factor[T::NT]) {
    const uint32_t row = lane % T::HEADS, step = 32 / T::HEADS;
    float joint = TQI_NO_MAXIMUM, sum = 0;
#pragma unroll 1
    for (uint32_t w = lane / T::HEADS; w < job.warps; w += step)
        joint = fmaxf(joint, ml[w * T::HEADS + row].x);
#pragma unroll
    for (int o = T::HEADS; o < 32; o *= 2)
        joint = fmaxf(joint, __shfl_xor_sync(~0u, joint, o));
#pragma unroll 1
    for (uint32_t w = lane / T::HEADS; w < job.warps; w += step) {
        float2 v = ml[w * T::HEADS + row];
        sum += v.y == 0 ? 0 : v.y * exp2_fast(v.x - joint);
    }
#pragma unroll
    for (int o = T::HEADS; o < 32; o *= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    if (warp == 0 && lane < T::HEADS)
        job.call.partial_ml[(uint64_t)piece * T::HEADS + row] = make_float2(joint, sum);
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++)
        factor[nt] = exp2_fast(t.max[nt] - __shfl_sync(~0u, joint, nt * 4 + lane % 4));
}

/* Joins the states of the warps through shared memory, which no copy is filling any more. */
template <class T>
TQI_INLINE void join_warps(const FastJob &job, uint32_t piece, uint32_t warp, uint32_t lane,
                           uint8_t *shared, T &t) {
    const uint32_t warp_bytes = warp_bytes_of<T>(job.slots);
    float2 *ml = (float2 *)(shared + job.warps * (warp_bytes + job.slots * 16));
    float factor[T::NT];
    t.join_threads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++)
        if (lane < 4)
            ml[warp * T::HEADS + nt * 4 + lane] = make_float2(t.max[nt], t.sum[nt]);
    __syncthreads();
    join_states(job, piece, warp, lane, ml, t, factor);
    t.template store<row_stride<T>()>(lane, factor, (float *)(shared + warp * warp_bytes));
    __syncthreads();
    float4 *out = (float4 *)(job.call.partial + (uint64_t)piece * T::HEADS * T::D);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < T::HEADS * T::D / 4; i += blockDim.x) {
        const uint32_t at = i / (T::D / 4) * (row_stride<T>() / 4) + i % (T::D / 4);
        float4 a = ((const float4 *)shared)[at];
#pragma unroll 4
        for (uint32_t w = 1; w < job.warps; w++) {
            float4 b = ((const float4 *)(shared + w * warp_bytes))[at];
            a.x += b.x;
            a.y += b.y;
            a.z += b.z;
            a.w += b.w;
        }
        out[i] = a;
    }
}

} /* namespace tqi */

#endif
