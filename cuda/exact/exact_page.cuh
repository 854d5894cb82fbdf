/* Attention over a page of tokens in 16 bits by a warp: queries to operands, scores, softmax,
 * values (attend_exact.cu says how the page is taken). */
#ifndef TQI_CUDA_EXACT_EXACT_PAGE_CUH
#define TQI_CUDA_EXACT_EXACT_PAGE_CUH

#include "attend/instructions.cuh"
#include "attend/row_index.cuh"
#include "common/rows.cuh"
#include "exact/exact_job.h"

namespace tqi {
namespace {

enum { ROWS = 8, WARPS = 8, THREADS = WARPS * 32, COLUMNS = 4, SLICE = COLUMNS * 32 };

#define NO_MAXIMUM -1e30f
#define LOG2E 1.4426950408889634
#define LN2 0.69314718f

template <bool BF16> TQI_INLINE void product(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    if constexpr (BF16)
        mma_bf16(c, a, b);
    else
        mma_f16(c, a, b);
}

/* Two numbers as 16-bit floats, and what is left of them as two more. */
template <bool BF16> TQI_INLINE void split(float x, float y, uint32_t *high, uint32_t *low) {
    const int32_t dtype = BF16 ? TQ_BF16 : TQ_F16;
    uint32_t h = pack16(dtype, x, y);
    float a = BF16 ? bf16_bits((uint16_t)h) : f16_bits((uint16_t)h);
    float b = BF16 ? bf16_bits((uint16_t)(h >> 16)) : f16_bits((uint16_t)(h >> 16));
    *high = h;
    *low = pack16(dtype, x - a, y - b);
}

/* Words of a row of queries in shared memory: quarters of the dims, apart by two words more, so
 * that the lanes of a load meet all banks. */
__host__ __device__ inline uint32_t quarter_words(const Side &k) {
    return k.layout.dim_pad / 8 + 2;
}

__host__ __device__ inline uint32_t plane_words(const Side &k) {
    return ROWS * 4 * quarter_words(k);
}

struct Shared {
    float out[ROWS][SLICE]; /* [row][g][column][4]: dims g * dim_pad / 8 + 4 * column + i */
    float2 state[WARPS][ROWS];
    float unit[ROWS];
};

/* Rows of a block: some of a segment's rows of a kv head. */
struct Rows {
    tqi_segment segment;
    KeptSeq seq;
    const KeptPage *table; /* NULL: the job's list */
    uint32_t first, n;     /* of the segment's rows */
    uint32_t kv_head;
    uint64_t sinks, start; /* kept: tokens before and from there on */
};

/* Pages of a block of rows, numbered [0, n): those of the sinks, then those of the window. */
struct Pages16 {
    uint64_t head, tail; /* numbers of the first ones */
    uint32_t n_head, n;
};

/* ---- what there is to do -------------------------------------------------------------------- */

__device__ uint64_t seen_by(const ExactJob &job, const Rows &r, uint32_t row, uint64_t *from) {
    tqi_segment all = r.segment;
    all.front = all.back = 0;
    return tqi_visible(&all, job.causal, job.window, (r.first + row) / job.group, from);
}

__device__ Pages16 pages_of_rows(const ExactJob &job, const Rows &r) {
    uint64_t from, unused, to = seen_by(job, r, r.n - 1, &unused);
    (void)seen_by(job, r, 0, &from);
    uint64_t head_end = min(r.sinks, to), tail = max(r.start, from);
    Pages16 p = {from / TQI_EXACT_TOKENS, tail / TQI_EXACT_TOKENS, 0, 0};
    if (from < head_end)
        p.n_head = (uint32_t)(tqi_ceil(head_end, TQI_EXACT_TOKENS) - p.head);
    p.n = p.n_head;
    /* one page can have tokens of both */
    if (p.n_head)
        p.tail = max(p.tail, p.head + p.n_head);
    if (tail < to && p.tail * TQI_EXACT_TOKENS < to)
        p.n += (uint32_t)(tqi_ceil(to, TQI_EXACT_TOKENS) - p.tail);
    return p;
}

__device__ const uint8_t *blob_of(const ExactJob &job, const Rows &r, uint64_t number) {
    uint64_t at = number < r.seq.n_head ? number : r.seq.n_head + number - r.seq.first;
    KeptPage page = r.table ? fresh(&r.table[at]) : job.only.list[at];
    return (const uint8_t *)page.chunk + job.pages.offset + page.page * job.pages.page_bytes +
           (size_t)r.kv_head * job.pages.blob_bytes;
}

/* Page n of the block's. */
__device__ uint64_t number_of(const Pages16 &pages, uint32_t n) {
    return n < pages.n_head ? pages.head + n : pages.tail + (n - pages.n_head);
}

/* A page is on its way to the second cache. */
__device__ void ask_for(const ExactJob &job, const uint8_t *blob, uint32_t lane) {
    for (uint32_t at = lane * 128; at < job.pages.blob_bytes; at += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(blob + at));
}

/* ---- queries -------------------------------------------------------------------------------- */

/* Row `warp` of the block as operand words; what is not finite comes to its unit. */
template <bool BF16>
__device__ void prepare_query(const ExactJob &job, const Rows &r, uint32_t warp, uint32_t lane,
                              uint32_t *words, Shared &shared) {
    const uint32_t dim = job.k.layout.dim, dim_pad = job.k.layout.dim_pad,
                   per_quarter = dim_pad / 4;
    const uint32_t in = r.first + warp, query = in / job.group;
    const bool there = warp < r.n;
    const int64_t at = (int64_t)(r.segment.query_row + query) * job.q.token_stride +
                       (int64_t)(r.kv_head * job.group + in % job.group) * job.q.head_stride;
    auto element = [&](uint32_t i) {
        return there && i < dim ? load_element(job.q.data, job.q.dtype, at + i) : 0.0f;
    };
    float largest = 0;
    for (uint32_t i = lane; i < dim; i += 32)
        largest = fmaxf(largest, fabsf(element(i)));
    for (uint32_t o = 16; o; o /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
    const int e = largest > 0 ? ilogbf(largest) : 0;
    const float sign = job.scale < 0 ? -1.0f : 1.0f;
    for (uint32_t i = lane * 2; i < dim_pad; i += 64) {
        uint32_t high, low, t = i / per_quarter;
        uint32_t to = (warp * 4 + t) * quarter_words(job.k) + (i - t * per_quarter) / 2;
        split<BF16>(sign * ldexpf(element(i), -e), sign * ldexpf(element(i + 1), -e), &high, &low);
        words[to] = high;
        words[to + plane_words(job.k)] = low;
    }
    if (lane == 0)
        shared.unit[warp] = ldexpf((float)(fabs(job.scale) * (job.softcap != 0 ? 1 : LOG2E)), e) +
                            (largest - largest); /* NaN stays */
}

/* ---- a page --------------------------------------------------------------------------------- */

/* Products of 16 tokens with 8 rows: c[0], c[1]: token lane / 4, rows 2 * (lane % 4) + 0, 1; c[2],
 * c[3]: the token 8 further on. */
template <bool BF16>
__device__ void score_page(const ExactJob &job, const uint8_t *blob, const uint32_t *words,
                           uint32_t lane, float c[4]) {
    const uint32_t g = lane / 4, t = lane % 4, slabs = job.k.layout.dim_pad / 8;
    const uint32_t *keys =
        (const uint32_t *)(blob + job.k.layout.codes) + (g / 4 * 4 + t) * 4 + g % 4;
    const uint32_t *q = words + (g * 4 + t) * quarter_words(job.k);
    const uint32_t plane = plane_words(job.k);
    c[0] = c[1] = c[2] = c[3] = 0;
#pragma unroll 4
    for (uint32_t s = 0; s < slabs; s += 2) {
        uint32_t a[4] = {keys[s * 64], keys[s * 64 + 32], keys[s * 64 + 64], keys[s * 64 + 96]};
        product<BF16>(c, a, q + s);
        product<BF16>(c, a, q + s + plane);
    }
}

/* Tokens of a pair that hold anything, as a mask of its word. */
__device__ uint32_t written(const Rows &r, uint64_t token) {
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 2; i++)
        if (token + i < r.segment.length && (token + i < r.sinks || token + i >= r.start))
            mask |= 0xffffu << 16 * i;
    return mask;
}

/* What two rows of a thread's scores see. */
struct Sight {
    uint64_t from[2], to[2];
};

/* A block's columns of the values of a page, first and last 8 tokens; the last column stands for
 * those that the rows lack. */
struct Values {
    uint4 word[COLUMNS][2];
};

__device__ void load_values(const ExactJob &job, const uint8_t *blob, uint32_t column,
                            uint32_t lane, Values &v) {
    const uint32_t g = lane / 4, t = lane % 4, columns = job.v.layout.dim_pad / 32;
    const uint4 *from = (const uint4 *)(blob + job.v.layout.codes) + t * columns * 16 + g * 2;
#pragma unroll
    for (int x = 0; x < COLUMNS; x++)
        for (int i = 0; i < 2; i++)
            v.word[x][i] = from[min(column + x, columns - 1) * 16 + i];
}

template <bool BF16>
__device__ void add_values(const Values &v, const Rows &r, uint64_t first, uint32_t lane,
                           const float p[4], float acc[COLUMNS][8]) {
    uint32_t high[2], low[2], mask[2];
    for (int i = 0; i < 2; i++) {
        split<BF16>(p[2 * i], p[2 * i + 1], &high[i], &low[i]);
        high[i] = transpose16(high[i]);
        low[i] = transpose16(low[i]);
        mask[i] = written(r, first + 8 * i + 2 * (lane % 4));
    }
#pragma unroll
    for (int x = 0; x < COLUMNS; x++) {
        const uint4 a = v.word[x][0], b = v.word[x][1];
        const uint32_t even[4] = {a.x & mask[0], a.y & mask[0], b.x & mask[1], b.y & mask[1]};
        const uint32_t odd[4] = {a.z & mask[0], a.w & mask[0], b.z & mask[1], b.w & mask[1]};
        product<BF16>(acc[x], even, high);
        product<BF16>(acc[x], even, low);
        product<BF16>(acc[x] + 4, odd, high);
        product<BF16>(acc[x] + 4, odd, low);
    }
}

/* Scores of a page to weights, against a maximum that is the same in all lanes of a row. */
__device__ void softmax_page(const ExactJob &job, const Rows &r, const Sight &sight, uint64_t first,
                             uint32_t lane, const float unit[2], float c[4], float max[2],
                             float sum[2], float factor[2]) {
    const float cap = (float)(job.softcap * LOG2E), rate = (float)(1 / job.softcap);
    for (int i = 0; i < 4; i++) {
        uint64_t token = first + lane / 4 + i / 2 * 8;
        bool seen = token >= sight.from[i % 2] && token < sight.to[i % 2] &&
                    (token < r.sinks || token >= r.start);
        float s = c[i] * unit[i % 2];
        s = job.softcap != 0 ? cap * tanhf(s * rate) : s;
        c[i] = seen ? s : -INFINITY;
    }
    for (int i = 0; i < 2; i++) {
        float most = fmaxf(c[i], c[i + 2]);
        for (uint32_t o = 4; o < 32; o *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
        most = fmaxf(most, max[i]);
        factor[i] = exp2f(max[i] - most);
        c[i] = exp2f(c[i] - most);
        c[i + 2] = exp2f(c[i + 2] - most);
        sum[i] = sum[i] * factor[i] + c[i] + c[i + 2];
        max[i] = most;
    }
}

} /* namespace */
} /* namespace tqi */

#endif
