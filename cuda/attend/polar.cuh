/*
 * Polar keys to pairs of halves. Lane 4 g + t of a warp has blocks t and 4 + t of its tokens (all
 * four of them of head dim 64), of token 4 g + z word z of every piece; spec/layout.h, "polar". The
 * lanes of the warp hold the directions of all levels as two halves each, integers below 128 times
 * 2^-7, and a shuffle fetches one. A radius goes down the tree as the sum of two halves, two
 * children at a time. The last radius is cut such that its high half has four bits: its products
 * with directions, of seven bits, are exact halves, and so operands of the tensor cores as they
 * are; what the low half loses is below 2^-13 of the coordinate, seldom above 2^-15.
 */
#ifndef TQI_CUDA_ATTEND_POLAR_CUH
#define TQI_CUDA_ATTEND_POLAR_CUH

#include "attend/sketch.cuh"
#include "attend/tile.cuh"
#include "spec/codebook_data.h"

namespace tqi {

/* ---- directions ----------------------------------------------------------------------------- */

/* Lane l holds entry l of every level, again and again: shuffles look at the five lowest bits of an
 * index, so that codes need not be cut out of their words. */
template <> struct KeyTables<TQ_FORMAT_POLAR> {
    uint32_t level[4]; /* cosine, sine */

    /* The bytes of a level's cosines. */
    TQI_INLINE static constexpr uint32_t bytes(const int (&c)[4]) {
        return uint32_t(c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24);
    }

    /* Sines are the cosines backwards. */
    TQI_INLINE static uint32_t direction(uint32_t cosines, uint32_t lane, uint32_t signs) {
        float c = float(cosines >> 8 * (lane % 4) & 255),
              s = float(cosines >> 24 - 8 * (lane % 4) & 255);
        __half2 h = __floats2half2_rn(c / 128, s / 128);
        uint32_t word;
        memcpy(&word, &h, sizeof word);
        return word ^ signs;
    }

    TQI_INLINE void load(const Side &, uint32_t lane) {
        constexpr int one[4] = TQI_POLAR1_COS, two[4] = TQI_POLAR2_COS, three[4] = TQI_POLAR3_COS,
                      four[4] = TQI_POLAR4_COS;
        level[0] = direction(bytes(one), lane, (lane & 4) << 13 | (lane & 8) << 28);
        level[1] = direction(bytes(two), lane, 0);
        level[2] = direction(bytes(three), lane, 0);
        level[3] = direction(bytes(four), lane, 0);
    }

    TQI_INLINE uint32_t at(int l, uint32_t code) const {
        return __shfl_sync(~0u, level[l], (int)code);
    }
};

/* ---- pairs of halves ------------------------------------------------------------------------ */

/* One half of a word, twice. */
template <int WHICH> TQI_INLINE uint32_t twice(uint32_t x) {
    uint32_t r;
    if (WHICH)
        asm("{.reg .b16 l,h;\nmov.b32 {l,h},%1;\nmov.b32 %0,{h,h};\n}" : "=r"(r) : "r"(x));
    else
        asm("{.reg .b16 l,h;\nmov.b32 {l,h},%1;\nmov.b32 %0,{l,l};\n}" : "=r"(r) : "r"(x));
    return r;
}

TQI_INLINE uint32_t mul_halves(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

TQI_INLINE uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* a b - c */
TQI_INLINE uint32_t fms_halves(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("{.reg .b32 n;\nneg.f16x2 n,%3;\nfma.rn.f16x2 %0,%1,%2,n;\n}"
        : "=r"(r)
        : "r"(a), "r"(b), "r"(c));
    return r;
}

/* Two radii, or coordinates, side by side. */
struct HalfPairs {
    uint32_t high, low;
};

/* Children of radius WHICH of `r`. */
template <int WHICH> TQI_INLINE HalfPairs split_radius(const HalfPairs &r, uint32_t direction) {
    uint32_t high = twice<WHICH>(r.high);
    HalfPairs c;
    c.high = mul_halves(high, direction);
    c.low = fms_halves(high, direction, c.high);
    c.low = fma_halves(twice<WHICH>(r.low), direction, c.low);
    return c;
}

/* The same, the high halves cut to four bits. */
template <int WHICH> TQI_INLINE HalfPairs split_short(const HalfPairs &r, uint32_t direction) {
    uint32_t high = twice<WHICH>(r.high);
    HalfPairs c;
    c.high = mul_halves(high, direction) & 0xff80ff80u;
    c.low = fms_halves(high, direction, c.high);
    c.low = fma_halves(twice<WHICH>(r.low), direction, c.low);
    return c;
}

/* Coordinates of radius WHICH of split_short(). */
template <int WHICH> TQI_INLINE HalfPairs coordinates(const HalfPairs &r, uint32_t direction) {
    return HalfPairs{mul_halves(twice<WHICH>(r.high), direction),
                     mul_halves(twice<WHICH>(r.low), direction)};
}

/* ---- a page --------------------------------------------------------------------------------- */

/* Offsets of the sections of D / 16 blocks of 64 tokens. */
template <int D> struct PolarBlob {
    static constexpr int elements = FAST_TOKENS * D / 16, quads = D / 64;
    static constexpr int level2 = elements * 4, level3 = elements * 5;
    static constexpr int level4 = level3 + elements / 2, bytes = level4 + elements / 4;
};

/* A lane's block of quad `quad` (all of four blocks) of tokens 2 zp and 2 zp + 1 of group r. Codes
 * of the second one follow those of the first at bits 8, 4, 2 of levels 2, 3, 4. */
template <int D> struct PolarWords {
    uint32_t level1[2], level2, level3, level4;

    TQI_INLINE void load(const Slot &s, int quad, int r, int zp) {
        const int e = 4 * FAST_TOKENS * quad + 128 * r; /* element of lane 0 */
        uint2 w = load_shared8(s.address + (2 * quad + r) * SLAB_BYTES + s.lane16 + zp * 8);
        level1[0] = w.x;
        level1[1] = w.y;
        level2 = load_shared2(s.address + PolarBlob<D>::level2 + e + s.lane16 / 4 + zp * 2);
        level3 = load_shared1(s.address + PolarBlob<D>::level3 + e / 2 + s.lane16 / 8 + zp);
        level4 = load_shared1(s.address + PolarBlob<D>::level4 + e / 4 + s.lane16 / 16) >> zp * 4;
    }
};

/* Radii of a lane's blocks of two tokens times powers of two, which bring the largest of each
 * token's near 2^14 and keep the low halves from underflow. */
template <int D> struct PolarRadii {
    static constexpr int QUADS = D / 64;
    uint32_t radius[QUADS]; /* of both tokens */
    uint32_t exponent;      /* of the largest, in place */

    TQI_INLINE void load(const Slot &s, int gains, int r, int zp) {
        uint32_t most = 0;
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            radius[q] = load_shared4(s.address + gains + 512 * q + 256 * r + s.lane16 / 2 + zp * 4);
            most = q ? larger_halves(most, radius[q]) : radius[q];
        }
        most = larger_halves(most, __shfl_xor_sync(~0u, most, 1));
        most = larger_halves(most, __shfl_xor_sync(~0u, most, 2));
        exponent = larger_halves(most, TQI_POLAR_LEAST) & 0x7c007c00u;
#pragma unroll
        for (int q = 0; q < QUADS; q++)
            radius[q] = mul_halves(radius[q], TQI_POLAR_SCALE - exponent);
    }

    /* What takes the power of two of the first or second token away. */
    TQI_INLINE float unit(int e) const {
        uint32_t bits = e ? (exponent & 0x7c000000u) >> 3 : (exponent & 0x7c00u) << 13;
        return __uint_as_float(bits + TQI_POLAR_UNIT);
    }
};

/* The four quarters' radii of a block of the first (E = 0) or second token: pairs 0, 1 and 2, 3. */
template <int E, int D>
TQI_INLINE void polar_quarters(const KeyTables<TQ_FORMAT_POLAR> &t, const PolarWords<D> &w,
                               uint32_t radius, HalfPairs quarter[2]) {
    uint32_t direction = t.at(3, w.level4 >> 2 * E), r = twice<E>(radius);
    HalfPairs half;
    half.high = mul_halves(r, direction);
    half.low = fms_halves(r, direction, half.high);
    quarter[0] = split_radius<0>(half, t.at(2, w.level3 >> 4 * E));
    quarter[1] = split_radius<1>(half, t.at(2, w.level3 >> (4 * E + 2)));
}

/* The four dims of quarter Q of a block. */
template <int Q, int E, int D>
TQI_INLINE void polar_dims(const KeyTables<TQ_FORMAT_POLAR> &t, const PolarWords<D> &w,
                           const HalfPairs quarter[2], HalfPairs x[2]) {
    HalfPairs pair = split_short<Q % 2>(quarter[Q / 2], t.at(1, w.level2 >> (8 * E + 2 * Q)));
    x[0] = coordinates<0>(pair, t.at(0, w.level1[E] >> 8 * Q));
    x[1] = coordinates<1>(pair, t.at(0, w.level1[E] >> (8 * Q + 4)));
}

/* Products of quarter Q of two tokens' blocks with the queries, which have high and low parts in
 * columns. */
template <int Q, class T>
TQI_INLINE void polar_products(const T &t, const PolarWords<T::D> &w, const HalfPairs quarter[2][2],
                               int word, float c[T::NT][4]) {
    HalfPairs x[2][2];
    polar_dims<Q, 0>(t.keys, w, quarter[0], x[0]);
    polar_dims<Q, 1>(t.keys, w, quarter[1], x[1]);
    uint32_t high[4] = {x[0][0].high, x[1][0].high, x[0][1].high, x[1][1].high};
    uint32_t low[4] = {x[0][0].low, x[1][0].low, x[0][1].low, x[1][1].low};
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++)
        mma_f16(c[nt], high, &t.q[nt][word + 2 * Q]);
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++)
        mma_f16(c[nt], low, &t.q[nt][word + 2 * Q]);
}

/* Scores of tokens 2 zp and 2 zp + 1 of group r; T: the tile. */
template <class T>
TQI_INLINE void score_two(const T &t, const Slot &s, int r, int zp, float score[T::NT][2]) {
    constexpr int NT = T::NT, QUADS = T::D / 64;
    PolarRadii<T::D> radii;
    PolarWords<T::D> words[QUADS];
    float c[NT][4] = {};
    radii.load(s, T::Layout::k_gains, r, zp);
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        words[i].load(s, i, r, zp);
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        HalfPairs quarter[2][2];
        polar_quarters<0>(t.keys, words[i], radii.radius[i], quarter[0]);
        polar_quarters<1>(t.keys, words[i], radii.radius[i], quarter[1]);
        polar_products<0>(t, words[i], quarter, 8 * i, c);
        polar_products<1>(t, words[i], quarter, 8 * i, c);
        polar_products<2>(t, words[i], quarter, 8 * i, c);
        polar_products<3>(t, words[i], quarter, 8 * i, c);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            score[nt][e] = (c[nt][2 * e] + c[nt][2 * e + 1]) * radii.unit(e);
}

/* All scores of a page, two tokens at a time. As a loop this is slower, though half the code: turns
 * begin with loads and shuffles that nothing covers. */
template <class T> TQI_INLINE void score_polar(const T &t, const Slot &s, float score[T::NT][8]) {
#pragma unroll
    for (int h = 0; h < 2 * GROUPS; h++) {
        float two[T::NT][2];
        score_two(t, s, h / 2, h % 2, two);
        if constexpr (T::SKETCH)
            add_sketch_of_two(t, s, h / 2, h % 2, two);
#pragma unroll
        for (int nt = 0; nt < T::NT; nt++) {
            score[nt][2 * h] = two[nt][0];
            score[nt][2 * h + 1] = two[nt][1];
        }
    }
}

} /* namespace tqi */

#endif
