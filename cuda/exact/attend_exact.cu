/*
 * Attention over tokens that are kept in 16 bits, then the join with attention over the codes of
 * the others. A block has 8 query rows of a kv head; its warps take pages of 16 tokens in turn,
 * each with a softmax of its own, and join them at the end.
 *
 * Keys and values of a page are operand A of m16n8k16: 16 tokens x 16 dims, then 16 dims x 16
 * tokens. Queries and probabilities are operand B as two 16-bit floats each, the second what the
 * first one leaves. A block takes 128 dims of the values; rows of more go to several blocks, which
 * all make the scores.
 */
#include "exact/exact_page.cuh"

namespace tqi {
namespace {

/* ---- the rows of a block ----------------------------------------------------------------------
 */

/* A warp's pages. */
template <bool K_BF16, bool V_BF16>
__device__ void attend_pages(const ExactJob &job, const Rows &r, const Pages16 &pages,
                             uint32_t column, uint32_t warp, uint32_t lane, const uint32_t *words,
                             const Shared &shared, float max[2], float sum[2],
                             float acc[COLUMNS][8]) {
    Sight sight;
    Values values;
    float unit[2], c[4], factor[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t row = lane % 4 * 2 + i;
        unit[i] = shared.unit[row];
        sight.to[i] = seen_by(job, r, min(row, r.n - 1), &sight.from[i]);
    }
    const uint8_t *next = warp < pages.n ? blob_of(job, r, number_of(pages, warp)) : nullptr;
    for (uint32_t n = warp; n < pages.n; n += WARPS) {
        const uint64_t first = number_of(pages, n) * TQI_EXACT_TOKENS;
        const uint8_t *blob = next;
        if (n + WARPS < pages.n)
            next = blob_of(job, r, number_of(pages, n + WARPS));
        score_page<K_BF16>(job, blob, words, lane, c);
        load_values(job, blob, column, lane, values);
        if (next != blob)
            ask_for(job, next, lane);
        softmax_page(job, r, sight, first, lane, unit, c, max, sum, factor);
#pragma unroll
        for (int x = 0; x < COLUMNS; x++)
            for (int i = 0; i < 8; i++)
                acc[x][i] *= factor[i % 2];
        add_values<V_BF16>(values, r, first, lane, c, acc);
    }
}

/* Joins the warps that had pages, in order, in shared memory. */
__device__ void join_warps(uint32_t n_warps, uint32_t warp, uint32_t lane, const float max[2],
                           float sum[2], const float acc[COLUMNS][8], Shared &shared) {
    const uint32_t g = lane / 4, row = lane % 4 * 2;
    float factor[2];
    for (int i = 0; i < 2; i++) {
        for (uint32_t o = 4; o < 32; o *= 2)
            sum[i] += __shfl_xor_sync(~0u, sum[i], o);
        if (g == 0)
            shared.state[warp][row + i] = make_float2(max[i], sum[i]);
    }
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        float joint = NO_MAXIMUM;
        for (uint32_t w = 0; w < n_warps; w++)
            joint = fmaxf(joint, shared.state[w][row + i].x);
        factor[i] = exp2f(max[i] - joint);
    }
    for (uint32_t w = 0; w < n_warps; w++) {
        if (w == warp)
#pragma unroll
            for (int x = 0; x < COLUMNS; x++)
                for (int i = 0; i < 8; i++) {
                    float *to = &shared.out[row + i % 2][(g * COLUMNS + x) * 4 + i / 2];
                    *to = (w ? *to : 0) + acc[x][i] * factor[i % 2];
                }
        __syncthreads();
    }
}

/* Weights of two of the three parts of a row, these tokens, the others, the sink; by every lane. */
struct Shares {
    float exact, others, lse;
};

__device__ Shares shares_of(const ExactJob &job, uint32_t n_warps, uint32_t row, float others,
                            float sink, const Shared &shared) {
    float max = NO_MAXIMUM, sum = 0;
    for (uint32_t w = 0; w < n_warps; w++)
        max = fmaxf(max, shared.state[w][row].x);
    for (uint32_t w = 0; w < n_warps; w++)
        sum += shared.state[w][row].y * exp2f(shared.state[w][row].x - max);
    const float lse = sum == 0 ? -INFINITY : (max + log2f(sum)) * LN2;
    Shares s = {0, 0, -INFINITY};
    if (lse == -INFINITY && others == -INFINITY)
        return s;
    /* what is NaN is left out here and shows below */
    const float high = fmaxf(fmaxf(lse, others), sink);
    const float exact = sum == 0 ? 0 : expf(lse - high), rest = expf(others - high);
    const float all = exact + rest + (isnan(sink) ? 0 : expf(sink - high));
    s.exact = sum == 0 ? 0 : exact / (all * sum);
    s.others = rest / all;
    s.lse = high + logf(all);
    return s;
}

/* Row `warp` of the block to the caller. */
__device__ void finish_row(const ExactJob &job, const Rows &r, uint32_t n_warps, uint32_t column,
                           uint32_t warp, uint32_t lane, const Shared &shared) {
    const uint32_t in = r.first + warp, row = r.segment.query_row + in / job.group;
    const uint32_t q_head = r.kv_head * job.group + in % job.group;
    const uint32_t dim = job.v.layout.dim, columns = job.v.layout.dim_pad / 32;
    const size_t lse_at = (size_t)row * job.n_heads * job.group + q_head;
    const uint32_t x = column + lane % COLUMNS;
    const uint32_t first = lane / COLUMNS * (job.v.layout.dim_pad / 8) + x * 4;
    const Shares s =
        shares_of(job, n_warps, warp, __ldcg(&job.part_lse[lse_at]), job.sinks[q_head], shared);
    if (job.lse && column == 0 && lane == 0)
        job.lse[lse_at] = s.lse;
    if (x >= columns || first >= dim)
        return;
    const int64_t from =
        (int64_t)row * job.part.token_stride + (int64_t)q_head * job.part.head_stride;
    const int64_t to = (int64_t)row * job.out.token_stride + (int64_t)q_head * job.out.head_stride;
    float y[4];
    for (uint32_t i = 0; i < 4; i++) {
        /* what an empty part holds does not count */
        float a = s.exact == 0 ? 0 : shared.out[warp][lane * 4 + i] * s.exact, b = 0;
        if (s.others != 0 && first + i < dim)
            b = __ldcg((const float *)job.part.data + from + first + i) * s.others;
        y[i] = a + b;
    }
    if (first + 4 <= dim)
        store_quad(job.out, job.out_aligned != 0, to + first, y);
    else
        for (uint32_t i = 0; first + i < dim; i++)
            store_element(job.out, to + first + i, y[i]);
}

template <bool K_BF16, bool V_BF16>
__device__ void attend_rows(const ExactJob &job, const Rows &r, uint32_t column, uint32_t *words,
                            Shared &shared) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Pages16 pages = pages_of_rows(job, r);
    const uint32_t n_warps = min(pages.n, (uint32_t)WARPS);
    float max[2] = {NO_MAXIMUM, NO_MAXIMUM}, sum[2] = {0, 0}, acc[COLUMNS][8];
#pragma unroll
    for (int x = 0; x < COLUMNS; x++)
        for (int i = 0; i < 8; i++)
            acc[x][i] = 0;
    if (n_warps) {
        if (warp < pages.n)
            ask_for(job, blob_of(job, r, number_of(pages, warp)), lane);
        prepare_query<K_BF16>(job, r, warp, lane, words, shared);
        __syncthreads();
        attend_pages<K_BF16, V_BF16>(job, r, pages, column, warp, lane, words, shared, max, sum,
                                     acc);
        join_warps(n_warps, warp, lane, max, sum, acc, shared);
    }
    wait_for_last_kernel(); /* it has what comes from the other tokens */
    if (warp < r.n)
        finish_row(job, r, n_warps, column, warp, lane, shared);
    __syncthreads();
}

/* Rows [8 * chunk, ...) of the run of query tokens of one segment that begins with token `row`;
 * returns the token behind the run. */
__device__ uint32_t find_rows(const ExactJob &job, uint32_t row, uint32_t end, uint32_t chunk,
                              Rows *r) {
    const uint32_t index = __ldcg(&job.step.row_segment[row]);
    r->segment = fresh(&job.step.segments[index]);
    r->sinks = r->segment.front;
    r->start = r->segment.length - r->segment.back;
    if (job.hidden) {
        Hidden h = fresh(&job.hidden[index]);
        r->sinks = h.front;
        r->start = r->segment.length - h.back;
    }
    r->seq = job.only.seq;
    r->table = job.only.table;
    if (job.seqs) {
        const uint32_t *ids = fresh(&job.step.head->table);
        r->seq = fresh(&job.seqs[index]);
        r->table = (const KeptPage *)ids + r->seq.ids;
    }
    const uint32_t query = row - r->segment.query_row;
    const uint32_t n = min(end - row, r->segment.n_queries - query);
    r->first = query * job.group + chunk * ROWS;
    r->n = chunk * ROWS < n * job.group ? min((uint32_t)ROWS, n * job.group - chunk * ROWS) : 0;
    return row + n;
}

struct Grid {
    uint32_t chunks, slices;
};

/* Block index: (query tokens; kv head; chunk of rows; slice of values), slice fastest. */
template <bool K_BF16, bool V_BF16>
__global__ void __launch_bounds__(THREADS, 2)
    tqk_attend_exact(const __grid_constant__ ExactJob job, const Grid grid) {
    extern __shared__ uint32_t words[];
    __shared__ Shared shared;
    uint32_t at = blockIdx.x;
    const uint32_t column = at % grid.slices * COLUMNS;
    at /= grid.slices;
    const uint32_t chunk = at % grid.chunks;
    at /= grid.chunks;
    Rows r;
    r.kv_head = at % job.n_heads;
    const uint32_t first = at / job.n_heads * job.block_tokens;
    const uint32_t last = job.range.first_row + job.range.n_rows,
                   n_rows = __ldcg(&job.step.head->n_rows);
    uint32_t row = job.range.first_row + first;
    const uint32_t end = min(min(row + job.block_tokens, last), n_rows);
    while (row < end) {
        row = find_rows(job, row, end, chunk, &r);
        if (r.n)
            attend_rows<K_BF16, V_BF16>(job, r, column, words, shared);
    }
    wait_for_last_kernel();
    allow_next_kernel();
}

template <bool K_BF16, bool V_BF16> tq_status run(const ExactJob &job, cudaStream_t stream) {
    const uint32_t columns = job.v.layout.dim_pad / 32;
    const Grid grid = {(job.block_tokens * job.group + ROWS - 1) / ROWS,
                       (columns + COLUMNS - 1) / COLUMNS};
    const uint64_t blocks = tqi_ceil(job.range.n_rows, job.block_tokens);
    LaunchShape shape = {blocks * job.n_heads * grid.chunks * grid.slices, THREADS,
                         2 * plane_words(job.k) * sizeof(uint32_t), stream, job.overlap != 0};
    return launch(tqk_attend_exact<K_BF16, V_BF16>, shape, "tqk_attend_exact", job, grid);
}

} /* namespace */

tq_status attend_exact(const ExactJob &job, cudaStream_t stream) {
    if (job.k.format == TQ_FORMAT_BF16)
        return job.v.format == TQ_FORMAT_BF16 ? run<true, true>(job, stream)
                                              : run<true, false>(job, stream);
    return job.v.format == TQ_FORMAT_BF16 ? run<false, true>(job, stream)
                                          : run<false, false>(job, stream);
}

} /* namespace tqi */
