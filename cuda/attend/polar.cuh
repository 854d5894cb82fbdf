/*
 * Polar keys to integers. Lane 4 g + t of a warp has blocks t and 4 + t of its tokens (all four
 * of them of head dim 64), of token 4 g + z word z of every piece; spec/layout.h, "polar". A radius
 * goes down the tree in binary32, cosines and sines come from the lanes of the warp, which hold the
 * tables. The coordinates of a token become 16-bit fixed point against its largest radius, in a
 * high and a low byte, both A operands.
 */
#ifndef TQI_CUDA_ATTEND_POLAR_CUH
#define TQI_CUDA_ATTEND_POLAR_CUH

#include "attend/tile.cuh"
#include "common/polar_tables.cuh"

namespace tqi {

/* Its low 16 bits are 0 and stay the integer that is added. */
#define TQI_POLAR_MAGIC 12582912.0f

template <> struct KeyTables<TQ_FORMAT_POLAR> : PolarTables {
    TQI_INLINE void load(const Side &k, uint32_t lane) {
        PolarTables::load(k.polar, lane);
    }
};

/* The lowest level: two coordinates as integers in the low halves. */
TQI_INLINE void split_lowest(const PolarTables &t, uint32_t code, float r, uint32_t &a,
                             uint32_t &b) {
    float c = __shfl_sync(~0u, t.cosine[0], (int)code), s = __shfl_sync(~0u, t.sine[0], (int)code);
    a = __float_as_uint(fmaf(r, c, TQI_POLAR_MAGIC));
    b = __float_as_uint(fmaf(r, s, TQI_POLAR_MAGIC));
}

/* Offsets of the sections of D / 16 blocks of 64 tokens. */
template <int D> struct PolarBlob {
    static constexpr int elements = FAST_TOKENS * D / 16, quads = D / 64;
    static constexpr int level2 = elements * 4, level3 = elements * 5;
    static constexpr int level4 = level3 + elements / 2, bytes = level4 + elements / 4;
};

/* A lane's blocks of four tokens in a group; all of four blocks ("quad"). */
template <int D> struct PolarWords {
    uint4 level1;
    uint32_t level2, level3, level4;

    TQI_INLINE void load(const Slot &s, int quad, int r) {
        const int e = 4 * FAST_TOKENS * quad + 128 * r; /* element of lane 0 */
        level1 = s.slab(0, 2 * quad + r);
        level2 = load_shared4(s.address + PolarBlob<D>::level2 + e + s.lane16 / 4);
        level3 = load_shared2(s.address + PolarBlob<D>::level3 + e / 2 + s.lane16 / 8);
        level4 = load_shared1(s.address + PolarBlob<D>::level4 + e / 4 + s.lane16 / 16);
    }
};

/* Two radii down to four coordinates; code: of level 2, then two of level 1. */
TQI_INLINE void polar_quad(const PolarTables &t, uint32_t level2, uint32_t level1, float r,
                           uint32_t &low, uint32_t &high) {
    float a, b;
    uint32_t x[4];
    t.split(1, level2, r, a, b);
    split_lowest(t, level1, a, x[0], x[1]);
    split_lowest(t, level1 >> 4, b, x[2], x[3]);
    uint32_t first = prmt(x[0], x[1], 0x5140), second = prmt(x[2], x[3], 0x5140);
    low = prmt(first, second, 0x5410);
    high = prmt(first, second, 0x7632);
}

/* The block of token z: words of dims 0..3, 4..7, 8..11, 12..15. */
template <int D>
TQI_INLINE void polar_block(const PolarTables &t, const PolarWords<D> &w, int z, float r,
                            uint32_t low[4], uint32_t high[4]) {
    uint32_t level1 = word_of(w.level1, z), level2 = w.level2 >> 8 * z, level3 = w.level3 >> 4 * z;
    float half[2], quarter[4];
    t.split(3, w.level4 >> 2 * z, r, half[0], half[1]);
    t.split(2, level3, half[0], quarter[0], quarter[1]);
    t.split(2, level3 >> 2, half[1], quarter[2], quarter[3]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        polar_quad(t, level2 >> 2 * i, level1 >> 8 * i, quarter[i], low[i], high[i]);
}

/* Radii of a lane's blocks of four tokens, and the largest of each token's. */
template <int D> struct PolarRadii {
    static constexpr int QUADS = D / 64;
    float2 radius[QUADS][2]; /* tokens 0, 1 | 2, 3 */
    float largest[4];

    TQI_INLINE void load(const Slot &s, int gains, int r) {
        uint32_t most[2];
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            uint2 w = load_shared8(s.address + gains + 512 * q + 256 * r + s.lane16 / 2);
            radius[q][0] = halves_of(w.x);
            radius[q][1] = halves_of(w.y);
            most[0] = q ? larger_halves(most[0], w.x) : w.x;
            most[1] = q ? larger_halves(most[1], w.y) : w.y;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            most[i] = larger_halves(most[i], __shfl_xor_sync(~0u, most[i], 1));
            most[i] = larger_halves(most[i], __shfl_xor_sync(~0u, most[i], 2));
            float2 m = halves_of(most[i]);
            largest[2 * i] = m.x;
            largest[2 * i + 1] = m.y;
        }
    }

    TQI_INLINE float of(int quad, int z) const {
        return z % 2 ? radius[quad][z / 2].y : radius[quad][z / 2].x;
    }

    /* Units a radius of 1. */
    TQI_INLINE float units(int z) const {
        return TQI_POLAR_UNITS * reciprocal(fmaxf(largest[z], 1e-9f));
    }
};

/* Scores of group r; T: the tile. */
template <class T>
TQI_INLINE void score_polar(const T &t, const Slot &s, int r, float score[T::NT][4]) {
    constexpr int NT = T::NT, QUADS = T::D / 64;
    PolarRadii<T::D> radii;
    PolarWords<T::D> words[QUADS];
    radii.load(s, T::Layout::k_gains, r);
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        words[i].load(s, i, r);
#pragma unroll
    for (int zp = 0; zp < 2; zp++) {
        int high[NT][4], low[NT][4];
        float units[2] = {radii.units(2 * zp), radii.units(2 * zp + 1)};
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            uint32_t l[2][4], h[2][4];
#pragma unroll
            for (int e = 0; e < 2; e++)
                polar_block(t.keys, words[i], 2 * zp + e, radii.of(i, 2 * zp + e) * units[e], l[e],
                            h[e]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                uint32_t a[4] = {h[0][2 * k], h[1][2 * k], h[0][2 * k + 1], h[1][2 * k + 1]};
                uint32_t b[4] = {l[0][2 * k], l[1][2 * k], l[0][2 * k + 1], l[1][2 * k + 1]};
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    mma_s8s8(high[nt], a, &t.q[nt][4 * i + 2 * k], i + k ? high[nt] : t.start);
                    mma_u8s8(low[nt], b, &t.q[nt][4 * i + 2 * k], i + k ? low[nt] : t.start);
                }
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                score[nt][2 * zp + e] =
                    fmaf(T::whole(high[nt] + 2 * e), 256.0f, T::whole(low[nt] + 2 * e)) *
                    radii.largest[2 * zp + e];
    }
}

} /* namespace tqi */

#endif
