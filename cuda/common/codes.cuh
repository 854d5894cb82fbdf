/* Single codes in pages: the device's reading of "bit planes" in spec/layout.h. Fast kernels
 * take whole words instead. */
#ifndef TQI_CUDA_COMMON_CODES_CUH
#define TQI_CUDA_COMMON_CODES_CUH

#include "common/rows.cuh"
#include "params.h"

namespace tqi {

/* Where a word of 2-bit or 3-bit codes lives: its set of words in `slab` and following; the
 * last member of an incomplete set spills into byte planes. */
struct SharedWord {
    uint32_t slab, member, members;
    bool planes;
};

__device__ inline SharedWord share_of(const tqi_layout &l, uint32_t word) {
    uint32_t size = tqi_share(l.bits), set = word / size;
    SharedWord s;
    s.slab = set * (l.bits * size / 4);
    s.member = word % size;
    s.members = set < l.words / size ? size : l.words % size;
    s.planes = s.members < size;
    return s;
}

__device__ inline uint32_t *word_at(const tqi_layout &l, uint8_t *blob, uint32_t slab,
                                    uint32_t lane) {
    return (uint32_t *)(blob + l.codes) + slab * tqi_slab_lanes(&l) + lane;
}

__device__ inline uint8_t *plane_at(const tqi_layout &l, uint8_t *blob, const SharedWord &s,
                                    uint32_t plane, uint32_t lane) {
    uint32_t lanes = tqi_slab_lanes(&l);
    return blob + l.codes + (s.slab + s.members - 1) * lanes * 4 + plane * lanes + lane;
}

/* Bit that carries the sign of 4-bit code n. */
__device__ inline uint32_t sign_bit4(uint32_t n) {
    return n < 4 ? 8 * n + 7 : 8 * (n - 4) + 3;
}

__device__ inline uint32_t code3_at(const tqi_layout &l, uint8_t *blob, const tqi_place &p) {
    SharedWord s = share_of(l, p.word);
    bool last = s.member == 3 || (s.planes && s.member == s.members - 1);
    if (!last)
        return *word_at(l, blob, s.slab + s.member, p.lane) >> 4 * p.code & 7;
    uint32_t code = 0;
    for (uint32_t bit = 0; bit < 3; bit++) {
        uint32_t v = bit < s.members - 1
                         ? *word_at(l, blob, s.slab + bit, p.lane) >> (4 * p.code + 3)
                         : *plane_at(l, blob, s, bit - (s.members - 1), p.lane) >> p.code;
        code |= (v & 1) << bit;
    }
    return code;
}

__device__ inline uint32_t code2_at(const tqi_layout &l, uint8_t *blob, const tqi_place &p) {
    SharedWord s = share_of(l, p.word);
    if (!s.planes)
        return *word_at(l, blob, s.slab, p.lane) >> (4 * p.code + 2 * s.member) & 3;
    return (*plane_at(l, blob, s, 0, p.lane) >> p.code & 1) |
           (*plane_at(l, blob, s, 1, p.lane) >> p.code & 1) << 1;
}

/* Twice the value of an lm code, in steps. */
__device__ inline int lm_value(const Side &s, const uint8_t *page, uint32_t token, uint32_t dim) {
    const tqi_layout &l = s.layout;
    uint8_t *blob = (uint8_t *)page;
    tqi_place p = tqi_place_of(&l, token, dim);
    if (l.bits == 4) {
        uint32_t w = *word_at(l, blob, p.word, p.lane);
        int v = s.v2[w >> 4 * p.code & 7];
        return w >> sign_bit4(p.code) & 1 ? -v : v;
    }
    int code = (int)(l.bits == 3 ? code3_at(l, blob, p) : code2_at(l, blob, p));
    int levels = (int)s.levels;
    return code < levels ? -s.v2[levels - 1 - code] : s.v2[code - levels];
}

__device__ inline float e4m3_value(uint32_t c) {
    uint32_t sign = (c & 0x80u) << 24, exponent = c >> 3 & 15u, mantissa = c & 7u;
    if (exponent == 15 && mantissa == 7)
        return __uint_as_float(sign | 0x7fc00000u);
    if (exponent)
        return __uint_as_float(sign | (exponent + 120u) << 23 | mantissa << 20);
    return copysignf((float)mantissa * 0x1p-9f, __uint_as_float(sign | 0x3f800000u));
}

/* Angles of a polar block, lowest bits first: eight codes of 4 bits, four, two and one of 2. */
struct PolarCodes {
    uint32_t level1, level2, level3, level4;
};

/* A byte holds level 3 of two tokens, level 4 of four. */
__device__ inline PolarCodes polar_codes_at(const tqi_layout &l, const uint8_t *blob,
                                            uint32_t element) {
    PolarCodes c;
    c.level1 = ((const uint32_t *)(blob + l.codes))[element];
    c.level2 = blob[l.polar_level2 + element];
    c.level3 = blob[l.polar_level3 + element / 2] >> element % 2 * 4 & 15;
    c.level4 = blob[l.polar_level4 + element / 4] >> element % 4 * 2 & 3;
    return c;
}

/* A coordinate of a polar block: the radius goes down the tree, half of the dims at a time. */
__device__ inline float polar_number(const Side &s, const PolarCodes &c, float radius, uint32_t i) {
    const tqi_polar_book *book = s.polar;
    uint32_t code = c.level4;
    float r = radius * (i & 8 ? book[3].sine : book[3].cosine)[code];
    code = c.level3 >> i / 8 * 2 & 3;
    r = r * (i & 4 ? book[2].sine : book[2].cosine)[code];
    code = c.level2 >> i / 4 * 2 & 3;
    r = r * (i & 2 ? book[1].sine : book[1].cosine)[code];
    code = c.level1 >> i / 2 * 4 & 15;
    r = r * (i & 1 ? book[0].sine : book[0].cosine)[code & 3];
    return code >> (i & 1 ? 3 : 2) & 1 ? -r : r;
}

__device__ inline float gain_bits(const Side &s, uint16_t h) {
    return s.layout.side == TQI_SIDE_V ? bf16_bits(h) : f16_bits(h);
}

__device__ inline float polar_number_at(const Side &s, const uint8_t *blob, uint32_t token,
                                        uint32_t dim) {
    const tqi_layout &l = s.layout;
    uint32_t e = tqi_polar_element(&l, token, dim / TQI_POLAR_BLOCK);
    float radius = gain_bits(s, ((const uint16_t *)(blob + l.gains))[e]);
    return polar_number(s, polar_codes_at(l, blob, e), radius, dim % TQI_POLAR_BLOCK);
}

/* Signs of the sketch for dims dim..dim + 7, dim a multiple of 8; bit n: dim + n is negative. */
__device__ inline uint32_t sketch_byte_at(const Side &s, const uint8_t *blob, uint32_t token,
                                          uint32_t dim) {
    return blob[s.layout.sketch + tqi_sketch_byte(&s.layout, tqi_place_k(&s.layout, token, dim))];
}

/* Factor of the sketch's signs. */
__device__ inline double sketch_gain_at(const Side &s, const uint8_t *blob, uint32_t token) {
    return (double)f16_bits(((const uint16_t *)(blob + s.layout.sketch_gains))[token]) *
           s.sketch_unit;
}

/* Stored number of a dim: integers of lm (twice the value) and int8, floats otherwise. Times
 * the gain of gain_at() it is the coordinate. */
__device__ inline float number_at(const Side &s, const uint8_t *blob, uint32_t token,
                                  uint32_t dim) {
    const tqi_layout &l = s.layout;
    if (l.kind == TQI_KIND_LM)
        return (float)lm_value(s, blob, token, dim);
    if (l.kind == TQI_KIND_POLAR)
        return polar_number_at(s, blob, token, dim);
    size_t e = tqi_wide_element(&l, token, dim);
    const uint8_t *codes = blob + l.codes;
    if (l.kind == TQI_KIND_INT8)
        return (float)(int8_t)codes[e];
    if (l.kind == TQI_KIND_FP8)
        return e4m3_value(codes[e]);
    uint16_t h = ((const uint16_t *)codes)[e];
    return s.format == TQ_FORMAT_BF16 ? bf16_bits(h) : f16_bits(h);
}

__device__ inline float stored_gain(const Side &s, const uint8_t *blob, uint32_t token) {
    return gain_bits(s, ((const uint16_t *)(blob + s.layout.gains))[token]);
}

__device__ inline bool has_gain(const Side &s) {
    return s.layout.kind == TQI_KIND_LM || s.layout.kind == TQI_KIND_INT8;
}

/* Factor of the numbers of a token; T is float or double. */
template <class T>
__device__ inline T gain_at(const Side &s, const uint8_t *blob, uint32_t token, uint32_t head) {
    if (has_gain(s))
        return (T)stored_gain(s, blob, token) *
               (sizeof(T) == sizeof(double) ? (T)s.unit_exact : (T)s.unit);
    return s.layout.kind == TQI_KIND_FP8 ? (T)s.scale[head] : (T)1;
}

} /* namespace tqi */

#endif
