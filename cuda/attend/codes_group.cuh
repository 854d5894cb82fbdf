/*
 * What the warps of a warpgroup that works on pages of integer codes (codes_tile.cuh) tell each
 * other, in shared memory: maxima, factors, weights, and what all of them read.
 */
#ifndef TQI_CUDA_ATTEND_CODES_GROUP_CUH
#define TQI_CUDA_ATTEND_CODES_GROUP_CUH

#include "attend/edges.cuh"
#include "attend/fast_job.h"
#include "attend/fetch_turns.cuh"
#include "attend/warpgroup.cuh"

namespace tqi {

/* Shared memory of a warpgroup beside its slots. */
template <int NT, int D, int PAGES> struct CodesRoom {
    static constexpr uint32_t query_block = D * 8; /* bytes of a block of columns */
    static constexpr uint32_t sums = 0;            /* at the end, where the queries were */
    static constexpr uint32_t weights = NT * query_block;
    static constexpr uint32_t weights_block = PAGES * FAST_TOKENS * 8;
    static constexpr uint32_t outputs = weights + NT * weights_block;
    /* Of four pages and 16 rows the scores leave no registers for them. */
    static constexpr uint32_t outputs_bytes = PAGES == 4 && NT == 4 ? NT * D * 16 : 0;
    static constexpr uint32_t maxima = outputs + outputs_bytes; /* of rows, then of gains */
    static constexpr uint32_t factors = maxima + (4 * NT + 1) * 16;
    static constexpr uint32_t edges = factors + 4 * NT * 12;
    static constexpr uint32_t fetch = edges + EdgeRecord<4 * NT>::bytes;
    static constexpr uint32_t barrier = fetch + sizeof(FetchState<PAGES>);
    static constexpr uint32_t rows = barrier + 8;
    static constexpr uint32_t rest = (rows + 4 * NT * 12 + 15) / 16 * 16;
    static constexpr uint32_t walk = rest + 24; /* stride of tiles, number of whole ones */
    static constexpr uint32_t bytes = (rest + 32 + 127) / 128 * 128;
};

#if TQI_WGMMA

template <int NT, int D, int PAGES> struct CodesGroup {
    static constexpr int HEADS = NT * 4;
    using Room = CodesRoom<NT, D, PAGES>;
    static constexpr int R = PAGES / 2, S = 4 * R;

    Group group;
    uint32_t room; /* address */

    TQI_INLINE void enter(const Group &g, uint32_t address) {
        group = g;
        room = address;
        if (g.thread == 0)
            init_warps_barrier(room + Room::barrier);
    }

    /* Addresses of the lane are made when they are needed: the compiler would compute them all in
     * front of the loop over pages, which has no registers for them. Those of the group it may:
     * they are in uniform registers. */
    TQI_INLINE void hide_lane() {
        asm volatile("" : "+r"(group.lane));
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
    TQI_INLINE float q_half(int nt) const {
        return __uint_as_float(load_shared4(row_half(group.lane % 4) + nt * 16));
    }
    TQI_INLINE float q_scale(int nt, bool scaled) const {
        return __uint_as_float(load_shared4(row_scale(group.lane % 4, scaled) + nt * 16));
    }

    /* x of the lane that keeps row 4 nt + t. */
    TQI_INLINE float of_row(float x, int nt) const {
        return __shfl_sync(~0u, x, group.lane % 4 + 4 * nt);
    }

    /* ---- maxima and weights ------------------------------------------------------------------ */

    TQI_INLINE static float largest_of(const float x[S]) {
        float m = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        if constexpr (R == 2)
            m = fmaxf(m, fmaxf(fmaxf(x[4], x[5]), fmaxf(x[6], x[7])));
        return m;
    }

    /* The warp's maxima of rows, of which every lane gets the one of its row. */
    TQI_INLINE float warp_max(const float score[NT][S]) const {
        float m[NT];
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            m[nt] = largest_of(score[nt]);
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
    TQI_INLINE void leave_max(const float score[NT][S], const float vn[S]) const {
        const uint32_t maxima = room + Room::maxima, lane = group.lane;
        float m = warp_max(score), most = largest_of(vn);
        most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fmaxf(most, 0.0f))));
        if (lane <= HEADS)
            store_shared4(maxima + lane * 16 + group.warp * 4,
                          __float_as_uint(lane < HEADS ? m : most));
        arrive_of_warp(room + Room::barrier, lane);
    }

    /* Maxima over both pages: of the lane's row, and of the gains of values. */
    TQI_INLINE float pages_max(uint32_t phase, float &gain) const {
        const uint32_t maxima = room + Room::maxima, lane = group.lane;
        barrier_wait(room + Room::barrier, phase);
        gain = largest(load_shared16(maxima + HEADS * 16));
        return largest(load_shared16(maxima + lane % HEADS * 16));
    }

    /* Of rows 4 nt and behind, two times four, and group r of the warp's tokens, to B: tokens
     * 8 t' + 0 1 4 5 of a step are its first 16 bytes, 2 3 6 7 the second. */
    TQI_INLINE void store_weights(int nt, int r, const uint32_t words[4]) const {
        const uint32_t at = room + Room::weights + group.warp * (R * 256) + group.lane % 16 * 16 +
                            group.lane / 16 * Room::weights_block;
        store_transposed(at + r * 256 + nt * Room::weights_block, words);
    }
};

#endif /* TQI_WGMMA */

} /* namespace tqi */

#endif
