/*
 * A query row to what the stream kernels read: rotated, and for the tensor cores as B operands,
 * 16-bit fixed point in two bytes against the row's largest magnitude (integer keys) or a pair
 * of 16-bit floats or three e4m3 (e4m3.cuh) against a power of two, which keeps 16-bit queries
 * exact. The softmax scale
 * goes into the unit, but its sign into the row, as units are positive.
 */
#ifndef TQI_CUDA_ATTEND_PREPARE_ROW_CUH
#define TQI_CUDA_ATTEND_PREPARE_ROW_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attend/e4m3.cuh"
#include "attend/fast_job.h"
#include "attend/row_group.cuh"
#include "attend/row_index.cuh"
#include "common/rows.cuh"

namespace tqi {

#define TQI_LOG2E 1.4426950408889634f
/* The high byte of the largest integer is 127. */
#define TQI_LARGEST_INTEGER 32512.0f

/* The row; returns scale * q.mean. Rows are not sanitised: what is not finite must show. */
template <class Row>
__device__ __forceinline__ float load_row(const AttendJob &job, const RowPlace &p, bool in,
                                          Row &row) {
    const float *mean = job.k.mean;
    int64_t at = in ? row_start(job.q, p) : 0;
    float dot = 0;
    row.each([&](uint32_t first, float *x) {
        x[0] = x[1] = x[2] = x[3] = 0;
        if (in)
            load_quad(job.q, job.aligned, at + first, x);
        if (mean && in)
            for (int i = 0; i < 4; i++)
                dot += x[i] * mean[(size_t)p.kv_head * job.k.layout.dim + first + i];
    });
    return mean ? (float)((double)group_sum<Row::LANES>(dot) * job.scale) : 0;
}

__device__ __forceinline__ void store_shift(const AttendJob &job, const RowPlace &p, float shift) {
    job.shift[(size_t)p.item * job.item_rows + p.in_item] = shift;
}

/* ---- operands of the tensor cores ----------------------------------------------------------- */

__device__ inline uint32_t float_bits16(float v, bool bf16) {
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(v))
                : __half_as_ushort(__float2half_rn(v));
}

/* Two elements as high and low 16-bit floats. */
__device__ inline uint2 float_words(float a, float b, bool bf16) {
    uint32_t high[2] = {float_bits16(a, bf16), float_bits16(b, bf16)}, low[2];
    const float v[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        float rest = v[i] - (bf16 ? bf16_bits((uint16_t)high[i]) : f16_bits((uint16_t)high[i]));
        low[i] = float_bits16(rest, bf16);
    }
    return make_uint2(high[0] | high[1] << 16, low[0] | low[1] << 16);
}

/* Four integers as high and low bytes. */
__device__ inline uint2 integer_words(const int v[4]) {
    uint32_t high = 0, low = 0;
    for (int b = 0; b < 4; b++) {
        int h = (v[b] + 128) >> 8;
        high |= (uint32_t)(h & 255) << 8 * b;
        low |= (uint32_t)((v[b] - h * 256) & 255) << 8 * b;
    }
    return make_uint2(high, low);
}

/* Columns 2 h and 2 h + 1 of a row hold its high and low parts; the former's word `word` of lane t
 * of its quarter of the dims, the latter's is four words behind. */
template <class Job>
__device__ inline uint32_t *words_at(const Job &job, const RowPlace &p, uint32_t t, uint32_t word) {
    uint32_t nt = p.in_item / 4, lane = 8 * (p.in_item % 4) + t;
    size_t at =
        ((size_t)p.item * (job.call.item_rows / 4) + nt) * fragment_words(job.call.k) + word;
    return job.fragments + at * 32 + lane;
}

template <class Job>
__device__ inline void store_words(const Job &job, const RowPlace &p, uint32_t t, uint32_t word,
                                   uint2 high_low) {
    uint32_t *at = words_at(job, p, t, word);
    at[0] = high_low.x;
    at[4] = high_low.y;
}

/* The largest magnitude; NaN when an element is not finite. */
template <class Row> __device__ __forceinline__ float largest_of_row(Row &row) {
    float largest = 0, bad = 0;
    row.each([&](uint32_t, float *x) {
        for (int i = 0; i < 4; i++) {
            largest = fmaxf(largest, fabsf(x[i]));
            bad += x[i] - x[i]; /* 0, NaN for what is not finite */
        }
    });
    if constexpr (Row::LANES == 32) { /* magnitudes are ordered as their bits are */
        float most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest)));
        return __any_sync(~0u, bad != 0) ? NAN : most;
    }
    return group_max<Row::LANES>(largest) + group_sum<Row::LANES>(bad);
}

/* Stores the row's words; returns half the sum of its integers. */
template <class Job, class Row>
__device__ __forceinline__ int store_integers(const Job &job, const RowPlace &p, bool in,
                                              float largest, Row &row) {
    float inv = largest > 0 ? TQI_LARGEST_INTEGER / largest : 0;
    int sum = 0;
    row.each([&](uint32_t first, float *x) {
        int v[4];
        for (int i = 0; i < 4; i++) {
            v[i] = largest > 0 ? __float2int_rn(x[i] * inv) : 0;
            sum += v[i];
        }
        uint32_t quarter = job.call.k.layout.dim / 4;
        if (in)
            store_words(job, p, first / quarter, first % quarter / 4, integer_words(v));
    });
    if constexpr (Row::LANES == 32)
        return __float2int_rn(0.5f * (float)__reduce_add_sync(~0u, sum));
    return __float2int_rn(0.5f * (float)group_sum<Row::LANES>(sum));
}

/* The projection of the row, as integers times the powers of two that sketch.cuh leaves in signs;
 * returns half the sum of the products. */
template <class Job, class Row>
__device__ __forceinline__ float store_projection(const Job &job, const RowPlace &p, bool in,
                                                  float largest, Row &row) {
    uint32_t dim = job.call.k.layout.dim, words = query_words(job.call.k);
    float inv = largest > 0 ? TQI_LARGEST_INTEGER / largest : 0, sum = 0;
    row.each([&](uint32_t first, float *x) {
        for (uint32_t i = 0; i < 4; i++) {
            tqi_sketch_place place = tqi_sketch_place_of(dim, first + i);
            float power = (float)(1u << place.power);
            int v = largest > 0 ? __float2int_rn(x[i] * (inv / power)) : 0, high = (v + 128) >> 8;
            sum += (float)v * power;
            uint8_t *at = (uint8_t *)words_at(job, p, place.t, words + place.word) + place.byte;
            if (in) {
                at[0] = (uint8_t)high;
                at[16] = (uint8_t)(v - high * 256);
            }
        }
    });
    return 0.5f * group_sum<Row::LANES>(sum);
}

/* The same for float keys; e: the exponent of the largest magnitude. */
template <class Job, class Row>
__device__ __forceinline__ void store_floats(const Job &job, const RowPlace &p, bool in, int e,
                                             Row &row) {
    uint32_t dim = job.call.k.layout.dim;
    bool bf16 = job.call.k.format == TQ_FORMAT_BF16;
    bool polar =
        job.call.k.layout.kind == TQI_KIND_POLAR; /* whole blocks of 16 to a lane in turn */
    row.each([&](uint32_t first, float *x) {
        uint32_t t = polar ? first / 16 % 4 : first / (dim / 4);
        uint32_t word = polar ? first / 64 * 8 + first % 16 / 2 : first % (dim / 4) / 2;
        for (int i = 0; i < 4; i++)
            x[i] = ldexpf(x[i], -e);
        if (in) {
            store_words(job, p, t, word, float_words(x[0], x[1], bf16));
            store_words(job, p, t, word + 1, float_words(x[2], x[3], bf16));
        }
    });
}

/* The same as planes of e4m3; the row's largest magnitude becomes one of [128, 256). */
template <class Job, class Row>
__device__ __forceinline__ void store_planes(const Job &job, const RowPlace &p, bool in, int e,
                                             Row &row) {
    uint32_t dim = job.call.k.layout.dim, words = dim / 16, rows = job.call.item_rows;
    uint32_t nt = p.in_item / 4, column = 8 * (p.in_item % 4);
    size_t first_block = (size_t)p.item * query_blocks(rows / 4);
    row.each([&](uint32_t first, float *x) {
        uint32_t t = first / (dim / 4), word = (first - t * (dim / 4)) / 4, plane[3];
        for (int i = 0; i < 4; i++)
            x[i] = ldexpf(x[i], 7 - e);
        query_planes(x, plane);
        if (!in)
            return;
        uint32_t *block = job.fragments + ((first_block + nt) * words + word) * 32;
        uint32_t *third = job.fragments + ((first_block + rows / 4 + nt / 2) * words + word) * 32;
        block[column + t] = plane[0];
        block[column + 4 + t] = plane[1];
        third[column + nt % 2 * 4 + t] = plane[2];
    });
}

/* The sketch's part; largest: what LARGEST_INTEGER stands for in what was stored of the row. The
 * factor of the sketch is in that unit. */
template <class Job, class Row>
__device__ __forceinline__ void to_projection(const Job &job, const RowPlace &p, bool in,
                                              float largest, Row &row) {
    const Side &s = job.call.k;
    row.project_row(s);
    float most = largest_of_row(row), half = store_projection(job, p, in, most, row);
    float unit = 2 * (float)s.sketch_unit / ((float)s.layout.dim * job.k_step);
    if (in && row.lane == 0)
        job.q_sketch[(size_t)p.item * job.call.item_rows + p.in_item] =
            make_float2(largest > 0 ? unit * (most / largest) : 0, half);
}

template <class Job, class Row>
__device__ __forceinline__ void to_operands(const Job &job, const RowPlace &p, bool in, Row &row) {
    const AttendJob &call = job.call;
    const Side &s = call.k;
    float norm = s.rotates ? 1 / sqrtf((float)s.layout.dim) : 1;
    float unit = fabsf((float)call.scale) * TQI_LOG2E * job.k_step * norm;
    int half = 0;
    if (call.scale < 0)
        row.each([&](uint32_t, float *x) {
            for (int i = 0; i < 4; i++)
                x[i] = -x[i];
        });
    float largest = largest_of_row(row);
    if (has_integer_query(s)) {
        half = store_integers(job, p, in, largest, row);
        unit *= largest / TQI_LARGEST_INTEGER;
    } else {
        int e = largest > 0 ? ilogbf(largest) : 0;
        if (job.planes)
            store_planes(job, p, in, e, row);
        else
            store_floats(job, p, in, e, row);
        unit = ldexpf(unit, job.planes ? e - 7 : e) + (largest - largest); /* NaN stays */
        unit *= s.layout.kind == TQI_KIND_FP8 ? s.scale[p.kv_head] : 1;
        largest = largest > 0 ? TQI_LARGEST_INTEGER : 0; /* the row was divided by 2^e */
    }
    if (in && row.lane == 0) {
        size_t at = (size_t)p.item * call.item_rows + p.in_item;
        job.q_scale[at] = unit;
        job.q_half[at] = half;
    }
    if (s.sketch_flips)
        to_projection(job, p, in, largest, row);
}

} /* namespace tqi */

#endif
