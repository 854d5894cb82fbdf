/*
 * What a warpgroup's threads keep of an item in codes_tile.cuh: maxima, sums, outputs. Where a warp
 * has whole pages of 16 rows, its scores leave no registers for the outputs, which lie in shared
 * memory then.
 */
#ifndef TQI_CUDA_ATTEND_CODES_OUTPUTS_CUH
#define TQI_CUDA_ATTEND_CODES_OUTPUTS_CUH

#include "attend/codes_group.cuh"
#include "attend/codes_operands.cuh"

namespace tqi {

#if TQI_WGMMA

template <int VF, int NT_, int D_, int PAGES> struct CodesOutputs : CodesGroup<NT_, D_, PAGES> {
    static constexpr int NT = NT_, D = D_, M = D / 64, HEADS = 4 * NT;
    static constexpr bool SETS = values_in_sets(VF);
    using Room = CodesRoom<NT, D, PAGES>;
    using Warps = CodesGroup<NT, D, PAGES>;
    static constexpr bool PARKED = Room::outputs_bytes != 0;
    using Warps::group, Warps::room, Warps::of_row;

    uint32_t high; /* 256, by way of the job: see multiply_add() */
    float sum[NT], bias[NT];
    float acc[PARKED ? 1 : NT * M / 2][4]; /* outputs, unless they are in shared memory */
    float top;                             /* of the lane's own row: its maximum */
    float max[NT];                         /* once threads have been joined */

    TQI_INLINE void clear() {
        top = TQI_NO_MAXIMUM;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            sum[nt] = bias[nt] = 0;
        }
#pragma unroll
        for (int i = 0; i < NT * M / 2; i++) {
            const float zero[4] = {};
            keep_outputs(i, zero);
        }
    }

    /* 256 high + low: sums of 256 dims, or of the tokens of a turn, stay below 2^31. */
    TQI_INLINE int joined(const int *c) const {
        return (int)multiply_add(c[0], high, c[1]);
    }

    /* What the pages leave with every row. */
    struct Weighed {
        float total[NT], integers[NT];
        bool moved; /* some row has a new maximum */
    };

    /* Factors: of all that the lane's own row had before, of the turn's sums, of its sums of
     * integers. */
    TQI_INLINE void leave_factors(float old, float sums, float integers) const {
        const uint32_t at = room + Room::factors + group.lane * 8;
        store_shared8(at, (uint64_t)__float_as_uint(integers) << 32 | __float_as_uint(sums));
        store_shared4(room + Room::factors + HEADS * 8 + group.lane * 4, __float_as_uint(old));
    }
    /* Those of row 4 nt + t. */
    TQI_INLINE float2 factors_of(int nt) const {
        const uint2 f = load_shared8(room + Room::factors + (nt * 4 + group.lane % 4) * 8);
        return make_float2(__uint_as_float(f.x), __uint_as_float(f.y));
    }
    TQI_INLINE float factor_of_old(int nt) const {
        return __uint_as_float(
            load_shared4(room + Room::factors + HEADS * 8 + (nt * 4 + group.lane % 4) * 4));
    }

    TQI_INLINE static void load4(uint32_t at, float x[4]) {
        const uint4 w = load_shared16(at);
        x[0] = __uint_as_float(w.x);
        x[1] = __uint_as_float(w.y);
        x[2] = __uint_as_float(w.z);
        x[3] = __uint_as_float(w.w);
    }

    TQI_INLINE void add_sums(const Weighed &w, float unit[NT]) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const float2 factor = factors_of(nt);
            unit[nt] = factor.y;
            sum[nt] = fmaf(w.total[nt], factor.x, sum[nt]);
            if constexpr (has_half(VF))
                bias[nt] = fmaf(w.integers[nt], factor.y, bias[nt]);
        }
    }

    /* Outputs so far of rows 8 n + t and 8 n + 4 + t, two dims of each, of product m: i is
     * m NT/2 + n. */
    TQI_INLINE uint32_t outputs_at(int i) const {
        return room + Room::outputs + i * 2048 + group.warp * 512 + group.lane * 16;
    }
    TQI_INLINE void load_outputs(int i, float x[4]) const {
        if constexpr (PARKED) {
            load4(outputs_at(i), x);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] = acc[i][e];
        }
    }
    TQI_INLINE void keep_outputs(int i, const float x[4]) {
        if constexpr (PARKED)
            store_shared16(outputs_at(i), x[0], x[1], x[2], x[3]);
        else
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[i][e] = x[e];
    }

    /* Where a maximum has moved. */
    TQI_INLINE void scale_old() {
        float by[NT];
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            by[nt] = factor_of_old(nt);
            sum[nt] *= by[nt];
            bias[nt] *= by[nt];
        }
#pragma unroll
        for (int i = 0; i < NT * M / 2; i++) {
            float x[4];
            load_outputs(i, x);
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[e] *= by[i % (NT / 2) * 2 + e / 2];
            keep_outputs(i, x);
        }
    }

    /* Sums d of product m. */
    TQI_INLINE void fold(int m, const float unit[NT], const int *d) {
#pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            float x[4];
            load_outputs(m * NT / 2 + n, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = fmaf((float)joined(d + 8 * n + 2 * i), unit[2 * n + i / 2], x[i]);
            keep_outputs(m * NT / 2 + n, x);
        }
    }

    /* ---- the end of an item ------------------------------------------------------------------ */

    /* Sums over the threads of a row, for every lane. */
    TQI_INLINE void join_threads() {
        const uint32_t sums = room + Room::sums, at = group.lane % 4 * 32;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int o = 4; o < 32; o *= 2) {
                sum[nt] += __shfl_xor_sync(~0u, sum[nt], o);
                bias[nt] += __shfl_xor_sync(~0u, bias[nt], o);
            }
            if (group.lane < 4) {
                store_shared4(sums + nt * 128 + at + group.warp * 4, __float_as_uint(sum[nt]));
                store_shared4(sums + nt * 128 + at + 16 + group.warp * 4,
                              __float_as_uint(bias[nt]));
            }
        }
        group.sync();
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            sum[nt] = total(load_shared16(sums + nt * 128 + at));
            bias[nt] = 0.5f * total(load_shared16(sums + nt * 128 + at + 16));
            max[nt] = of_row(top, nt);
        }
        group.sync();
    }

    TQI_INLINE static float total(const uint4 &x) {
        return __uint_as_float(x.x) + __uint_as_float(x.y) + __uint_as_float(x.z) +
               __uint_as_float(x.w);
    }

    /* Outputs with the bias and a factor, to [row][D]. */
    TQI_INLINE void store(const float factor[NT], float *to) const {
        const uint32_t g = group.lane / 4, t = group.lane % 4;
        float out[NT * M / 2][4];
#pragma unroll
        for (int i = 0; i < NT * M / 2; i++)
            load_outputs(i, out[i]);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float *row = to + (nt * 4 + t) * D + (SETS ? 2 * group.warp + g % 2 : g) * (D / 8);
            auto value = [&](int m, int e) {
                return (out[m * NT / 2 + nt / 2][nt % 2 * 2 + e] + bias[nt]) * factor[nt];
            };
#pragma unroll
            for (int m = 0; m < M; m += 2)
                if constexpr (SETS) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        row[4 * (2 * m + e) + g / 2] = value(m + e / 2, e % 2);
                } else {
                    *(float4 *)(row + 4 * (group.warp + 2 * m)) =
                        make_float4(value(m, 0), value(m, 1), value(m + 1, 0), value(m + 1, 1));
                }
        }
    }
};

#endif /* TQI_WGMMA */

} /* namespace tqi */

#endif
