/*
 * One warp, a page of 64 tokens or two, up to 4 NT query rows: scores, online softmax, values.
 *
 * Keys and values are the A operand of the MMAs, the queries and then the probabilities B:
 * of its 8 columns, two belong to a query row, the high and the low part of its 16-bit fixed
 * point or split float. A thread (g, t) = (lane / 4, lane % 4) so ends up with both parts of
 * row 4 nt + t: scores of tokens 32 r + 4 g + z, outputs of dims (D/8) g + i.
 */
#ifndef TQI_CUDA_ATTEND_TILE_CUH
#define TQI_CUDA_ATTEND_TILE_CUH

#include "attend/fast_job.h"
#include "attend/operands.cuh"

namespace tqi {

/* What polar.cuh and sketch.cuh add: tables here, score_polar(), add_sketch(). */
template <int KF> struct KeyTables {
    TQI_INLINE void load(const Side &, uint32_t) {}
};

template <int KF, int VF, int NT_, int D_> struct Tile {
    static constexpr int NT = NT_, D = D_, J = D / 32, MB = D / 16, HEADS = NT * 4;
    static constexpr bool K_INT = is_integer(KF) && !is_polar(KF), V_INT = is_integer(VF);
    static constexpr bool SKETCH = has_sketch(KF);
    static constexpr int SKETCH_AT = J * (K_INT ? 2 : 4), Q_WORDS = SKETCH_AT + SKETCH * 2 * J;
    static constexpr bool K_BF16 = KF == TQ_FORMAT_BF16, V_BF16 = VF == TQ_FORMAT_BF16;
    /* Whether pages come in two parts; with 16 rows the few warps have no time for it. */
    static constexpr bool SPLIT = NT < 4;
    /* Pages at a time: two where they are small, since maxima, sums, waits and copies cost the same
     * whatever a page has. Sums of products stay exact: 128 tokens of signed bytes. */
    static constexpr int PAGES = D == 64 && NT == 2 && K_INT && V_INT && !SKETCH ? 2 : 1;
    static constexpr int TURN = PAGES * GROUPS, SCORES = 4 * TURN; /* groups and scores of a turn */
    using Layout = Blob<KF, VF, D>;
    /* Whether places are refilled as soon as words are in registers, or those of keys behind the
     * softmax only: of larger slots too much would be on its way (docs/experiments/gpu_decode.md,
     * measured at head dim 128). */
    static constexpr bool EARLY =
        K_INT && V_INT && !SKETCH && SPLIT && PAGES * Layout::bytes < 8192;
    static constexpr bool LATE = (KF == TQ_FORMAT_FP8 || KF == TQ_FORMAT_INT8) && D == 128;
    using Edge = PageEdge<NT>;

    uint32_t q[NT][Q_WORDS]; /* the projection from SKETCH_AT on */
    float q_scale[NT];
    float q_half[NT]; /* what score sums lack: half the sum of q, less FLOAT_START */
    int start[4];     /* INT_START, as accumulators */
    ByteTable k_table, v_table;
    KeyTables<base_of(KF)> keys;
    float2 sketch[NT]; /* factor of the sketch before q_scale, and what its sums are taken from */
    float acc[NT][MB][2], max[NT], sum[NT], bias[NT];

    /* Once, before anything else. */
    TQI_INLINE void setup(const FastJob &job) {
        k_table = byte_table<D == 64>(job.table[0], job.power[0]);
        v_table = byte_table<D == 64>(job.table[1], job.power[0]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            start[i] = INT_START;
    }

    /* half: the sum of the row's integers, halved. */
    TQI_INLINE void set_half(int nt, int half) {
        q_half[nt] = (float)half - FLOAT_START;
    }

    TQI_INLINE void clear() {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            max[nt] = TQI_NO_MAXIMUM;
            sum[nt] = bias[nt] = 0;
#pragma unroll
            for (int i = 0; i < MB; i++)
                acc[nt][i][0] = acc[nt][i][1] = 0;
        }
    }

    /* 256 high + low of sums that began at INT_START. */
    TQI_INLINE static float whole(const int *c) {
        return fmaf(__int_as_float(c[0]), 256.0f, -257 * FLOAT_START) + __int_as_float(c[1]);
    }

    /* ---- scores, before the factor q_scale ------------------------------------------------- */

    /* 256 high + low of sums that began at INT_START, and half the sum of q. The large start goes
     * away inside the multiply-add, before anything is rounded. */
    TQI_INLINE float joined(const int *c, int nt) const {
        float high = __int_as_float(c[0]), low = __int_as_float(c[1]);
        if constexpr (has_half(KF))
            return fmaf(high, 256.0f, -256 * FLOAT_START) + (low + q_half[nt]);
        else
            return whole(c);
    }

    /* read() is called when the words are in registers, or multiplied. */
    template <class F>
    TQI_INLINE void score_int(const Slot &s, int r, float score[NT][4], F read) const {
        uint4 w[J];
        if constexpr (KF != TQ_FORMAT_INT8)
            load_words<base_of(KF), J>(s, 0, r * J, w);
        uint2 gains = load_shared8(s.address + Layout::k_gains + r * 64 + (s.lane16 >> 6) * 8);
        float2 gain[2] = {halves_of(gains.x), halves_of(gains.y)};
        if constexpr (KF != TQ_FORMAT_INT8)
            read();
#pragma unroll
        for (int zp = 0; zp < 2; zp++) {
            int c[NT][4];
#pragma unroll
            for (int j = 0; j < J; j++) {
                uint32_t a[4];
                if constexpr (KF == TQ_FORMAT_INT8)
                    operand_of(s.pair(0, (r * J + j) * 2, zp), s.pair(0, (r * J + j) * 2 + 1, zp),
                               a);
                else
                    k_operand<base_of(KF)>(k_table, w, j, zp, a);
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
                    mma_s8s8(c[nt], a, &q[nt][2 * j], j ? c[nt] : start);
            }
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                score[nt][2 * zp] = joined(c[nt], nt) * gain[zp].x;
                score[nt][2 * zp + 1] = joined(c[nt] + 2, nt) * gain[zp].y;
            }
        }
        if constexpr (KF == TQ_FORMAT_INT8)
            read();
    }

    TQI_INLINE void score_float(const Slot &s, int r, float score[NT][4]) const {
#pragma unroll
        for (int zp = 0; zp < 2; zp++) {
            float c[NT][4] = {};
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t a[4];
                    k_operand_float<KF, J>(s, r, j, h, zp, a);
#pragma unroll
                    for (int nt = 0; nt < NT; nt++)
                        mma_16<K_BF16>(c[nt], a, &q[nt][4 * j + 2 * h]);
                }
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                score[nt][2 * zp] = c[nt][0] + c[nt][1];
                score[nt][2 * zp + 1] = c[nt][2] + c[nt][3];
            }
        }
    }

    /* ---- softmax ----------------------------------------------------------------------------- */

    /* What the tile's probabilities need: B operands, factors of old and new. */
    struct Weights {
        uint32_t p[NT][TURN][V_INT ? 2 : 4];
        float alpha[NT], beta[NT];
        float start[NT]; /* what products of sums began with, negative */
    };

    /* any: the row sees a token; NULL: all do. unit: of the scores, in powers of two. */
    TQI_INLINE void softmax(float score[NT][SCORES], const float unit[NT], const bool any[NT],
                            float vn[SCORES], Weights &w) {
        float v_unit = V_INT ? scale_v_gains<SCORES>(vn) : 1;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float m = row_max<SCORES>(score[nt]) * unit[nt], total = 0, p[SCORES], integers = 0;
            if (any && !any[nt])
                m = TQI_NO_MAXIMUM;
#pragma unroll
            for (int i = 0; i < SCORES; i++) {
                p[i] = exp2_fast(fmaf(score[nt][i], unit[nt], -m));
                total += p[i];
            }
            weights_operand<VF, TURN>(p, vn, w.p[nt], integers);
            float joint = fmaxf(max[nt], m), beta = exp2_fast(m - joint);
            w.alpha[nt] = exp2_fast(max[nt] - joint);
            w.beta[nt] = beta * v_unit;
            max[nt] = joint;
            sum[nt] = sum[nt] * w.alpha[nt] + total * beta;
            if constexpr (V_INT)
                bias[nt] =
                    fmaf(bias[nt], w.alpha[nt], bias_of<VF>(w.beta[nt], integers, w.start[nt]));
        }
    }

    TQI_INLINE void softmax_of_edge(float score[NT][SCORES], const Edge e[PAGES], float vn[SCORES],
                                    uint32_t lane, Weights &w) {
        const uint32_t g = lane / 4;
        float unit[NT];
        bool any[NT];
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            any[nt] = false;
#pragma unroll
            for (int n = 0; n < PAGES; n++)
                any[nt] |= edge_scores<8>(e[n], nt, 0, g, q_scale[nt], score[nt] + 8 * n);
            unit[nt] = 1;
        }
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (V_INT && token_of(i % 8, g) >= e[i / 8].valid)
                vn[i] = 0; /* slots without a token hold anything */
        softmax(score, unit, any, vn, w);
    }

    /* ---- values ------------------------------------------------------------------------------ */

    /* 256 high + low in the unit of the accumulators; start takes the start of the sums away. */
    TQI_INLINE void fold(const Weights &w, int mb, const int c[NT][4]) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float high = fmaf(__int_as_float(c[nt][2 * e]), 256.0f * w.beta[nt], w.start[nt]);
                acc[nt][mb][e] = fmaf(__int_as_float(c[nt][2 * e + 1]), w.beta[nt],
                                      fmaf(acc[nt][mb][e], w.alpha[nt], high));
            }
    }

    TQI_INLINE void fold(const Weights &w, int mb, const float c[NT][4]) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                acc[nt][mb][e] =
                    acc[nt][mb][e] * w.alpha[nt] + (c[nt][2 * e] + c[nt][2 * e + 1]) * w.beta[nt];
    }

    template <class F> TQI_INLINE void values_lm(const Slot s[PAGES], const Weights &w, F read) {
        constexpr int X = VF == TQ_FORMAT_LM4 ? 1 : VF == TQ_FORMAT_LM3 && J % 4 == 0 ? 4 : 2;
#pragma unroll
        for (int x0 = 0; x0 < J; x0 += X) {
            uint4 words[TURN][X];
#pragma unroll
            for (int r = 0; r < TURN; r++)
                load_words<VF, X>(s[r / GROUPS], Layout::k_bytes, r % GROUPS * J + x0, words[r]);
            if (EARLY && x0 + X >= J)
                read();
#pragma unroll
            for (int i = 0; i < 2 * X; i++) {
                int c[NT][4];
#pragma unroll
                for (int r = 0; r < TURN; r++) {
                    uint32_t a[4];
                    look_up<VF>(v_table, word_of(words[r][i / 2], i % 2 * 2), a[0], a[2]);
                    look_up<VF>(v_table, word_of(words[r][i / 2], i % 2 * 2 + 1), a[1], a[3]);
#pragma unroll
                    for (int nt = 0; nt < NT; nt++)
                        mma_s8u8(c[nt], a, w.p[nt][r], r ? c[nt] : start);
                }
                fold(w, 2 * x0 + i, c);
            }
        }
        if (!EARLY)
            read();
    }

    TQI_INLINE void values_int8(const Slot s[PAGES], const Weights &w) {
#pragma unroll
        for (int x = 0; x < J; x++)
#pragma unroll
            for (int yy = 0; yy < 2; yy++) {
                int c[NT][4];
#pragma unroll
                for (int r = 0; r < TURN; r++) {
                    const Slot &from = s[r / GROUPS];
                    const int chunk = r % GROUPS * 2 * J + x;
                    uint32_t a[4];
                    operand_of(from.pair(Layout::k_bytes, chunk, yy),
                               from.pair(Layout::k_bytes, chunk + J, yy), a);
#pragma unroll
                    for (int nt = 0; nt < NT; nt++)
                        mma_s8u8(c[nt], a, w.p[nt][r], r ? c[nt] : start);
                }
                fold(w, 2 * x + yy, c);
            }
    }

    template <bool TAIL> TQI_INLINE void values_float(const Slot &s, const Weights &w, int valid) {
#pragma unroll
        for (int x = 0; x < J; x++)
#pragma unroll
            for (int yy = 0; yy < 2; yy++) {
                float c[NT][4] = {};
#pragma unroll
                for (int r = 0; r < GROUPS; r++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        uint32_t a[4];
                        v_operand_float<VF, J, Layout::k_bytes, TAIL>(s, r, h, x, yy, valid, a);
#pragma unroll
                        for (int nt = 0; nt < NT; nt++)
                            mma_16<V_BF16>(c[nt], a, &w.p[nt][r][2 * h]);
                    }
                fold(w, 2 * x + yy, c);
            }
    }

    /* ---- a turn ------------------------------------------------------------------------------ */

    /* Before the factor q_scale. read(): as early as it can be said. */
    template <class F>
    TQI_INLINE void score_pages(const Slot s[PAGES], float score[NT][SCORES], F read) const {
        if constexpr (is_polar(KF))
            score_polar(*this, *s, score);
#pragma unroll
        for (int r = 0; r < TURN && !is_polar(KF); r++) {
            float part[NT][4];
            if constexpr (K_INT)
                score_int(s[r / GROUPS], r % GROUPS, part, [&] {
                    if (EARLY && r == TURN - 1)
                        read();
                });
            else
                score_float(*s, r, part);
            if constexpr (SKETCH)
                add_sketch(*this, *s, r, part);
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int z = 0; z < 4; z++)
                    score[nt][4 * r + z] = part[nt][z];
        }
        if (!EARLY)
            read();
    }

    /* edge: not every row sees the pages whole, or scores are capped; p.edge(n) says what there is
     * to know of page n. p.keys_read(), when keys and gains are in registers; p.wait_values();
     * p.values_read(): places take other pages as soon as nobody needs them any more. Edges share
     * the code for keys and integer values: code that runs once is slow. */
    template <class P> TQI_INLINE void turn(const Slot s[PAGES], uint32_t lane, bool edge, P &p) {
        float score[NT][SCORES], vn[SCORES];
        int valid = FAST_TOKENS;
        Weights w;
        score_pages(s, score, [&] {
#pragma unroll
            for (int n = 0; n < PAGES && V_INT; n++)
                load_v_gains(s[n], Layout::v_gains, vn + 8 * n);
            if (!LATE)
                p.keys_read();
        });
        p.wait_values();
        if (edge) {
            Edge e[PAGES];
#pragma unroll
            for (int n = 0; n < PAGES; n++)
                e[n] = p.edge(n);
            valid = e[0].valid;
            softmax_of_edge(score, e, vn, lane, w);
        } else {
            softmax(score, q_scale, nullptr, vn, w);
        }
        if (LATE)
            p.keys_read();
        if constexpr (V_INT && VF != TQ_FORMAT_INT8)
            return values_lm(s, w, [&] { p.values_read(); });
        if constexpr (VF == TQ_FORMAT_INT8)
            values_int8(s, w);
        else if (edge)
            values_float<true>(*s, w, valid);
        else
            values_float<false>(*s, w, valid);
        p.values_read();
    }

    /* ---- the end of an item ------------------------------------------------------------------ */

    /* Sums over the threads of a row. */
    TQI_INLINE void join_threads() {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int o = 4; o < 32; o *= 2) {
                sum[nt] += __shfl_xor_sync(~0u, sum[nt], o);
                if constexpr (V_INT)
                    bias[nt] += __shfl_xor_sync(~0u, bias[nt], o);
            }
    }

    /* Accumulators with the bias and a factor, to [head][stride]. */
    template <int STRIDE = D>
    TQI_INLINE void store(uint32_t lane, const float factor[NT], float *to) const {
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const float all = V_INT ? bias[nt] : 0;
            float4 *row = (float4 *)(to + (nt * 4 + lane % 4) * STRIDE + lane / 4 * (D / 8));
#pragma unroll
            for (int i = 0; i < MB; i += 2)
                row[i / 2] = make_float4(
                    (acc[nt][i][0] + all) * factor[nt], (acc[nt][i][1] + all) * factor[nt],
                    (acc[nt][i + 1][0] + all) * factor[nt], (acc[nt][i + 1][1] + all) * factor[nt]);
        }
    }
};

} /* namespace tqi */

#endif
