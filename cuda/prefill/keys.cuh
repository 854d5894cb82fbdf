/*
 * Keys that are polar or have a sketch, to halves. Both need all of a page's keys in a slot: a lane
 * has blocks of 16 dims, and sections of a page are shared by groups of tokens.
 *
 * Polar: a radius goes down the tree in binary32 (common/polar_tables.cuh).
 *
 * A sketch adds to a score the sum over dims of sign times projected query. So a row of keys has as
 * many dims again, plus or minus the gain of the sketch, which the projected query meets; over the
 * gain of the codes where scores are multiplied by that.
 */
#ifndef TQI_CUDA_PREFILL_KEYS_CUH
#define TQI_CUDA_PREFILL_KEYS_CUH

#include "attend/polar.cuh"
#include "common/polar_tables.cuh"
#include "prefill/queries.cuh"

namespace tqi {

/* Scores are multiplied by the gains of tokens. Multiplied into halves of so few levels, they would
 * round all dims of a level alike, and scores with them; polar coordinates take their radii in. */
__host__ __device__ constexpr bool has_score_gains(int f) {
    return has_gains(f) && !is_polar(f);
}

__host__ __device__ constexpr bool needs_whole_keys(int f) {
    return is_polar(f) || has_sketch(f);
}

/* Exponent of the power of two for a warp's gains, none of which is negative. */
TQI_INLINE int exponent_of_warp(float gain) {
    uint32_t most = __reduce_max_sync(~0u, __float_as_uint(gain));
    return most ? min(max((int)(most >> 23) - 127, -100), 126) : 0;
}

/* ---- polar ------------------------------------------------------------------------------------
 */

/* A lane's blocks of its four tokens in group r; all of four blocks ("quad"). */
template <int D> struct PolarFour {
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

/* A radius of level 2 to four coordinates; code: of level 2, then two of level 1. */
TQI_INLINE void polar_four(const PolarTables &t, uint32_t level2, uint32_t level1, float r,
                           uint32_t h[2]) {
    float a, b, c[2], d[2];
    t.split(1, level2, r, a, b);
    t.split(0, level1, a, c[0], c[1]);
    t.split(0, level1 >> 4, b, d[0], d[1]);
    h[0] = float_pair<false>(c[0], c[1]);
    h[1] = float_pair<false>(d[0], d[1]);
}

/* The block of token z, 16 dims. */
template <int D>
TQI_INLINE void polar_halves(const PolarTables &t, const PolarFour<D> &w, int z, float r,
                             uint32_t h[8]) {
    uint32_t level1 = word_of(w.level1, z), level2 = w.level2 >> 8 * z, level3 = w.level3 >> 4 * z;
    float half[2], quarter[4];
    t.split(3, w.level4 >> 2 * z, r, half[0], half[1]);
    t.split(2, level3, half[0], quarter[0], quarter[1]);
    t.split(2, level3 >> 2, half[1], quarter[2], quarter[3]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        polar_four(t, level2 >> 2 * i, level1 >> 8 * i, quarter[i], h + 2 * i);
}

/* 32 tokens; returns the exponent of what they were divided by. left: of the lane's four tokens,
 * how many exist (any number). Dims lie 64 by 64 as those of a row of 64 do. */
template <int D>
TQI_INLINE int store_polar(const PolarTables &tables, const Slot &slot, int gains, uint32_t to,
                           const PlaceOfKeys &place, uint32_t group, int left) {
    constexpr int QUADS = D / 64;
    float radius[QUADS][4], most = 0;
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        uint2 w = load_shared8(slot.address + gains + 512 * q + 256 * group + slot.lane16 / 2);
        const float2 low = halves_of(w.x), high = halves_of(w.y);
        const float r[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int z = 0; z < 4; z++) {
            radius[q][z] = z < left ? r[z] : 0;
            most = fmaxf(most, radius[q][z]);
        }
    }
    const int e = exponent_of_warp(most);
    const float unit = power_of_two(-e);
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        PolarFour<D> words;
        words.load(slot, q, (int)group);
#pragma unroll
        for (int z = 0; z < 4; z++) {
            uint32_t h[8];
            polar_halves(tables, words, z, radius[q][z] * unit, h);
#pragma unroll
            for (int i = 0; i < 2; i++)
                store_shared16(to + place.at(2 * q + i, z),
                               make_uint4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]));
        }
    }
    return e;
}

/* ---- sketch -----------------------------------------------------------------------------------
 */

/* Plus or minus a half (twice in its word) for 8 dims: by byte j of the signs. */
TQI_INLINE uint4 signed_halves(uint32_t signs, int j, uint32_t half) {
    uint32_t byte = prmt(signs, 0, 0x4440 + j), spread = byte * 0x8001u;
    return each_word([&](int i) { return half ^ (spread << (15 - 2 * i) & 0x80008000u); });
}

/* 32 tokens, behind the dims of the codes; rate: of gains, of the lane's four tokens. */
template <int D>
TQI_INLINE void store_sketch(const Slot &slot, int signs_at, int gains_at, uint32_t to,
                             const PlaceOfKeys &place, uint32_t group, const float rate[4]) {
    constexpr int J = D / 32;
    uint4 signs = slot.slab(signs_at, J == 4 ? (int)group : 0);
    uint2 stored = load_shared8(slot.address + gains_at + group * 64 + (slot.lane16 >> 6) * 8);
    float2 low = halves_of(stored.x), high = halves_of(stored.y);
    const float gain[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int z = 0; z < 4; z++) {
        uint32_t word = word_of(signs, z) >> (J == 2 ? 16 * group : 0);
        uint32_t half = half_twice(gain[z] * rate[z]);
#pragma unroll
        for (int j = 0; j < J; j++)
            store_shared16(to + D / 64 * 8192 + place.at(j, z), signed_halves(word, j, half));
    }
}

} /* namespace tqi */

#endif
