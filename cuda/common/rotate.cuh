/* The rotation of spec/rotation.h on a row in shared memory, by a group of threads. Sync is
 * a barrier of the group; T is float (encode, queries) or double (decode). */
#ifndef TQI_CUDA_COMMON_ROTATE_CUH
#define TQI_CUDA_COMMON_ROTATE_CUH

#include "params.h"

namespace tqi {

struct WarpGroup {
    uint32_t rank, size;
    __device__ void sync() const {
        __syncwarp();
    }
};

struct BlockGroup {
    uint32_t rank, size;
    __device__ void sync() const {
        __syncthreads();
    }
};

/* The Walsh-Hadamard part. x is complete; it is again when this returns. */
template <class Group, class T>
__device__ void butterflies(const Group &g, uint32_t dim, uint32_t log2_block, T *x) {
    for (uint32_t k = 0; k < log2_block; k++) {
        uint32_t stride = 1u << k;
        for (uint32_t p = g.rank; p < dim / 2; p += g.size) {
            uint32_t i = (p >> k << (k + 1)) | (p & (stride - 1));
            T a = x[i], b = x[i + stride];
            x[i] = a + b;
            x[i + stride] = a - b;
        }
        g.sync();
    }
}

/* x <- H x of a row of N * LANES elements in registers, lane l has [l N, (l + 1) N) of them. */
template <int LANES, int N>
__device__ __forceinline__ void butterflies_of_lanes(uint32_t lane, float *x) {
#pragma unroll
    for (int h = 1; h < N; h *= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((i & h) == 0) {
                float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
#pragma unroll
    for (int o = 1; o < LANES; o *= 2) {
        float sign = lane & o ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < N; i++) /* the product is exact */
            x[i] = fmaf(x[i], sign, __shfl_xor_sync(~0u, x[i], o));
    }
}

/* The Paley part across blocks, or its transpose; room: dim elements of scratch. */
template <class Group, class T>
__device__ void mix_blocks(const Group &g, const Side &s, T *x, T *room, bool transpose) {
    uint32_t dim = s.layout.dim, block = 1u << s.log2_block;
    for (uint32_t i = g.rank; i < dim; i += g.size)
        room[i] = x[i];
    g.sync();
    for (uint32_t i = g.rank; i < dim; i += g.size) {
        uint32_t row = i >> s.log2_block, b = i & (block - 1);
        uint64_t signs = transpose ? 0 : s.rows[row];
        T sum = 0;
        for (uint32_t a = 0; a < s.order; a++) {
            bool minus = transpose ? s.rows[a] >> row & 1 : signs >> a & 1;
            T in = room[a * block + b];
            /* the first term is taken as it is, so that a zero keeps its sign */
            sum = a == 0 ? (minus ? -in : in) : minus ? sum - in : sum + in;
        }
        x[i] = sum;
    }
    g.sync();
}

/* x <- H D x, not normalised; flips: D, the sign bits of the rotation or of a round of the
 * sketch's projection. */
template <class Group, class T>
__device__ void rotate(const Group &g, const Side &s, const uint32_t *flips, T *x, T *room) {
    for (uint32_t i = g.rank; i < s.layout.dim; i += g.size)
        x[i] = flips[i] ? -x[i] : x[i];
    g.sync();
    butterflies(g, s.layout.dim, s.log2_block, x);
    if (s.order > 1)
        mix_blocks(g, s, x, room, false);
}

/* x <- D H^T x, not normalised. */
template <class Group, class T>
__device__ void unrotate(const Group &g, const Side &s, const uint32_t *flips, T *x, T *room) {
    if (s.order > 1)
        mix_blocks(g, s, x, room, true);
    butterflies(g, s.layout.dim, s.log2_block, x);
    for (uint32_t i = g.rank; i < s.layout.dim; i += g.size)
        x[i] = flips[i] ? -x[i] : x[i];
    g.sync();
}

} /* namespace tqi */

#endif
