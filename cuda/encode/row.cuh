/*
 * Rows in registers: L lanes share a row; those with the same part of their rows lie side by
 * side in the warp. A lane loads neighbouring dims: their strides, the smaller ones, are plain
 * additions. Through shared memory it gets chunks of 8 dims part, L + part, 2 L + part .. whose
 * strides are the others, and these it codes. The encode contract (spec/rows.h) on that form;
 * compiled without contraction, explicit fmaf only where a product is exact.
 */
#ifndef TQI_CUDA_ENCODE_ROW_CUH
#define TQI_CUDA_ENCODE_ROW_CUH

#include "common/rows.cuh"
#include "encode/encode_job.h"

namespace tqi {

#define TQI_ENCODE_INLINE __device__ __forceinline__

/* Head dim and lanes per row; dims that are no power of two are 12 blocks of 8 or 16. */
template <int DIM, int LANES> struct RowShape {
    static constexpr int D = DIM, L = LANES, N = DIM / LANES, CHUNKS = N / 8;
    static constexpr int ORDER = DIM % 3 == 0 ? 12 : 1, BLOCK = DIM / ORDER;
    static constexpr int ROWS = 32 / LANES; /* of a warp at a time */
    /* floats from row to row in shared memory: an odd number of 16-byte words, so that lanes side
     * by side meet no bank twice; dims that are a power of two are never there */
    static constexpr int PITCH = ORDER == 1 ? 0 : DIM + 4;
    static_assert(N % 8 == 0 && (ORDER == 1 ? CHUNKS == 1 || CHUNKS % L == 0 : N % BLOCK == 0),
                  "lanes load whole chunks and blocks");
};

/* An instruction whose operands lie in registers of the same parity takes two cycles, and loads of
 * 16 bytes decide the parity. So sign bits lie in shared memory such that they meet elements of a
 * row in registers of the other parity .. */
TQI_ENCODE_INLINE constexpr int flip_place(int dim) {
    return (dim & ~3) | (((dim << 1 & 2) | (dim >> 1 & 1)) ^ 1);
}

/* Whether the lanes of a row trade halves of their numbers for the strides between them. */
template <class R> TQI_ENCODE_INLINE constexpr bool trades() {
    return R::ORDER == 1 && R::CHUNKS > 1;
}

/* Parity of a number of a few bits, as a sign bit. */
TQI_ENCODE_INLINE constexpr uint32_t parity_sign(uint32_t bits) {
    return (bits ^ bits >> 1 ^ bits >> 2 ^ bits >> 3) << 31;
}

/* .. Where numbers are traded between lanes that differ in bit b of their part, a lane keeps the
 * chunks whose bit b is that of its part. It finds them in the same registers as every other lane,
 * since the additions of stride 8 << b trade places if the second number has its sign flipped. */
template <class R> TQI_ENCODE_INLINE constexpr uint32_t swap_bit(uint32_t dim) {
    return trades<R>() ? parity_sign(dim / R::N & dim / 8 & (R::L - 1)) : 0;
}

/* So differences of some lanes have the other sign: of a lane's chunk c behind rotate_row(). */
template <class R> TQI_ENCODE_INLINE constexpr uint32_t chunk_sign(uint32_t c, uint32_t part) {
    return trades<R>() ? parity_sign(c / (R::CHUNKS / R::L) & part) : 0;
}

/* A factor for each chunk of a lane that mends its sign as well. */
template <class R> struct ChunkScale {
    float of[R::CHUNKS];
    TQI_ENCODE_INLINE explicit ChunkScale(float scale, uint32_t part) {
#pragma unroll
        for (int c = 0; c < R::CHUNKS; c++)
            of[c] = __uint_as_float(__float_as_uint(scale) ^ chunk_sign<R>(c, part));
    }
};

template <class R> TQI_ENCODE_INLINE uint32_t row_of_lane() {
    return threadIdx.x % R::ROWS;
}

template <class R> TQI_ENCODE_INLINE uint32_t part_of_lane() {
    return threadIdx.x % 32 / R::ROWS;
}

/* What a lane knows of its row. */
struct RowPlace {
    int64_t row;   /* in the caller's rows */
    uint32_t part; /* lane of the row */
    uint32_t head;
    bool fresh; /* the row exists */
};

/* ---- sums over the lanes of a row ---------------------------------------------------------- */

template <class R, class T> TQI_ENCODE_INLINE T row_sum(T x) {
#pragma unroll
    for (int o = R::ROWS; o < 32; o *= 2)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

template <class R> TQI_ENCODE_INLINE float row_max(float x) {
#pragma unroll
    for (int o = R::ROWS; o < 32; o *= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* Sums of pairs until `n` numbers are left of COUNT. */
template <int COUNT> TQI_ENCODE_INLINE void fold(float *s, int n) {
#pragma unroll
    for (int m = COUNT / 2; m >= n && m > 0; m /= 2)
#pragma unroll
        for (int i = 0; i < m; i++)
            s[i] = s[2 * i] + s[2 * i + 1];
}

/* The full binary tree over the dims in natural order, of a row as it was loaded; zeros beyond
 * the last chunk add nothing. */
template <class R> TQI_ENCODE_INLINE float sum_squares(const float *x) {
    float s[R::CHUNKS];
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        const float *v = x + 8 * c;
        s[c] = ((v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3])) +
               ((v[4] * v[4] + v[5] * v[5]) + (v[6] * v[6] + v[7] * v[7]));
    }
    if constexpr (R::ORDER == 1) {
        fold<R::CHUNKS>(s, 1);
        return row_sum<R>(s[0]);
    } else { /* three sums a lane */
        static_assert(R::L == 4 && (R::CHUNKS == 3 || R::CHUNKS == 6), "12 sums of the row");
        float t[12];
        fold<R::CHUNKS>(s, 3);
#pragma unroll
        for (int i = 0; i < 12; i++)
            t[i] = __shfl_sync(~0u, s[i % 3], (int)(row_of_lane<R>() + i / 3 * R::ROWS));
        fold<8>(t, 1);
        fold<4>(t + 8, 1);
        return t[0] + t[8];
    }
}

/* ---- loading ------------------------------------------------------------------------------- */

/* One of the two elements of 16 bits in a word. */
template <int DTYPE> TQI_ENCODE_INLINE float element_of_pair(uint32_t w, int second) {
    if (DTYPE == TQ_F16)
        return f16_bits((uint16_t)(second ? w >> 16 : w));
    return __uint_as_float(second ? w & 0xffff0000u : w << 16);
}

/* Elements of a chunk as they lie in the row. */
template <int DTYPE> struct RawChunk {
    static constexpr int WORDS = DTYPE == TQ_F32 ? 8 : 4;
    uint32_t w[WORDS];
    TQI_ENCODE_INLINE float element(int i) const {
        if (DTYPE == TQ_F32)
            return __uint_as_float(w[i % WORDS]);
        return element_of_pair<DTYPE>(w[i / 2 % WORDS], i % 2);
    }
    TQI_ENCODE_INLINE void set_piece(int i, const uint4 &v) {
        w[4 * i] = v.x;
        w[4 * i + 1] = v.y;
        w[4 * i + 2] = v.z;
        w[4 * i + 3] = v.w;
    }
    /* x has the rows' type */
    TQI_ENCODE_INLINE void set(int i, float x) {
        if (DTYPE == TQ_F32) {
            w[i % WORDS] = __float_as_uint(x);
            return;
        }
        uint32_t &v = w[i / 2 % WORDS];
        uint32_t bits =
            DTYPE == TQ_F16 ? __half_as_ushort(__float2half_rn(x)) : __float_as_uint(x) >> 16;
        v = i % 2 ? (v & 0xffffu) | bits << 16 : (v & 0xffff0000u) | bits;
    }
};

template <int DTYPE> TQI_ENCODE_INLINE RawChunk<DTYPE> read_chunk(const void *from) {
    RawChunk<DTYPE> c;
#pragma unroll
    for (int i = 0; i < c.WORDS / 4; i++)
        c.set_piece(i, ((const uint4 *)from)[i]);
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

/* Chunk to coordinates: means subtracted, signs flipped. Means that make an infinity show in
 * the sum of squares and are repaired by sanitize(). */
template <int DTYPE, bool PLAIN>
TQI_ENCODE_INLINE void flip_chunk(const RawChunk<DTYPE> &c, const uint32_t *flips,
                                  const float *mean, int dim, float *x) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t flip = flips[dim + flip_place(i)];
        if (PLAIN && DTYPE == TQ_BF16 && i % 2 == 0) { /* shift and flip in one addition */
            x[i] = __uint_as_float((c.w[i / 2] << 16) + flip);
            continue;
        }
        float v = c.element(i);
        if (!PLAIN && mean)
            v -= __ldg(mean + dim + i);
        x[i] = __uint_as_float(__float_as_uint(v) ^ flip);
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
    largest = row_max<R>(largest);
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
    bool is_rotated;
};

/* ---- additions ----------------------------------------------------------------------------- */

TQI_ENCODE_INLINE void butterfly(float &a, float &b) {
    float sum = a + b, difference = a - b;
    a = sum;
    b = difference;
}

} /* namespace tqi */

#endif
