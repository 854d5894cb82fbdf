/*
 * A row a warp, of head dim 128: a lane has 4 neighbouring dims from the row to the page, so that
 * nothing goes through shared memory. For appends of a token a sequence, whose time is that of one
 * row: every step is as short as 32 lanes make it, and the words of values that the row's codes
 * join are on their way while it is rotated.
 */
#ifndef TQI_CUDA_ENCODE_ONE_ROW_CUH
#define TQI_CUDA_ENCODE_ONE_ROW_CUH

#include "encode/in_range.cuh"
#include "encode/quantize.cuh"
#include "encode/walk.cuh"

namespace tqi {

/* Where a lane's 4 dims are, of a token of the group. */
struct QuadPlace {
    enum { D = 128, DIMS = 4, CHUNKS_PER_LANE = D / 32 /* of the layout of keys */ };
    uint32_t *codes; /* of the token group */
    uint32_t token, quad;
    TQI_ENCODE_INLINE QuadPlace(const FastEncodeJob &f, const Unit &u, uint32_t in_group) {
        const tqi_layout &l = f.job.side[u.side].layout;
        codes = (uint32_t *)(u.blob + l.codes) + u.slot / GROUP * (D * l.bits);
        token = in_group;
        quad = threadIdx.x % 32;
    }
    TQI_ENCODE_INLINE uint32_t chunk_of_lane() const { /* of keys */
        return quad / 2 % CHUNKS_PER_LANE;
    }
    /* A key's word in a slab. */
    TQI_ENCODE_INLINE uint32_t *key_word(uint32_t slab) const {
        uint32_t lane = quad / 2 / CHUNKS_PER_LANE;
        return codes + slab * SLAB + (token / 4 * 4 + lane) * 4 + token % 4;
    }
    /* Four words of values, by slab. */
    TQI_ENCODE_INLINE uint32_t *value_words(uint32_t slab) const {
        return codes + slab * SLAB + (quad / 4 * 4 + token / 8) * 4;
    }
    /* The token's nibble in them. */
    TQI_ENCODE_INLINE uint32_t nibble() const {
        return (token & 1) | (token >> 2 & 1) << 1 | (token >> 1 & 1) << 2;
    }
};

/* Words of values of up to 4 bits that hold other tokens' codes as well. Bits beside those of the
 * token may belong to another warp: SHARED. */
template <bool SHARED> struct MergedWords {
    uint32_t *at;
    uint4 old;
    /* Of a lane whose slab is there. */
    TQI_ENCODE_INLINE MergedWords(uint32_t *to, bool exists) : at(exists ? to : nullptr) {
        if (at)
            old = *(const uint4 *)at;
    }
    TQI_ENCODE_INLINE void store(const uint32_t *bits, uint32_t mask) const {
        if (!at)
            return;
        const uint32_t before[4] = {old.x, old.y, old.z, old.w};
        uint32_t change[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            change[i] = (before[i] ^ bits[i]) & mask;
        if constexpr (SHARED) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (change[i])
                    atomicXor(at + i, change[i]);
        } else {
            *(uint4 *)at = make_uint4(old.x ^ change[0], old.y ^ change[1], old.z ^ change[2],
                                      old.w ^ change[3]);
        }
    }
};

/* ---- coordinates ----------------------------------------------------------------------------- */

/* Four elements of 16 bits. */
TQI_ENCODE_INLINE void to_floats(uint2 v, bool f16, float *x) {
    const uint32_t w[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t half = i % 2 ? w[i / 2] >> 16 : w[i / 2] & 0xffffu;
        x[i] = f16 ? f16_bits((uint16_t)half) : bf16_bits((uint16_t)half);
    }
}

/* Signs flipped; rows of 16 bits without means. */
TQI_ENCODE_INLINE void load_quad_of(const uint8_t *row, int32_t dtype, const uint4 &flips,
                                    float *x) {
    const uint32_t lane = threadIdx.x % 32, flip[4] = {flips.x, flips.y, flips.z, flips.w};
    to_floats(*(const uint2 *)(row + lane * 8), dtype == TQ_F16, x);
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = __uint_as_float(__float_as_uint(x[i]) ^ flip[i]);
}

TQI_ENCODE_INLINE float warp_sum(float s) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2)
        s += __shfl_xor_sync(~0u, s, o);
    return s;
}

TQI_ENCODE_INLINE void rotate_quads(float *x) {
    butterfly(x[0], x[1]);
    butterfly(x[2], x[3]);
    butterfly(x[0], x[2]);
    butterfly(x[1], x[3]);
#pragma unroll
    for (int h = 1; h < 32; h *= 2) {
        float sign = threadIdx.x & h ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) /* the product is exact */
            x[i] = fmaf(x[i], sign, __shfl_xor_sync(~0u, x[i], h));
    }
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* Levels and signs of a lane's numbers. */
struct QuadCodes {
    uint32_t level[4], sign[4];
};

template <int BITS>
TQI_ENCODE_INLINE QuadCodes levels_of(const Side &s, const float *x, float inv) {
    QuadCodes c;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float y = x[i] * inv, a = fabsf(y);
        c.sign[i] = __float_as_uint(y) >> 31;
        c.level[i] = 0;
#pragma unroll
        for (int t = 0; t < (1 << (BITS - 1)) - 1; t++)
            c.level[i] += a > s.threshold[t];
    }
    return c;
}

TQI_ENCODE_INLINE uint32_t squares_of(const FastBook &b, const QuadCodes &c) {
    uint32_t levels = c.level[0] | c.level[1] << 4 | c.level[2] << 8 | c.level[3] << 12, v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(b.square_low), "r"(b.square_high), "r"(levels));
    return __reduce_add_sync(~0u, __dp4a(v, v, 0u));
}

/* Codes of 4 bits to the page: signs stand apart from their levels. */
TQI_ENCODE_INLINE void put_key_4(const QuadPlace &p, const QuadCodes &c) {
    uint32_t w = 0, high = p.quad & 1;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        w |= c.level[i] << 4 * (i + 4 * high) | c.sign[i] << (8 * i + 7 - 4 * high);
    w |= __shfl_xor_sync(~0u, w, 1);
    if (!high)
        *p.key_word(p.chunk_of_lane()) = w;
}

template <bool SHARED>
TQI_ENCODE_INLINE void put_value_4(const QuadPlace &p, const MergedWords<SHARED> &words,
                                   const QuadCodes &c) {
    const uint32_t n = p.nibble(), sign_bit = n < 4 ? 8 * n + 7 : 8 * n - 29;
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits[i] = c.level[i] << 4 * n | c.sign[i] << sign_bit;
    words.store(bits, 7u << 4 * n | 1u << sign_bit);
}

/* Of 3 and 2 bits: codes ascend, and words share slabs, see WordSet. */
template <int BITS> TQI_ENCODE_INLINE uint32_t ascending(const QuadCodes &c) {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        codes |= (c.sign[i] ? (1u << (BITS - 1)) - 1 - c.level[i] : (1u << (BITS - 1)) + c.level[i])
                 << 4 * i;
    return codes;
}

template <int BITS> TQI_ENCODE_INLINE void put_key_few(const QuadPlace &p, const QuadCodes &c) {
    const uint32_t lane = p.quad, in_set = p.chunk_of_lane();
    uint32_t w = ascending<BITS>(c) << 16 * (lane & 1);
    w |= __shfl_xor_sync(~0u, w, 1);
    uint32_t last = __shfl_sync(~0u, w, BITS == 3 ? lane | 6 : lane | 2);
    if (lane & 1)
        return;
    if (BITS == 3 && in_set < 3)
        *p.key_word(in_set) = w | (last >> in_set & 0x11111111u) << 3;
    if (BITS == 2 && in_set % 2 == 0)
        *p.key_word(in_set / 2) = w | (last & 0x33333333u) << 2;
}

template <int BITS, bool SHARED>
TQI_ENCODE_INLINE void put_value_few(const QuadPlace &p, const MergedWords<SHARED> &words,
                                     const QuadCodes &c) {
    const uint32_t lane = p.quad, n = p.nibble(), own = ascending<BITS>(c);
    uint32_t last = __shfl_sync(~0u, own, BITS == 3 ? lane | 3 : lane | 1), bits[4];
    uint32_t nibbles =
        own | (BITS == 3 ? (last >> lane % 4 & 0x1111u) << 3 : (last & 0x3333u) << 2);
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits[i] = (nibbles >> 4 * i & 15) << 4 * n;
    words.store(bits, 15u << 4 * n);
}

/* The slab of a lane's words of values; no more than exist. */
template <int BITS> TQI_ENCODE_INLINE uint32_t value_slab(const QuadPlace &p) {
    return BITS == 2 ? p.quad % 4 / 2 : p.quad % 4;
}
template <int BITS> TQI_ENCODE_INLINE bool has_value_slab(const QuadPlace &p) {
    return BITS == 4 || (BITS == 3 ? p.quad % 4 < 3 : p.quad % 2 == 0);
}

/* Codes of 8 bits; of values, fp8 has other tokens' bytes between (byte_token()). */
template <bool FP8> TQI_ENCODE_INLINE void put_8(const QuadPlace &p, bool keys, uint32_t w) {
    if (keys) {
        *p.key_word(2 * p.chunk_of_lane() + p.quad % 2) = w;
        return;
    }
    const uint32_t e = p.token % 8, word = e >> 1 & 1, low = e & 1, high = e >> 2;
    const uint32_t byte = FP8 ? high | low << 1 : low | high << 1;
    uint8_t *to = (uint8_t *)p.value_words(p.quad % 4 + word * (QuadPlace::D / 32)) + byte;
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[4 * i] = (uint8_t)(w >> 8 * i);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A rotated row's codes; returns the sum of their squares. */
template <int BITS, bool SHARED>
TQI_ENCODE_INLINE uint32_t put_lm(const FastEncodeJob &f, const Unit &u, const QuadPlace &p,
                                  const MergedWords<SHARED> &words, const float *x, float inv) {
    QuadCodes c = levels_of<BITS>(f.job.side[u.side], x, inv);
    if (u.side == TQI_SIDE_K) {
        if constexpr (BITS == 4)
            put_key_4(p, c);
        else
            put_key_few<BITS>(p, c);
    } else if constexpr (BITS == 4) {
        put_value_4(p, words, c);
    } else {
        put_value_few<BITS>(p, words, c);
    }
    return squares_of(f.book[u.side], c);
}

TQI_ENCODE_INLINE uint32_t put_int8(const Unit &u, const QuadPlace &p, const float *x) {
    float most = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    float largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    uint32_t w[1], squares = 0;
    round_8<4>(x, __fdiv_rn(127.0f, largest), w, &squares);
    put_8<false>(p, u.side == TQI_SIDE_K, w[0]);
    return __reduce_add_sync(~0u, squares);
}

/* False: the row needs more care, nothing has been written. */
template <int BITS, bool SHARED>
TQI_ENCODE_INLINE bool encode_one_as(const FastEncodeJob &f, const Unit &u, uint32_t token,
                                     const uint4 &flips) {
    const RowsIn &rows = f.job.rows[u.side];
    const QuadPlace p(f, u, token);
    float x[4];
    const MergedWords<SHARED> words(p.value_words(value_slab<BITS>(p)),
                                    BITS <= 4 && u.side == TQI_SIDE_V && has_value_slab<BITS>(p));
    load_quad_of(u.from + token * rows.token_stride * 2, rows.dtype, flips, x);
    float sum = warp_sum((x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]));
    rotate_quads(x);
    if (!in_range(sum))
        return false;
    float norm = sqrt_in_range(sum);
    uint32_t squares;
    if constexpr (BITS == 8)
        squares = put_int8(u, p, x);
    else
        squares = put_lm<BITS>(f, u, p, words, x, reciprocal_in_range(norm));
    if (threadIdx.x % 32 == 0)
        store_gain_in_range(f, u, token, norm, squares);
    return true;
}

template <bool SHARED>
TQI_ENCODE_INLINE bool encode_one(const FastEncodeJob &f, const Unit &u, uint32_t token,
                                  const uint4 &flips) {
    uint32_t format = f.job.side[u.side].format;
    if (!(f.simple >> u.side & 1))
        return false;
    if (format == TQ_FORMAT_LM4)
        return encode_one_as<4, SHARED>(f, u, token, flips);
    if (format == TQ_FORMAT_LM3)
        return encode_one_as<3, SHARED>(f, u, token, flips);
    if (format == TQ_FORMAT_LM2)
        return encode_one_as<2, SHARED>(f, u, token, flips);
    return encode_one_as<8, SHARED>(f, u, token, flips);
}

} /* namespace tqi */

#endif
