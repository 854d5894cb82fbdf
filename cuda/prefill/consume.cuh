/*
 * The warps that have rows: scores, online softmax and sums of 64 rows by a warpgroup. A thread
 * (g, t) = (lane / 4, lane % 4) of a warp has rows g and g + 8 of its 16, and of every 8 tokens or
 * dims 2 t and 2 t + 1.
 *
 * Weights are kept relative to a reference that takes the values' gains in: 2^reference is at
 * least (but for a factor of 2^SLACK) every weight of the row times every gain of its page. So
 * weights times gains fit a half, and the sums over the values need no scale per page.
 */
#ifndef TQI_CUDA_PREFILL_CONSUME_CUH
#define TQI_CUDA_PREFILL_CONSUME_CUH

#include "prefill/produce.cuh"

namespace tqi {

#if TQI_WGMMA

/* Powers of two by which weights may pass the reference before it moves. */
#define TQI_SLACK 6.0f
#define TQI_UNSEEN -3e38f

/* Where a warpgroup's rows end. */
struct RowLimits {
    uint64_t sees[2]; /* tokens that the thread's rows see */
    uint32_t full;    /* pages that every row of the warpgroup sees whole */
};

template <int KF, int VF, int D> struct Consumer {
    using Room = PrefillRoom<KF, VF, D>;
    static constexpr int STEPS = D / 16;

    float score[32], sums[D / 2];
    uint32_t query[queries_in_registers<D>() ? D / 4 : 1], weights[16];
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
            if constexpr (queries_in_registers<D>())
                multiply(score, query + 4 * k, b + step, k != 0);
            else
                multiply_stored(score, operand_at(queries) + step, b + step, k != 0);
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
            multiply(sums, weights + 4 * k, b + k * 2, 1);
        end_products();
        pin(sums);
    }

    /* ---- softmax -------------------------------------------------------------------------- */

    /* Scores with gains; those that the rows do not see are low. left: tokens that they see. */
    template <bool EDGE>
    TQI_INLINE void apply_key_gains(const GainPair *gains, const int left[2], uint32_t t) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if constexpr (has_gains(KF)) {
                float2 k = *(const float2 *)gains[4 * i + t].k;
                score[4 * i] *= k.x;
                score[4 * i + 1] *= k.y;
                score[4 * i + 2] *= k.x;
                score[4 * i + 3] *= k.y;
            }
#pragma unroll
            for (int e = 0; EDGE && e < 4; e++)
                if (int(8 * i + 2 * t + e % 2) >= left[e / 2])
                    score[4 * i + e] = TQI_UNSEEN;
        }
    }

    TQI_INLINE float row_max(int h) const {
        float m = score[2 * h];
#pragma unroll
        for (int i = 1; i < 16; i++)
            m = fmaxf(m, score[i / 2 * 4 + 2 * h + i % 2]);
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    }

    /* Moves the references that the page passes by too much. */
    TQI_INLINE void move_references(float gain_log) {
        float need[2];
        bool passed = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            need[h] = fmaf(row_max(h), unit[h], gain_log);
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

    template <bool EDGE>
    TQI_INLINE void weigh(const GainPair *gains, const int left[2], uint32_t t) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 v = make_float2(1, 1);
            if constexpr (has_gains(VF))
                v = *(const float2 *)gains[4 * i + t].v;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int h = e / 2;
                float p = exp2_fast(fmaf(score[4 * i + e], unit[h], -state.reference[h]));
                if (EDGE && int(8 * i + 2 * t + e % 2) >= left[h])
                    p = 0;
                state.sum[h] += p;
                score[4 * i + e] = has_gains(VF) ? p * (e % 2 ? v.y : v.x) : p;
            }
        }
    }

    template <bool EDGE>
    TQI_INLINE void softmax(const uint8_t *stage, const int left[2], uint32_t t) {
        const GainPair *gains = (const GainPair *)stage;
        float gain_log = 0;
        apply_key_gains<EDGE>(gains, left, t);
        if constexpr (has_gains(VF)) {
            float2 logs = *(const float2 *)&gains[TILE_TOKENS / 2];
            gain_log = fmaxf(logs.x, logs.y);
        }
        move_references(gain_log);
        weigh<EDGE>(gains, left, t);
    }

    TQI_INLINE void softmax_of_page(const uint8_t *stage, uint32_t page, const RowLimits &limits,
                                    uint32_t t) {
        int left[2] = {TILE_TOKENS, TILE_TOKENS};
        if (page < limits.full) {
            softmax<false>(stage, left, t);
            return;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int64_t sees = (int64_t)limits.sees[h] - (int64_t)page * TILE_TOKENS;
            left[h] = (int)max(min(sees, (int64_t)TILE_TOKENS), (int64_t)0);
        }
        softmax<true>(stage, left, t);
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
            weights[i] = half_pair(score[2 * i], score[2 * i + 1]);
    }
};

/* The ring from a warp's side. */
template <class Room> struct Stages {
    uint8_t *shared;
    StageBarriers *barriers;
    uint32_t lane;
    uint32_t stage = 0, phase = 0;

    TQI_INLINE uint32_t wait(int side) const {
        barrier_wait(shared_address(&barriers[stage].full[side]), phase);
        return shared_address(shared) + (side ? Room::VALUES : 0) + stage * Room::TILE;
    }

    TQI_INLINE const uint8_t *gains() const {
        return shared + Room::GAINS + stage * Room::GAIN_STAGE;
    }

    /* The stage has been read. */
    TQI_INLINE void release(int side) {
        __syncwarp();
        if (lane < ARRIVALS)
            barrier_arrive(shared_address(&barriers[stage].empty[side]));
        stage = stage + 1 == Room::STAGES ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

/* All pages: while the tensor cores multiply a page's weights with its values, and the next
 * page's keys with the queries, the softmax of the next page waits for the latter only. */
template <int KF, int VF, int D>
TQI_INLINE void consume_pages(Consumer<KF, VF, D> &c, uint8_t *shared, StageBarriers *barriers,
                              uint32_t first, uint32_t n, const RowLimits &limits, uint32_t lane) {
    using Room = PrefillRoom<KF, VF, D>;
    Stages<Room> keys = {shared, barriers, lane}, values = {shared, barriers, lane};
    c.issue_scores(keys.wait(0));
    wait_products<0>();
    pin(c.score);
    c.softmax_of_page(keys.gains(), first, limits, lane % 4);
    keys.release(0);
    c.take_weights();
    for (uint32_t page = first + 1; page < first + n; page++) {
        c.issue_scores(keys.wait(0));
        c.issue_values(values.wait(1));
        wait_products<1>();
        pin(c.score);
        c.softmax_of_page(keys.gains(), page, limits, lane % 4);
        keys.release(0);
        wait_products<0>();
        pin(c.sums);
        values.release(1);
        c.take_weights();
    }
    c.issue_values(values.wait(1));
    wait_products<0>();
    pin(c.sums);
}

#endif

} /* namespace tqi */

#endif
