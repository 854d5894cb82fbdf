/*
 * Codes to halves, exactly: what a unit (one side, 32 tokens of a page) becomes.
 * Words lie as attend/words.cuh says; a lane turns a word of 8 codes into 16 bytes.
 *
 * Values of the lm books have 16 bits as halves, so that a code's two bytes come from two tables
 * by byte permutes, and the sign of 4-bit codes joins the upper byte.
 */
#ifndef TQI_CUDA_PREFILL_HALVES_CUH
#define TQI_CUDA_PREFILL_HALVES_CUH

#include "attend/words.cuh"
#include "spec/codebook_data.h"

namespace tqi {

/* ---- tables -----------------------------------------------------------------------------------
 */

/* Bits of the half v2 / 2, v2 > 0. */
__host__ __device__ constexpr uint32_t half_of(int v2) {
    int e = 0;
    while (v2 >> (e + 1))
        e++;
    return (uint32_t)(e - 1 + 15) << 10 | (((uint32_t)v2 << 10 >> e) & 0x3ffu);
}

__host__ __device__ constexpr int book_of(int format, int level) {
    constexpr int lm4[8] = TQI_LM4_V2, lm3[4] = TQI_LM3_V2, lm2[2] = TQI_LM2_V2;
    return format == TQ_FORMAT_LM4 ? lm4[level] : format == TQ_FORMAT_LM3 ? lm3[level] : lm2[level];
}

/* The half of a code (lm3, lm2) or level (lm4). */
__host__ __device__ constexpr uint32_t half_of_code(int format, int code) {
    const int levels = format == TQ_FORMAT_LM3 ? 4 : 2;
    if (format == TQ_FORMAT_LM4)
        return half_of(book_of(format, code));
    if (code >= 2 * levels)
        return 0;
    return code < levels ? 0x8000u | half_of(book_of(format, levels - 1 - code))
                         : half_of(book_of(format, code - levels));
}

/* Bytes `byte` of the halves of codes [first, first + 4). */
__host__ __device__ constexpr uint32_t table_of(int format, int first, int byte) {
    uint32_t table = 0;
    for (int i = 0; i < 4; i++)
        table |= (half_of_code(format, first + i) >> 8 * byte & 255u) << 8 * i;
    return table;
}

/* ---- words ------------------------------------------------------------------------------------
 */

/* Two halves times two others. */
TQI_INLINE uint32_t multiply_halves(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* Lower and upper bytes of the halves of a book's codes or levels. */
struct HalfTable {
    uint32_t low[2], high[2];
    uint32_t one; /* in halves */
};

template <int F> TQI_INLINE HalfTable table_in_registers() {
    constexpr uint32_t low0 = table_of(F, 0, 0), low1 = table_of(F, 4, 0);
    constexpr uint32_t high0 = table_of(F, 0, 1), high1 = table_of(F, 4, 1);
    return HalfTable{{in_register(low0), in_register(low1)},
                     {in_register(high0), in_register(high1)},
                     in_register(0x3c003c00u)};
}

/* Codes 0..3 and 4..7 of a word as pairs of halves: 0 1, 2 3, 4 5, 6 7. */
template <int F> TQI_INLINE void lm_halves(const HalfTable &t, uint32_t w, uint32_t *h) {
    uint32_t level = F == TQ_FORMAT_LM4 ? w & 0x77777777u : w;
    uint32_t next = high_half(level, t.one);
    uint32_t low[2] = {prmt(t.low[0], t.low[1], level), prmt(t.low[0], t.low[1], next)};
    uint32_t high[2] = {prmt(t.high[0], t.high[1], level), prmt(t.high[0], t.high[1], next)};
    if (F == TQ_FORMAT_LM4) { /* bits 7, 15, 23, 31, then 3, 11, 19, 27 are signs */
        high[0] ^= w & 0x80808080u;
        high[1] ^= w << 4 & 0x80808080u;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        h[2 * i] = prmt(low[i], high[i], 0x5140);
        h[2 * i + 1] = prmt(low[i], high[i], 0x7362);
    }
}

/* Four signed bytes: 0 1, 2 3. */
TQI_INLINE void int8_halves(uint32_t w, uint32_t h[2]) {
    uint32_t biased = w ^ 0x80808080u; /* halves of 1024 + 128 + n */
    uint32_t a = prmt(biased, 0x64646464u, 0x4140), b = prmt(biased, 0x64646464u, 0x4342);
    asm("sub.rn.f16x2 %0,%1,%2;" : "=r"(h[0]) : "r"(a), "r"(0x64806480u));
    asm("sub.rn.f16x2 %0,%1,%2;" : "=r"(h[1]) : "r"(b), "r"(0x64806480u));
}

TQI_INLINE void store_shared16(uint32_t to, const uint4 &v) {
    asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/* ---- a unit as it is stored ------------------------------------------------------------------ */

/* Slabs of a unit. */
template <int F, int D> __host__ __device__ constexpr int slabs_of_unit() {
    return F == TQ_FORMAT_LM3 ? (D / 32 + 3) / 4 * 3 : D / 32 * bits_of(F) / 4;
}

/* One side of 32 tokens in shared memory, as a lane sees it. */
template <int F, int D> struct Unit {
    static constexpr int J = D / 32, SLABS = slabs_of_unit<F, D>(), BYTES = SLABS * SLAB_BYTES;
    uint32_t address; /* of the lane's 16 bytes in slab 0 */
    uint32_t group;   /* which 32 tokens of the page */

    /* Where the unit begins among the codes of its side; 3-bit words of short rows share slabs
     * with the other group. */
    TQI_INLINE static uint32_t offset(uint32_t group) {
        return F == TQ_FORMAT_LM3 && J % 4 ? 0 : group * BYTES;
    }

    TQI_INLINE uint4 slab(int i) const {
        return load_shared16(address + i * SLAB_BYTES);
    }

    /* Of four 3-bit words in three slabs. */
    TQI_INLINE uint4 word_of_set(int first, int member) const {
        if (member < 3)
            return masked(slab(first + member), 0x77777777u);
        return fourth_word(slab(first), slab(first + 1), slab(first + 2));
    }

    /* The lane's words of column j (keys) or x (values), as selectors. */
    TQI_INLINE uint4 selectors(int j) const {
        if constexpr (F == TQ_FORMAT_LM4) {
            return slab(j);
        } else if constexpr (F == TQ_FORMAT_LM3) {
            if (J % 4 == 0)
                return word_of_set(j / 4 * 3, j % 4);
            static_assert(J % 4 == 0 || J == 2, "four words to a set");
            return group == 0 ? word_of_set(0, j) : word_of_set(0, 2 + j);
        } else {
            static_assert(F == TQ_FORMAT_LM2, "small codes");
            uint4 pair = slab(j / 2);
            if (j % 2 == 0)
                return masked(pair, 0x33333333u);
            return each_word([&](int n) { return word_of(pair, n) >> 2 & 0x33333333u; });
        }
    }

    /* What a column of keys or values is made of: its words, or those of its 8-bit halves. */
    struct Column {
        uint4 first, second;
    };

    TQI_INLINE Column keys_of(int j) const {
        if constexpr (bits_of(F) == 8)
            return Column{slab(2 * j), slab(2 * j + 1)};
        else
            return Column{selectors(j), make_uint4(0, 0, 0, 0)};
    }

    TQI_INLINE Column values_of(int x) const {
        if constexpr (bits_of(F) == 8)
            return Column{slab(x), slab(J + x)};
        else
            return Column{selectors(x), make_uint4(0, 0, 0, 0)};
    }
};

/* One side of 32 tokens of 16-bit floats in registers: of CHUNK columns, as many as there is room
 * for. They are not decoded, only moved, and shared memory has no time to spare for slots. */
template <int D> struct WideUnit {
    static constexpr int J = D / 32, CHUNK = 2, CHUNKS = J / CHUNK;
    static_assert(J % CHUNK == 0, "whole chunks");
    uint4 slab[CHUNK][4];

    /* codes: of the side in a page; columns [first, first + CHUNK). */
    template <bool KEYS>
    TQI_INLINE void load(const uint8_t *codes, uint32_t group, uint32_t lane, int first) {
        const uint8_t *from = codes + group * (4 * J * SLAB_BYTES) + lane * 16;
#pragma unroll
        for (int j = 0; j < CHUNK; j++)
#pragma unroll
            for (int h = 0; h < 4; h++) {
                int index = KEYS ? 4 * (first + j) + h : h * J + first + j;
                slab[j][h] = __ldcg((const uint4 *)(from + index * SLAB_BYTES));
            }
    }

    /* Keys: 8 dims of token i; values: 8 tokens of dim i. */
    TQI_INLINE uint4 piece(int j, int i) const {
        return make_uint4(word_of(slab[j][0], i), word_of(slab[j][1], i), word_of(slab[j][2], i),
                          word_of(slab[j][3], i));
    }
};

/* Keys: 8 dims of token z. */
template <int F>
TQI_INLINE void key_halves(const HalfTable &t, uint4 a, uint4 b, int z, uint32_t *h) {
    if constexpr (F == TQ_FORMAT_INT8) {
        int8_halves(word_of(a, z), h);
        int8_halves(word_of(b, z), h + 2);
    } else if constexpr (F == TQ_FORMAT_FP8) {
        e4m3_to_halves(word_of(a, z), h[0], h[1]);
        e4m3_to_halves(word_of(b, z), h[2], h[3]);
    } else {
        lm_halves<F>(t, word_of(a, z), h);
    }
}

/* Values: 8 tokens of dim y, in the order of tokens. */
template <int F>
TQI_INLINE void value_halves(const HalfTable &t, uint4 first, uint4 second, int y, uint32_t *h) {
    uint32_t c[4];
    if constexpr (F == TQ_FORMAT_INT8) { /* tokens 0 1 4 5 | 2 3 6 7 */
        int8_halves(word_of(first, y), c);
        int8_halves(word_of(second, y), c + 2);
    } else if constexpr (F == TQ_FORMAT_FP8) { /* 0 4, 1 5 | 2 6, 3 7 */
        uint32_t a[2], b[2];
        e4m3_to_halves(word_of(first, y), a[0], a[1]);
        e4m3_to_halves(word_of(second, y), b[0], b[1]);
        c[0] = prmt(a[0], a[1], 0x5410);
        c[1] = prmt(a[0], a[1], 0x7632);
        c[2] = prmt(b[0], b[1], 0x5410);
        c[3] = prmt(b[0], b[1], 0x7632);
    } else {
        lm_halves<F>(t, word_of(first, y), c);
    }
    h[0] = c[0];
    h[1] = c[2];
    h[2] = c[1];
    h[3] = c[3];
}

/* ---- a unit as halves -------------------------------------------------------------------------
 */

/*
 * Where a lane's pieces of 16 bytes go. Keys: row = token, pieces of 8 dims; piece 4 j + t holds
 * dims (D/4) t + 8 j + 0..7, as queries do: the eight lanes of a store then meet all banks. Values:
 * row = dim with bit 2 flipped where lane bit g is odd, for the same reason; pieces of 8 tokens.
 */
struct PlaceOfKeys {
    uint32_t z[4];

    TQI_INLINE PlaceOfKeys(uint32_t group, uint32_t lane) {
        uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            z[i] = (32 * group + 4 * g + i) * 128 + (((g & 1) << 2 | (t ^ i)) << 4);
    }

    /* Offset in the tile of keys: 64 dims to 8192 bytes. */
    TQI_INLINE uint32_t at(int j, int i) const {
        return (j / 2) * 8192 + (z[i] ^ (j & 1) << 6);
    }
};

template <int D> struct PlaceOfValues {
    uint32_t y[4];

    TQI_INLINE PlaceOfValues(uint32_t group, uint32_t lane) {
        uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = (g & 1) << 2 | i;
            y[i] = (D / 8 * g + row) * 128 + (((4 * group + t) ^ row) << 4);
        }
    }

    TQI_INLINE uint32_t at(int x, int i) const {
        return (x / 2) * 1024 + (y[i] ^ (x & 1) * 0x240u);
    }
};

/* Column of the products that holds a dim of the values, and the other way round. */
template <int D> __host__ __device__ constexpr uint32_t odd_bit() {
    return D == 64 ? 3 : D == 128 ? 4 : 5; /* of a dim: the lowest of lane bit g */
}

template <int F, int D>
TQI_INLINE void store_keys(const Unit<F, D> &u, const HalfTable &t, uint32_t to,
                           const PlaceOfKeys &place) {
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        const typename Unit<F, D>::Column c = u.keys_of(j);
#pragma unroll
        for (int z = 0; z < 4; z++) {
            uint32_t h[4];
            key_halves<F>(t, c.first, c.second, z, h);
            store_shared16(to + place.at(j, z), make_uint4(h[0], h[1], h[2], h[3]));
        }
    }
}

/* Tokens 2 i and 2 i + 1 of the lane's eight, as far as they exist. */
TQI_INLINE uint32_t pair_mask(int left, int i) {
    return (left > 2 * i ? 0xffffu : 0) | (left > 2 * i + 1 ? 0xffff0000u : 0);
}

/* factor: of the lane's eight tokens, in pairs. Integers are multiplied by it: gains, 0 for tokens
 * that do not exist. Of others it is a mask, since unused slots hold anything and 0 x NaN is NaN.
 */
template <int F, int D>
TQI_INLINE void store_values(const Unit<F, D> &u, const HalfTable &t, const uint32_t factor[4],
                             uint32_t to, const PlaceOfValues<D> &place) {
#pragma unroll
    for (int x = 0; x < D / 32; x++) {
        const typename Unit<F, D>::Column c = u.values_of(x);
#pragma unroll
        for (int y = 0; y < 4; y++) {
            uint32_t h[4];
            value_halves<F>(t, c.first, c.second, y, h);
#pragma unroll
            for (int i = 0; i < 4; i++)
                h[i] = is_integer(F) ? multiply_halves(h[i], factor[i]) : h[i] & factor[i];
            store_shared16(to + place.at(x, y), make_uint4(h[0], h[1], h[2], h[3]));
        }
    }
}

/* The same for 16-bit floats, columns from `first` on. */
template <int D>
TQI_INLINE void store_wide_keys(const WideUnit<D> &u, uint32_t to, const PlaceOfKeys &place,
                                int first) {
#pragma unroll
    for (int j = 0; j < u.CHUNK; j++)
#pragma unroll
        for (int z = 0; z < 4; z++)
            store_shared16(to + place.at(first + j, z), u.piece(j, z));
}

template <int D>
TQI_INLINE void store_wide_values(const WideUnit<D> &u, uint32_t to, const PlaceOfValues<D> &place,
                                  int first, int left) {
    uint32_t mask[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        mask[i] = pair_mask(left, i);
#pragma unroll
    for (int x = 0; x < u.CHUNK; x++)
#pragma unroll
        for (int y = 0; y < 4; y++) {
            uint4 v = u.piece(x, y);
            store_shared16(to + place.at(first + x, y),
                           make_uint4(v.x & mask[0], v.y & mask[1], v.z & mask[2], v.w & mask[3]));
        }
}

} /* namespace tqi */

#endif
