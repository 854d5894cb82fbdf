/*
 * A warpgroup, two pages of 64 tokens of integer codes, up to 4 NT query rows, on wgmma.
 *
 * As in group_tile.cuh keys and values are A, from registers (codes_operands.cuh), and B lies in
 * shared memory: the queries' high and low bytes (columns 2 t and 2 t + 1 of block nt are row
 * 4 nt + t), then those of the probabilities. Every code is decoded by one warp only.
 *
 * A warpgroup passes two barriers for two pages: for the maxima, and for the weights. Four lanes
 * times NT of every warp keep the running state of a row each, the others get what they need from
 * these.
 */
#ifndef TQI_CUDA_ATTEND_CODES_TILE_CUH
#define TQI_CUDA_ATTEND_CODES_TILE_CUH

#include "attend/codes_operands.cuh"
#include "attend/fast_job.h"
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
    static constexpr uint32_t bytes = (sums + 4 * NT * 32 + 127) / 128 * 128;
};

struct FetchTwo;
template <int KF, int VF, int NT, int D> struct CodesTile;

template <int KF, int VF, int NT_, int D_> struct CodesShape {
    static constexpr int NT = NT_, D = D_, HEADS = NT * 4;
    using Layout = Blob<KF, VF, D>;
    using Room = CodesRoom<NT, D>;
    using Tile = CodesTile<KF, VF, NT, D>;
};

#if TQI_WGMMA

template <int KF_, int VF_, int NT_, int D_> struct CodesTile : CodesShape<KF_, VF_, NT_, D_> {
    static constexpr int KF = KF_, VF = VF_, NT = NT_, D = D_, HEADS = NT * 4;
    static constexpr int J = D / 32, M = D / 64;
    static constexpr bool SETS = values_in_sets(VF);
    using Fetch = FetchTwo;
    static constexpr uint32_t QUERY_BLOCKS = NT;
    static_assert(NT == 4 && D % 128 == 0, "32 columns, steps of 128 dims");
    using Edge = PageEdge<NT>;
    using Layout = typename CodesShape<KF, VF, NT, D>::Layout;
    using Room = CodesRoom<NT, D>;

    Group group;
    uint32_t room; /* address */
    uint64_t q, p; /* operands */
    ByteTable k_table, v_table;
    float q_scale[NT];
    int q_half[NT]; /* half the sum of its integers, where values of codes end in 1/2 */
    float acc[M][NT][2], sum[NT], bias[NT];
    float unit, top; /* of the lane's own row: its q_scale, maximum */
    float max[NT];   /* once threads have been joined */

    TQI_INLINE void setup(const FastJob &job, const Group &g, uint32_t address) {
        const uint32_t one = in_register(0x3c003c00u);
        group = g;
        room = address;
        q = operand_b(room, Room::query_block);
        p = operand_b(room + Room::weights, Room::weights_block);
        k_table = ByteTable{in_register(job.table[0][0]), in_register(job.table[0][1]), one};
        v_table = ByteTable{in_register(job.table[1][0]), in_register(job.table[1][1]), one};
    }

    TQI_INLINE static uint32_t row_of_column(uint32_t block, uint32_t column) {
        return 4 * block + column / 2;
    }

    TQI_INLINE void set_row(const FastJob &job, int nt, uint32_t row) {
        q_scale[nt] = __ldcg(job.q_scale + row);
        q_half[nt] = has_half(KF) ? __ldcg(job.q_half + row) : 0;
    }

    TQI_INLINE void clear() {
        top = TQI_NO_MAXIMUM;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            if (group.lane / 4 % NT == nt)
                unit = q_scale[nt];
            sum[nt] = bias[nt] = 0;
#pragma unroll
            for (int m = 0; m < M; m++)
                acc[m][nt][0] = acc[m][nt][1] = 0;
        }
    }

    /* x of the lane that keeps row 4 nt + t. */
    TQI_INLINE float of_row(float x, int nt) const {
        return __shfl_sync(~0u, x, group.lane % 4 + 4 * nt);
    }

    /* ---- scores ------------------------------------------------------------------------------ */

    TQI_INLINE void begin_scores(const Slot &s, int d[2][4 * NT]) const {
        uint32_t a[2][J][4];
        key_operands<KF, J>(k_table, s, (int)(group.warp % 2), a);
        wgmma_bytes<true, true>(d, a[0], a[1], q, 256 >> 4);
#pragma unroll
        for (int j = 4; j < J; j += 4)
            wgmma_bytes<true, false>(d, a[0] + j, a[1] + j, q + j * (256 >> 4), 256 >> 4);
    }

    /* 256 high + low: sums of at most 128 tokens or 256 dims stay below 2^31. */
    TQI_INLINE static int joined(const int *c) {
        return c[0] * 256 + c[1];
    }

    /* Before the factor q_scale. */
    TQI_INLINE void join_scores(const Slot &s, const int d[2][4 * NT], float score[NT][4]) const {
        uint2 gains =
            load_shared8(s.address + Layout::k_gains + group.warp % 2 * 64 + (group.lane / 4) * 8);
        float2 gain[2] = {halves_of(gains.x), halves_of(gains.y)};
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int b = 0; b < 2; b++) {
                score[nt][2 * b] = (float)(joined(d[b] + 4 * nt) + q_half[nt]) * gain[b].x;
                score[nt][2 * b + 1] = (float)(joined(d[b] + 4 * nt + 2) + q_half[nt]) * gain[b].y;
            }
    }

    /* ---- softmax ----------------------------------------------------------------------------- */

    TQI_INLINE void load_v_gains(const Slot &s, float vn[4]) const {
        uint2 w =
            load_shared8(s.address + Layout::v_gains + group.warp % 2 * 64 + (group.lane / 4) * 8);
        vn[0] = __uint_as_float(w.x << 16);
        vn[1] = __uint_as_float(w.x & 0xffff0000u);
        vn[2] = __uint_as_float(w.y << 16);
        vn[3] = __uint_as_float(w.y & 0xffff0000u);
    }

    TQI_INLINE void mask(const Edge &e, float score[NT][4], float vn[4]) const {
        const uint32_t g = group.lane / 4;
        const int first = 4 * (int)(group.warp % 2);
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            edge_scores<4>(e, nt, first, g, q_scale[nt], score[nt]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (token_of(first + i, g) >= e.valid)
                vn[i] = 0; /* slots without a token hold anything */
    }

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

    /* Maxima over both pages: of the lane's row, and of the gains of values. */
    TQI_INLINE float pages_max(const float score[NT][4], const float vn[4], float &gain) const {
        const uint32_t maxima = room + Room::maxima, lane = group.lane;
        float m = warp_max(score), most = fmaxf(fmaxf(vn[0], vn[1]), fmaxf(vn[2], vn[3]));
        most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fmaxf(most, 0.0f))));
        if (lane < HEADS)
            store_shared4(maxima + lane * 16 + group.warp * 4, __float_as_uint(m));
        else if (HEADS < 32 && lane == HEADS)
            store_shared4(maxima + HEADS * 16 + group.warp * 4, __float_as_uint(most));
        group.sync();
        gain = largest(load_shared16(maxima + HEADS * 16));
        return largest(load_shared16(maxima + lane % HEADS * 16));
    }

    /* What the pages leave with every row. */
    struct Weighed {
        float total[NT], integers[NT];
        bool moved; /* some row has a new maximum */
    };

    TQI_INLINE void weigh(const float score[NT][4], float vn[4], bool edge, Weighed &w) {
        float gain, m = pages_max(score, vn, gain) * (edge ? 1 : unit);
        m = fmaxf(m, TQI_NO_MAXIMUM); /* no token is seen */
        gain = fmaxf(gain, 2e-34f);   /* keeps the reciprocal finite */
        const float factor = 65280.0f * reciprocal(gain), v_unit = gain * (1.0f / 65280.0f);
        const float joint = fmaxf(top, m), beta = exp2_fast(m - joint);
        const float alpha = exp2_fast(top - joint), scale = beta * v_unit;
        if (group.warp == 0 && group.lane < HEADS)
            store_shared16(room + Room::factors + group.lane * 16, alpha, beta, scale, 0);
        top = joint;
        w.moved = __any_sync(~0u, alpha != 1);
#pragma unroll
        for (int i = 0; i < 4; i++)
            vn[i] *= factor;
        uint32_t words[NT][2];
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const float row = of_row(m, nt), by = edge ? 1 : q_scale[nt];
            uint32_t x[4];
            w.total[nt] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float e = exp2_fast(fmaf(score[nt][i], by, -row));
                w.total[nt] += e;
                x[i] = __float_as_uint(fmaf(e, vn[i], 8388608.0f));
            }
            if constexpr (has_half(VF))
                w.integers[nt] = float(int(x[0] + x[1] + x[2] + x[3] - 4u * 0x4b000000u));
            words[nt][0] = prmt(x[0], x[1], 0x4051);
            words[nt][1] = prmt(x[2], x[3], 0x4051);
        }
        store_weights(words);
    }

    /* To B: tokens 8 t' + 0 1 4 5 of a step are its first 16 bytes, 2 3 6 7 the second. */
    TQI_INLINE void store_weights(const uint32_t words[NT][2]) const {
        const uint32_t at = room + Room::weights + group.warp * 256 + group.lane % 16 * 16 +
                            group.lane / 16 * Room::weights_block;
#pragma unroll
        for (int nt = 0; nt < NT; nt += 2)
            store_transposed(at + nt * Room::weights_block, words[nt]);
    }

    /* ---- values ------------------------------------------------------------------------------ */

    /* consumed(): while products are on their way. */
    template <class F>
    TQI_INLINE void add_values(const uint32_t (*a)[VALUE_STEPS][4], const Weighed &w, F consumed) {
        float4 factor[NT];
#pragma unroll
        for (int m = 0; m < M; m += 2) {
            int d[2][4 * NT];
            wgmma_bytes<false, true>(d, a[m], a[m + 1], p, 256 >> 4);
            if (m == 0) {
                consumed();
                add_sums(w, factor);
            }
            wait_products<0>();
            if (w.moved)
                fold<true>(factor, d, acc + m);
            else
                fold<false>(factor, d, acc + m);
        }
    }

    /* x, y, z: alpha, beta, beta in the unit of integers */
    TQI_INLINE void add_sums(const Weighed &w, float4 factor[NT]) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            uint4 f = load_shared16(room + Room::factors + (nt * 4 + group.lane % 4) * 16);
            factor[nt] =
                make_float4(__uint_as_float(f.x), __uint_as_float(f.y), __uint_as_float(f.z), 0);
            sum[nt] = fmaf(sum[nt], factor[nt].x, w.total[nt] * factor[nt].y);
            if constexpr (has_half(VF))
                bias[nt] = fmaf(bias[nt], factor[nt].x, w.integers[nt] * factor[nt].z);
        }
    }

    /* MOVED: else alpha is 1. */
    template <bool MOVED>
    TQI_INLINE static void fold(const float4 factor[NT], const int d[2][4 * NT],
                                float (*to)[NT][2]) {
#pragma unroll
        for (int i = 0; i < 4 * NT; i++) {
            float &x = to[i / (2 * NT)][i / 2 % NT][i % 2];
            const float4 f = factor[i / 2 % NT];
            x = fmaf((float)joined(d[i / (2 * NT)] + i % (2 * NT) * 2), f.z, MOVED ? x * f.x : x);
        }
    }

    /* ---- two pages --------------------------------------------------------------------------- */

    /* edge: not every row sees both pages whole, or scores are capped; edge_of() says what there
     * is to know of the warp's page. consumed(): called once all threads have read the pages. */
    template <class E, class F>
    TQI_INLINE void pages(const uint32_t slot[2], bool edge, E edge_of, F consumed) {
        const Slot s = slot_at(group.warp < 2 ? slot[0] : slot[1], group.lane);
        uint32_t values[M][VALUE_STEPS][4];
        int d[2][4 * NT];
        float score[NT][4], vn[4];
        Weighed w;
        begin_scores(s, d);
        load_v_gains(s, vn);
#pragma unroll
        for (int page = 0; page < 2; page++)
            value_operands<VF, M, Layout::k_bytes>(v_table, slot_at(slot[page], group.lane),
                                                   group.warp, page, values);
        wait_products<0>();
        join_scores(s, d, score);
        if (edge)
            mask(edge_of(), score, vn);
        weigh(score, vn, edge, w);
        publish_stores();
        group.sync();
        add_values(values, w, consumed);
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

    /* Accumulators with the bias and a factor, to [row][D]. */
    TQI_INLINE void store(const float factor[NT], float *to) const {
        const uint32_t g = group.lane / 4, t = group.lane % 4;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float *row = to + (nt * 4 + t) * D + g * (D / 8);
            auto value = [&](int m, int e) { return (acc[m][nt][e] + bias[nt]) * factor[nt]; };
#pragma unroll
            for (int m = 0; m < M; m += 2)
                if constexpr (SETS) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        row[4 * (2 * m + e) + group.warp] = value(m + e / 2, e % 2);
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
