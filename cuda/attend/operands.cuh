/*
 * Operands of the fast read path: words of a page to A, queries and probabilities to B. See
 * words.cuh for where things lie, tile.cuh for what columns mean.
 */
#ifndef TQI_CUDA_ATTEND_OPERANDS_CUH
#define TQI_CUDA_ATTEND_OPERANDS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attend/words.cuh"

namespace tqi {

/* Start of the running maximum, in powers of two: below every score, far above -infinity. */
#define TQI_NO_MAXIMUM -1e30f
/*
 * Sums of integers begin at the bits of 1.5 * 2^23. While they stay within 2^22 of it, which 256
 * dims, or 128 tokens of signed by unsigned bytes, do, their bits read as a float are FLOAT_START
 * plus the sum: no conversion, which would be work for the same pipe as the byte permutes.
 */
#define INT_START 0x4b400000
#define FLOAT_START 12582912.0f

/* A page that not every row sees whole, or whose scores are capped: of rows 4 nt + t. */
template <int NT> struct PageEdge {
    int valid;              /* tokens that exist and that some row sees */
    int first[NT], end[NT]; /* those that the row sees */
    float shift[NT];        /* joins scores before the cap, in powers of two */
    float cap, cap_rate;    /* the cap in powers of two, 0 = none; 2 / cap */
};

/* A page that is not there: of it, no row sees a token. */
template <int NT> TQI_INLINE PageEdge<NT> nothing_of(PageEdge<NT> e) {
    e.valid = 0;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
        e.first[nt] = e.end[nt] = 0;
    return e;
}

/* p as a high (low half of the word) and a low 16-bit float. */
template <bool BF16> TQI_INLINE uint32_t split_float(float p) {
    uint32_t word;
    if constexpr (BF16) {
        float high = __bfloat162float(__float2bfloat16_rn(p));
        asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(word) : "f"(p - high), "f"(p));
    } else {
        float high = __half2float(__float2half_rn(p));
        asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(word) : "f"(p - high), "f"(p));
    }
    return word;
}

template <bool BF16> TQI_INLINE void mma_16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    if constexpr (BF16)
        mma_bf16(c, a, b);
    else
        mma_f16(c, a, b);
}

/* ---- keys -------------------------------------------------------------------------------- */

/* Dims 8 j + 0..7 of the lane, tokens z = 2 zp and 2 zp + 1, of selector words. */
template <int KF>
TQI_INLINE void k_operand(const ByteTable &table, const uint4 *w, int j, int zp, uint32_t a[4]) {
    look_up<KF>(table, word_of(w[j], 2 * zp), a[0], a[2]);
    look_up<KF>(table, word_of(w[j], 2 * zp + 1), a[1], a[3]);
}

/* Dims 8 j + 4 h + 0..3 of the lane, tokens z = 2 zp and 2 zp + 1. */
template <int KF, int J>
TQI_INLINE void k_operand_float(const Slot &s, int r, int j, int h, int zp, uint32_t a[4]) {
    int chunk = r * J + j;
    if constexpr (KF == TQ_FORMAT_FP8) {
        uint2 w = s.pair(0, chunk * 2 + h, zp);
        e4m3_to_halves(w.x, a[0], a[2]);
        e4m3_to_halves(w.y, a[1], a[3]);
    } else {
        operand_of(s.pair(0, chunk * 4 + 2 * h, zp), s.pair(0, chunk * 4 + 2 * h + 1, zp), a);
    }
}

/* ---- probabilities and values -------------------------------------------------------------- */

/* Largest of a row's scores: 8 threads have N each. */
template <int N = 8> TQI_INLINE float row_max(const float *s) {
    float m = s[0];
#pragma unroll
    for (int i = 1; i < N; i++)
        m = fmaxf(m, s[i]);
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 4));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 8));
    return fmaxf(m, __shfl_xor_sync(~0u, m, 16));
}

/* Token of the page that score i of a row is for. */
TQI_INLINE int token_of(int i, uint32_t g) {
    return int(32 * (i / 4) + 4 * g + i % 4);
}

/* N scores of a row on an edge, from the thread's score `begin` on, `unit` each, in powers of two,
 * capped if there is a cap; whether the row sees any token. */
template <int N, int NT>
TQI_INLINE bool edge_scores(const PageEdge<NT> &e, int nt, int begin, uint32_t g, float unit,
                            float *score) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int token = token_of(begin + i, g);
        float x = fmaf(score[i], unit, e.shift[nt]);
        if (e.cap != 0) /* cap * tanh(x / cap) */
            x = fmaf(-2 * e.cap, reciprocal(1 + exp2_fast(x * e.cap_rate)), e.cap);
        bool seen = token >= e.first[nt] && token < e.end[nt];
        score[i] = seen ? x : -3e38f;
    }
    return e.first[nt] < e.end[nt];
}

/* Gains of a page's values, of the thread's tokens. */
TQI_INLINE void load_v_gains(const Slot &s, int base, float vn[8]) {
    uint32_t g = s.lane16 >> 6;
#pragma unroll
    for (int r = 0; r < GROUPS; r++) {
        uint2 w = load_shared8(s.address + base + r * 64 + g * 8);
        vn[4 * r] = __uint_as_float(w.x << 16);
        vn[4 * r + 1] = __uint_as_float(w.x & 0xffff0000u);
        vn[4 * r + 2] = __uint_as_float(w.y << 16);
        vn[4 * r + 3] = __uint_as_float(w.y & 0xffff0000u);
    }
}

/* Gains to factors of p that make 16-bit integers. Returns their unit. */
template <int N> TQI_INLINE float scale_v_gains(float vn[N]) {
    float largest = 2e-34f; /* keeps the reciprocal finite */
#pragma unroll
    for (int i = 0; i < N; i++)
        largest = fmaxf(largest, vn[i]);
    largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest)));
    float factor = 65280.0f * reciprocal(largest);
#pragma unroll
    for (int i = 0; i < N; i++)
        vn[i] *= factor;
    return largest * (1.0f / 65280.0f);
}

/* What all dims of a tile's sum lack: the half of 4-bit values, by the thread's tokens, and what
 * rounding `start` lost, an eighth for each of the row's threads. */
template <int VF> TQI_INLINE float bias_of(float beta, float integers, float &start) {
    constexpr float begin = -257 * FLOAT_START;
    start = begin * beta;
    float lost = fmaf(begin / 8, beta, -0.125f * start);
    return has_half(VF) ? fmaf(0.5f * integers, beta, lost) : lost;
}

/* Word z of a lane holds tokens z and 4 + z of its eight after the transposition. */
template <int VF> TQI_INLINE void pair_tokens(const uint32_t x[4], uint32_t out[4]) {
    uint32_t z[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        z[i] = transpose16(x[i]);
    if constexpr (VF == TQ_FORMAT_FP8) { /* pairs 0 4 | 1 5 | 2 6 | 3 7 */
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] = z[i];
    } else { /* pairs 0 1 | 2 3 | 4 5 | 6 7 */
        out[0] = prmt(z[0], z[1], 0x5410);
        out[1] = prmt(z[2], z[3], 0x5410);
        out[2] = prmt(z[0], z[1], 0x7632);
        out[3] = prmt(z[2], z[3], 0x7632);
    }
}

/* Probabilities of a row against the maximum at hand, N groups, to B operands. The half of 4-bit
 * values is multiplied with the sum of their integers before they are rounded: what rounding does
 * to the outputs is hundreds of times more. */
template <int VF, int N>
TQI_INLINE void weights_operand(const float p[4 * N], const float vn[4 * N],
                                uint32_t (*out)[is_integer(VF) ? 2 : 4], float &integer_sum) {
#pragma unroll
    for (int r = 0; r < N; r++) {
        uint32_t x[4];
#pragma unroll
        for (int z = 0; z < 4; z++)
            x[z] = is_integer(VF) ? __float_as_uint(fmaf(p[4 * r + z], vn[4 * r + z], 8388608.0f))
                                  : split_float<VF == TQ_FORMAT_BF16>(p[4 * r + z]);
        if constexpr (is_integer(VF)) {
            if constexpr (has_half(VF))
#pragma unroll
                for (int z = 0; z < 4; z++)
                    integer_sum = fmaf(p[4 * r + z], vn[4 * r + z], integer_sum);
            out[r][0] = transpose16(prmt(x[0], x[1], 0x4051));
            out[r][1] = transpose16(prmt(x[2], x[3], 0x4051));
        } else {
            pair_tokens<VF>(x, out[r]);
        }
    }
}

/* Keeps the bytes of tokens below `valid`: 0 x NaN is NaN, and unused slots hold anything.
 * Word h of lane t: four e4m3 or two 16-bit tokens. */
template <int VF> TQI_INLINE uint32_t token_mask(int valid, int r, int h, uint32_t lane) {
    int first = 32 * r + 8 * int(lane % 4);
    uint32_t mask = 0;
    if constexpr (VF == TQ_FORMAT_FP8) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            mask |= first + 2 * h + i / 2 + i % 2 * 4 < valid ? 0xffu << 8 * i : 0;
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++)
            mask |= first + 2 * h + i < valid ? 0xffffu << 16 * i : 0;
    }
    return mask;
}

/* Tokens pairs 2 h and 2 h + 1 (of four) of the lane's eight, dims 4 x + 2 yy and the next. */
template <int VF, int J, int BASE, bool TAIL>
TQI_INLINE void v_operand_float(const Slot &s, int r, int h, int x, int yy, int valid,
                                uint32_t a[4]) {
    uint32_t lane = s.lane16 / 16;
    if constexpr (VF == TQ_FORMAT_FP8) {
        uint2 w = s.pair(BASE, (r * 2 + h) * J + x, yy);
        if (TAIL)
            w = masked(w, token_mask<VF>(valid, r, h, lane));
        e4m3_to_halves(w.x, a[0], a[2]);
        e4m3_to_halves(w.y, a[1], a[3]);
    } else {
        uint2 w[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            w[e] = s.pair(BASE, (r * 4 + 2 * h + e) * J + x, yy);
            if (TAIL)
                w[e] = masked(w[e], token_mask<VF>(valid, r, 2 * h + e, lane));
        }
        operand_of(w[0], w[1], a);
    }
}

} /* namespace tqi */

#endif
