/*
 * Query rows to what the stream kernels read: rotated, and for the tensor cores as B operands,
 * 16-bit fixed point in two bytes against the row's largest magnitude (integer keys) or a pair
 * of 16-bit floats against a power of two, which keeps 16-bit queries exact. The softmax scale
 * goes into the unit, but its sign into the row, as units are positive. A group of lanes per
 * row.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attend/fast_job.h"
#include "attend/instructions.cuh"
#include "attend/row_group.cuh"
#include "attend/row_index.cuh"
#include "common/rows.cuh"

namespace tqi {
namespace {

#define LOG2E 1.4426950408889634f
/* The high byte of the largest integer is 127. */
#define LARGEST_INTEGER 32512.0f

/* Four elements of a row as they are. */
__device__ __forceinline__ void load_quad(const RowsIn &q, bool aligned, int64_t at, float x[4]) {
    if (!aligned) {
        for (int i = 0; i < 4; i++)
            x[i] = load_element(q.data, q.dtype, at + i);
    } else if (q.dtype == TQ_F32) {
        float4 v = *(const float4 *)((const float *)q.data + at);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        uint2 v = *(const uint2 *)((const uint16_t *)q.data + at);
        bool half = q.dtype == TQ_F16;
        x[0] = half ? f16_bits((uint16_t)v.x) : bf16_bits((uint16_t)v.x);
        x[1] = half ? f16_bits((uint16_t)(v.x >> 16)) : bf16_bits((uint16_t)(v.x >> 16));
        x[2] = half ? f16_bits((uint16_t)v.y) : bf16_bits((uint16_t)v.y);
        x[3] = half ? f16_bits((uint16_t)(v.y >> 16)) : bf16_bits((uint16_t)(v.y >> 16));
    }
}

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

/* ---- operands of the tensor cores ----------------------------------------------------------- */

__device__ uint32_t float_bits16(float v, bool bf16) {
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(v))
                : __half_as_ushort(__float2half_rn(v));
}

/* Two elements as high and low 16-bit floats. */
__device__ uint2 float_words(float a, float b, bool bf16) {
    uint32_t high[2] = {float_bits16(a, bf16), float_bits16(b, bf16)}, low[2];
    const float v[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        float rest = v[i] - (bf16 ? bf16_bits((uint16_t)high[i]) : f16_bits((uint16_t)high[i]));
        low[i] = float_bits16(rest, bf16);
    }
    return make_uint2(high[0] | high[1] << 16, low[0] | low[1] << 16);
}

/* Four integers as high and low bytes. */
__device__ uint2 integer_words(const int v[4]) {
    uint32_t high = 0, low = 0;
    for (int b = 0; b < 4; b++) {
        int h = (v[b] + 128) >> 8;
        high |= (uint32_t)(h & 255) << 8 * b;
        low |= (uint32_t)((v[b] - h * 256) & 255) << 8 * b;
    }
    return make_uint2(high, low);
}

/* Columns 2 h and 2 h + 1 of a row hold its high and low parts: word `word` of lane t of its
 * quarter of the dims. */
__device__ void store_words(const FastJob &job, const RowPlace &p, uint32_t words, uint32_t t,
                            uint32_t word, uint2 high_low) {
    uint32_t nt = p.in_item / 4, lane = 8 * (p.in_item % 4) + t;
    size_t at = ((size_t)p.item * (job.call.item_rows / 4) + nt) * words + word;
    job.fragments[at * 32 + lane] = high_low.x;
    job.fragments[at * 32 + lane + 4] = high_low.y;
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
    return group_max<Row::LANES>(largest) + group_sum<Row::LANES>(bad);
}

/* Stores the row's words; returns half the sum of its integers. */
template <class Row>
__device__ __forceinline__ int store_integers(const FastJob &job, const RowPlace &p, bool in,
                                              float largest, Row &row) {
    uint32_t dim = job.call.k.layout.dim, words = dim / 16;
    float inv = largest > 0 ? LARGEST_INTEGER / largest : 0;
    int sum = 0;
    row.each([&](uint32_t first, float *x) {
        int v[4];
        for (int i = 0; i < 4; i++) {
            v[i] = largest > 0 ? __float2int_rn(x[i] * inv) : 0;
            sum += v[i];
        }
        uint32_t t = first / (dim / 4);
        if (in)
            store_words(job, p, words, t, (first - t * (dim / 4)) / 4, integer_words(v));
    });
    return __float2int_rn(0.5f * (float)group_sum<Row::LANES>(sum));
}

/* The same for float keys; e: the exponent of the largest magnitude. */
template <class Row>
__device__ __forceinline__ void store_floats(const FastJob &job, const RowPlace &p, bool in, int e,
                                             Row &row) {
    uint32_t dim = job.call.k.layout.dim, words = dim / 8;
    bool bf16 = job.call.k.format == TQ_FORMAT_BF16;
    row.each([&](uint32_t first, float *x) {
        uint32_t t = first / (dim / 4), word = (first - t * (dim / 4)) / 2;
        for (int i = 0; i < 4; i++)
            x[i] = ldexpf(x[i], -e);
        if (in) {
            store_words(job, p, words, t, word, float_words(x[0], x[1], bf16));
            store_words(job, p, words, t, word + 1, float_words(x[2], x[3], bf16));
        }
    });
}

template <class Row>
__device__ __forceinline__ void to_operands(const FastJob &job, const RowPlace &p, bool in,
                                            float shift, Row &row) {
    const AttendJob &call = job.call;
    const Side &s = call.k;
    float norm = s.rotates ? 1 / sqrtf((float)s.layout.dim) : 1;
    float unit = fabsf((float)call.scale) * LOG2E * job.k_step * norm;
    int half = 0;
    if (call.scale < 0)
        row.each([&](uint32_t, float *x) {
            for (int i = 0; i < 4; i++)
                x[i] = -x[i];
        });
    float largest = largest_of_row(row);
    if (s.format >= TQ_FORMAT_INT8) {
        half = store_integers(job, p, in, largest, row);
        unit *= largest / LARGEST_INTEGER;
    } else {
        int e = largest > 0 ? ilogbf(largest) : 0;
        store_floats(job, p, in, e, row);
        unit = ldexpf(unit, e) + (largest - largest); /* NaN stays */
        unit *= s.layout.kind == TQI_KIND_FP8 ? s.scale[p.kv_head] : 1;
    }
    if (in && row.lane == 0) {
        size_t at = (size_t)p.item * call.item_rows + p.in_item;
        job.q_scale[at] = unit;
        job.q_half[at] = half;
        call.shift[at] = shift;
    }
}

/* ---- the kernels ------------------------------------------------------------------------------
 */

/* The row of this group of lanes, rotated. The plan was there before the kernel in front, or
 * is that kernel, and then let nobody in early. */
template <class Row>
__device__ __forceinline__ bool rotated_row(const AttendJob &job, uint32_t warps, RowPlace *p,
                                            float *shift, Row &row) {
    uint32_t index =
        (blockIdx.x * warps + threadIdx.x / 32) * (32 / Row::LANES) + threadIdx.x % 32 / Row::LANES;
    RowPlace place = {};
    bool in = find_row(job, index, &place);
    *p = place;
    wait_for_last_kernel();
    allow_next_kernel();
    *shift = load_row(job, place, in, row);
    if (job.k.rotates)
        row.rotate_row(job.k);
    return in;
}

template <class Row>
__global__ void __launch_bounds__(512)
    tqk_prepare_operands(const __grid_constant__ FastJob job, uint32_t row_bytes) {
    extern __shared__ float shared[];
    Row row(threadIdx.x % 32, job.call.k.layout.dim,
            (float *)((uint8_t *)shared + threadIdx.x / 32 * row_bytes));
    RowPlace p;
    float shift;
    bool in = rotated_row(job.call, blockDim.x / 32, &p, &shift, row);
    to_operands(job, p, in, shift, row);
}

/* Plain rows in binary32, for the generic path. */
template <class Row>
__global__ void __launch_bounds__(512)
    tqk_prepare_rows(const __grid_constant__ AttendJob job, uint32_t row_bytes) {
    extern __shared__ float shared[];
    uint32_t dim = job.k.layout.dim;
    Row row(threadIdx.x % 32, dim, (float *)((uint8_t *)shared + threadIdx.x / 32 * row_bytes));
    RowPlace p;
    float shift;
    if (!rotated_row(job, blockDim.x / 32, &p, &shift, row))
        return;
    size_t at = (size_t)p.item * job.item_rows + p.in_item;
    float norm = job.k.rotates ? 1 / sqrtf((float)dim) : 1;
    row.each([&](uint32_t first, float *x) {
        *(float4 *)(job.queries + at * dim + first) =
            make_float4(x[0] * norm, x[1] * norm, x[2] * norm, x[3] * norm);
    });
    if (row.lane == 0)
        job.shift[at] = shift;
}

/* A block's warps, and bytes of a row in shared memory. */
struct RowShape {
    uint32_t warps, row_bytes, rows_per_warp;
};

LaunchShape shape_of(const AttendJob &job, const RowShape &r, cudaStream_t stream) {
    uint64_t rows = (uint64_t)job.range.n_rows * job.n_heads * job.group;
    uint64_t per_block = r.warps * r.rows_per_warp;
    return LaunchShape{(rows + per_block - 1) / per_block, r.warps * 32, r.warps * r.row_bytes,
                       stream, job.overlap != 0};
}

template <class Row> tq_status run(const FastJob &job, RowShape r, cudaStream_t stream) {
    return launch(tqk_prepare_operands<Row>, shape_of(job.call, r, stream), "tqk_prepare_operands",
                  job, r.row_bytes);
}

} /* namespace */

bool code_overlaps() {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, tqk_prepare_operands<SharedRow>) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.ptxVersion >= 90; /* older code has no instruction for it */
}

/* Many warps of rows in registers to a block: few rows then leave most multiprocessors to the
 * kernel behind. */
tq_status prepare_operands(const FastJob &job, cudaStream_t stream) {
    uint32_t dim = job.call.k.layout.dim;
    if (job.call.k.rotates && job.call.k.order > 1)
        return run<SharedRow>(job, RowShape{4, 2 * dim * 4, 1}, stream);
    if (dim == 64)
        return run<RegisterRow<16, 4>>(job, RowShape{16, 0, 2}, stream);
    if (dim == 128)
        return run<RegisterRow<32, 4>>(job, RowShape{16, 0, 1}, stream);
    if (dim == 256)
        return run<RegisterRow<32, 8>>(job, RowShape{16, 0, 1}, stream);
    return run<SharedRow>(job, RowShape{4, 2 * dim * 4, 1}, stream);
}

tq_status prepare_rows(const AttendJob &job, cudaStream_t stream) {
    RowShape r = {4, 2 * job.k.layout.dim * 4, 1};
    return launch(tqk_prepare_rows<SharedRow>, shape_of(job, r, stream), "tqk_prepare_rows", job,
                  r.row_bytes);
}

} /* namespace tqi */
