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
    static constexpr int LANES = LANES_, QUADS = PER / 4;
    float x[PER];
    uint32_t lane, signs; /* bit i: element i of the lane is flipped */

    __device__ RegisterRow(uint32_t l, uint32_t, float *) : lane(l % LANES), signs(0) {}

    __device__ __forceinline__ void load_signs(const uint32_t *flips) {
        signs = 0;
#pragma unroll
        for (int i = 0; i < PER; i += 4) {
            uint4 f = *(const uint4 *)(flips + lane * PER + i);
            signs |= (f.x >> 31 | f.y >> 31 << 1 | f.z >> 31 << 2 | f.w >> 31 << 3) << i;
        }
    }

    /* Loads what a rotation needs beside the row. */
    __device__ __forceinline__ void prefetch(const Side &s) {
        if (s.rotates)
            load_signs(s.flips);
    }

    /* f(first element, quad) */
    template <class F> __device__ __forceinline__ void each(F f) {
#pragma unroll
        for (int i = 0; i < PER; i += 4)
            f(lane * PER + i, x + i);
    }

    __device__ __forceinline__ void flip() {
#pragma unroll
        for (int i = 0; i < PER; i++)
            x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (signs >> i << 31));
    }

    __device__ __forceinline__ void transform() {
        butterflies_of_lanes<LANES, PER>(lane, x);
    }

    /* x <- H D x and D H^T x, not normalised. */
    __device__ __forceinline__ void rotate_row(const Side &) {
        flip();
        transform();
    }
    __device__ __forceinline__ void unrotate_row(const Side &) {
        transform();
        flip();
    }
    /* A rotated row by both rounds of the sketch's projection, not normalised. */
    __device__ __forceinline__ void project_row(const Side &s) {
#pragma unroll
        for (int round = 0; round < 2; round++) {
            load_signs(s.sketch_flips + round * s.layout.dim);
            flip();
            transform();
        }
    }
};

/* Any dim, a multiple of four; room: two rows. */
struct SharedRow {
    static constexpr int LANES = 32, QUADS = 0; /* not in registers */
    float *x, *room;
    uint32_t lane, dim;

    __device__ SharedRow(uint32_t l, uint32_t d, float *memory)
        : x(memory), room(memory + d), lane(l), dim(d) {}

    __device__ void prefetch(const Side &) {}

    template <class F> __device__ __forceinline__ void each(F f) {
        for (uint32_t i = lane * 4; i < dim; i += 128)
            f(i, x + i);
    }

    __device__ void rotate_row(const Side &s) {
        __syncwarp();
        rotate(WarpGroup{lane, 32}, s, s.flips, x, room);
    }
    __device__ void unrotate_row(const Side &s) {
        __syncwarp();
        unrotate(WarpGroup{lane, 32}, s, s.flips, x, room);
    }
    __device__ void project_row(const Side &s) {
        __syncwarp();
        for (int round = 0; round < 2; round++)
            rotate(WarpGroup{lane, 32}, s, s.sketch_flips + round * dim, x, room);
    }
};

} /* namespace tqi */

#endif
