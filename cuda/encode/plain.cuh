/*
 * Formats that do not rotate: bf16, f16, fp8. Nothing is shared between the elements of a row,
 * so a lane takes a chunk of 8 dims of the tokens that share its words, from the rows to the
 * page without shared memory. A pure copy when the rows have the format's type.
 */
#ifndef TQI_CUDA_ENCODE_PLAIN_CUH
#define TQI_CUDA_ENCODE_PLAIN_CUH

#include "encode/unit.cuh"

namespace tqi {

/* ---- elements to codes ---------------------------------------------------------------------- */

/* Two codes, nearest even, saturating at 448; arguments are finite or infinite. */
TQI_ENCODE_INLINE uint32_t e4m3_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    uint32_t code[2];
    float f[2] = {low, high};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t u = __float_as_uint(f[i]), a = u & 0x7fffffffu;
        /* below 2^-6 the codes are multiples of 2^-9: adding 2^14 rounds to them */
        uint32_t small = __float_as_uint(fabsf(f[i]) + 0x1p14f) - 0x46800000u;
        uint32_t normal = (a - (120u << 23) + 0x7ffffu + (a >> 20 & 1)) >> 20;
        code[i] = (u >> 24 & 0x80u) | (a >= 0x43e00000u   ? 0x7eu
                                       : a >= 0x3c800000u ? normal
                                                          : small);
    }
    return code[0] | code[1] << 8;
#endif
}

/* Four codes. */
TQI_ENCODE_INLINE uint32_t e4m3_word(const float *x, float inv_scale) {
    return e4m3_pair(x[0] * inv_scale, x[1] * inv_scale) |
           e4m3_pair(x[2] * inv_scale, x[3] * inv_scale) << 16;
}

TQI_ENCODE_INLINE uint32_t bits16(float x, bool bf16) {
    if (bf16)
        return __bfloat16_as_ushort(
            __float2bfloat16_rn(fminf(fmaxf(x, -3.38953139e38f), 3.38953139e38f)));
    return __half_as_ushort(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

/* ---- a chunk of a token ---------------------------------------------------------------------- */

/* Where a side's rows lie, and what becomes of them. */
struct PlainSide {
    const uint8_t *rows; /* of the unit's head, the group's first token */
    int64_t stride;      /* bytes from token to token */
    const float *mean;   /* of the head, or NULL */
    float inv_scale;
    uint32_t format;
    bool aligned, raw; /* raw: rows have the format's type and no means */
    uint64_t *counts;
};

template <class Job>
TQI_ENCODE_INLINE PlainSide plain_side(const Job &job, const Unit &u, uint32_t dim) {
    const Side &s = job.side[u.side];
    const RowsIn &rows = job.rows[u.side];
    PlainSide p;
    p.stride = rows.token_stride * size_of(rows);
    p.rows = u.from;
    p.mean = s.mean ? s.mean + (size_t)u.head * dim : nullptr;
    p.inv_scale = s.format == TQ_FORMAT_FP8 ? s.inv_scale[u.head] : 1;
    p.format = s.format;
    p.aligned = job.aligned >> u.side & 1;
    p.raw = !p.mean && ((s.format == TQ_FORMAT_BF16 && rows.dtype == TQ_BF16) ||
                        (s.format == TQ_FORMAT_F16 && rows.dtype == TQ_F16));
    p.counts = job.counts;
    return p;
}

/* Replaces what is not finite in a chunk and counts it; rare. */
template <int DTYPE>
__device__ __noinline__ RawChunk<DTYPE> replace_chunk(RawChunk<DTYPE> c, uint64_t *counts) {
    uint32_t bad = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        c.set(i, replace_nonfinite(c.element(i), DTYPE, bad));
    if (bad & 0xffffu)
        atomicAdd((unsigned long long *)&counts[0], (unsigned long long)(bad & 0xffffu));
    if (bad >> 16)
        atomicAdd((unsigned long long *)&counts[1], (unsigned long long)(bad >> 16));
    return c;
}

/* Whether an exponent of a chunk is all ones, as bits under 0x80008000. */
template <int DTYPE> TQI_ENCODE_INLINE uint32_t nonfinite_bits(const RawChunk<DTYPE> &c) {
    constexpr uint32_t PAIR = DTYPE == TQ_F32 ? 1 : 0x10001u;
    constexpr uint32_t EXPONENT = DTYPE == TQ_F32    ? 0x7f800000u
                                  : DTYPE == TQ_BF16 ? 0x7f80u
                                                     : 0x7c00u;
    constexpr uint32_t LOWEST = EXPONENT & (0u - EXPONENT);
    uint32_t carries = 0; /* into the sign bits */
#pragma unroll
    for (int i = 0; i < c.WORDS; i++)
        carries |= (c.w[i] & EXPONENT * PAIR) + LOWEST * PAIR;
    return carries & (DTYPE == TQ_F32 ? 0x80000000u : 0x80008000u);
}

/* H words of a token's chunk: 4 of 16-bit formats, 2 of fp8. */
template <int DTYPE, int H, bool RAW>
TQI_ENCODE_INLINE void plain_words(const PlainSide &p, const RawChunk<DTYPE> &c, int dim,
                                   uint32_t *w) {
    if constexpr (RAW) {
#pragma unroll
        for (int i = 0; i < H; i++)
            w[i] = c.w[i];
    } else {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = c.element(i);
        if (p.mean)
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = subtract_mean(x[i], __ldg(p.mean + dim + i));
#pragma unroll
        for (int i = 0; i < H; i++)
            if (H == 4)
                w[i] = bits16(x[2 * i], p.format == TQ_FORMAT_BF16) |
                       bits16(x[2 * i + 1], p.format == TQ_FORMAT_BF16) << 16;
            else
                w[i] = e4m3_word(x + 4 * i, p.inv_scale);
    }
}

/* The chunks of COUNT tokens, zeros where none is new. */
template <int DTYPE, int COUNT>
TQI_ENCODE_INLINE void load_raw(const PlainSide &p, uint32_t first, int dim, uint32_t fresh,
                                RawChunk<DTYPE> *c) {
    const uint8_t *from = p.rows + first * p.stride + dim * (DTYPE == TQ_F32 ? 4 : 2);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        c[i] = {};
    if (p.aligned) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (fresh >> i & 1)
                c[i] = read_chunk<DTYPE>(from + i * p.stride);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (fresh >> i & 1)
                c[i] = gather_chunk<DTYPE>(from + i * p.stride);
    }
}

/* Words of COUNT tokens from `first` on; their loads are on the way together. */
template <int DTYPE, int H, bool RAW, int COUNT>
TQI_ENCODE_INLINE void load_tokens(const PlainSide &p, uint32_t first, int dim, uint32_t fresh,
                                   uint32_t w[][H]) {
    RawChunk<DTYPE> c[COUNT];
    uint32_t bad = 0;
    load_raw<DTYPE, COUNT>(p, first, dim, fresh, c);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        bad |= nonfinite_bits<DTYPE>(c[i]);
    if (bad)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            c[i] = replace_chunk<DTYPE>(c[i], p.counts);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        plain_words<DTYPE, H, RAW>(p, c[i], dim, w[i]);
}

/* ---- units ----------------------------------------------------------------------------------- */

/* A lane takes a chunk of eight tokens; registers for the rows of all, but of binary32. */
template <int D, int TOKENS, int DTYPE, int H, bool RAW, class Store>
TQI_ENCODE_INLINE void plain_chunks(const PlainSide &p, const Unit &u, const Store &store) {
    constexpr uint32_t TASKS = TOKENS / 8 * (D / 8);
    constexpr int COUNT = DTYPE == TQ_F32 ? 4 : 8;
#pragma unroll 1
    for (uint32_t task = threadIdx.x % 32; task < TASKS; task += 32) {
        uint32_t chunk = task % (D / 8), first = u.first + task / (D / 8) * 8;
        uint32_t fresh = u.fresh >> first & 255, w[8][H];
        if (fresh == 0)
            continue;
#pragma unroll
        for (int i = 0; i < 8; i += COUNT)
            load_tokens<DTYPE, H, RAW, COUNT>(p, first + i, (int)chunk * 8, fresh >> i, w + i);
        store(chunk, first, fresh, w);
    }
}

/* Words of keys: four tokens lie side by side. */
template <int D, int H>
TQI_ENCODE_INLINE void store_key_words(uint32_t *codes, uint32_t chunk, uint32_t first,
                                       uint32_t fresh, const uint32_t w[8][H]) {
    constexpr uint32_t J = D / 32;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        uint32_t *at = codes + ((first + i) / 4 * 4 + chunk / J) * 4 + chunk % J * (H * SLAB);
#pragma unroll
        for (int h = 0; h < H; h++) {
            uint32_t out[4] = {w[i][h], w[i + 1][h], w[i + 2][h], w[i + 3][h]};
            store_tokens(at + h * SLAB, out, fresh >> i & 15);
        }
    }
}

/* Four dims of eight tokens, 16 bits each, words 2 of each chunk; of few new ones element by
 * element, so that nothing has to be read. */
template <int D, int H>
TQI_ENCODE_INLINE void store_halves(uint32_t *at, const uint32_t w[8][H], int half,
                                    uint32_t fresh) {
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        uint32_t out[4], *to = at + pair * (D / 32) * SLAB;
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] = __byte_perm(w[2 * pair][2 * half + i / 2], w[2 * pair + 1][2 * half + i / 2],
                                 i % 2 ? 0x7632 : 0x5410);
        if (fresh == 255) {
            *(uint4 *)to = make_uint4(out[0], out[1], out[2], out[3]);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (fresh >> (2 * pair + i / 4) & 1)
                ((uint16_t *)(to + i % 4))[i / 4] = (uint16_t)(out[i % 4] >> 16 * (i / 4));
    }
}

/* Words of values: four dims lie side by side, tokens share words. */
template <int D, int H>
TQI_ENCODE_INLINE void store_value_words(uint32_t *codes, uint32_t chunk, uint32_t first,
                                         uint32_t fresh, const uint32_t w[8][H]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t *at = codes + value_word<D>(2 * chunk + half, first / 8);
        if constexpr (H == 4) {
            store_halves<D, H>(at, w, half, fresh);
        } else {
            uint32_t in[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                in[i] = w[i][half];
            store_bytes<D, true>(at, in, fresh);
        }
    }
}

template <int D, int TOKENS, int DTYPE, int H, bool RAW>
TQI_ENCODE_INLINE void plain_rows(const PlainSide &p, const Unit &u, uint32_t *codes) {
    bool keys = u.side == TQI_SIDE_K;
    auto store = [&](uint32_t chunk, uint32_t first, uint32_t fresh, const uint32_t w[8][H]) {
        if (keys)
            store_key_words<D, H>(codes, chunk, first, fresh, w);
        else
            store_value_words<D, H>(codes, chunk, first, fresh, w);
    };
    plain_chunks<D, TOKENS, DTYPE, H, RAW>(p, u, store);
}

template <int D, int TOKENS, int DTYPE>
TQI_ENCODE_INLINE void plain_typed(const PlainSide &p, const Unit &u, uint32_t *codes) {
    if (p.format == TQ_FORMAT_FP8)
        plain_rows<D, TOKENS, DTYPE, 2, false>(p, u, codes);
    else if (DTYPE != TQ_F32 && p.raw)
        plain_rows<D, TOKENS, DTYPE, 4, DTYPE != TQ_F32>(p, u, codes);
    else
        plain_rows<D, TOKENS, DTYPE, 4, false>(p, u, codes);
}

/* A unit of TOKENS tokens of a side that does not rotate. */
template <int D, int TOKENS>
TQI_ENCODE_INLINE void encode_plain(const FastEncodeJob &f, const Unit &u) {
    const tqi_layout &l = f.job.side[u.side].layout;
    uint32_t *codes = (uint32_t *)(u.blob + l.codes) + u.slot / GROUP * (D * l.bits);
    PlainSide p = plain_side(f.job, u, D);
    int32_t dtype = f.job.rows[u.side].dtype;
    if (dtype == TQ_BF16)
        plain_typed<D, TOKENS, TQ_BF16>(p, u, codes);
    else if (dtype == TQ_F16)
        plain_typed<D, TOKENS, TQ_F16>(p, u, codes);
    else
        plain_typed<D, TOKENS, TQ_F32>(p, u, codes);
}

} /* namespace tqi */

#endif
