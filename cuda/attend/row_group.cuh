/*
 * A row held by the lanes of a group, in quads of four consecutive elements: in registers for
 * head dims that are small powers of two, else in shared memory.
 */
#ifndef TQI_CUDA_ATTEND_ROW_GROUP_CUH
#define TQI_CUDA_ATTEND_ROW_GROUP_CUH

#include "common/rotate.cuh"

namespace tqi {

/* Sums and maxima over LANES lanes, in a fixed order; every lane gets the result. */
template <int LANES, class T> __device__ inline T group_sum(T x) {
#pragma unroll
    for (int o = LANES / 2; o; o /= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

template <int LANES> __device__ inline float group_max(float x) {
#pragma unroll
    for (int o = LANES / 2; o; o /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* PER elements a lane, lane l has [l PER, (l + 1) PER). */
template <int LANES_, int PER> struct RegisterRow {
    static constexpr int LANES = LANES_, DIM = LANES * PER;
    float x[PER];
    uint32_t lane;

    __device__ RegisterRow(uint32_t l, uint32_t, float *) : lane(l % LANES) {}

    /* f(first element, quad) */
    template <class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
        for (int i = 0; i < PER; i += 4)
            f(lane * PER + i, x + i);
    }

    __device__ __forceinline__ void flip(const Side &s) {
#pragma unroll
        for (int i = 0; i < PER; i += 4) {
            uint4 signs = *(const uint4 *)(s.flips + lane * PER + i);
            x[i] = __uint_as_float(__float_as_uint(x[i]) ^ signs.x);
            x[i + 1] = __uint_as_float(__float_as_uint(x[i + 1]) ^ signs.y);
            x[i + 2] = __uint_as_float(__float_as_uint(x[i + 2]) ^ signs.z);
            x[i + 3] = __uint_as_float(__float_as_uint(x[i + 3]) ^ signs.w);
        }
    }

    __device__ __forceinline__ void transform() {
#pragma unroll
        for (int h = 1; h < PER; h *= 2)
#pragma unroll
            for (int i = 0; i < PER; i++)
                if ((i & h) == 0) {
                    float a = x[i], b = x[i + h];
                    x[i] = a + b;
                    x[i + h] = a - b;
                }
#pragma unroll
        for (int o = 1; o < LANES; o *= 2) {
            float sign = lane & o ? -1.0f : 1.0f;
#pragma unroll
            for (int i = 0; i < PER; i++)
                x[i] = fmaf(x[i], sign, __shfl_xor_sync(~0u, x[i], o));
        }
    }

    /* x <- H D x and D H^T x, not normalised. */
    __device__ __forceinline__ void rotate_row(const Side &s) {
        flip(s);
        transform();
    }
    __device__ __forceinline__ void unrotate_row(const Side &s) {
        transform();
        flip(s);
    }
};

/* Any dim, a multiple of four; room: two rows. */
struct SharedRow {
    static constexpr int LANES = 32;
    float *x, *room;
    uint32_t lane, dim;

    __device__ SharedRow(uint32_t l, uint32_t d, float *memory)
        : x(memory), room(memory + d), lane(l), dim(d) {}

    template <class F> __device__ __forceinline__ void each(F f) {
        for (uint32_t i = lane * 4; i < dim; i += 128)
            f(i, x + i);
    }

    __device__ void rotate_row(const Side &s) {
        __syncwarp();
        rotate(WarpGroup{lane, 32}, s, x, room);
    }
    __device__ void unrotate_row(const Side &s) {
        __syncwarp();
        unrotate(WarpGroup{lane, 32}, s, x, room);
    }
};

} /* namespace tqi */

#endif
