/*
 * The read path for every format, head dim, page size and group: rotate the queries; a block
 * per (kv head, tile of rows, split) decodes a few tokens at a time and runs the online
 * softmax; the states of the splits are merged in order and rotated back. Scores are double:
 * a loud channel makes them large, and in binary32 the rounding of their sum would show. The
 * rest is binary32.
 */
#include "attend/attend_job.h"
#include "attend/row_index.cuh"
#include "common/codes.cuh"
#include "common/rotate.cuh"

namespace tqi {
namespace {

enum { TILE_ROWS = 8, THREADS = 128, WARPS = THREADS / 32 };

__host__ __device__ inline uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Tokens decoded at a time: as many as 32 KB hold, at most a warp's. */
__host__ __device__ inline uint32_t chunk_tokens(uint32_t dim) {
    return dim <= 256 ? 32 : dim <= 512 ? 16 : 8;
}

/* Tokens [first, last) that a row sees. */
struct Seen {
    uint64_t first, last;
};

__device__ inline Seen seen_by(const AttendJob &job, uint32_t row) {
    uint64_t behind = job.causal ? job.n_queries - 1 - query_of(job, row) : 0;
    uint64_t last = job.length > behind ? job.length - behind : 0;
    return Seen{job.window && last > job.window ? last - job.window : 0, last};
}

__device__ inline float *state_of(const AttendJob &job, uint32_t head, uint32_t split,
                                  uint32_t row) {
    size_t index = ((size_t)head * job.n_splits + split) * job.rows + row;
    return job.states + index * (job.v.layout.dim + 2);
}

/* ---- queries -------------------------------------------------------------------------------- */

/* A block per (kv head, row). Queries are not sanitised: what is not finite must show. */
__global__ void __launch_bounds__(THREADS)
    tqk_rotate_queries(const __grid_constant__ AttendJob job) {
    extern __shared__ float shared[];
    const Side &s = job.k;
    uint32_t dim = s.layout.dim, head = blockIdx.x / job.rows, row = blockIdx.x % job.rows;
    BlockGroup block = {threadIdx.x, THREADS};
    float *x = shared + WARPS, *room = x + dim, dot = 0;
    int64_t at = (int64_t)query_of(job, row) * job.q.token_stride +
                 (int64_t)q_head_of(job, head, row) * job.q.head_stride;
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        x[i] = load_element(job.q.data, job.q.dtype, at + i);
        dot += s.mean ? x[i] * s.mean[(size_t)head * dim + i] : 0;
    }
    dot = block_reduce<WARPS>(dot, shared, Add<float>());
    if (threadIdx.x == 0)
        job.shift[blockIdx.x] = s.mean ? (float)(dot * job.scale) : 0;
    if (s.rotates)
        rotate(block, s, x, room);
    float norm = s.rotates ? 1 / sqrtf((float)dim) : 1;
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS)
        job.queries[(size_t)blockIdx.x * dim + i] = x[i] * norm;
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* A block's share of the work and its shared memory. */
struct Tile {
    uint32_t head, split, first_row, n_rows, chunk;
    float *queries; /* [row][k dim] */
    float *numbers; /* [token][dim + 1], K then V of a chunk */
    double *scores; /* [row][32] */
    double *max;    /* [row] */
    float *weights; /* [row][32], probabilities times gains */
    float *acc;     /* [row][v dim] */
    float *sum, *factor;
};

__device__ Tile tile_of(const AttendJob &job, double *shared) {
    Tile t;
    uint32_t tiles = (job.rows + TILE_ROWS - 1) / TILE_ROWS;
    uint32_t k_dim = job.k.layout.dim, v_dim = job.v.layout.dim;
    t.split = blockIdx.x % job.n_splits;
    t.first_row = blockIdx.x / job.n_splits % tiles * TILE_ROWS;
    t.head = blockIdx.x / job.n_splits / tiles;
    t.n_rows = min((uint32_t)TILE_ROWS, job.rows - t.first_row);
    t.chunk = min(chunk_tokens(larger(k_dim, v_dim)), job.pages.page_tokens);
    t.scores = shared;
    t.max = t.scores + TILE_ROWS * 32;
    t.queries = (float *)(t.max + TILE_ROWS);
    t.numbers = t.queries + TILE_ROWS * k_dim;
    t.weights = t.numbers + t.chunk * (larger(k_dim, v_dim) + 1);
    t.acc = t.weights + TILE_ROWS * 32;
    t.sum = t.acc + TILE_ROWS * v_dim;
    t.factor = t.sum + TILE_ROWS;
    return t;
}

__device__ void begin(const AttendJob &job, const Tile &t) {
    uint32_t k_dim = job.k.layout.dim, v_dim = job.v.layout.dim;
    const float *from = job.queries + ((size_t)t.head * job.rows + t.first_row) * k_dim;
    for (uint32_t i = threadIdx.x; i < t.n_rows * k_dim; i += THREADS)
        t.queries[i] = from[i];
    for (uint32_t i = threadIdx.x; i < TILE_ROWS * v_dim; i += THREADS)
        t.acc[i] = 0;
    if (threadIdx.x < TILE_ROWS) {
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

__device__ void score(const AttendJob &job, const Tile &t, const uint8_t *blob, uint32_t slot,
                      uint32_t n) {
    uint32_t dim = job.k.layout.dim, token = threadIdx.x % 32;
    if (token >= n)
        return;
    double gain = gain_at<double>(job.k, blob, slot + token, t.head) * job.scale;
    for (uint32_t row = threadIdx.x / 32; row < t.n_rows; row += WARPS) {
        const float *q = t.queries + row * dim, *k = t.numbers + token * (dim + 1);
        double dot = 0;
        for (uint32_t i = 0; i < dim; i++)
            dot = fma((double)q[i], (double)k[i], dot);
        float shift = job.shift[(size_t)t.head * job.rows + t.first_row + row];
        t.scores[row * 32 + token] = capped(job, dot * gain, shift);
    }
}

/* Online softmax of a row by a warp; token = index of the chunk's first token. */
__device__ void softmax(const AttendJob &job, const Tile &t, const uint8_t *blob, uint32_t slot,
                        uint32_t n, uint64_t token) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t row = threadIdx.x / 32; row < t.n_rows; row += WARPS) {
        Seen range = seen_by(job, t.first_row + row);
        bool seen = lane < n && token + lane >= range.first && token + lane < range.last;
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
                seen ? p * gain_at<float>(job.v, blob, slot + lane, t.head) : 0;
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
    for (uint32_t row = 0; row < t.n_rows; row++)
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

__device__ void end(const AttendJob &job, const Tile &t) {
    uint32_t dim = job.v.layout.dim;
    for (uint32_t row = 0; row < t.n_rows; row++) {
        float *state = state_of(job, t.head, t.split, t.first_row + row);
        /* the maximum is kept in binary32; what that rounds away goes into the sums */
        float max = (float)t.max[row];
        float rest = t.sum[row] == 0 ? 1 : expf((float)(t.max[row] - (double)max));
        if (threadIdx.x == 0) {
            state[0] = max;
            state[1] = t.sum[row] * rest;
        }
        for (uint32_t i = threadIdx.x; i < dim; i += THREADS)
            state[2 + i] = t.acc[row * dim + i] * rest;
    }
}

__global__ void __launch_bounds__(THREADS) tqk_attend_any(const __grid_constant__ AttendJob job) {
    extern __shared__ double tile_memory[];
    Tile t = tile_of(job, tile_memory);
    uint32_t page_tokens = job.pages.page_tokens;
    uint64_t from = job.first_token + t.split * job.split_tokens, to = from + job.split_tokens;
    /* later rows begin and end later: the first and the last bound the tile; whole chunks */
    uint64_t first = seen_by(job, t.first_row).first;
    from = max(from, first / t.chunk * t.chunk);
    to = min(to, seen_by(job, t.first_row + t.n_rows - 1).last);
    begin(job, t);
    __syncthreads();
    for (uint64_t token = from; token < to; token += t.chunk) {
        uint64_t page = token / page_tokens;
        uint32_t slot = (uint32_t)(token % page_tokens);
        uint32_t n = (uint32_t)min((uint64_t)t.chunk, to - token);
        const uint8_t *blob = job.pages.base + job.table[page] * job.pages.page_bytes +
                              (size_t)t.head * job.pages.blob_bytes;
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
    end(job, t);
}

/* ---- merge ---------------------------------------------------------------------------------- */

/* Joint maximum of the splits; NaN where one is. */
__device__ float merged_max(const AttendJob &job, uint32_t head, uint32_t row) {
    float max = -INFINITY;
    for (uint32_t split = 0; split < job.n_splits; split++)
        max = fmaxf(max, state_of(job, head, split, row)[0]);
    return max;
}

/* Weight of a split's state; an empty one has sum 0. */
__device__ float weight_of(const float *state, float max) {
    return state[1] == 0 ? 0 : expf(state[0] - max);
}

/* Share of the weight that a sink leaves to the values; it joins lse. */
__device__ float add_sink(float sink, float *lse) {
    if (isnan(sink))
        return 1;
    float low = fminf(sink, *lse), high = fmaxf(sink, *lse), keep = 1 / (1 + expf(sink - *lse));
    *lse = isnan(*lse) ? *lse : high + log1pf(expf(low - high));
    return keep;
}

/* A block per (kv head, row). */
__global__ void __launch_bounds__(THREADS) tqk_merge_any(const __grid_constant__ AttendJob job) {
    extern __shared__ float shared[];
    const Side &s = job.v;
    uint32_t dim = s.layout.dim, head = blockIdx.x / job.rows, row = blockIdx.x % job.rows;
    BlockGroup block = {threadIdx.x, THREADS};
    float *x = shared, *room = x + dim, max = merged_max(job, head, row), sum = 0;
    for (uint32_t split = 0; split < job.n_splits; split++) {
        const float *state = state_of(job, head, split, row);
        sum += state[1] * weight_of(state, max);
    }
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        float a = 0;
        for (uint32_t split = 0; split < job.n_splits; split++) {
            const float *state = state_of(job, head, split, row);
            float w = weight_of(state, max);
            a = state[1] == 0 ? a : fmaf(state[2 + i], w, a);
        }
        x[i] = a;
    }
    __syncthreads();
    if (s.rotates)
        unrotate(block, s, x, room);
    float norm = sum == 0 ? 0 : (s.rotates ? 1 / sqrtf((float)dim) : 1.0f) / sum;
    uint32_t query = query_of(job, row), q_head = q_head_of(job, head, row);
    /* with a cap the mean's share went in before it */
    float lse = max + logf(sum) + (job.softcap == 0 ? job.shift[blockIdx.x] : 0);
    float keep = sum == 0 ? 0 : add_sink(job.sinks[q_head], &lse);
    int64_t at = (int64_t)query * job.out.token_stride + (int64_t)q_head * job.out.head_stride;
    for (uint32_t i = threadIdx.x; i < dim; i += THREADS) {
        float mean = s.mean && sum != 0 ? s.mean[(size_t)head * dim + i] : 0;
        store_element(job.out, at + i, (x[i] * norm + mean) * keep);
    }
    if (job.lse && threadIdx.x == 0)
        job.lse[(size_t)query * job.n_heads * job.group + q_head] = sum == 0 ? -INFINITY : lse;
}

/* ---- table ---------------------------------------------------------------------------------- */

__global__ void tqk_upload_table(const __grid_constant__ PageIds ids, uint32_t n, uint32_t *table) {
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        table[i] = ids.id[i];
}

size_t tile_shared(uint32_t k_dim, uint32_t v_dim) {
    uint32_t dim = larger(k_dim, v_dim);
    return TILE_ROWS * 33 * sizeof(double) +
           (TILE_ROWS * (size_t)(k_dim + v_dim + 32 + 2) + chunk_tokens(dim) * (dim + 1)) *
               sizeof(float);
}

} /* namespace */

tq_status upload_table(const uint32_t *ids, uint64_t n, uint32_t *table, cudaStream_t stream) {
    for (uint64_t first = 0; first < n; first += ID_CHUNK) {
        uint32_t count = (uint32_t)(n - first < ID_CHUNK ? n - first : ID_CHUNK);
        PageIds chunk;
        memcpy(chunk.id, ids + first, count * sizeof *ids);
        LaunchShape shape = {1, 256, 0, stream, false};
        TQI_TRY(launch(tqk_upload_table, shape, "tqk_upload_table", chunk, count, table + first));
    }
    return TQ_OK;
}

tq_status attend_any_prepare(uint32_t k_dim, uint32_t v_dim) {
    if (tile_shared(k_dim, v_dim) <= 48 * 1024)
        return TQ_OK;
    return check(cudaFuncSetAttribute(tqk_attend_any, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)tile_shared(1024, 1024)),
                 "shared memory of attention");
}

tq_status attend_any(const AttendJob &job, cudaStream_t stream) {
    uint32_t k_dim = job.k.layout.dim, v_dim = job.v.layout.dim;
    uint64_t rows = (uint64_t)job.n_heads * job.rows;
    uint64_t tiles = (uint64_t)job.n_heads * ((job.rows + TILE_ROWS - 1) / TILE_ROWS);
    LaunchShape queries = {rows, THREADS, (2 * k_dim + WARPS) * sizeof(float), stream, false};
    LaunchShape attend = {tiles * job.n_splits, THREADS, tile_shared(k_dim, v_dim), stream, false};
    LaunchShape merge = {rows, THREADS, 2 * v_dim * sizeof(float), stream, false};
    TQI_TRY(launch(tqk_rotate_queries, queries, "tqk_rotate_queries", job));
    TQI_TRY(launch(tqk_attend_any, attend, "tqk_attend_any", job));
    return launch(tqk_merge_any, merge, "tqk_merge_any", job);
}

} /* namespace tqi */
