/*
 * A warpgroup, two or four pages of 64 tokens of integer codes, up to 4 NT query rows, on wgmma.
 *
 * As in group_tile.cuh keys and values are A, from registers (codes_operands.cuh), and B lies in
 * shared memory: the queries' high and low bytes (columns 2 t and 2 t + 1 of block nt are row
 * 4 nt + t), then those of the probabilities. Every code is decoded by one warp only.
 *
 * A warpgroup passes two barriers a turn, whatever pages it has: for the maxima, and for the
 * weights. Four lanes times NT of every warp keep the running state of a row each, the others get
 * what they need from these.
 */
#ifndef TQI_CUDA_ATTEND_CODES_TILE_CUH
#define TQI_CUDA_ATTEND_CODES_TILE_CUH

#include "attend/codes_outputs.cuh"
#include "attend/codes_operands.cuh"

namespace tqi {

template <int KF, int VF, int NT, int D, int PAGES, int SLOTS> struct CodesTile;

/* PAGES: at a time. */
template <int KF, int VF, int NT_, int D_, int PAGES_, int SLOTS> struct CodesShape {
    static constexpr int NT = NT_, D = D_, HEADS = NT * 4;
    static constexpr bool PRODUCED = true, RECORDS = true;
    using Layout = Blob<KF, VF, D>;
    using Ring = TurnRing<Layout, PAGES_, SLOTS>;
    static constexpr uint32_t PAGES = PAGES_, SLOT_BYTES = PAGES * Layout::bytes;
    static constexpr uint32_t SLOT_BARRIERS = SLOTS == 1 ? 2 + PAGES : 2;
    static constexpr int BARRIERS = 1; /* per turn */
    using Room = CodesRoom<NT, D, PAGES>;
    using Tile = CodesTile<KF, VF, NT, D, PAGES, SLOTS>;
    /* Known to the compiler, whatever is asked for. */
    __host__ __device__ static constexpr uint32_t slots_of(uint32_t) {
        return SLOTS;
    }
};

#if TQI_WGMMA

template <int KF_, int VF_, int NT_, int D_, int PAGES_, int SLOTS>
struct CodesTile : CodesShape<KF_, VF_, NT_, D_, PAGES_, SLOTS>,
                   CodesOutputs<VF_, NT_, D_, PAGES_> {
    static constexpr int KF = KF_, VF = VF_, NT = NT_, D = D_, HEADS = NT * 4;
    static constexpr int J = D / 32, M = D / 64;
    /* Groups of tokens of a warp, its scores of a row. */
    static constexpr int R = PAGES_ / 2, S = 4 * R;
    static constexpr uint32_t QUERY_BLOCKS = NT;
    static_assert((NT == 2 || NT == 4) && D % 128 == 0, "16 or 32 columns, steps of 128 dims");
    using Edge = PageEdge<NT>;
    using Layout = Blob<KF, VF, D>;
    /* Whether places are given back some time after they have been read: of large pages less is on
     * its way then, and memory is faster (docs/experiments/gpu_decode.md). Sixteen rows are slower
     * than memory. */
    static constexpr bool LATE = NT == 2 && Layout::bytes > 7168;
    using Room = CodesRoom<NT, D, PAGES_>;
    using Outputs = CodesOutputs<VF, NT, D, PAGES_>;
    using Weighed = typename Outputs::Weighed;
    using Outputs::group, Outputs::room, Outputs::of_row, Outputs::q_scale, Outputs::top,
        Outputs::joined;

    ByteTable k_table, v_table;

    TQI_INLINE void setup(const FastJob &job, const Group &g, uint32_t address) {
        this->enter(g, address);
        this->high = job.power[1];
        k_table = byte_table<true>(job.table[0], job.power[0]);
        v_table = KF == VF ? k_table : byte_table<true>(job.table[1], job.power[0]);
    }

    /* Pages of the group: work's from tile `first` on, `step` apart. */
    TQI_INLINE FetchTurns<PAGES_> begin_fetch(const FastJob &job, const tqi_work &work,
                                              uint8_t *shared_room, uint32_t first,
                                              uint32_t step) const {
        return FetchTurns<PAGES_>(job, work, (FetchState<PAGES_> *)(shared_room + Room::fetch),
                                  is_fetcher(group) && group.lane == 0, first, step);
    }

    TQI_INLINE static uint32_t row_of_column(uint32_t block, uint32_t column) {
        return 4 * block + column / 2;
    }

    /* first: the item's first row; last: its last one, which stands for those that it lacks. Shared
     * memory keeps the factor of scores and half the sum of a query's integers, where values of
     * codes end in 1/2. */
    TQI_INLINE void set_rows(const FastJob &job, uint32_t first, uint32_t last) const {
        if (group.warp != ROWS_WARP || group.lane >= HEADS)
            return;
        const uint32_t row = group.lane, from = first + min(row, last);
        store_shared4(this->row_scale(row, false), __float_as_uint(__ldcg(job.q_scale + from)));
        store_shared4(this->row_scale(row, true), __float_as_uint(1.0f));
        if (has_half(KF))
            store_shared4(this->row_half(row), __float_as_uint((float)__ldcg(job.q_half + from)));
    }
    /* ---- scores ------------------------------------------------------------------------------ */

    TQI_INLINE void begin_scores(const uint32_t a[J][4], int *d) const {
        const uint64_t q = operand_b(room, Room::query_block);
        wgmma_bytes<8 * NT, true, true>(d, a, q, 256 >> 4);
#pragma unroll
        for (int j = 4; j < J; j += 4)
            wgmma_bytes<8 * NT, true, false>(d, a + j, q + j * (256 >> 4), 256 >> 4);
    }

    /* Of tokens 2 b and 2 b + 1 of the lane, before the factor q_scale. */
    TQI_INLINE void join_scores(int b, uint32_t gains, const float half[NT], const int *d,
                                float score[NT][S]) const {
        const float2 gain = halves_of(gains);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float x = (float)joined(d + 4 * nt), y = (float)joined(d + 4 * nt + 2);
            if (has_half(KF)) {
                x += half[nt];
                y += half[nt];
            }
            score[nt][2 * b] = x * gain.x;
            score[nt][2 * b + 1] = y * gain.y;
        }
    }

    /* The warp's group r of tokens in its page. */
    TQI_INLINE uint32_t group_of(int r) const {
        return R == 1 ? group.warp % 2 : r;
    }

    /* A product runs while the last one is joined and the operand of the next is decoded. */
    template <class F>
    TQI_INLINE void scores(const Slot &s, float score[NT][S], float vn[S], F before_last) const {
        float half[NT];
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            half[nt] = has_half(KF) ? this->q_half(nt) : 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            int d[2][4 * NT];
            uint32_t keys[2][J][4];
            KeyWords<KF, J> words;
            words.load(s, group_of(r), k_table);
            words.operands(k_table, 0, keys[0]);
            begin_scores(keys[0], d[0]);
            words.operands(k_table, 1, keys[1]);
            begin_scores(keys[1], d[1]);
            const uint2 gains =
                load_shared8(s.address + Layout::k_gains + group_of(r) * 64 + (group.lane / 4) * 8);
            wait_products<1>();
            pin<4 * NT>(d[0]);
            join_scores(2 * r, gains.x, half, d[0], score);
            if (r == R - 1)
                before_last();
            wait_products<0>();
            pin<4 * NT>(d[1]);
            join_scores(2 * r + 1, gains.y, half, d[1], score);
        }
#pragma unroll
        for (int r = 0; r < R; r++)
            load_v_gains(s, r, vn);
    }

    /* ---- softmax ----------------------------------------------------------------------------- */

    TQI_INLINE void load_v_gains(const Slot &s, int r, float vn[S]) const {
        uint2 w =
            load_shared8(s.address + Layout::v_gains + group_of(r) * 64 + (group.lane / 4) * 8);
        vn[4 * r] = __uint_as_float(w.x << 16);
        vn[4 * r + 1] = __uint_as_float(w.x & 0xffff0000u);
        vn[4 * r + 2] = __uint_as_float(w.y << 16);
        vn[4 * r + 3] = __uint_as_float(w.y & 0xffff0000u);
    }

    TQI_INLINE void mask(const Edge &e, float score[NT][S], float vn[S]) const {
        const uint32_t g = group.lane / 4;
        const int first = R == 1 ? 4 * (int)(group.warp % 2) : 0;
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            edge_scores<S>(e, nt, first, g, q_scale(nt, false), score[nt]);
#pragma unroll
        for (int i = 0; i < S; i++)
            if (token_of(first + i, g) >= e.valid)
                vn[i] = 0; /* slots without a token hold anything */
    }

    TQI_INLINE void weigh(const float score[NT][S], float vn[S], bool edge, uint32_t phase,
                          Weighed &w) {
        float gain, m = this->pages_max(phase, gain);
        m *= __uint_as_float(load_shared4(this->row_scale(group.lane % HEADS, edge)));
        m = fmaxf(m, TQI_NO_MAXIMUM); /* no token is seen */
        gain = fmaxf(gain, 2e-34f);   /* keeps the reciprocal finite */
        const float factor = 65280.0f * reciprocal(gain), v_unit = gain * (1.0f / 65280.0f);
        const float joint = fmaxf(top, m), beta = exp2_fast(m - joint);
        const float alpha = exp2_fast(top - joint), scale = beta * v_unit;
        if (group.warp == 0 && group.lane < HEADS)
            this->leave_factors(alpha, beta, scale);
        top = joint;
        w.moved = __any_sync(~0u, alpha != 1);
#pragma unroll
        for (int i = 0; i < S; i++)
            vn[i] *= factor;
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t words[R][4];
#pragma unroll
            for (int nt = n; nt < n + 2; nt++)
                weigh_row(score[nt], vn, q_scale(nt, edge), of_row(m, nt), nt, nt - n, words, w);
#pragma unroll
            for (int r = 0; r < R; r++)
                this->store_weights(n, r, words[r]);
        }
    }

    /* The sum that the half of values is multiplied with is that of weights before they are
     * rounded: what rounding does to the outputs is hundreds of times more. */
    TQI_INLINE void weigh_row(const float score[S], const float vn[S], float by, float row, int nt,
                              int at, uint32_t words[R][4], Weighed &w) {
        w.integers[nt] = 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float e = exp2_fast(fmaf(score[4 * r + i], by, -row));
                w.total[nt] = r + i ? w.total[nt] + e : e;
                x[i] = __float_as_uint(fmaf(e, vn[4 * r + i], 8388608.0f));
                if (has_half(VF))
                    w.integers[nt] = fmaf(e, vn[4 * r + i], w.integers[nt]);
            }
            words[r][2 * at] = prmt(x[0], x[1], 0x4051);
            words[r][2 * at + 1] = prmt(x[2], x[3], 0x4051);
        }
    }

    /* ---- values ------------------------------------------------------------------------------ */

    /* Products m of pages 2 c and 2 c + 1 with their weights. */
    TQI_INLINE void begin_values(int c, const uint32_t (*a)[4], int *d) const {
        const uint64_t p = operand_b(room + Room::weights, Room::weights_block) + c * (1024 >> 4);
        if (c == 0)
            wgmma_bytes<8 * NT, false, true>(d, a, p, 256 >> 4);
        else
            wgmma_bytes<8 * NT, false, false>(d, a, p, 256 >> 4);
    }

    /* ---- pages of a turn --------------------------------------------------------------------- */

    TQI_INLINE Slot page_of(uint32_t first, uint32_t page) const {
        return slot_at(first + page * Layout::bytes, group.lane);
    }

    /* first: the address of the first. edge: not every row sees all pages whole, or scores are
     * capped; edge_of() says what there is to know of the warp's page. */
    template <class E, class Ring>
    TQI_INLINE void pages(uint32_t first, bool edge, E edge_of, Ring &ring) {
        float score[NT][S], vn[S];
        Weighed w;
        ring.wait_keys();
        uint32_t a[M][4][4];
        ValueWords<VF, M, Layout::k_bytes> words;
        /* Scores of four pages leave no registers for the values. */
        auto decode = [&] {
            ring.wait_values(0);
            words.load(page_of(first, 0), page_of(first, 1), group.warp);
            words.operands(v_table, 0, a[0]);
        };
        scores(page_of(first, R == 1 ? group.warp / 2 : group.warp), score, vn, [&] {
            if (R == 1)
                decode();
        });
        if (edge)
            mask(edge_of(), score, vn);
        this->leave_max(score, vn);
        if (!LATE)
            ring.keys_read(group.lane);
        if (R == 1)
            words.operands(v_table, 1, a[1]);
        else
            decode();
        this->hide_lane();
        weigh(score, vn, edge, ring.turn(), w);
        if (R == 2)
            words.operands(v_table, 1, a[1]);
        this->hide_lane();
        publish_stores();
        if (LATE)
            ring.keys_read(group.lane);
        else
            ring.values_read(0, group.lane);
        group.sync();
        if (LATE)
            ring.values_read(0, group.lane);
        int d[M][4 * NT];
        float unit[NT];
        static_assert(M == 2, "");
        begin_values(0, a[0], d[0]);
        begin_values(0, a[1], d[1]);
        if (w.moved) /* else the factor of the old is 1 */
            this->scale_old();
        this->add_sums(w, unit);
        if constexpr (R == 2) {
            ring.wait_values(1);
            words.load(page_of(first, 2), page_of(first, 3), group.warp);
            wait_products<1>();
            pin<4 * NT>(d[0]);
            words.operands(v_table, 0, a[0]);
            begin_values(1, a[0], d[0]);
            wait_products<1>();
            pin<4 * NT>(d[1]);
            words.operands(v_table, 1, a[1]);
            begin_values(1, a[1], d[1]);
            ring.values_read(1, group.lane);
        }
        wait_products<1>();
        pin<4 * NT>(d[0]);
        this->fold(0, unit, d[0]);
        wait_products<0>();
        pin<4 * NT>(d[1]);
        this->fold(1, unit, d[1]);
    }
};

#endif /* TQI_WGMMA */

} /* namespace tqi */

#endif
