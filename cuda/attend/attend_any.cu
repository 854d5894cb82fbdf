/*
 * Pages to partial states for every format, head dim, page size and group: a block takes a
 * share of the tiles, decodes a few tokens at a time and runs the online softmax. Scores are
 * double: a loud channel makes them large, and in binary32 the rounding of their sum would
 * show. The rest is binary32.
 */
#include "attend/instructions.cuh"
#include "attend/row_index.cuh"
#include "common/codes.cuh"
#include "common/rows.cuh"

namespace tqi {
namespace {

enum { THREADS = 128, WARPS = THREADS / 32 };

__host__ __device__ inline uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Tokens decoded at a time: as many as 32 KB hold, at most a warp's. */
__host__ __device__ inline uint32_t chunk_tokens(uint32_t dim) {
    return dim <= 256 ? 32 : dim <= 512 ? 16 : 8;
}

/* A block's item and its shared memory. */
struct Tile {
    tqi_segment segment;
    tqi_cut cut;
    ItemRows rows;
    uint32_t item; /* of the launch */
    uint32_t chunk;
    float *queries; /* [row][k dim] */
    float *numbers; /* [token][dim + 1], K then V of a chunk */
    double *scores; /* [row][32] */
    double *max;    /* [row] */
    float *weights; /* [row][32], probabilities times gains */
    float *acc;     /* [row][v dim] */
    float *sum, *factor;
};

__device__ void lay_out(const AttendJob &job, double *shared, Tile &t) {
    uint32_t k_dim = job.k.layout.dim, v_dim = job.v.layout.dim;
    t.chunk = min(chunk_tokens(larger(k_dim, v_dim)), job.pages.page_tokens);
    t.scores = shared;
    t.max = t.scores + ANY_ROWS * 32;
    t.queries = (float *)(t.max + ANY_ROWS);
    t.numbers = t.queries + ANY_ROWS * k_dim;
    t.weights = t.numbers + t.chunk * (larger(k_dim, v_dim) + 1);
    t.acc = t.weights + ANY_ROWS * 32;
    t.sum = t.acc + ANY_ROWS * v_dim;
    t.factor = t.sum + ANY_ROWS;
}

/* Tokens that a row of the tile sees: [*from, to). */
__device__ inline uint64_t visible_of(const AttendJob &job, const Tile &t, uint32_t row,
                                      uint64_t *from) {
    uint32_t query = (t.rows.first_row + row) / job.group;
    return tqi_visible(&t.segment, job.causal, job.window, query, from);
}

__device__ void begin(const AttendJob &job, const Tile &t) {
    uint32_t k_dim = job.k.layout.dim, v_dim = job.v.layout.dim;
    uint32_t stride = query_floats(job.k);
    const float *from = job.queries + (size_t)t.item * ANY_ROWS * stride;
    for (uint32_t i = threadIdx.x; i < t.rows.n_rows * k_dim; i += THREADS)
        t.queries[i] = __ldcg(from + i / k_dim * stride + i % k_dim);
    for (uint32_t i = threadIdx.x; i < ANY_ROWS * v_dim; i += THREADS)
        t.acc[i] = 0;
    if (threadIdx.x < ANY_ROWS) {
        t.max[threadIdx.x] = -INFINITY;
        t.sum[threadIdx.x] = 0;
    }
}

/* Numbers of `n` tokens from `slot` on. */
__device__ void decode(const Side &s, const uint8_t *blob, uint32_t slot, uint32_t n, float *to) {
    uint32_t dim = s.layout.dim;
    for (uint32_t token = threadIdx.x / 32; token < n; token += WARPS)
        for (uint32_t i = threadIdx.x % 32; i < dim; i += 32)
            to[token * (dim + 1) + i] = number_at(s, blob, slot + token, i);
}

/* What is not finite is not capped to something finite: only the query can make it. */
__device__ inline double capped(const AttendJob &job, double score, float shift) {
    double x = score + (double)shift;
    return job.softcap == 0 ? score : isfinite(x) ? job.softcap * tanh(x / job.softcap) : NAN;
}

/* What the sketch adds to a score; the row's projection lies behind its query. */
__device__ double sketch_score(const AttendJob &job, const Tile &t, const uint8_t *blob,
                               uint32_t slot, uint32_t row) {
    uint32_t dim = job.k.layout.dim;
    const float *q = job.queries + ((size_t)t.item * ANY_ROWS + row) * query_floats(job.k) + dim;
    double dot = 0;
    for (uint32_t i = 0; i < dim; i += 8) {
        uint32_t signs = sketch_byte_at(job.k, blob, slot, i);
        for (uint32_t n = 0; n < 8; n++) {
            double x = (double)__ldcg(q + i + n);
            dot += signs >> n & 1 ? -x : x;
        }
    }
    return dot * sketch_gain_at(job.k, blob, slot);
}

__device__ void score(const AttendJob &job, const Tile &t, const uint8_t *blob, uint32_t slot,
                      uint32_t n) {
    uint32_t dim = job.k.layout.dim, token = threadIdx.x % 32;
    if (token >= n)
        return;
    double gain = gain_at<double>(job.k, blob, slot + token, t.rows.kv_head);
    for (uint32_t row = threadIdx.x / 32; row < t.rows.n_rows; row += WARPS) {
        const float *q = t.queries + row * dim, *k = t.numbers + token * (dim + 1);
        double dot = 0;
        for (uint32_t i = 0; i < dim; i++)
            dot = fma((double)q[i], (double)k[i], dot);
        dot *= gain;
        if (job.k.sketch_flips)
            dot += sketch_score(job, t, blob, slot + token, row);
        float shift = __ldcg(&job.shift[(size_t)t.item * ANY_ROWS + row]);
        t.scores[row * 32 + token] = capped(job, dot * job.scale, shift);
    }
}

/* Online softmax of a row by a warp; token = index of the chunk's first token. */
__device__ void softmax(const AttendJob &job, const Tile &t, const uint8_t *blob, uint32_t slot,
                        uint32_t n, uint64_t token) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t row = threadIdx.x / 32; row < t.rows.n_rows; row += WARPS) {
        uint64_t from, to = visible_of(job, t, row, &from);
        bool seen = lane < n && token + lane >= from && token + lane < to;
        double s = seen ? t.scores[row * 32 + lane] : -INFINITY, max = s, before = t.max[row];
        /* Codes are finite, so only the query can make a score that is not: the whole row must
         * show it. */
        bool bad = __any_sync(~0u, seen && !isfinite(s));
        for (uint32_t o = 16; o; o /= 2)
            max = fmax(max, __shfl_xor_sync(~0u, max, o));
        max = bad ? NAN : fmax(max, before);
        /* max is -infinity while nothing was seen */
        float p = seen ? expf((float)(s - max)) : 0, sum = p;
        for (uint32_t o = 16; o; o /= 2)
            sum += __shfl_xor_sync(~0u, sum, o);
        float factor = before == -INFINITY && !bad ? 1 : expf((float)(before - max));
        if (lane < n)
            t.weights[row * 32 + lane] =
                seen ? p * gain_at<float>(job.v, blob, slot + lane, t.rows.kv_head) : 0;
        __syncwarp();
        if (lane == 0) {
            t.factor[row] = factor;
            t.sum[row] = t.sum[row] * factor + sum;
            t.max[row] = max;
        }
    }
}

__device__ void accumulate(const AttendJob &job, const Tile &t, uint32_t n) {
    uint32_t dim = job.v.layout.dim;
    for (uint32_t row = 0; row < t.rows.n_rows; row++)
        for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
            float a = t.acc[row * dim + i] * t.factor[row];
            for (uint32_t token = 0; token < n; token++) {
                float p = t.weights[row * 32 + token];
                /* slots that nobody sees hold anything */
                a = p != 0 ? fmaf(p, t.numbers[token * (dim + 1) + i], a) : a;
            }
            t.acc[row * dim + i] = a;
        }
}

/* Maxima are kept in binary32 and powers of two; what that rounds away goes into the sums. */
__device__ void end(const AttendJob &job, const Tile &t, uint32_t piece) {
    uint32_t dim = job.v.layout.dim;
    for (uint32_t row = 0; row < t.rows.n_rows; row++) {
        size_t at = (size_t)piece * ANY_ROWS + row;
        double exact = t.max[row] * 1.4426950408889634;
        float max = (float)exact, rest = t.sum[row] == 0 ? 1 : exp2f((float)(exact - (double)max));
        if (threadIdx.x == 0)
            job.partial_ml[at] = make_float2(max, t.sum[row] * rest);
        for (uint32_t i = threadIdx.x; i < dim; i += THREADS)
            job.partial[at * dim + i] = t.acc[row * dim + i] * rest;
    }
}

/* Tokens [from, to) of the sequence. */
__device__ void attend_tokens(const AttendJob &job, const Tile &t, uint64_t from, uint64_t to) {
    uint32_t page_tokens = job.pages.page_tokens;
    const uint32_t *table = fresh(&job.step.head->table) + t.segment.ids;
    for (uint64_t token = from; token < to; token += t.chunk) {
        uint32_t slot = (uint32_t)(token % page_tokens);
        uint32_t n = (uint32_t)min((uint64_t)t.chunk, to - token);
        const uint8_t *blob = job.pages.base +
                              __ldcg(table + token / page_tokens) * job.pages.page_bytes +
                              (size_t)t.rows.kv_head * job.pages.blob_bytes;
        decode(job.k, blob, slot, n, t.numbers);
        __syncthreads();
        score(job, t, blob, slot, n);
        __syncthreads();
        softmax(job, t, blob, slot, n, token);
        decode(job.v, blob, slot, n, t.numbers);
        __syncthreads();
        accumulate(job, t, n);
        __syncthreads();
    }
}

/* n tiles of the item from `tile` on. */
__device__ void attend_item(const AttendJob &job, const Tile &t, uint32_t tile, uint32_t n,
                            uint32_t piece) {
    uint64_t page_tokens = job.pages.page_tokens, first, unused;
    uint64_t from = (t.cut.first_tile + (uint64_t)tile) * page_tokens;
    /* later rows begin and end later: the first and the last bound the tile; whole chunks */
    uint64_t to = min(from + n * page_tokens, visible_of(job, t, t.rows.n_rows - 1, &unused));
    (void)visible_of(job, t, 0, &first);
    from = max(from, first / t.chunk * t.chunk);
    begin(job, t);
    __syncthreads();
    attend_tokens(job, t, from, to);
    end(job, t, piece);
    __syncthreads();
}

__device__ void attend_work(const AttendJob &job, Tile &t, const tqi_division &share,
                            uint32_t worker) {
    tqi_work w = fresh(&job.schedule.work[worker]);
    while (w.n_tiles) {
        t.segment = segment_of(job, w.segment);
        t.cut = fresh(&job.schedule.cuts[w.segment]);
        if (t.cut.n_tiles) {
            uint32_t n = min(w.n_tiles, t.cut.n_tiles - w.tile);
            t.rows = rows_of_item(job, t.segment, t.cut, w.item);
            t.item = t.cut.first_item + w.item;
            attend_item(job, t, w.tile, n, tqi_piece_of(&share, worker, t.item));
            w.n_tiles -= n;
            w.tile = 0;
        }
        bool last = t.cut.n_tiles == 0 || w.item + 1 == t.cut.items_per_head * job.n_heads;
        w.item = last ? 0 : w.item + 1;
        w.segment += last;
    }
}

__global__ void __launch_bounds__(THREADS) tqk_attend_any(const __grid_constant__ AttendJob job) {
    extern __shared__ double tile_memory[];
    Tile t;
    lay_out(job, tile_memory, t);
    wait_for_last_kernel();
    allow_next_kernel();
    tqi_division share = fresh(job.schedule.share);
    for (uint32_t w = blockIdx.x; w < share.n_workers; w += gridDim.x)
        attend_work(job, t, share, w);
}

size_t tile_shared(uint32_t k_dim, uint32_t v_dim) {
    uint32_t dim = larger(k_dim, v_dim);
    return ANY_ROWS * 33 * sizeof(double) +
           (ANY_ROWS * (size_t)(k_dim + v_dim + 32 + 2) + chunk_tokens(dim) * (dim + 1)) *
               sizeof(float);
}

} /* namespace */

tq_status attend_any_prepare(uint32_t k_dim, uint32_t v_dim) {
    if (tile_shared(k_dim, v_dim) <= 48 * 1024)
        return TQ_OK;
    return check(cudaFuncSetAttribute(tqk_attend_any, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)tile_shared(1024, 1024)),
                 "shared memory of attention");
}

tq_status attend_any(const AttendJob &job, cudaStream_t stream) {
    LaunchShape shape = {job.n_blocks, THREADS, tile_shared(job.k.layout.dim, job.v.layout.dim),
                         stream, job.overlap != 0};
    return launch(tqk_attend_any, shape, "tqk_attend_any", job);
}

} /* namespace tqi */
