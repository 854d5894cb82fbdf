/*
 * What the warps of a warpgroup that works on two pages of integer codes (codes_tile.cuh) tell each
 * other, in shared memory: maxima, factors, weights, and what all of them read.
 */
#ifndef TQI_CUDA_ATTEND_CODES_GROUP_CUH
#define TQI_CUDA_ATTEND_CODES_GROUP_CUH

#include "attend/edges.cuh"
#include "attend/fast_job.h"
#include "attend/fetch_two.cuh"
#include "attend/warpgroup.cuh"

namespace tqi {

/* Shared memory of a warpgroup beside its slots. */
template <int NT, int D> struct CodesRoom {
    static constexpr uint32_t query_block = D * 8; /* bytes of a block of columns */
    static constexpr uint32_t weights = NT * query_block;
    static constexpr uint32_t weights_block = 2 * FAST_TOKENS * 8;
    static constexpr uint32_t maxima = weights + NT * weights_block; /* of rows, then of gains */
    static constexpr uint32_t factors = maxima + (4 * NT + 1) * 16;
    static constexpr uint32_t sums = factors + 4 * NT * 16;
    static constexpr uint32_t edges = sums + 4 * NT * 32;
    static constexpr uint32_t fetch = edges + EdgeRecord<4 * NT>::bytes;
    static constexpr uint32_t barrier = fetch + sizeof(FetchState);
    static constexpr uint32_t rows = barrier + 8;
    static constexpr uint32_t rest = (rows + 4 * NT * 12 + 15) / 16 * 16;
    static constexpr uint32_t bytes = (rest + 32 + 127) / 128 * 128;
};

#if TQI_WGMMA

template <int NT, int D> struct CodesGroup {
    static constexpr int HEADS = NT * 4;
    using Room = CodesRoom<NT, D>;

    Group group;
    uint32_t room; /* address */
    uint32_t turn; /* of the barrier: its phase */

    TQI_INLINE void enter(const Group &g, uint32_t address) {
        group = g;
        room = address;
        turn = 0;
        if (g.thread == 0)
            init_warps_barrier(room + Room::barrier);
    }

    /* Addresses in the room are made when they are needed: the compiler would compute them all in
     * front of the loop over pages, which has no registers for them. */
    TQI_INLINE void hide_room() {
        asm volatile("" : "+r"(room), "+r"(group.lane), "+r"(group.index));
    }

    /* ---- rows of the item -------------------------------------------------------------------- */

    /* Words of row `row`: factor of scores, or 1 where they have it already, half the sum of the
     * query's integers. */
    TQI_INLINE uint32_t row_scale(uint32_t row, bool scaled) const {
        return room + Room::rows + (scaled ? HEADS * 4 : 0) + row * 4;
    }
    TQI_INLINE uint32_t row_half(uint32_t row) const {
        return room + Room::rows + (2 * HEADS + row) * 4;
    }
    TQI_INLINE int q_half(int nt) const {
        return (int)load_shared4(row_half(group.lane % 4) + nt * 16);
    }
    TQI_INLINE float q_scale(int nt, bool scaled) const {
        return __uint_as_float(load_shared4(row_scale(group.lane % 4, scaled) + nt * 16));
    }

    /* x of the lane that keeps row 4 nt + t. */
    TQI_INLINE float of_row(float x, int nt) const {
        return __shfl_sync(~0u, x, group.lane % 4 + 4 * nt);
    }

    /* ---- maxima and weights ------------------------------------------------------------------ */

    /* The warp's maxima of rows, of which every lane gets the one of its row. */
    TQI_INLINE float warp_max(const float score[NT][4]) const {
        float m[NT];
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            m[nt] = fmaxf(fmaxf(score[nt][0], score[nt][1]), fmaxf(score[nt][2], score[nt][3]));
#pragma unroll
        for (int n = NT / 2; n; n /= 2) { /* half of the rows to half of the lanes */
            const bool upper = group.lane & 4 * n;
#pragma unroll
            for (int i = 0; i < n; i++) {
                float other = __shfl_xor_sync(~0u, upper ? m[i] : m[i + n], 4 * n);
                m[i] = fmaxf(upper ? m[i + n] : m[i], other);
            }
        }
#pragma unroll
        for (int o = 4 * NT; o < 32; o *= 2)
            m[0] = fmaxf(m[0], __shfl_xor_sync(~0u, m[0], o));
        return m[0];
    }

    TQI_INLINE static float largest(const uint4 &x) {
        return fmaxf(fmaxf(__uint_as_float(x.x), __uint_as_float(x.y)),
                     fmaxf(__uint_as_float(x.z), __uint_as_float(x.w)));
    }

    /* Leaves the warp's maxima of rows and gains to the others. */
    TQI_INLINE void leave_max(const float score[NT][4], const float vn[4]) const {
        const uint32_t maxima = room + Room::maxima, lane = group.lane;
        float m = warp_max(score), most = fmaxf(fmaxf(vn[0], vn[1]), fmaxf(vn[2], vn[3]));
        most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fmaxf(most, 0.0f))));
        if (lane <= HEADS)
            store_shared4(maxima + lane * 16 + group.warp * 4,
                          __float_as_uint(lane < HEADS ? m : most));
        arrive_of_warp(room + Room::barrier, lane);
    }

    /* Maxima over both pages: of the lane's row, and of the gains of values. */
    TQI_INLINE float pages_max(float &gain) {
        const uint32_t maxima = room + Room::maxima, lane = group.lane;
        barrier_wait(room + Room::barrier, turn);
        turn ^= 1;
        gain = largest(load_shared16(maxima + HEADS * 16));
        return largest(load_shared16(maxima + lane % HEADS * 16));
    }

    /* To B: tokens 8 t' + 0 1 4 5 of a step are its first 16 bytes, 2 3 6 7 the second. */
    TQI_INLINE void store_weights(const uint32_t words[NT][2]) const {
        const uint32_t at = room + Room::weights + group.warp * 256 + group.lane % 16 * 16 +
                            group.lane / 16 * Room::weights_block;
#pragma unroll
        for (int nt = 0; nt < NT; nt += 2)
            store_transposed(at + nt * Room::weights_block, words[nt]);
    }
};

#endif /* TQI_WGMMA */

} /* namespace tqi */

#endif
