/*
 * The warps that have rows: scores, online softmax and sums of 64 rows by a warpgroup. A thread
 * (g, t) = (lane / 4, lane % 4) of a warp has rows g and g + 8 of its 16, and of every 8 tokens or
 * dims 2 t and 2 t + 1.
 *
 * Weights are kept relative to a reference that takes the values' gains in: a weight times the
 * power of two of its group's gains is at most 2^(reference + SLACK). So it fits a half, and the
 * sums over the values need no scale per page.
 */
#ifndef TQI_CUDA_PREFILL_CONSUME_CUH
#define TQI_CUDA_PREFILL_CONSUME_CUH

#include "prefill/produce.cuh"
#include "prefill/rows.cuh"

namespace tqi {

#if TQI_WGMMA

/* Powers of two by which weights may pass the reference before it moves. */
#define TQI_SLACK 6.0f
#define TQI_UNSEEN -3e38f

/* What the rows of a warpgroup see, and how. */
struct RowLimits {
    const RowNote *notes;          /* of the thread's row g */
    uint32_t first_full, full_end; /* pages that every row of the warpgroup sees whole */
    float cap, cap_rate;           /* the cap in powers of two, 0 = none; 2 / cap */
};

/* Tokens of a page that the thread's two rows see. */
struct PageEnds {
    int first[2], end[2];
};

template <int KF, int VF, int D> struct Consumer {
    using Room = PrefillRoom<KF, VF, D>;
    static constexpr int K_DIM = Room::K_DIM, STEPS = K_DIM / 16;
    static constexpr bool K_BF16 = KF == TQ_FORMAT_BF16, V_BF16 = VF == TQ_FORMAT_BF16;

    float score[32], sums[D / 2];
    uint32_t query[queries_in_registers<K_DIM>() ? K_DIM / 4 : 1], weights[16];
    uint32_t queries; /* address of the warpgroup's, where they are not in registers */
    float unit[2];
    SoftmaxState state;
    float keep[2]; /* factors of the sums so far */
    bool moved;    /* whether they are not 1, in some row of the warp */

    TQI_INLINE void clear() {
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            sums[i] = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            state.reference[h] = TQI_NO_REFERENCE;
            state.sum[h] = 0;
            keep[h] = 1;
        }
    }

    /* ---- products, issued only ----------------------------------------------------------- */

    TQI_INLINE void issue_scores(uint32_t keys) {
        uint64_t b = operand_at(keys);
        pin(score);
        begin_products();
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            const uint32_t step = k / 4 * (8192 / 16) + k % 4 * 2;
            if constexpr (queries_in_registers<K_DIM>())
                multiply<K_BF16>(score, query + 4 * k, b + step, k != 0);
            else
                multiply_stored<K_BF16>(score, operand_at(queries) + step, b + step, k != 0);
        }
        end_products();
        pin(score);
    }

    TQI_INLINE void issue_values(uint32_t values) {
        uint64_t b = operand_at(values);
        pin(sums);
        pin(weights);
        begin_products();
#pragma unroll
        for (int k = 0; k < TILE_TOKENS / 16; k++)
            multiply<V_BF16>(sums, weights + 4 * k, b + k * 2, 1);
        end_products();
        pin(sums);
    }

    /* ---- softmax -------------------------------------------------------------------------- */

    /* What scores of a group of 32 tokens (g) of a row (h) are multiplied by, and what is added to
     * the exponents of their weights. */
    struct Factors {
        float score[2][2], log[2];
    };

    TQI_INLINE Factors factors_of(const PageScales &scales) const {
        Factors f;
#pragma unroll
        for (int g = 0; g < 2; g++) {
            f.log[g] = has_gains(VF) ? scales.v_log[g] : 0;
#pragma unroll
            for (int h = 0; h < 2; h++)
                f.score[h][g] = is_polar(KF) ? unit[h] * scales.k[g] : unit[h];
        }
        return f;
    }

    TQI_INLINE void apply_key_gains(const PageScales &scales, uint32_t t) {
#pragma unroll
        for (int i = 0; has_score_gains(KF) && i < 8; i++) {
            float2 k = *(const float2 *)(scales.k_gain + 8 * i + 2 * t);
            score[4 * i] *= k.x;
            score[4 * i + 1] *= k.y;
            score[4 * i + 2] *= k.x;
            score[4 * i + 3] *= k.y;
        }
    }

    /* Scores in powers of two, capped if there is a cap; so low that the weight is 0 where a row
     * does not see the token. */
    TQI_INLINE void edge_scores(Factors &f, const PageEnds &ends, const RowLimits &limits,
                                uint32_t t) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            score[i] *= f.score[i / 2 % 2][i / 16];
        if (limits.cap != 0) { /* cap * tanh(x / cap) */
            const float shift[2] = {limits.notes[0].shift * TQI_LOG2E,
                                    limits.notes[8].shift * TQI_LOG2E};
#pragma unroll
            for (int i = 0; i < 32; i++)
                score[i] =
                    fmaf(-2 * limits.cap,
                         reciprocal(1 + exp2_fast((score[i] + shift[i / 2 % 2]) * limits.cap_rate)),
                         limits.cap);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int h = i / 2 % 2, token = 8 * (i / 4) + 2 * (int)t + i % 2;
            if (token < ends.first[h] || token >= ends.end[h])
                score[i] = TQI_UNSEEN;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.score[i / 2][i % 2] = 1;
    }

    /* The largest score of row h in group g that the thread has. */
    TQI_INLINE float own_max(int h, int g) const {
        float m = score[16 * g + 2 * h];
#pragma unroll
        for (int i = 1; i < 8; i++)
            m = fmaxf(m, score[16 * g + i / 2 * 4 + 2 * h + i % 2]);
        return m;
    }

    /* The largest exponent of a weight of row h. */
    TQI_INLINE float largest(const Factors &f, int h) const {
        float m;
        if constexpr (is_polar(KF) || has_gains(VF))
            m = fmaxf(fmaf(own_max(h, 0), f.score[h][0], f.log[0]),
                      fmaf(own_max(h, 1), f.score[h][1], f.log[1]));
        else
            m = fmaxf(own_max(h, 0), own_max(h, 1)) * f.score[h][0];
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    }

    /* Moves the references that the page passes by too much. */
    TQI_INLINE void move_references(const Factors &f) {
        float need[2];
        bool passed = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            need[h] = largest(f, h);
            passed |= need[h] > state.reference[h] + TQI_SLACK;
        }
        moved = __any_sync(~0u, passed);
        if (!moved)
            return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float to = need[h] > state.reference[h] ? need[h] : state.reference[h];
            keep[h] = exp2_fast(state.reference[h] - to);
            state.reference[h] = to;
            state.sum[h] *= keep[h];
        }
    }

    /* Scores to weights, which have their group's power of two; sums do not. */
    TQI_INLINE void weigh(const Factors &f, const PageScales &scales) {
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const float start[2] = {f.log[g] - state.reference[0], f.log[g] - state.reference[1]};
            float sum[2] = {};
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int h = i / 2 % 2;
                float p = exp2_fast(fmaf(score[16 * g + i], f.score[h][g], start[h]));
                sum[h] += p;
                score[16 * g + i] = p;
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
                state.sum[h] = has_gains(VF) ? fmaf(sum[h], scales.v_unit[g], state.sum[h])
                                             : state.sum[h] + sum[h];
        }
    }

    TQI_INLINE PageEnds ends_of(uint32_t page, const RowLimits &limits) const {
        const int64_t begin = (int64_t)page * TILE_TOKENS, most = TILE_TOKENS;
        PageEnds ends;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const RowNote &note = limits.notes[8 * h];
            ends.first[h] = (int)min(max((int64_t)note.from - begin, (int64_t)0), most);
            ends.end[h] = (int)min(max((int64_t)note.to - begin, (int64_t)0), most);
        }
        return ends;
    }

    TQI_INLINE void softmax_of_page(const uint8_t *stage, uint32_t page, const RowLimits &limits,
                                    uint32_t t) {
        const PageScales &scales = *(const PageScales *)stage;
        Factors f = factors_of(scales);
        apply_key_gains(scales, t);
        if (page < limits.first_full || page >= limits.full_end)
            edge_scores(f, ends_of(page, limits), limits, t);
        move_references(f);
        weigh(f, scales);
    }

    /* The products with the weights before are done: the new ones take their place. */
    TQI_INLINE void take_weights() {
        if (moved) {
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                sums[i] *= keep[i / 2 % 2];
        }
#pragma unroll
        for (int i = 0; i < 16; i++) /* registers of A: rows g, g + 8, then 8 tokens further */
            weights[i] = float_pair<V_BF16>(score[2 * i], score[2 * i + 1]);
    }
};

/* The ring from a warp's side: SIDE 0 keys, 1 values. */
template <class Room, int SIDE> struct Stages {
    static constexpr uint32_t STAGES = SIDE ? Room::V_STAGES : Room::STAGES;
    uint8_t *shared;
    StageBarriers *barriers;
    uint32_t lane;
    uint32_t stage = 0, phase = 0;

    TQI_INLINE uint32_t wait() const {
        barrier_wait(shared_address(&barriers[stage].full[SIDE]), phase);
        return shared_address(shared) +
               (SIDE ? Room::VALUES + stage * Room::V_TILE : stage * Room::KEYS);
    }

    TQI_INLINE const uint8_t *gains() const {
        return shared + Room::GAINS + stage * Room::GAIN_STAGE;
    }

    /* The stage has been read. */
    TQI_INLINE void release() {
        __syncwarp();
        if (lane < WARP_ARRIVALS)
            barrier_arrive(shared_address(&barriers[stage].empty[SIDE]));
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

/* All pages: while the tensor cores multiply a page's weights with its values, and the next
 * page's keys with the queries, the softmax of the next page waits for the latter only. */
template <int KF, int VF, int D>
TQI_INLINE void consume_pages(Consumer<KF, VF, D> &c, uint8_t *shared, StageBarriers *barriers,
                              uint32_t first, uint32_t n, const RowLimits &limits, uint32_t lane) {
    using Room = PrefillRoom<KF, VF, D>;
    Stages<Room, 0> keys = {shared, barriers, lane};
    Stages<Room, 1> values = {shared, barriers, lane};
    c.issue_scores(keys.wait());
    wait_products<0>();
    pin(c.score);
    c.softmax_of_page(keys.gains(), first, limits, lane % 4);
    keys.release();
    c.take_weights();
    for (uint32_t page = first + 1; page < first + n; page++) {
        c.issue_scores(keys.wait());
        c.issue_values(values.wait());
        wait_products<1>();
        pin(c.score);
        c.softmax_of_page(keys.gains(), page, limits, lane % 4);
        keys.release();
        wait_products<0>();
        pin(c.sums);
        values.release();
        c.take_weights();
    }
    c.issue_values(values.wait());
    wait_products<0>();
    pin(c.sums);
}

#endif

} /* namespace tqi */

#endif
