/*
 * Operands A of codes_tile.cuh: what the warps of a warpgroup bring of two pages, 16 of 64 rows
 * each. Rows g and g + 8 of warp w are
 *
 *     keys    page w / 2, tokens 32 (w % 2) + 4 g + 2 b and the next, products b = 0 and 1
 *     values  dims (D/8) g + 4 x + y: x = w (and w + 4), y = 2 (m % 2) and the next; where 3-bit
 *             words come in sets over x, y = w, x = 2 m and the next; products m = 0 .. D/64 - 1
 *
 * so that the weights of warp w are those of step w of the second product, 32 tokens.
 */
#ifndef TQI_CUDA_ATTEND_CODES_OPERANDS_CUH
#define TQI_CUDA_ATTEND_CODES_OPERANDS_CUH

#include "attend/operands.cuh"

namespace tqi {

enum { VALUE_STEPS = 2 * GROUPS };

/* 3-bit words of values, of which a lane needs whole sets. */
__host__ __device__ constexpr bool values_in_sets(int vf) {
    return vf == TQ_FORMAT_LM3;
}

/* Keys of a group of 32 tokens, in the warp's lanes. */
template <int KF, int J> struct KeyWords {
    uint4 w[J];

    TQI_INLINE void load(const Slot &s, int r) {
        load_words<KF, J>(s, 0, r * J, w);
    }
    /* Operands of product b. */
    TQI_INLINE void operands(const ByteTable &table, int b, uint32_t a[J][4]) const {
#pragma unroll
        for (int j = 0; j < J; j++)
            k_operand<KF>(table, w, j, b, a[j]);
    }
};

/* Bytes are operands as they are: they are loaded when they are needed. */
template <int J> struct KeyWords<TQ_FORMAT_INT8, J> {
    Slot s;
    int r;

    TQI_INLINE void load(const Slot &from, int group) {
        s = from;
        r = group;
    }
    TQI_INLINE void operands(const ByteTable &, int b, uint32_t a[J][4]) const {
#pragma unroll
        for (int j = 0; j < J; j++)
            operand_of(s.pair(0, (r * J + j) * 2, b), s.pair(0, (r * J + j) * 2 + 1, b), a[j]);
    }
};

/* Words y of all x and both groups of tokens, set by set. */
template <int VF, int J, int BASE>
TQI_INLINE void value_sets(const ByteTable &table, const Slot &s, uint32_t y, int page,
                           uint32_t (*a)[VALUE_STEPS][4]) {
    const uint32_t from = s.address + s.lane16 + BASE + 4 * y;
#pragma unroll
    for (int set = 0; set < J * GROUPS / 4; set++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 3; i++)
            w[i] = load_shared4(from + (3 * set + i) * SLAB_BYTES);
        w[3] = (w[0] >> 3 & 0x11111111u) | (w[1] >> 2 & 0x22222222u) | (w[2] >> 1 & 0x44444444u);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int word = 4 * set + i, r = word / J, x = word % J;
            uint32_t *to = a[x / 2][2 * page + r];
            look_up<VF>(table, i < 3 ? w[i] & 0x77777777u : w[i], to[x % 2], to[2 + x % 2]);
        }
    }
}

/* Values of a page: a[m][2 page + r]; BASE: where they begin in the blob. */
template <int VF, int M, int BASE>
TQI_INLINE void value_operands(const ByteTable &table, const Slot &s, uint32_t warp, int page,
                               uint32_t (*a)[VALUE_STEPS][4]) {
    constexpr int J = 2 * M;
    if constexpr (values_in_sets(VF)) {
        value_sets<VF, J, BASE>(table, s, warp, page, a);
    } else if constexpr (VF == TQ_FORMAT_INT8) {
#pragma unroll
        for (int i = 0; i < M * GROUPS; i++) {
            const int m = i / GROUPS, r = i % GROUPS, x = (int)warp + 4 * (m / 2);
            operand_of(s.pair(BASE, 2 * r * J + x, m % 2), s.pair(BASE, (2 * r + 1) * J + x, m % 2),
                       a[m][2 * page + r]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < M / 2 * GROUPS; i++) {
            const int m = i / GROUPS * 2, r = i % GROUPS;
            uint4 w = s.slab(BASE, r * J + (int)warp + 2 * m);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t *to = a[m + e / 2][2 * page + r];
                look_up<VF>(table, word_of(w, e), to[e % 2], to[2 + e % 2]);
            }
        }
    }
}

} /* namespace tqi */

#endif
