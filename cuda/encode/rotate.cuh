/*
 * Rotation of rows in registers (row.cuh): strides inside a lane are additions, those between lanes
 * trade numbers, or go through shared memory where dims are no power of two. Rows that need care
 * are loaded again and rotated by slow functions; the same bits, signs of zeros included.
 */
#ifndef TQI_CUDA_ENCODE_ROTATE_CUH
#define TQI_CUDA_ENCODE_ROTATE_CUH

#include "encode/row.cuh"
#include "spec/hadamard_data.h"

namespace tqi {

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

/* The strides between the blocks of a lane and of others, by way of the warp's rows in shared
 * memory; neighbouring dims of a lane for its chunks. */
template <class R> TQI_ENCODE_INLINE void mix_rows(float *room, uint32_t part, float *x) {
    float *row = room + row_of_lane<R>() * R::PITCH;
#pragma unroll
    for (int i = 0; i < R::N / 4; i++) {
        const float *v = x + 4 * i;
        *(float4 *)(row + part * R::N + 4 * i) = make_float4(v[0], v[1], v[2], v[3]);
    }
    __syncwarp();
    mix_blocks<R>(part, row);
    __syncwarp();
#pragma unroll
    for (int c = 0; c < R::CHUNKS; c++) {
        const float4 *from = (const float4 *)(row + (c * R::L + part) * 8);
        float4 low = from[0], high = from[1];
        const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[8 * c + i] = v[i];
    }
}

/* The strides between lanes: of each pair of numbers a lane sends one and keeps one, so that it has
 * all operands of half of the additions of both. What is left is a lane's chunks. */
template <class R> TQI_ENCODE_INLINE void trade_rows(float *x) {
    float in[R::N];
#pragma unroll
    for (int lane = 1; lane < R::L; lane *= 2)
#pragma unroll
        for (int i = 0; i < R::N; i++)
            if (!(i & 8 * lane)) {
                float theirs = __shfl_xor_sync(~0u, x[i + 8 * lane], lane * R::ROWS);
                x[i + 8 * lane] = x[i] - theirs;
                x[i] += theirs;
            }
#pragma unroll
    for (int i = 0; i < R::N; i++)
        in[i] = x[i];
#pragma unroll
    for (int k = 0; k < R::CHUNKS; k++) /* bits of the lane are the highest of a dim now */
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[(k / R::L + k % R::L * (R::CHUNKS / R::L)) * 8 + i] = in[8 * k + i];
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

/* A sum is -0 only if both operands are zeros, the first of them negative. So no number of a lane
 * is -0 behind its additions if the first was not -0 before, and none of the row if its first was
 * not, whatever zeros the others were. Where signs are mended, then, coordinates that are zero have
 * to be positive: this is added to the product of a coordinate and the factor of its chunk. */
template <class R> TQI_ENCODE_INLINE constexpr float no_zero() {
    return trades<R>() ? 0.0f : -0.0f;
}

/* Whether a row may have coordinates that are -0, said by the lane that has its beginning: the
 * first four numbers add to zeros then. */
template <class R> TQI_ENCODE_INLINE bool has_negative_zeros(uint32_t part, const float *x) {
    const bool at_first = (part == 0) & (__float_as_uint(x[0]) == 0x80000000u); /* no branches */
    return trades<R>() && (at_first & (x[1] == 0) & (fabsf(x[2]) == fabsf(x[3])));
}

/* The Hadamard matrix on rows whose signs have been flipped; chunk_sign() is left. */
template <class R> TQI_ENCODE_INLINE void rotate_row(float *room, uint32_t part, float *x) {
    constexpr int IN_LANE = R::ORDER == 1 ? R::N : R::BLOCK;
    if (trades<R>())
        x[0] += 0.0f; /* not -0 */
#pragma unroll
    for (int h = 1; h < IN_LANE; h *= 2)
#pragma unroll
        for (int i = 0; i < R::N; i++)
            if (!(i & h))
                butterfly(x[i], x[i + h]);
    if constexpr (R::CHUNKS == 1)
        rotate_shuffled<R>(part, x);
    else if constexpr (R::ORDER > 1)
        mix_rows<R>(room, part, x);
    else
        trade_rows<R>(x);
}

/* The Hadamard matrix without trading numbers, so that zeros keep their signs; chunk_sign() is put
 * in. */
template <class R> __device__ void rotate_slowly(uint32_t part, float *x) {
    float all[R::N];
    for (int i = 0; i < R::N; i++)
        all[i] = x[i];
    for (int h = 1; h < R::N; h *= 2)
        for (int i = 0; i < R::N; i++)
            if (!(i & h))
                butterfly(all[i], all[i + h]);
    for (int lane = 1; lane < R::L; lane *= 2)
        for (int i = 0; i < R::N; i++) {
            float theirs = __shfl_xor_sync(~0u, all[i], lane * R::ROWS);
            all[i] = part & lane ? theirs - all[i] : all[i] + theirs;
        }
    for (int c = 0; c < R::CHUNKS; c++) {
        const uint32_t chunk = c * R::L + part; /* of the row: is another lane's */
        const int lane = (int)(chunk / R::CHUNKS * R::ROWS + row_of_lane<R>());
        for (int i = 0; i < R::N; i++) {
            uint32_t theirs = __shfl_sync(~0u, __float_as_uint(all[i]), lane);
            if (i / 8 == (int)(chunk % R::CHUNKS))
                x[8 * c + i % 8] = __uint_as_float(theirs ^ chunk_sign<R>(c, part));
        }
    }
}

/* Rows of a warp again, slowly: replaces what is not finite and counts it, brings the row into
 * range; rotates them if zeros of one may be negative. Rare, for the whole warp. */
template <class R>
__device__ __noinline__ RowNorm sanitize(const EncodeJob &job, uint32_t side, RowPlace p,
                                         float *x) {
    const RowsIn &rows = job.rows[side];
    const Side &s = job.side[side];
    RowNorm norm = {0, 0, false};
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
    for (int i = 0; i < R::N; i++)
        x[i] = __uint_as_float(__float_as_uint(x[i]) ^ s.flips[p.part * R::N + i]);
    norm.is_rotated = __any_sync(~0u, p.fresh && has_negative_zeros<R>(p.part, x));
    if (norm.is_rotated)
        rotate_slowly<R>(p.part, x);
    else
        for (int i = 0; i < R::N; i++)
            x[i] = __uint_as_float(__float_as_uint(x[i]) ^ swap_bit<R>(p.part * R::N + i));
    return norm;
}

/* Rotates a warp's rows; slowly when one of them needs it: what is not finite shows in the sum.
 * zero: see no_zero(). */
template <class R>
TQI_ENCODE_INLINE RowNorm rotate_checked(const EncodeJob &job, uint32_t side, const RowPlace &p,
                                         float *room, float *x, float *zero) {
    RowNorm norm = {sum_squares<R>(x), 0, false};
    const bool odd = !in_range(norm.sum) || has_negative_zeros<R>(p.part, x);
    *zero = no_zero<R>();
    if (!__any_sync(~0u, p.fresh && odd)) {
        rotate_row<R>(room, p.part, x);
        return norm;
    }
    /* so that x need not have an address; arrays of one size would share their place, and x with it
     */
    float again[R::N + 1];
    norm = sanitize<R>(job, side, p, again);
    const volatile float *from = again; /* loads of several would tie registers together */
#pragma unroll
    for (int i = 0; i < R::N; i++)
        x[i] = from[i];
    if (norm.is_rotated)
        *zero = -0.0f;
    else
        rotate_row<R>(room, p.part, x);
    return norm;
}

} /* namespace tqi */

#endif
