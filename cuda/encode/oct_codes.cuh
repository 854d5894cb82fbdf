/*
 * Codes of eight tokens: quantize, gather words, store. A lane quantizes chunks of 8 dims of
 * its token; keys are stored like that, for values the 8 x 8 codes of 8 lanes are transposed,
 * so that lane g then holds dim g of the chunk for all 8 tokens.
 */
#ifndef TQI_CUDA_ENCODE_OCT_CODES_CUH
#define TQI_CUDA_ENCODE_OCT_CODES_CUH

#include "encode/oct.cuh"

namespace tqi {

/* ---- Lloyd-Max ------------------------------------------------------------------------------ */

/* The book for branch-free code: steps compare by a saturated difference, scaled so that the
 * least one saturates. */
struct FastBook {
    float threshold[7]; /* -threshold * 2^60 */
    float middle;       /* 4 bits: the threshold in the middle */
    uint32_t low, high; /* twice the magnitudes as bytes, by level (4 bits) or code */
};

/* [a > threshold] as 0 or 1, exactly: the difference is rounded once. */
TQI_ENCODE_INLINE float step01(float a, float scaled) {
    return __saturatef(fmaf(a, 0x1p60f, scaled));
}

/* Code of y as a float: 4 bits sign and level, fewer ascending order. */
template <int BITS> TQI_ENCODE_INLINE float code_of(float y, const FastBook &b) {
    float a = fabsf(y), sign = copysignf(1.0f, y);
    if constexpr (BITS == 4) { /* two levels of a search, then three steps */
        bool upper = a > b.middle;
        float m = step01(a, upper ? b.threshold[4] : b.threshold[0]) +
                  step01(a, upper ? b.threshold[5] : b.threshold[1]) +
                  step01(a, upper ? b.threshold[6] : b.threshold[2]);
        m = fmaf(step01(a, b.threshold[3]), 4.0f, m);
        return fmaf(sign, -4.0f, m + 4.0f);
    } else if constexpr (BITS == 3) {
        float m = step01(a, b.threshold[0]) + step01(a, b.threshold[1]) + step01(a, b.threshold[2]);
        return fmaf(sign, m + 0.5f, 3.5f);
    } else {
        return fmaf(sign, step01(a, b.threshold[0]) + 0.5f, 1.5f);
    }
}

/* 8 codes to 8 nibbles: sums below 2^16 beside 2^23 are exact. */
template <int BITS> TQI_ENCODE_INLINE uint32_t pack8(const float *x, float inv, const FastBook &b) {
    float low = 8388608.0f, high = 8388608.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low = fmaf(code_of<BITS>(x[i] * inv, b), (float)(1 << 4 * i), low);
        high = fmaf(code_of<BITS>(x[4 + i] * inv, b), (float)(1 << 4 * i), high);
    }
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
}

/* Sum of squares of 8 codes' values. */
TQI_ENCODE_INLINE uint32_t add_squares(uint32_t nibbles, const FastBook &b, uint32_t sum) {
    uint32_t i = nibbles & 0x77777777u;
    uint32_t v = __byte_perm(b.low, b.high, i), w = __byte_perm(b.low, b.high, i >> 16);
    return __dp4a(w, w, __dp4a(v, v, sum));
}

/* 4 nibbles to the low halves of 4 bytes. */
TQI_ENCODE_INLINE uint32_t spread(uint32_t h) {
    h = (h | h << 8) & 0x00ff00ffu;
    return (h | h << 4) & 0x0f0f0f0fu;
}

/* Plain nibbles to the stored placement of signs: that of nibble n < 4 at bit 8 n + 7, of
 * nibble 4 + n at bit 8 n + 3. Moves bits, so masks go the same way. */
TQI_ENCODE_INLINE uint32_t place_signs(uint32_t w) {
    uint32_t signs = w & 0x88888888u;
    return (w & 0x77777777u) | spread(signs & 0xffffu) << 4 | spread(signs >> 16);
}

/* ---- transposing ------------------------------------------------------------------------------
 */

TQI_ENCODE_INLINE uint32_t choose(uint32_t mask, uint32_t a, uint32_t b) {
    return (a & mask) | (b & ~mask);
}

/* 8 nibbles (dims) of 8 lanes (tokens) to nibbles of tokens 0 1 4 5 2 3 6 7 of dim g. */
TQI_ENCODE_INLINE uint32_t transpose_nibbles(uint32_t a, uint32_t g) {
    uint32_t b = __shfl_xor_sync(~0u, a, 4);
    a = g & 1 ? choose(0xf0f0f0f0u, a, b >> 4) : choose(0x0f0f0f0fu, a, b << 4);
    b = __shfl_xor_sync(~0u, a, 8);
    a = g & 2 ? choose(0xff00ff00u, a, b >> 8) : choose(0x00ff00ffu, a, b << 8);
    b = __shfl_xor_sync(~0u, a, 16);
    a = g & 4 ? choose(0xffff0000u, a, b >> 16) : choose(0x0000ffffu, a, b << 16);
    return __byte_perm(a, 0, 0x3120);
}

/* 8 bytes (dims) of 8 lanes to bytes of tokens 0..3 and 4..7 of dim g. */
TQI_ENCODE_INLINE void transpose_bytes(uint32_t a[2], uint32_t g) {
    uint32_t other = __shfl_xor_sync(~0u, g & 4 ? a[0] : a[1], 16);
    uint32_t own = g & 4 ? a[1] : a[0];
    a[0] = g & 4 ? other : own; /* token with bit 2 clear */
    a[1] = g & 4 ? own : other;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t b = __shfl_xor_sync(~0u, a[i], 8);
        a[i] = g & 2 ? __byte_perm(b, a[i], 0x7632) : __byte_perm(a[i], b, 0x5410);
        b = __shfl_xor_sync(~0u, a[i], 4);
        a[i] = g & 1 ? __byte_perm(b, a[i], 0x7351) : __byte_perm(a[i], b, 0x6240);
    }
}

/* ---- storing ------------------------------------------------------------------------------------
 */

/* Replaces the masked bits; whole words without reading. */
TQI_ENCODE_INLINE void merge_word(uint32_t *at, uint32_t mask, uint32_t bits) {
    *at = mask == ~0u ? bits : (*at & ~mask) | (bits & mask);
}

/* Nibbles of fresh tokens in the order 0 1 4 5 2 3 6 7. */
TQI_ENCODE_INLINE uint32_t fresh_nibbles(uint32_t fresh) {
    uint32_t mask = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int token = (n & 1) | (n >> 1 & 1) << 2 | (n >> 2) << 1;
        mask |= (fresh >> token & 1 ? 15u : 0) << 4 * n;
    }
    return mask;
}

/* Bytes of fresh tokens of a word whose bytes are tokens t0 .. t3. */
TQI_ENCODE_INLINE uint32_t fresh_bytes(uint32_t fresh, int t0, int t1, int t2, int t3) {
    return (fresh >> t0 & 1 ? 0xffu : 0) | (fresh >> t1 & 1 ? 0xff00u : 0) |
           (fresh >> t2 & 1 ? 0xff0000u : 0) | (fresh >> t3 & 1 ? 0xff000000u : 0);
}

/* The lane's element of slab 0 of keys; slabs are 128 words apart. */
template <int J>
TQI_ENCODE_INLINE uint32_t *k_words(const Side &s, const OctPlace &p, int slabs_per_word) {
    uint32_t group = p.slot / 32, in_group = p.slot % 32;
    return (uint32_t *)(p.blob + s.layout.codes) + group * J * slabs_per_word * 128 +
           (in_group / 4 * 4 + p.t) * 4 + in_group % 4;
}

/* Word of dim d of the eight tokens in slab `column` offset 0 of its group's values. */
template <int D> TQI_ENCODE_INLINE uint32_t v_element(const OctPlace &p, uint32_t d) {
    uint32_t lane = d / (D / 8), y = d % 4, oct = p.slot % 32 / 8;
    return (lane * 4 + oct) * 4 + y;
}

/* Stores the four words of a 3-bit set as three; `mask` marks fresh nibbles. */
TQI_ENCODE_INLINE void store_set3(uint32_t *at, const uint32_t w[4], uint32_t mask) {
#pragma unroll
    for (int i = 0; i < 3; i++)
        merge_word(at + i * 128, mask, w[i] | (w[3] >> i & 0x11111111u) << 3);
}

} /* namespace tqi */

#endif
