/*
 * Query rows to B operands of the fast path: rotated, as 16-bit fixed point in two bytes
 * against the row's largest magnitude (integer keys), or as a pair of 16-bit floats against a
 * power of two, which keeps 16-bit queries exact. The softmax scale goes into the unit, but
 * its sign into the row, as units are positive. A block per row of every item; rows beyond the
 * last are zeros.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attend/fast_job.h"
#include "attend/instructions.cuh"
#include "attend/row_index.cuh"
#include "common/rotate.cuh"
#include "common/rows.cuh"

namespace tqi {
namespace {

enum { THREADS = 128, WARPS = THREADS / 32 };
#define LOG2E 1.4426950408889634f
/* The high byte of the largest integer is 127. */
#define LARGEST_INTEGER 32512.0f

/* A word of a lane: columns 2 h and 2 h + 1 of a row hold its high and low parts. */
struct WordPlace {
    uint32_t low;   /* 1: low part */
    uint32_t first; /* dim */
    size_t at;      /* in the fragments */
};

__device__ WordPlace place_of(const FastJob &job, uint32_t item, uint32_t head, uint32_t i,
                              uint32_t words, uint32_t dims) {
    uint32_t word = i % words, t = i / words % 4, low = i / words / 4;
    uint32_t lane = 4 * (2 * (head % 4) + low) + t, nt = head / 4;
    WordPlace p;
    p.low = low;
    p.first = job.call.k.layout.dim / 4 * t + word * dims;
    p.at = (((size_t)item * (job.heads_per_item / 4) + nt) * words + word) * 32 + lane;
    return p;
}

__device__ uint32_t integer_word(const int *x, const WordPlace &p) {
    uint32_t word = 0;
    for (uint32_t b = 0; b < 4; b++) {
        int v = x[p.first + b], high = (v + 128) >> 8;
        word |= (uint32_t)((p.low ? v - high * 256 : high) & 255) << 8 * b;
    }
    return word;
}

__device__ uint32_t float_bits16(float v, bool bf16) {
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(v))
                : __half_as_ushort(__float2half_rn(v));
}

__device__ uint32_t float_word(const float *x, const WordPlace &p, bool bf16) {
    uint32_t word = 0;
    for (uint32_t b = 0; b < 2; b++) {
        float v = x[p.first + b];
        uint32_t high = float_bits16(v, bf16);
        float rest = v - (bf16 ? bf16_bits((uint16_t)high) : f16_bits((uint16_t)high));
        word |= (p.low ? float_bits16(rest, bf16) : high) << 16 * b;
    }
    return word;
}

/* The row times the sign of the scale in shared memory; returns scale * q.mean. */
__device__ float load_query_row(const FastJob &job, uint32_t kv_head, uint32_t row, float *x,
                                float *room) {
    const AttendJob &call = job.call;
    const Side &s = call.k;
    uint32_t dim = s.layout.dim;
    int64_t at = row < call.rows ? row_start(call, call.q, kv_head, row) : 0;
    float dot = 0;
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        float v = row < call.rows ? load_element(call.q.data, call.q.dtype, at + i) : 0;
        dot += s.mean ? v * s.mean[(size_t)kv_head * dim + i] : 0;
        x[i] = call.scale < 0 ? -v : v;
    }
    return s.mean ? block_reduce<WARPS>(dot, room, Add<float>()) * (float)call.scale : 0;
}

/* The largest magnitude; NaN when an element is not finite. */
__device__ float largest_of_row(const float *x, uint32_t dim, float *room) {
    float largest = 0, bad = 0;
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        largest = fmaxf(largest, fabsf(x[i]));
        bad += x[i] - x[i]; /* 0, NaN for what is not finite */
    }
    bad = block_reduce<WARPS>(bad, room, Add<float>());
    return block_reduce<WARPS>(largest, room, Larger()) + bad;
}

/* Row to integers in place; returns half their sum. */
__device__ int to_integers(float *x, uint32_t dim, float largest, int *room) {
    float inv = largest > 0 ? LARGEST_INTEGER / largest : 0;
    int sum = 0;
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        int v = largest > 0 ? __float2int_rn(x[i] * inv) : 0;
        ((int *)x)[i] = v;
        sum += v;
    }
    sum = block_reduce<WARPS>(sum, room, Add<int>());
    return __float2int_rn(0.5f * (float)sum);
}

/* Block index: (kv head, item of the head, row of the item). */
__global__ void __launch_bounds__(THREADS)
    tqk_prepare_queries(const __grid_constant__ FastJob job, const __grid_constant__ PageIds ids,
                        uint32_t n_ids) {
    extern __shared__ float shared[];
    const Side &s = job.call.k;
    uint32_t dim = s.layout.dim, item = blockIdx.x / job.heads_per_item;
    uint32_t head = blockIdx.x % job.heads_per_item, kv_head = item / job.items_per_head;
    uint32_t row = item % job.items_per_head * job.heads_per_item + head;
    float *x = shared + WARPS, *room = x + dim;
    allow_next_kernel();
    wait_for_last_kernel();
    if (blockIdx.x == 0) /* the first page ids come along */
        for (uint32_t i = threadIdx.x; i < n_ids; i += THREADS)
            job.call.table[i] = ids.id[i];
    float shift = load_query_row(job, kv_head, row, x, shared);
    if (s.rotates)
        rotate(BlockGroup{threadIdx.x, THREADS}, s, x, room);
    float largest = largest_of_row(x, dim, shared);
    bool integer = s.format >= TQ_FORMAT_INT8, bf16 = s.format == TQ_FORMAT_BF16;
    float unit =
        fabsf((float)job.call.scale) * LOG2E * job.k_step * (s.rotates ? 1 / sqrtf((float)dim) : 1);
    int half = 0;
    if (integer) {
        half = to_integers(x, dim, largest, (int *)shared);
        unit *= largest / LARGEST_INTEGER;
    } else {
        int e = largest > 0 ? ilogbf(largest) : 0;
        for (uint32_t i = threadIdx.x; i < dim; i += THREADS)
            x[i] = ldexpf(x[i], -e);
        unit = ldexpf(unit, e) + (largest - largest); /* NaN stays */
        unit *= s.layout.kind == TQI_KIND_FP8 ? s.scale[kv_head] : 1;
    }
    __syncthreads();
    uint32_t words = fragment_words(s.format, dim);
    for (uint32_t i = threadIdx.x; i < 8 * words; i += THREADS) {
        WordPlace p = place_of(job, item, head, i, words, integer ? 4 : 2);
        job.fragments[p.at] = integer ? integer_word((const int *)x, p) : float_word(x, p, bf16);
    }
    if (threadIdx.x == 0) {
        job.q_scale[blockIdx.x] = unit;
        job.q_half[blockIdx.x] = half;
        job.shift[blockIdx.x] = shift;
    }
}

} /* namespace */

bool code_overlaps() {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, tqk_prepare_queries) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.ptxVersion >= 90; /* older code has no instruction for it */
}

tq_status prepare_queries(const FastJob &job, const PageIds &ids, uint32_t n_ids,
                          cudaStream_t stream) {
    uint32_t dim = job.call.k.layout.dim;
    LaunchShape shape = {(uint64_t)job.n_items * job.heads_per_item, THREADS,
                         (WARPS + 2 * dim) * sizeof(float), stream, job.overlap != 0};
    return launch(tqk_prepare_queries, shape, "tqk_prepare_queries", job, ids, n_ids);
}

} /* namespace tqi */
