/* Prefix sums over a block of threads. */
#ifndef TQI_CUDA_ATTEND_SCAN_CUH
#define TQI_CUDA_ATTEND_SCAN_CUH

#include <stdint.h>

namespace tqi {

enum { SCAN_THREADS = 512, SCAN_WARPS = SCAN_THREADS / 32 };

/* Sum over the threads in front; *total: of all. room: [SCAN_WARPS], shared. */
template <class T> __device__ inline T scan(T x, uint64_t *room, T *total) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T sum = x, before = 0, all = 0;
    for (uint32_t o = 1; o < 32; o *= 2) {
        T left = __shfl_up_sync(~0u, sum, o);
        sum += lane >= o ? left : 0;
    }
    if (lane == 31)
        room[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < SCAN_WARPS; w++) {
        before += w < warp ? (T)room[w] : 0;
        all += (T)room[w];
    }
    __syncthreads();
    *total = all;
    return before + sum - x;
}

} /* namespace tqi */

#endif
