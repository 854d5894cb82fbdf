/*
 * Rows in registers: L lanes share a row, lane `part` of them holds its chunks of 8 dims
 * part, L + part, 2 L + part .. Strides inside a chunk and across a lane's chunks are plain
 * additions, strides between lanes are shuffles. The encode contract (spec/rows.h) on that
 * form; compiled without contraction, explicit fmaf only where a product is exact.
 */
#ifndef TQI_CUDA_ENCODE_ROW_CUH
#define TQI_CUDA_ENCODE_ROW_CUH

#include "common/rows.cuh"
#include "encode/encode_job.h"
#include "spec/hadamard_data.h"

namespace tqi {

#define TQI_ENCODE_INLINE __device__ __forceinline__

/* Head dim and lanes per row; dims that are no power of two are 12 blocks of 8 or 16. */
template <int DIM, int LANES> struct RowShape {
    static constexpr int D = DIM, L = LANES, N = DIM / LANES, CHUNKS = N / 8;
    static constexpr int ORDER = DIM % 3 == 0 ? 12 : 1, BLOCK = DIM / ORDER;
    static constexpr int ROWS = 32 / LANES; /* of a warp at a time */
    static_assert(BLOCK % 8 == 0 && (ORDER == 1 || BLOCK == 8 * LANES), "blocks of whole chunks");
};

/* What a lane knows of its row. */
struct RowPlace {
    int64_t row;   /* in the caller's rows */
    uint32_t part; /* lane of the row */
    uint32_t head;
    bool fresh; /* the row exists */
};

/* ---- sums over the lanes of a row ---------------------------------------------------------- */

template <int L, class T> TQI_ENCODE_INLINE T row_sum(T x) {
#pragma unroll
    for (int o = 1; o < L; o *= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

template <int L> TQI_ENCODE_INLINE float row_max(float x) {
#pragma unroll
    for (int o = 1; o < L; o *= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* The full binary tree over the dims in natural order; zeros beyond the last chunk. */
template <class R> TQI_ENCODE_INLINE float sum_squares(const float *x) {
    constexpr int PADDED = R::CHUNKS == 12 ? 16 : R::CHUNKS;
    float s[PADDED];
#pragma unroll
    for (int c = 0; c < PADDED; c++) {
        s[c] = 0;
        if (c < R::CHUNKS) {
            const float *v = x + 8 * c;
            s[c] = ((v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3])) +
                   ((v[4] * v[4] + v[5] * v[5]) + (v[6] * v[6] + v[7] * v[7]));
            s[c] = row_sum<R::L>(s[c]);
        }
    }
#pragma unroll
    for (int n = PADDED / 2; n; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++)
            s[i] = s[2 * i] + s[2 * i + 1];
    return s[0];
}

/* ---- loading ------------------------------------------------------------------------------- */

/* Sign bits to flip for a lane: kernel parameters where all lanes have the same dims, else
 * memory. */
struct Flips {
    const uint32_t *at; /* [D] */
    uint32_t mask;      /* 0 for formats that do not rotate */
};

/* Elements of a chunk as they lie in the row. */
template <int DTYPE> struct RawChunk {
    static constexpr int WORDS = DTYPE == TQ_F32 ? 8 : 4;
    uint32_t w[WORDS];
    TQI_ENCODE_INLINE float element(int i) const {
        if (DTYPE == TQ_F32)
            return __uint_as_float(w[i % WORDS]);
        uint32_t v = w[i / 2 % WORDS];
        if (DTYPE == TQ_F16)
            return f16_bits((uint16_t)(i % 2 ? v >> 16 : v));
        return __uint_as_float(i % 2 ? v & 0xffff0000u : v << 16);
    }
};

template <int DTYPE> TQI_ENCODE_INLINE RawChunk<DTYPE> read_chunk(const void *from) {
    RawChunk<DTYPE> c;
    const uint4 *at = (const uint4 *)from;
#pragma unroll
    for (int i = 0; i < c.WORDS / 4; i++) {
        uint4 v = at[i];
        c.w[4 * i] = v.x;
        c.w[4 * i + 1] = v.y;
        c.w[4 * i + 2] = v.z;
        c.w[4 * i + 3] = v.w;
    }
    return c;
}

/* The same element by element. */
template <int DTYPE> TQI_ENCODE_INLINE RawChunk<DTYPE> gather_chunk(const void *from) {
    RawChunk<DTYPE> c;
#pragma unroll
    for (int i = 0; i < c.WORDS; i++)
        if (DTYPE == TQ_F32)
            c.w[i] = ((const uint32_t *)from)[i];
        else
            c.w[i] = ((const uint16_t *)from)[2 * i] | (uint32_t)((const uint16_t *)from)[2 * i + 1]
                                                           << 16;
    return c;
}

/* Whether rows are rotated and have no mean, the usual case. */
TQI_ENCODE_INLINE bool is_plain(const Flips &flips, const float *mean) {
    return flips.mask != 0 && mean == nullptr;
}

/* Chunk to coordinates: means subtracted, signs flipped. Means that make an infinity show in
 * the sum of squares and are repaired by sanitize(). */
template <int DTYPE, bool PLAIN>
TQI_ENCODE_INLINE void flip_chunk(const RawChunk<DTYPE> &c, const Flips &flips, const float *mean,
                                  int dim, float *x) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (PLAIN && DTYPE == TQ_BF16 && i % 2 == 0) { /* shift and flip in one addition */
            x[i] = __uint_as_float((c.w[i / 2] << 16) + flips.at[dim + i]);
            continue;
        }
        float v = c.element(i);
        if (!PLAIN && mean)
            v -= __ldg(mean + dim + i);
        if (PLAIN || flips.mask)
            v = __uint_as_float(__float_as_uint(v) ^ flips.at[dim + i]);
        x[i] = v;
    }
}

/* ---- rows that need care --------------------------------------------------------------------- */

TQI_ENCODE_INLINE bool in_range(float sum) {
    return sum >= 0x1p-80f && sum <= 0x1p100f;
}

/* Step "range" of rows outside the range, the others pass unchanged; the exponent taken out. */
template <class R> __device__ int bring_into_range(float *x, float *sum) {
    float largest = 0;
    for (int i = 0; i < R::N; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    largest = row_max<R::L>(largest);
    int e = in_range(*sum) || largest == 0 ? 0 : ilogbf(largest);
    for (int i = 0; i < R::N; i++)
        x[i] = ldexpf(x[i], -e);
    *sum = sum_squares<R>(x);
    return e;
}

__device__ inline void count_replaced(const EncodeJob &job, uint32_t bad) {
    bad = __reduce_add_sync(~0u, bad);
    if (bad == 0 || threadIdx.x % 32 != 0)
        return;
    atomicAdd((unsigned long long *)&job.counts[0], (unsigned long long)(bad & 0xffffu));
    atomicAdd((unsigned long long *)&job.counts[1], (unsigned long long)(bad >> 16));
}

__device__ inline int64_t first_element(const RowsIn &rows, const RowPlace &p) {
    return p.row * rows.token_stride + (int64_t)p.head * rows.head_stride;
}

/* Of a row: sum of squares, and the exponent that has been taken out. */
struct RowNorm {
    float sum;
    int exponent;
};

/* Rows of a warp again, slowly: replaces what is not finite and counts it, brings the row into
 * range. Rare, for the whole warp. */
template <class R>
__device__ __noinline__ RowNorm sanitize(const EncodeJob &job, uint32_t side, RowPlace p,
                                         float *x) {
    const RowsIn &rows = job.rows[side];
    const Side &s = job.side[side];
    RowNorm norm = {0, 0};
    uint32_t bad = 0;
    for (int i = 0; i < R::N; i++) {
        int dim = ((i / 8) * R::L + (int)p.part) * 8 + i % 8;
        x[i] = 0;
        if (!p.fresh)
            continue;
        x[i] = replace_nonfinite(load_element(rows.data, rows.dtype, first_element(rows, p) + dim),
                                 rows.dtype, bad);
        if (s.mean)
            x[i] = subtract_mean(x[i], s.mean[(size_t)p.head * R::D + dim]);
    }
    count_replaced(job, bad);
    if (!s.rotates)
        return norm;
    norm.sum = sum_squares<R>(x);
    norm.exponent = bring_into_range<R>(x, &norm.sum);
    for (int i = 0; i < R::N; i++) {
        int dim = ((i / 8) * R::L + (int)p.part) * 8 + i % 8;
        x[i] = __uint_as_float(__float_as_uint(x[i]) ^ s.flips[dim]);
    }
    return norm;
}

/* Sanitizes a warp's rows when one of them needs it. */
template <class R>
TQI_ENCODE_INLINE RowNorm check_rows(const EncodeJob &job, uint32_t side, const RowPlace &p,
                                     float *x) {
    RowNorm norm = {0, 0};
    bool bad;
    if (job.side[side].rotates) { /* what is not finite shows in the sum */
        norm.sum = sum_squares<R>(x);
        bad = !in_range(norm.sum);
    } else {
        float nan[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < R::N; i++)
            nan[i % 4] = fmaf(x[i], 0.0f, nan[i % 4]);
        bad = (nan[0] + nan[1]) + (nan[2] + nan[3]) != 0;
    }
    if (!__any_sync(~0u, p.fresh && bad))
        return norm;
    float again[R::N]; /* so that x need not have an address */
    norm = sanitize<R>(job, side, p, again);
#pragma unroll
    for (int i = 0; i < R::N; i++)
        x[i] = again[i];
    return norm;
}

/* ---- rotation ---------------------------------------------------------------------------------
 */

/* The Paley part across a lane's 12 chunks (a block has as many chunks as a row has lanes). */
template <class R> TQI_ENCODE_INLINE void mix_blocks(float *x) {
    constexpr uint64_t rows[12] = TQI_H12_ROWS;
#pragma unroll
    for (int b = 0; b < 8; b++) {
        float line[12];
#pragma unroll
        for (int a = 0; a < 12; a++)
            line[a] = x[a * 8 + b];
#pragma unroll
        for (int row = 0; row < 12; row++) {
            float sum = rows[row] & 1 ? -line[0] : line[0];
#pragma unroll
            for (int a = 1; a < 12; a++)
                sum = rows[row] >> a & 1 ? sum - line[a] : sum + line[a];
            x[row * 8 + b] = sum;
        }
    }
}

TQI_ENCODE_INLINE void butterfly(float &a, float &b) {
    float sum = a + b, difference = a - b;
    a = sum;
    b = difference;
}

/* The Hadamard matrix on rows whose signs have been flipped. */
template <class R> TQI_ENCODE_INLINE void rotate_row(uint32_t part, float *x) {
#pragma unroll
    for (int h = 1; h < 8; h *= 2)
#pragma unroll
        for (int i = 0; i < R::N; i++)
            if (!(i & h))
                butterfly(x[i], x[i + h]);
#pragma unroll
    for (int h = 1; h < R::L; h *= 2) {
        float sign = part & h ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < R::N; i++) /* the product is exact */
            x[i] = fmaf(x[i], sign, __shfl_xor_sync(~0u, x[i], h));
    }
    if constexpr (R::ORDER == 1) {
#pragma unroll
        for (int h = 8; h < R::N; h *= 2)
#pragma unroll
            for (int i = 0; i < R::N; i++)
                if (!(i & h))
                    butterfly(x[i], x[i + h]);
    } else {
        mix_blocks<R>(x);
    }
}

} /* namespace tqi */

#endif
