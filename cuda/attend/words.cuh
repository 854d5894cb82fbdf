/*
 * From the slabs of a page in shared memory to operands of the tensor cores, for pages of 64
 * tokens (two groups of 32). Lane 4 g + t of a warp takes 16 bytes of every slab:
 *
 *     keys    word z = 8 dims of token 32 r + 4 g + z, dims (D/4) t + 8 j + 0..7
 *     values  word y = 8 tokens of dim (D/8) g + 4 x + y, tokens 32 r + 8 t + 0 1 4 5 2 3 6 7
 *
 * (r group, j or x column). Keys and values are the A operand: rows g and g + 8 of an MMA are
 * words z = 0 and 1, or 2 and 3; likewise y.
 */
#ifndef TQI_CUDA_ATTEND_WORDS_CUH
#define TQI_CUDA_ATTEND_WORDS_CUH

#include <cuda_fp16.h>

#include "attend/instructions.cuh"
#include "tq/tq.h"

namespace tqi {

enum { FAST_TOKENS = 64, GROUPS = 2, SLAB_BYTES = 512 };

__host__ __device__ constexpr bool is_polar(int f) {
    return f == TQ_FORMAT_POLAR || f == TQ_FORMAT_POLAR_QJL;
}

__host__ __device__ constexpr bool has_sketch(int f) {
    return f == TQ_FORMAT_POLAR_QJL || f == TQ_FORMAT_LM3_QJL || f == TQ_FORMAT_LM2_QJL;
}

/* The format without its sketch. */
__host__ __device__ constexpr int base_of(int f) {
    return f == TQ_FORMAT_LM3_QJL     ? TQ_FORMAT_LM3
           : f == TQ_FORMAT_LM2_QJL   ? TQ_FORMAT_LM2
           : f == TQ_FORMAT_POLAR_QJL ? TQ_FORMAT_POLAR
                                      : f;
}

/* Of a code; of polar formats not a whole number. */
__host__ __device__ constexpr int bits_of(int f) {
    return f == TQ_FORMAT_LM4            ? 4
           : base_of(f) == TQ_FORMAT_LM3 ? 3
           : base_of(f) == TQ_FORMAT_LM2 ? 2
           : f <= TQ_FORMAT_F16          ? 16
                                         : 8;
}

__host__ __device__ constexpr bool is_integer(int f) {
    return f >= TQ_FORMAT_INT8;
}

__host__ __device__ constexpr bool has_gains(int f) {
    return is_integer(f);
}

/* 4-bit codes stand for n + 1/2; the half is added through sums. */
__host__ __device__ constexpr bool has_half(int f) {
    return f == TQ_FORMAT_LM4;
}

/* Bytes of codes and of gains; polar blocks of 16 dims have 46 bits of angles and a radius. */
__host__ __device__ constexpr int code_bytes(int f, int d) {
    return is_polar(f) ? FAST_TOKENS * d / 16 * 23 / 4 : FAST_TOKENS * d * bits_of(f) / 8;
}

__host__ __device__ constexpr int gain_bytes(int f, int d) {
    return is_polar(f) ? FAST_TOKENS * d / 16 * 2 : has_gains(f) ? FAST_TOKENS * 2 : 0;
}

/* Offsets in a blob; spec/layout.h in the small. */
template <int KF, int VF, int D> struct Blob {
    static constexpr int sketch = code_bytes(KF, D);
    static constexpr int k_bytes = sketch + (has_sketch(KF) ? FAST_TOKENS * D / 8 : 0);
    static constexpr int v_bytes = code_bytes(VF, D);
    static constexpr int k_gains = k_bytes + v_bytes;
    static constexpr int sketch_gains = k_gains + gain_bytes(KF, D);
    static constexpr int v_gains = sketch_gains + (has_sketch(KF) ? FAST_TOKENS * 2 : 0);
    static constexpr int end = v_gains + (has_gains(VF) ? FAST_TOKENS * 2 : 0);
    static constexpr int bytes = (end + 127) / 128 * 128;
};

TQI_INLINE float2 halves_of(uint32_t x) {
    __half2 h;
    memcpy(&h, &x, sizeof h);
    return __half22float2(h);
}

/* The larger of both pairs of halves. */
TQI_INLINE uint32_t larger_halves(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("max.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

TQI_INLINE uint32_t word_of(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <class F> TQI_INLINE uint4 each_word(F f) {
    return make_uint4(f(0), f(1), f(2), f(3));
}

/* A page in shared memory, as one lane sees it. */
struct Slot {
    uint32_t address; /* of the blob */
    uint32_t lane16;  /* 16 * lane */
    uint32_t upper;   /* address of the lane's upper 8 bytes in slab 0 */

    TQI_INLINE uint4 slab(int base, int index) const {
        return load_shared16(address + base + index * SLAB_BYTES + lane16);
    }

    /* Words 2 i and 2 i + 1 of the lane in a slab. */
    TQI_INLINE uint2 pair(int base, int index, int i) const {
        return load_shared8((i ? upper : address + lane16) + base + index * SLAB_BYTES);
    }
};

/* The compiler is not to see that `upper` is 8 bytes beyond the lower half: it would join the
 * loads of both, and then move the words to where operands want them. */
TQI_INLINE Slot slot_at(uint32_t address, uint32_t lane) {
    return Slot{address, lane * 16, address + (lane * 16 ^ 8)};
}

/* An operand whose words are two pairs of slabs. An operand is four registers in a row: loading
 * pairs puts the words there, whole slabs would have to be moved. */
TQI_INLINE void operand_of(uint2 first, uint2 second, uint32_t a[4]) {
    a[0] = first.x;
    a[1] = first.y;
    a[2] = second.x;
    a[3] = second.y;
}

/* ---- selector words of small codes ----------------------------------------------------------- */

/* The fourth word of a 3-bit set, from the spare bits of the other three. */
TQI_INLINE uint4 fourth_word(const uint4 &a, const uint4 &b, const uint4 &c) {
    return each_word([&](int i) {
        return (word_of(a, i) >> 3 & 0x11111111u) | (word_of(b, i) >> 2 & 0x22222222u) |
               (word_of(c, i) >> 1 & 0x44444444u);
    });
}

TQI_INLINE uint4 masked(const uint4 &v, uint32_t mask) {
    return make_uint4(v.x & mask, v.y & mask, v.z & mask, v.w & mask);
}

TQI_INLINE uint2 masked(uint2 v, uint32_t mask) {
    return make_uint2(v.x & mask, v.y & mask);
}

/* Words [first, first + N) of a section of lm codes; `first` counts over the page. */
template <int F, int N> TQI_INLINE void load_words(const Slot &s, int base, int first, uint4 *w) {
    if constexpr (F == TQ_FORMAT_LM4) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = s.slab(base, first + i);
    } else if constexpr (F == TQ_FORMAT_LM2) {
        static_assert(N % 2 == 0, "2-bit words come in pairs");
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            uint4 pair = s.slab(base, (first + i) / 2);
            w[i] = masked(pair, 0x33333333u);
            w[i + 1] = each_word([&](int n) { return word_of(pair, n) >> 2 & 0x33333333u; });
        }
    } else if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            uint4 a[3];
#pragma unroll
            for (int p = 0; p < 3; p++) {
                a[p] = s.slab(base, (first + i) / 4 * 3 + p);
                w[i + p] = masked(a[p], 0x77777777u);
            }
            w[i + 3] = fourth_word(a[0], a[1], a[2]);
        }
    } else { /* sets that cross groups of tokens */
#pragma unroll
        for (int i = 0; i < N; i++) {
            int set = (first + i) / 4 * 3, member = (first + i) % 4;
            if (member < 3)
                w[i] = masked(s.slab(base, set + member), 0x77777777u);
            else
                w[i] = fourth_word(s.slab(base, set), s.slab(base, set + 1), s.slab(base, set + 2));
        }
    }
}

/* ---- codes to bytes ---------------------------------------------------------------------------
 */

/* The values of a book as bytes, by code (lm3, lm2) or level (lm4). */
struct ByteTable {
    uint32_t low, high;
    uint32_t one;                           /* in halves */
    uint32_t sixteen = 16, minus_one = ~0u; /* for multiply_add() */
};

/* Of a layer's book (FastJob::table). sixteen: a number that the compiler does not know. LANES: in
 * lanes' registers, where the assembler would move the lower word from a uniform one before every
 * look-up; elsewhere it does not, and they have none to spare. */
template <bool LANES> TQI_INLINE ByteTable byte_table(const uint32_t book[2], uint32_t sixteen) {
    const uint32_t low = LANES ? in_lanes(book[0]) : in_register(book[0]);
    return ByteTable{low, in_register(book[1]), in_register(0x3c003c00u), sixteen, 15 - sixteen};
}

/* 8 codes of a word to two operands of 4 signed bytes. */
template <int F>
TQI_INLINE void look_up(const ByteTable &t, uint32_t w, uint32_t &first, uint32_t &second) {
    if constexpr (F == TQ_FORMAT_LM4) {
        uint32_t level = w & 0x77777777u, shifted = multiply_add(w, t.sixteen, 0);
        /* selectors of 8 and more repeat the sign bit of a byte: 0 or 0xff */
        first = prmt(t.low, t.high, level) ^ prmt(w, w, 0xba98);
        second = prmt(t.low, t.high, high_half(level, t.one)) ^ prmt(shifted, shifted, 0xba98);
    } else {
        first = prmt(t.low, t.high, w);
        second = prmt(t.low, t.high, high_half(w, t.one));
    }
}

/* Four e4m3 bytes to two pairs of halves, exactly. */
TQI_INLINE void e4m3_to_halves(uint32_t w, uint32_t &first, uint32_t &second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a,b;\nmov.b32 {a,b},%2;\n"
        "cvt.rn.f16x2.e4m3x2 %0,a;\ncvt.rn.f16x2.e4m3x2 %1,b;\n}"
        : "=r"(first), "=r"(second)
        : "r"(w));
#else
    /* e4m3 s eeee mmm to f16 s 0eeee mmm0000000: the exponent is 8 too small, which a multiply
     * by 256 repairs, subnormals included. NaN codes are never written. */
    uint32_t low = prmt(w, 0, 0x1404), high = prmt(w, 0, 0x3424);
    uint32_t a = (low & 0x80008000u) | (low & 0x7f007f00u) >> 1;
    uint32_t b = (high & 0x80008000u) | (high & 0x7f007f00u) >> 1;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(first) : "r"(a), "r"(0x5c005c00u));
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(second) : "r"(b), "r"(0x5c005c00u));
#endif
}

} /* namespace tqi */

#endif
