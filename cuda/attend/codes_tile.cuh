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

#include "attend/codes_group.cuh"
#include "attend/codes_operands.cuh"

namespace tqi {

template <int KF, int VF, int NT, int D> struct CodesTile;

template <int KF, int VF, int NT_, int D_> struct CodesShape {
    static constexpr int NT = NT_, D = D_, HEADS = NT * 4;
    static constexpr bool PRODUCED = true, RECORDS = true;
    using Layout = Blob<KF, VF, D>;
    using Ring = PairRing<Layout::bytes>;
    static constexpr uint32_t PAGES = 2, SLOT_BYTES = PAGES * Layout::bytes; /* at a time */
    static constexpr int BARRIERS = 1;                                       /* per turn */
    using Room = CodesRoom<NT, D>;
    using Tile = CodesTile<KF, VF, NT, D>;
};

#if TQI_WGMMA

template <int KF_, int VF_, int NT_, int D_>
struct CodesTile : CodesShape<KF_, VF_, NT_, D_>, CodesGroup<NT_, D_> {
    static constexpr int KF = KF_, VF = VF_, NT = NT_, D = D_, HEADS = NT * 4;
    static constexpr int J = D / 32, M = D / 64;
    static constexpr bool SETS = values_in_sets(VF);
    static constexpr uint32_t QUERY_BLOCKS = NT;
    static_assert(NT == 4 && D % 128 == 0, "32 columns, steps of 128 dims");
    using Edge = PageEdge<NT>;
    using Layout = typename CodesShape<KF, VF, NT, D>::Layout;
    using Room = CodesRoom<NT, D>;
    using Warps = CodesGroup<NT, D>;
    using Warps::group, Warps::room, Warps::of_row, Warps::q_scale;

    ByteTable k_table, v_table;
    float acc[M][NT][2], sum[NT], bias[NT];
    float top;     /* of the lane's own row: its maximum */
    float max[NT]; /* once threads have been joined */

    TQI_INLINE void setup(const FastJob &job, const Group &g, uint32_t address) {
        const uint32_t one = in_register(0x3c003c00u);
        this->enter(g, address);
        k_table = ByteTable{in_register(job.table[0][0]), in_register(job.table[0][1]), one};
        v_table = ByteTable{in_register(job.table[1][0]), in_register(job.table[1][1]), one};
    }

    /* Pages of the group: work's from tile `first` on, `step` apart. */
    TQI_INLINE FetchTwo begin_fetch(const FastJob &job, const tqi_work &work, uint8_t *shared_room,
                                    uint32_t first, uint32_t step) const {
        return FetchTwo(job, work, (FetchState *)(shared_room + Room::fetch),
                        is_fetcher(group) && group.lane == 0, first, step);
    }

    TQI_INLINE static uint32_t row_of_column(uint32_t block, uint32_t column) {
        return 4 * block + column / 2;
    }

    /* first: the item's first row; last: its last one, which stands for those that it lacks. Shared
     * memory keeps the factor of scores and half the sum of a query's integers, where values of
     * codes end in 1/2. */
    TQI_INLINE void set_rows(const FastJob &job, uint32_t first, uint32_t last) const {
        if (group.thread >= HEADS)
            return;
        const uint32_t from = first + min(group.thread, last);
        store_shared4(this->row_scale(group.thread, false),
                      __float_as_uint(__ldcg(job.q_scale + from)));
        store_shared4(this->row_scale(group.thread, true), __float_as_uint(1.0f));
        if (has_half(KF))
            store_shared4(this->row_half(group.thread), (uint32_t)__ldcg(job.q_half + from));
    }
    TQI_INLINE void clear() {
        top = TQI_NO_MAXIMUM;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            sum[nt] = bias[nt] = 0;
#pragma unroll
            for (int m = 0; m < M; m++)
                acc[m][nt][0] = acc[m][nt][1] = 0;
        }
    }

    /* ---- scores ------------------------------------------------------------------------------ */

    TQI_INLINE void begin_scores(const uint32_t a[J][4], int *d) const {
        const uint64_t q = operand_b(room, Room::query_block);
        wgmma_bytes<true, true>(d, a, q, 256 >> 4);
#pragma unroll
        for (int j = 4; j < J; j += 4)
            wgmma_bytes<true, false>(d, a + j, q + j * (256 >> 4), 256 >> 4);
    }

    /* 256 high + low: sums of at most 128 tokens or 256 dims stay below 2^31. */
    TQI_INLINE static int joined(const int *c) {
        return c[0] * 256 + c[1];
    }

    /* Of tokens 2 b and 2 b + 1 of the lane, before the factor q_scale. */
    TQI_INLINE void join_scores(int b, uint32_t gains, const int *d, float score[NT][4]) const {
        const float2 gain = halves_of(gains);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const int half = has_half(KF) ? this->q_half(nt) : 0;
            score[nt][2 * b] = (float)(joined(d + 4 * nt) + half) * gain.x;
            score[nt][2 * b + 1] = (float)(joined(d + 4 * nt + 2) + half) * gain.y;
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
            edge_scores<4>(e, nt, first, g, q_scale(nt, false), score[nt]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (token_of(first + i, g) >= e.valid)
                vn[i] = 0; /* slots without a token hold anything */
    }

    /* What the pages leave with every row. */
    struct Weighed {
        float total[NT], integers[NT];
        bool moved; /* some row has a new maximum */
    };

    TQI_INLINE void weigh(const float score[NT][4], float vn[4], bool edge, Weighed &w) {
        float gain, m = this->pages_max(gain);
        m *= __uint_as_float(load_shared4(this->row_scale(group.lane % HEADS, edge)));
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
            const float row = of_row(m, nt), by = q_scale(nt, edge);
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float e = exp2_fast(fmaf(score[nt][i], by, -row));
                w.total[nt] = i ? w.total[nt] + e : e;
                x[i] = __float_as_uint(fmaf(e, vn[i], 8388608.0f));
            }
            if constexpr (has_half(VF))
                w.integers[nt] = float(int(x[0] + x[1] + x[2] + x[3] - 4u * 0x4b000000u));
            words[nt][0] = prmt(x[0], x[1], 0x4051);
            words[nt][1] = prmt(x[2], x[3], 0x4051);
        }
        this->store_weights(words);
    }

    /* ---- values ------------------------------------------------------------------------------ */

    /* consumed(): while products are on their way. */
    template <class F>
    TQI_INLINE void add_values(const uint32_t (*a)[VALUE_STEPS][4], const Weighed &w, F consumed) {
        const uint64_t p = operand_b(room + Room::weights, Room::weights_block);
        float4 factor[NT];
#pragma unroll
        for (int m = 0; m < M; m += 2) {
            int d[2][4 * NT];
            wgmma_bytes<false, true>(d[0], a[m], p, 256 >> 4);
            wgmma_bytes<false, true>(d[1], a[m + 1], p, 256 >> 4);
            if (m == 0) {
                consumed();
                add_sums(w, factor);
            }
            wait_products<1>();
            pin(d[0]);
            fold(w.moved, factor, d[0], acc[m]);
            wait_products<0>();
            pin(d[1]);
            fold(w.moved, factor, d[1], acc[m + 1]);
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

    /* Unless a maximum moved, alpha is 1. */
    TQI_INLINE static void fold(bool moved, const float4 factor[NT], const int *d, float (*to)[2]) {
        if (moved)
#pragma unroll
            for (int i = 0; i < 2 * NT; i++)
                to[i / 2][i % 2] *= factor[i / 2].x;
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) {
            float &x = to[i / 2][i % 2];
            x = fmaf((float)joined(d + 2 * i), factor[i / 2].z, x);
        }
    }

    /* ---- two pages --------------------------------------------------------------------------- */

    /* edge: not every row sees both pages whole, or scores are capped; edge_of() says what there
     * is to know of the warp's page. read_by_warp(), read_by_all(): called once the pages have
     * been. */
    template <class E, class O, class F>
    TQI_INLINE void pages(const uint32_t page[2], bool edge, E edge_of, O read_by_warp,
                          F read_by_all) {
        uint32_t values[M][VALUE_STEPS][4];
        float score[NT][4], vn[4];
        Weighed w;
        {
            int d[2][4 * NT];
            uint32_t keys[2][J][4];
            const Slot s = slot_at(group.warp < 2 ? page[0] : page[1], group.lane);
            KeyWords<KF, J> words;
            words.load(s, group.warp % 2);
            words.operands(k_table, 0, keys[0]);
            begin_scores(keys[0], d[0]);
            words.operands(k_table, 1, keys[1]);
            begin_scores(keys[1], d[1]);
            load_v_gains(s, vn);
            const uint2 gains = load_shared8(s.address + Layout::k_gains + group.warp % 2 * 64 +
                                             (group.lane / 4) * 8);
            wait_products<1>();
            pin(d[0]);
            join_scores(0, gains.x, d[0], score);
            value_operands<VF, M, Layout::k_bytes>(v_table, slot_at(page[0], group.lane),
                                                   group.warp, 0, values);
            pin_values(values, 0);
            wait_products<0>();
            pin(d[1]);
            join_scores(1, gains.y, d[1], score);
        }
        if (edge)
            mask(edge_of(), score, vn);
        this->leave_max(score, vn);
        value_operands<VF, M, Layout::k_bytes>(v_table, slot_at(page[1], group.lane), group.warp, 1,
                                               values);
        pin_values(values, 1);
        this->hide_room();
        weigh(score, vn, edge, w);
        this->hide_room();
        publish_stores();
        read_by_warp(); /* behind the fence, so that loads have ended, not only begun */
        group.sync();
        add_values(values, w, read_by_all);
    }

    TQI_INLINE static void pin_values(uint32_t (*a)[VALUE_STEPS][4], int page) {
#pragma unroll
        for (int m = 0; m < M; m++)
            pin8(a[m][2 * page]);
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
