/*
 * Codes to halves, exactly: what a unit (one side, 32 tokens of a page) becomes in shared memory.
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

/* Codes 0..3 and 4..7 of a word as pairs of halves: 0 1, 2 3, 4 5, 6 7. */
template <int F> TQI_INLINE void lm_halves(uint32_t w, uint32_t h[4]) {
    constexpr uint32_t low0 = table_of(F, 0, 0), low1 = table_of(F, 4, 0);
    constexpr uint32_t high0 = table_of(F, 0, 1), high1 = table_of(F, 4, 1);
    const uint32_t one = 0x3c003c00u;
    uint32_t level = F == TQ_FORMAT_LM4 ? w & 0x77777777u : w;
    uint32_t next = high_half(level, one);
    uint32_t low[2] = {prmt(low0, low1, level), prmt(low0, low1, next)};
    uint32_t high[2] = {prmt(high0, high1, level), prmt(high0, high1, next)};
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

/* ---- a unit in registers ----------------------------------------------------------------------
 */

/* Slabs that a lane holds of a unit. */
template <int F, int D> __host__ __device__ constexpr int slabs_of_unit() {
    return F == TQ_FORMAT_LM3 ? (D / 32 + 3) / 4 * 3 : D / 32 * bits_of(F) / 4;
}

/* One side of 32 tokens, as a lane has it in registers. */
template <int F, int D> struct Unit {
    static constexpr int J = D / 32, SLABS = slabs_of_unit<F, D>();
    uint4 slab[SLABS];

    /* codes: of the side in a page; group: which 32 tokens. */
    TQI_INLINE void load(const uint8_t *codes, uint32_t group, uint32_t lane) {
        const uint8_t *from = codes + lane * 16;
        if (F != TQ_FORMAT_LM3 || J % 4 == 0)
            from += group * SLABS * SLAB_BYTES; /* else the groups share slabs */
#pragma unroll
        for (int i = 0; i < SLABS; i++)
            slab[i] = __ldcg((const uint4 *)(from + i * SLAB_BYTES));
    }

    /* Of four 3-bit words in three slabs. */
    TQI_INLINE uint4 word_of_set(int first, int member) const {
        if (member < 3)
            return masked(slab[first + member], 0x77777777u);
        return fourth_word(slab[first], slab[first + 1], slab[first + 2]);
    }

    /* The lane's words of column j (keys) or x (values), as selectors. */
    TQI_INLINE uint4 selectors(int j, uint32_t group) const {
        if constexpr (F == TQ_FORMAT_LM4) {
            return slab[j];
        } else if constexpr (F == TQ_FORMAT_LM3) {
            if (J % 4 == 0)
                return word_of_set(j / 4 * 3, j % 4);
            static_assert(J % 4 == 0 || J == 2, "four words to a set");
            return group == 0 ? word_of_set(0, j) : word_of_set(0, 2 + j);
        } else {
            static_assert(F == TQ_FORMAT_LM2, "small codes");
            uint4 pair = slab[j / 2];
            if (j % 2 == 0)
                return masked(pair, 0x33333333u);
            return each_word([&](int n) { return word_of(pair, n) >> 2 & 0x33333333u; });
        }
    }

    /* Keys: 8 dims of token z, column j. */
    TQI_INLINE void key(int j, const uint4 &w, int z, uint32_t h[4]) const {
        if constexpr (F == TQ_FORMAT_INT8) {
            int8_halves(word_of(slab[2 * j], z), h);
            int8_halves(word_of(slab[2 * j + 1], z), h + 2);
        } else if constexpr (F == TQ_FORMAT_FP8) {
            e4m3_to_halves(word_of(slab[2 * j], z), h[0], h[1]);
            e4m3_to_halves(word_of(slab[2 * j + 1], z), h[2], h[3]);
        } else {
            lm_halves<F>(word_of(w, z), h);
        }
    }

    /* Values: 8 tokens of dim y, column x; in the order of tokens. */
    TQI_INLINE void value(int x, const uint4 &w, int y, uint32_t h[4]) const {
        uint32_t c[4];
        if constexpr (F == TQ_FORMAT_INT8) { /* tokens 0 1 4 5 | 2 3 6 7 */
            int8_halves(word_of(slab[x], y), c);
            int8_halves(word_of(slab[J + x], y), c + 2);
        } else if constexpr (F == TQ_FORMAT_FP8) { /* 0 4, 1 5 | 2 6, 3 7 */
            uint32_t a[2], b[2];
            e4m3_to_halves(word_of(slab[x], y), a[0], a[1]);
            e4m3_to_halves(word_of(slab[J + x], y), b[0], b[1]);
            c[0] = prmt(a[0], a[1], 0x5410);
            c[1] = prmt(a[0], a[1], 0x7632);
            c[2] = prmt(b[0], b[1], 0x5410);
            c[3] = prmt(b[0], b[1], 0x7632);
        } else {
            lm_halves<F>(word_of(w, y), c);
        }
        h[0] = c[0];
        h[1] = c[2];
        h[2] = c[1];
        h[3] = c[3];
    }
};

/* ---- a unit in shared memory ------------------------------------------------------------------
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
TQI_INLINE void store_keys(const Unit<F, D> &u, uint32_t to, const PlaceOfKeys &place,
                           uint32_t group) {
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint4 w = {};
        if constexpr (bits_of(F) < 8)
            w = u.selectors(j, group);
#pragma unroll
        for (int z = 0; z < 4; z++) {
            uint32_t h[4];
            u.key(j, w, z, h);
            store_shared16(to + place.at(j, z), make_uint4(h[0], h[1], h[2], h[3]));
        }
    }
}

/* Tokens 2 i and 2 i + 1 of the lane's eight, as far as they exist. */
TQI_INLINE uint32_t pair_mask(int left, int i) {
    return (left > 2 * i ? 0xffffu : 0) | (left > 2 * i + 1 ? 0xffff0000u : 0);
}

/* left: of the lane's eight tokens, how many exist (any number): others become 0, since unused
 * slots hold anything and 0 x NaN is NaN. Integers are finite whatever the codes. */
template <int F, int D>
TQI_INLINE void store_values(const Unit<F, D> &u, uint32_t to, const PlaceOfValues<D> &place,
                             uint32_t group, int left) {
    uint32_t mask[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        mask[i] = pair_mask(left, i);
#pragma unroll
    for (int x = 0; x < D / 32; x++) {
        uint4 w = {};
        if constexpr (bits_of(F) < 8)
            w = u.selectors(x, group);
#pragma unroll
        for (int y = 0; y < 4; y++) {
            uint32_t h[4];
            u.value(x, w, y, h);
            if constexpr (!is_integer(F)) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    h[i] &= mask[i];
            }
            store_shared16(to + place.at(x, y), make_uint4(h[0], h[1], h[2], h[3]));
        }
    }
}

} /* namespace tqi */

#endif
