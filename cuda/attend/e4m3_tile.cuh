/*
 * tile.cuh on e4m3 without conversion: mma.sync m16n8k32, whose A operand is four words of a
 * page as they are. Native on sm_89 and sm_120; sm_90 converts inside, so that there
 * group_tile.cuh is the native one.
 */
#ifndef TQI_CUDA_ATTEND_E4M3_TILE_CUH
#define TQI_CUDA_ATTEND_E4M3_TILE_CUH

#include "attend/e4m3.cuh"
#include "attend/stream.cuh"

namespace tqi {

TQI_INLINE void mma_e4m3(float c[4], const uint32_t a[4], const uint32_t b[2]) {
#if TQI_E4M3_MMA
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* Slots without a token hold anything; 0 x NaN is NaN. */
template <int BASE, int J, bool TAIL>
TQI_INLINE void v_operand_e4m3(const Slot &s, int r, int x, int yy, int valid, uint32_t a[4]) {
    uint2 w[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w[h] = s.pair(BASE, (2 * r + h) * J + x, yy);
        if (TAIL)
            w[h] = masked(w[h], token_mask<TQ_FORMAT_FP8>(valid, r, h, s.lane16 / 16));
    }
    operand_of(w[0], w[1], a);
}

template <int NT_, int D_> struct E4m3Tile : Tile<TQ_FORMAT_FP8, TQ_FORMAT_FP8, NT_, D_> {
    using Base = Tile<TQ_FORMAT_FP8, TQ_FORMAT_FP8, NT_, D_>;
    using typename Base::Layout;
    static constexpr int NT = NT_, D = D_, J = D / 32, BLOCKS = query_blocks(NT);

    uint32_t planes[BLOCKS][2 * J];

    struct Weights {
        uint32_t p[NT][GROUPS][2];
        float alpha[NT], beta[NT];
    };

    /* Tokens z = 2 zp and 2 zp + 1 of the lane in group r. */
    TQI_INLINE void score_pair(const Slot &s, int r, int zp, float (*score)[8]) const {
        float c[BLOCKS][4] = {};
#pragma unroll
        for (int j = 0; j < J; j++) {
            uint32_t a[4];
            operand_of(s.pair(0, (r * J + j) * 2, zp), s.pair(0, (r * J + j) * 2 + 1, zp), a);
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                mma_e4m3(c[b], a, &planes[b][2 * j]);
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                score[nt][4 * r + 2 * zp + e] =
                    joined_query(c[nt][2 * e], c[nt][2 * e + 1], c[NT + nt / 2][2 * e + nt % 2]);
    }

    /* Probabilities as B: the transposition leaves tokens z, z + 1, 4 + z, 5 + z in a word. */
    TQI_INLINE static void to_words(const float p[8], uint32_t (*out)[2]) {
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++)
            out[i / 2][i % 2] = prmt(transpose16(weight_planes(p[2 * i], p[2 * i + 1])), 0, 0x3120);
    }

    /* left[nt]: tokens of the page that the row sees. */
    template <bool TAIL>
    TQI_INLINE void weigh(float (*score)[8], const int left[NT], uint32_t lane, Weights &w) {
        const int g = int(lane / 4);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float total = 0, p[8];
#pragma unroll
            for (int i = 0; TAIL && i < 8; i++)
                if (32 * (i / 4) + 4 * g + i % 4 >= left[nt])
                    score[nt][i] = -3e38f;
            float m = row_max(score[nt]) * this->q_scale[nt];
            if (TAIL && left[nt] <= 0)
                m = TQI_NO_MAXIMUM;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                p[i] = exp2_fast(fmaf(score[nt][i], this->q_scale[nt], TQI_E4M3_LOG2_LARGEST - m));
                if (TAIL && 32 * (i / 4) + 4 * g + i % 4 >= left[nt])
                    p[i] = 0;
                total += p[i];
            }
            to_words(p, w.p[nt]);
            float joint = fmaxf(this->max[nt], m);
            w.alpha[nt] = exp2_fast(this->max[nt] - joint);
            w.beta[nt] = exp2_fast(m - joint) * (1.0f / TQI_E4M3_LARGEST);
            this->max[nt] = joint;
            this->sum[nt] = this->sum[nt] * w.alpha[nt] + total * w.beta[nt];
        }
    }

    template <bool TAIL> TQI_INLINE void values(const Slot &s, const Weights &w, int valid) {
#pragma unroll
        for (int mb = 0; mb < Base::MB; mb++) {
            float c[NT][4] = {};
#pragma unroll
            for (int r = 0; r < GROUPS; r++) {
                uint32_t a[4];
                v_operand_e4m3<Layout::k_bytes, J, TAIL>(s, r, mb / 2, mb % 2, valid, a);
#pragma unroll
                for (int nt = 0; nt < NT; nt++)
                    mma_e4m3(c[nt], a, w.p[nt][r]);
            }
#pragma unroll
            for (int nt = 0; nt < NT; nt++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    this->acc[nt][mb][e] = fmaf(joined_weights(c[nt][2 * e], c[nt][2 * e + 1]),
                                                w.beta[nt], this->acc[nt][mb][e] * w.alpha[nt]);
        }
    }

    /* Never with a window or a cap. */
    template <class P> TQI_INLINE void turn(const Slot *page, uint32_t lane, bool edge, P &p) {
        const Slot &s = *page;
        float score[NT][8];
        Weights w;
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++)
            score_pair(s, i / 2, i % 2, score);
        p.keys_read();
        p.wait_values();
        PageEdge<NT> e;
        if (edge) {
            e = p.edge(0);
            weigh<true>(score, e.end, lane, w);
            values<true>(s, w, e.valid);
        } else {
            weigh<false>(score, e.end, lane, w);
            values<false>(s, w, FAST_TOKENS);
        }
        p.values_read();
    }
};

/* The query of an item; rows that it lacks are zeros. */
template <int NT, int D, class Queries>
TQI_INLINE void load_query(const Queries &job, const Item &i, uint32_t at, uint32_t lane,
                           E4m3Tile<NT, D> &t) {
    using T = E4m3Tile<NT, D>;
    const uint32_t last = i.rows.n_rows - 1;
#pragma unroll
    for (int b = 0; b < T::BLOCKS; b++) {
        bool in = row_of_column(NT, b, lane / 4) <= last;
        const uint32_t *from =
            job.fragments + ((uint64_t)at * T::BLOCKS + b) * 2 * T::J * 32 + lane;
#pragma unroll
        for (int w = 0; w < 2 * T::J; w++)
            t.planes[b][w] = in ? operand(job, from + w * 32) : 0;
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
        t.q_scale[nt] = operand(job, job.q_scale + at * T::HEADS + min(nt * 4 + lane % 4, last));
    t.clear();
}

} /* namespace tqi */

#endif
