/* The numbering of query rows, and sums over a block. */
#ifndef TQI_CUDA_ATTEND_ROW_INDEX_CUH
#define TQI_CUDA_ATTEND_ROW_INDEX_CUH

#include "attend/attend_job.h"

namespace tqi {

__device__ inline uint32_t query_of(const AttendJob &job, uint32_t row) {
    return job.first_query + row / job.group;
}

__device__ inline uint32_t q_head_of(const AttendJob &job, uint32_t head, uint32_t row) {
    return head * job.group + row % job.group;
}

/* Element of a row in the caller's queries or outputs. */
template <class Rows>
__device__ inline int64_t row_start(const AttendJob &job, const Rows &rows, uint32_t head,
                                    uint32_t row) {
    return (int64_t)query_of(job, row) * rows.token_stride +
           (int64_t)q_head_of(job, head, row) * rows.head_stride;
}

__device__ inline size_t lse_index(const AttendJob &job, uint32_t head, uint32_t row) {
    return (size_t)query_of(job, row) * job.n_heads * job.group + q_head_of(job, head, row);
}

/* Reductions over a block of WARPS warps in a fixed order; every thread gets the result. */
template <int WARPS, class T, class F> __device__ T block_reduce(T x, T *room, F f) {
    for (uint32_t o = 16; o; o /= 2)
        x = f(x, __shfl_xor_sync(~0u, x, o));
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    T all = room[0];
    for (uint32_t w = 1; w < WARPS; w++)
        all = f(all, room[w]);
    __syncthreads();
    return all;
}

template <class T> struct Add {
    __device__ T operator()(T a, T b) const {
        return a + b;
    }
};

struct Larger {
    __device__ float operator()(float a, float b) const {
        return fmaxf(a, b);
    }
};

} /* namespace tqi */

#endif
