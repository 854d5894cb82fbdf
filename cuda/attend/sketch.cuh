/*
 * The sign sketch of keys as an A operand. Lane 4 g + t has a byte for every 8 dims, (D/4) t + 8 j
 * + 0..7 of token 4 g + z. Masks leave bytes that are 0 or 2^k, k < 2: a shift for two words; the
 * projected query, operand B, is scaled by 2^-k instead. With b = 1 for minus the sketch adds
 * sum (1 - 2 b) q = 2 (sum q / 2 - sum b q).
 */
#ifndef TQI_CUDA_ATTEND_SKETCH_CUH
#define TQI_CUDA_ATTEND_SKETCH_CUH

#include "attend/tile.cuh"

namespace tqi {

/* Signs of token z of group r, before masking. */
template <int D> struct SketchWords {
    uint32_t signs;
    TQI_INLINE SketchWords(uint32_t word, int r) : signs(word) {
        if constexpr (D == 64) { /* the bytes of both groups in one word */
            uint32_t twice = prmt(word, 0, r ? 0x3232 : 0x1010);
            signs = (twice & 0x0000ffffu) | (twice >> 4 & 0x0f0f0000u);
        }
    }
    TQI_INLINE uint32_t operand(int n) const {
        return signs >> (n & 6) & 0x01010101u << n % 2;
    }
};

/* What the sketch adds to the scores of two tokens of group r; T: the tile. */
template <class T>
TQI_INLINE void add_signs(const T &t, uint32_t first, uint32_t second, uint32_t gains, int r,
                          float score[T::NT][2]) {
    constexpr int NT = T::NT, WORDS = T::D / 16;
    const SketchWords<T::D> even(first, r), odd(second, r);
    const float2 gain = halves_of(gains);
    int c[NT][4];
#pragma unroll
    for (int n = 0; n < WORDS; n += 2) {
        uint32_t a[4] = {even.operand(n), odd.operand(n), even.operand(n + 1), odd.operand(n + 1)};
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            mma_u8s8(c[nt], a, &t.q[nt][T::SKETCH_AT + n], n ? c[nt] : t.start);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        float unit[2] = {gain.x * t.sketch[nt].x, gain.y * t.sketch[nt].x};
        score[nt][0] += (t.sketch[nt].y - T::whole(c[nt])) * unit[0];
        score[nt][1] += (t.sketch[nt].y - T::whole(c[nt] + 2)) * unit[1];
    }
}

/* To all scores of group r. */
template <class T>
TQI_INLINE void add_sketch(const T &t, const Slot &s, int r, float score[T::NT][4]) {
    uint4 signs = s.slab(T::Layout::sketch, T::D == 64 ? 0 : r);
    uint2 gains = load_shared8(s.address + T::Layout::sketch_gains + r * 64 + (s.lane16 >> 6) * 8);
#pragma unroll
    for (int zp = 0; zp < 2; zp++) {
        float part[T::NT][2];
#pragma unroll
        for (int i = 0; i < 2 * T::NT; i++)
            part[i / 2][i % 2] = score[i / 2][2 * zp + i % 2];
        add_signs(t, word_of(signs, 2 * zp), word_of(signs, 2 * zp + 1), zp ? gains.y : gains.x, r,
                  part);
#pragma unroll
        for (int i = 0; i < 2 * T::NT; i++)
            score[i / 2][2 * zp + i % 2] = part[i / 2][i % 2];
    }
}

/* To those of tokens 2 zp and 2 zp + 1 of group r. */
template <class T>
TQI_INLINE void add_sketch_of_two(const T &t, const Slot &s, int r, int zp, float score[T::NT][2]) {
    uint2 signs = load_shared8(s.address + T::Layout::sketch + (T::D == 64 ? 0 : r * SLAB_BYTES) +
                               s.lane16 + zp * 8);
    uint32_t gains =
        load_shared4(s.address + T::Layout::sketch_gains + r * 64 + (s.lane16 >> 6) * 8 + zp * 4);
    add_signs(t, signs.x, signs.y, gains, r, score);
}

} /* namespace tqi */

#endif
