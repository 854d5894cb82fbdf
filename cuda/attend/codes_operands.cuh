/*
 * Operands A of codes_tile.cuh: what the warps of a warpgroup bring of two or four pages, 16 of 64
 * rows each. Rows g and g + 8 of warp w are
 *
 *     keys    of two pages: page w / 2, group r = w % 2; of four: page w, both groups;
 *             tokens 32 r + 4 g + 2 b and the next, products b = 0 and 1
 *     values  dims (D/8) g + 4 x + y: x = w (and w + 4), y = 2 (m % 2) and the next; where 3-bit
 *             words come in sets over x, dims (D/8) (2 w + g % 2) + 4 x + g / 2, x = 2 m and the
 *             next, so that a load meets all banks; products m = 0 .. D/64 - 1
 *
 * so that the weights of warp w are those of step w of the second product, 32 tokens, or of steps
 * 2 w and 2 w + 1.
 */
#ifndef TQI_CUDA_ATTEND_CODES_OPERANDS_CUH
#define TQI_CUDA_ATTEND_CODES_OPERANDS_CUH

#include "attend/operands.cuh"

namespace tqi {

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

/* Values of two pages in the warp's lanes: operands a[2 page + r] of product m. BASE: where they
 * begin in the blob. */
template <int VF, int M, int BASE> struct ValueWords {
    uint4 w[2][GROUPS][M / 2];

    TQI_INLINE void load(const Slot &first, const Slot &second, uint32_t warp) {
#pragma unroll
        for (int i = 0; i < M * GROUPS; i++) {
            const int page = i / (M / 2 * GROUPS), r = i / (M / 2) % GROUPS, m = i % (M / 2);
            w[page][r][m] = (page ? second : first).slab(BASE, r * 2 * M + (int)warp + 4 * m);
        }
    }
    TQI_INLINE void operands(const ByteTable &table, int m, uint32_t (*a)[4]) const {
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                look_up<VF>(table, word_of(w[i / GROUPS][i % GROUPS][m / 2], m % 2 * 2 + e),
                            a[i][e], a[i][2 + e]);
    }
};

/* Words of all x and both groups of tokens, set by set: lane 4 g + t has word y = g / 2 of what
 * belongs to dims (D/8) (2 warp + g % 2) and behind. */
template <int M, int BASE> struct ValueWords<TQ_FORMAT_LM3, M, BASE> {
    static_assert(M == 2, "a set is a group of tokens");
    uint32_t w[2][GROUPS][3];

    TQI_INLINE void load(const Slot &first, const Slot &second, uint32_t warp) {
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) {
            const Slot &s = i / GROUPS ? second : first;
            const uint32_t lane = s.lane16 / 16;
            const uint32_t from =
                s.address + BASE + 128 * warp + lane / 4 % 2 * 64 + lane % 4 * 16 + lane / 8 * 4;
#pragma unroll
            for (int p = 0; p < 3; p++)
                w[i / GROUPS][i % GROUPS][p] =
                    load_shared4(from + (i % GROUPS * 3 + p) * SLAB_BYTES);
        }
    }
    TQI_INLINE void operands(const ByteTable &table, int m, uint32_t (*a)[4]) const {
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) {
            const uint32_t *set = w[i / GROUPS][i % GROUPS];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int word = 2 * m + e;
                const uint32_t selector = word < 3 ? set[word] & 0x77777777u
                                                   : (set[0] >> 3 & 0x11111111u) |
                                                         (set[1] >> 2 & 0x22222222u) |
                                                         (set[2] >> 1 & 0x44444444u);
                look_up<TQ_FORMAT_LM3>(table, selector, a[i][e], a[i][2 + e]);
            }
        }
    }
};

/* Bytes are operands as they are. */
template <int M, int BASE> struct ValueWords<TQ_FORMAT_INT8, M, BASE> {
    Slot s[2];
    uint32_t warp;

    TQI_INLINE void load(const Slot &first, const Slot &second, uint32_t w) {
        s[0] = first;
        s[1] = second;
        warp = w;
    }
    TQI_INLINE void operands(const ByteTable &, int m, uint32_t (*a)[4]) const {
#pragma unroll
        for (int i = 0; i < 2 * GROUPS; i++) {
            const Slot &from = s[i / GROUPS];
            const int r = i % GROUPS, x = (int)warp + 4 * (m / 2);
            operand_of(from.pair(BASE, 4 * r * M + x, m % 2),
                       from.pair(BASE, (4 * r + 2) * M + x, m % 2), a[i]);
        }
    }
};

} /* namespace tqi */

#endif
