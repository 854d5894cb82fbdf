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
#include "spec/hadamard_data.h"

namespace tqi {

#define TQI_ENCODE_INLINE __device__ __forceinline__

/* Head dim and lanes per row; dims that are no power of two are 12 blocks of 8 or 16. */
template <int DIM, int LANES> struct RowShape {
    static constexpr int D = DIM, L = LANES, N = DIM / LANES, CHUNKS = N / 8;
    static constexpr int ORDER = DIM % 3 == 0 ? 12 : 1, BLOCK = DIM / ORDER;
    static constexpr int ROWS = 32 / LANES; /* of a warp at a time */
    /* chunks of a lane that change hands at once, and floats from row to row meanwhile: an odd
     * number of 16-byte words, so that lanes side by side meet no bank twice */
    static constexpr int PASS = ORDER == 1 && CHUNKS > 4 ? 4 : CHUNKS, PITCH = L * PASS * 8 + 4;
    static_assert(N % 8 == 0 && (ORDER == 1 ? CHUNKS == 1 || PASS % L == 0 : N % BLOCK == 0),
                  "lanes load whole chunks and blocks");
};

/* An instruction whose operands lie in registers of the same parity takes two cycles, and loads of
 * 16 bytes decide the parity. So sign bits lie in shared memory such that they meet elements of a
 * row in registers of the other parity .. */
TQI_ENCODE_INLINE constexpr int flip_place(int dim) {
    return (dim & ~3) | (((dim << 1 & 2) | (dim >> 1 & 1)) ^ 1);
}

/* .. and chunks of every other lane reach the exchange with neighbours swapped, if their second has
 * its sign flipped: the first additions of a lane then trade places. */
template <class R> TQI_ENCODE_INLINE constexpr bool swaps_neighbours(uint32_t part) {
    return R::ORDER == 1 && R::CHUNKS > 1 && part % 2 == 1;
}
template <class R> TQI_ENCODE_INLINE constexpr uint32_t swap_bit(uint32_t dim) {
    return swaps_neighbours<R>(dim / R::N) && dim % 2 == 1 ? 0x80000000u : 0;
}

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
        int dim = (int)p.part * R::N + i;
        x[i] = 0;
        if (!p.fresh)
            continue;
        x[i] = replace_nonfinite(load_element(rows.data, rows.dtype, first_element(rows, p) + dim),
                                 rows.dtype, bad);
        if (s.mean)
            x[i] = subtract_mean(x[i], s.mean[(size_t)p.head * R::D + dim]);
    }
    count_replaced(job, bad);
    norm.sum = sum_squares<R>(x);
    norm.exponent = bring_into_range<R>(x, &norm.sum);
    for (int i = 0; i < R::N; i++) {
        const uint32_t dim = p.part * R::N + i;
        x[i] = __uint_as_float(__float_as_uint(x[i]) ^ s.flips[dim] ^ swap_bit<R>(dim));
    }
    return norm;
}

/* Sanitizes a warp's rows when one of them needs it: what is not finite shows in the sum. */
template <class R>
TQI_ENCODE_INLINE RowNorm check_rows(const EncodeJob &job, uint32_t side, const RowPlace &p,
                                     float *x) {
    RowNorm norm = {sum_squares<R>(x), 0};
    if (!__any_sync(~0u, p.fresh && !in_range(norm.sum)))
        return norm;
    float again[R::N]; /* so that x need not have an address */
    norm = sanitize<R>(job, side, p, again);
    const volatile float *from = again; /* loads of several would tie registers together */
#pragma unroll
    for (int i = 0; i < R::N; i++)
        x[i] = from[i];
    return norm;
}

/* ---- rotation ---------------------------------------------------------------------------------
 */

TQI_ENCODE_INLINE void butterfly(float &a, float &b) {
    float sum = a + b, difference = a - b;
    a = sum;
    b = difference;
}

/* The Paley part of a row in shared memory: a lane takes the same places of all 12 blocks, two
 * at a time. */
template <class R> TQI_ENCODE_INLINE void mix_blocks(uint32_t part, float *row) {
    constexpr uint64_t rows[12] = TQI_H12_ROWS;
    row += 2 * part;
#pragma unroll 1
    for (int place = 0; place < R::BLOCK; place += 2 * R::L, row += 2 * R::L) {
        float2 in[12];
#pragma unroll
        for (int a = 0; a < 12; a++)
            in[a] = *(const float2 *)(row + a * R::BLOCK);
#pragma unroll
        for (int k = 0; k < 12; k++) {
            float x = rows[k] & 1 ? -in[0].x : in[0].x, y = rows[k] & 1 ? -in[0].y : in[0].y;
#pragma unroll
            for (int a = 1; a < 12; a++) {
                x = rows[k] >> a & 1 ? x - in[a].x : x + in[a].x;
                y = rows[k] >> a & 1 ? y - in[a].y : y + in[a].y;
            }
            *(float2 *)(row + k * R::BLOCK) = make_float2(x, y);
        }
    }
}

/* Neighbouring dims of a lane for its chunks, by way of the warp's rows in shared memory. */
template <class R> TQI_ENCODE_INLINE void exchange(float *room, uint32_t part, float *x) {
    float *row = room + row_of_lane<R>() * R::PITCH, in[R::N];
#pragma unroll
    for (int first = 0; first < R::CHUNKS; first += R::PASS) {
        if (first)
            __syncwarp();
#pragma unroll
        for (int i = 0; i < R::PASS * 2; i++) {
            const float *v = x + 8 * first + 4 * i;
            *(float4 *)(row + part * R::PASS * 8 + 4 * i) = make_float4(v[0], v[1], v[2], v[3]);
        }
        __syncwarp();
        if constexpr (R::ORDER > 1) {
            mix_blocks<R>(part, row);
            __syncwarp();
        }
#pragma unroll
        for (int k = 0; k < R::PASS; k++) { /* the pass has chunk k L + part of all lanes' */
            constexpr int PER_LANE = R::ORDER > 1 ? R::CHUNKS : R::PASS / R::L;
            int c =
                R::ORDER > 1 ? k : k / PER_LANE * (R::CHUNKS / R::L) + first / R::L + k % PER_LANE;
            const float4 *from = (const float4 *)(row + (k * R::L + part) * 8);
            float4 low = from[0], high = from[1];
            float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            const bool swapped = swaps_neighbours<R>(k * R::L / R::PASS); /* by the lane it is of */
#pragma unroll
            for (int i = 0; i < 8; i++)
                in[8 * c + i] = v[swapped ? i ^ 1 : i];
        }
    }
#pragma unroll
    for (int i = 0; i < R::N; i++)
        x[i] = in[i];
}

/* A chunk a lane: strides between lanes are shuffles. */
template <class R> TQI_ENCODE_INLINE void rotate_shuffled(uint32_t part, float *x) {
#pragma unroll
    for (int h = 1; h < R::L; h *= 2) {
        float sign = part & h ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < R::N; i++) /* the product is exact */
            x[i] = fmaf(x[i], sign, __shfl_xor_sync(~0u, x[i], h * R::ROWS));
    }
}

/* The Hadamard matrix on rows whose signs have been flipped. */
template <class R> TQI_ENCODE_INLINE void rotate_row(float *room, uint32_t part, float *x) {
    constexpr int IN_LANE = R::ORDER == 1 ? R::N : R::BLOCK;
#pragma unroll
    for (int h = 1; h < IN_LANE; h *= 2)
#pragma unroll
        for (int i = 0; i < R::N; i++)
            if (!(i & h))
                butterfly(x[i], x[i + h]);
    if constexpr (R::CHUNKS == 1) {
        rotate_shuffled<R>(part, x);
    } else {
        exchange<R>(room, part, x);
#pragma unroll
        for (int h = R::N / R::L; R::ORDER == 1 && h < R::N; h *= 2)
#pragma unroll
            for (int i = 0; i < R::N; i++)
                if (!(i & h))
                    butterfly(x[i], x[i + h]);
    }
}

} /* namespace tqi */

#endif
