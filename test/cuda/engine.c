#include "engine.h"

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 48 /* behind each page */ };

/* ---- open and close ------------------------------------------------------------------------ */

static void shuffle_pages(struct engine *e) {
    for (uint32_t i = 0; i < e->n_pages; i++) {
        uint32_t at = gpu_random() % (i + 1);
        e->order[i] = e->order[at];
        e->order[at] = (int32_t)i;
    }
}

static void open_rows(struct engine *e) {
    const tq_cache_config *c = &e->pair->config;
    size_t n = e->max_rows;
    e->k = gpu_buffer(n * c->n_kv_heads * c->head_dim * 2);
    e->v = gpu_buffer(n * c->n_kv_heads * c->v_head_dim * 2);
    e->q = gpu_buffer(n * c->n_q_heads * c->head_dim * 2);
    e->out = gpu_buffer(n * c->n_q_heads * c->v_head_dim * 4);
    e->lse = gpu_buffer(n * c->n_q_heads * 4);
    e->host_out = calloc(n * c->n_q_heads * c->v_head_dim, 4);
    e->host_lse = calloc(n * c->n_q_heads, 4);
    e->host_slots = calloc(n, sizeof *e->host_slots);
    e->slots = gpu_buffer(n * sizeof *e->slots);
}

/* Workspaces for the largest step. */
static void open_work(struct engine *e) {
    uint32_t tokens = e->table_stride * e->pair->config.page_tokens;
    GPU_OK(tq_paged_workspace(e->pair->cpu, ENGINE_SEQS, e->max_rows, tokens, &e->host_work_size));
    GPU_OK(tq_paged_workspace(e->pair->gpu, ENGINE_SEQS, e->max_rows, tokens, &e->work_size));
    e->host_work = aligned_alloc(64, (e->host_work_size + 63) / 64 * 64);
    e->work = gpu_buffer(e->work_size);
}

int engine_open(struct engine *e, struct pair *p, uint32_t n_pages, uint32_t table_stride,
                uint32_t max_rows) {
    size_t entries = (size_t)ENGINE_SEQS * table_stride;
    memset(e, 0, sizeof *e);
    e->pair = p;
    e->n_pages = n_pages;
    e->table_stride = table_stride;
    e->max_rows = max_rows;
    e->stride = tq_paged_page_bytes(p->gpu, 0) + GAP;
    e->host_pool = aligned_alloc(64, (e->stride * n_pages + 63) / 64 * 64);
    e->pool = gpu_buffer(e->stride * n_pages);
    e->host_table = malloc(entries * sizeof *e->host_table);
    e->table = gpu_buffer(entries * sizeof *e->table);
    e->lengths = gpu_buffer(sizeof e->host_lengths);
    e->starts = gpu_buffer(sizeof e->host_starts);
    e->order = calloc(n_pages, sizeof *e->order);
    if (!e->host_pool || !e->host_table || !e->order)
        return 0;
    memset(e->host_pool, 0xff, e->stride * n_pages);
    for (size_t i = 0; i < entries; i++)
        e->host_table[i] = i % 2 ? -1 : INT32_MAX; /* what is not needed may be anything */
    shuffle_pages(e);
    open_rows(e);
    open_work(e);
    return 1;
}

void engine_close(struct engine *e) {
    void *device[] = {e->pool, e->table, e->lengths, e->starts, e->slots, e->k,
                      e->v,    e->q,     e->out,     e->lse,    e->work};
    void *host[] = {e->host_pool, e->host_table, e->order,    e->host_slots,
                    e->host_work, e->host_out,   e->host_lse, NULL};
    GPU_CUDA(cudaDeviceSynchronize());
    if (e->graph)
        GPU_CUDA(cudaGraphExecDestroy(e->graph));
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        gpu_release(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
}

/* ---- a step -------------------------------------------------------------------------------- */

static int64_t slot_of(struct engine *e, uint32_t seq, uint32_t token) {
    uint32_t tokens = e->pair->config.page_tokens;
    int32_t *page = &e->host_table[seq * e->table_stride + token / tokens];
    if (*page < 0 || *page == INT32_MAX)
        *page = e->order[e->taken++ % e->n_pages];
    return (int64_t)*page * tokens + token % tokens;
}

/* A slot for every new token, in the order of the sequences or mixed, and now and then none. */
static uint32_t make_slots(struct engine *e, const struct engine_step *s) {
    uint32_t left[ENGINE_SEQS], rows = 0, seq = 0, total = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        total += left[i] = s->n_append[i];
    while (total && rows < e->max_rows) {
        if (s->mixed && gpu_random() % 5 == 0) {
            e->host_slots[rows++] = gpu_random() % 2 ? -1 : INT64_MIN;
            continue;
        }
        for (seq = s->mixed ? gpu_random() % s->n_seqs : seq; !left[seq];)
            seq = (seq + 1) % s->n_seqs;
        e->host_slots[rows++] = slot_of(e, seq, (uint32_t)e->host_lengths[seq]++);
        left[seq]--;
        total--;
    }
    gpu_expect(total == 0, "engine: too few rows for the step");
    return rows;
}

/* Everything of a step, on both sides. */
static void make_step(struct engine *e, const struct engine_step *s, uint32_t rows,
                      uint32_t queries) {
    const tq_cache_config *c = &e->pair->config;
    size_t outs = (size_t)e->max_rows * c->n_q_heads;
    e->host_k = gpu_fill_rows(e->k, (size_t)rows * c->n_kv_heads * c->head_dim, c->head_dim);
    e->host_v = gpu_fill_rows(e->v, (size_t)rows * c->n_kv_heads * c->v_head_dim, c->v_head_dim);
    e->host_q = gpu_fill_rows(e->q, (size_t)queries * c->n_q_heads * c->head_dim, c->head_dim);
    for (uint32_t i = 0; i < ENGINE_SEQS; i++)
        e->host_starts[i + 1] = e->host_starts[i] + (int32_t)(i < s->n_seqs ? s->n_query[i] : 0);
    gpu_write(e->table, e->host_table, ENGINE_SEQS * e->table_stride * 4);
    gpu_write(e->lengths, e->host_lengths, sizeof e->host_lengths);
    gpu_write(e->starts, e->host_starts, sizeof e->host_starts);
    gpu_write(e->slots, e->host_slots, rows * sizeof *e->slots);
    memset(e->host_out, 0xff, outs * c->v_head_dim * 4);
    memset(e->host_lse, 0xff, outs * 4);
    GPU_CUDA(cudaMemset(e->out, 0xff, outs * c->v_head_dim * 4));
    GPU_CUDA(cudaMemset(e->lse, 0xff, outs * 4));
    GPU_CUDA(cudaDeviceSynchronize());
}

tq_paged_pool engine_pool(const struct engine *e, int on_gpu, uint32_t flags) {
    return (tq_paged_pool){sizeof(tq_paged_pool), flags, on_gpu ? e->pool : e->host_pool,
                           (int64_t)e->stride, e->n_pages};
}

tq_paged_seqs engine_seqs(const struct engine *e, int on_gpu, uint32_t n_seqs, uint32_t n_queries) {
    return (tq_paged_seqs){.struct_size = sizeof(tq_paged_seqs),
                           .n_seqs = n_seqs,
                           .block_table = on_gpu ? e->table : e->host_table,
                           .table_stride = e->table_stride,
                           .seq_lens = on_gpu ? e->lengths : e->host_lengths,
                           .query_starts = on_gpu ? e->starts : e->host_starts,
                           .n_queries = n_queries,
                           .max_seq_len = e->table_stride * e->pair->config.page_tokens};
}

static void run(struct engine *e, const struct engine_step *s, int on_gpu, uint32_t n_seqs,
                uint32_t rows, uint32_t queries) {
    tq_cache *cache = on_gpu ? e->pair->gpu : e->pair->cpu;
    tq_stream stream = on_gpu ? e->pair->stream : NULL;
    tq_paged_pool pool = engine_pool(e, on_gpu, 0);
    tq_paged_seqs seqs = engine_seqs(e, on_gpu, n_seqs, queries);
    tq_rows_in k = {.data = on_gpu ? e->k : e->host_k, .dtype = TQ_BF16};
    tq_rows_in v = {.data = on_gpu ? e->v : e->host_v, .dtype = TQ_BF16};
    tq_rows_in q = {.data = on_gpu ? e->q : e->host_q, .dtype = TQ_BF16};
    tq_rows_out out = {.data = on_gpu ? e->out : e->host_out, .dtype = TQ_F32};
    GPU_OK(
        tq_paged_append(cache, 0, &pool, on_gpu ? e->slots : e->host_slots, rows, &k, &v, stream));
    GPU_OK(tq_paged_attend(cache, 0, &pool, &seqs, &s->params, &q, &out,
                           on_gpu ? e->lse : e->host_lse, on_gpu ? e->work : e->host_work,
                           on_gpu ? e->work_size : e->host_work_size, stream));
}

static void capture_run(struct engine *e, const struct engine_step *s, uint32_t rows) {
    cudaStream_t stream = e->pair->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GPU_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run(e, s, 1, ENGINE_SEQS, rows, rows);
    GPU_CUDA(cudaStreamEndCapture(stream, &graph));
    GPU_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    GPU_CUDA(cudaGraphDestroy(graph));
    e->graph = exec;
}

/* Bytes that differ. */
static size_t differs(const void *a, const void *b, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((const uint8_t *)a)[i] != ((const uint8_t *)b)[i];
    return count;
}

/* rows: of the step; most: of a sequence. */
static void compare(struct engine *e, uint32_t rows, uint32_t most, const char *what) {
    const tq_cache_config *c = &e->pair->config;
    size_t all = (size_t)e->max_rows * c->n_q_heads, n = (size_t)rows * c->n_q_heads;
    size_t dim = c->v_head_dim, pool = e->stride * e->n_pages;
    float *out = malloc(all * dim * 4 + 4), *lse = malloc(all * 4 + 4);
    uint8_t *bytes = malloc(pool);
    GPU_CUDA(cudaStreamSynchronize(e->pair->stream));
    gpu_download(out, e->out, all * dim * 4);
    gpu_download(lse, e->lse, all * 4);
    gpu_download(bytes, e->pool, pool);
    size_t wrong = differs(bytes, e->host_pool, pool);
    gpu_expect(wrong == 0, "%s: %zu bytes of the pool differ from the CPU", what, wrong);
    double out_error = gpu_error(out, e->host_out, n * dim);
    double lse_error = gpu_error(lse, e->host_lse, n);
    const double tolerance = pair_tolerance(e->pair, most);
    gpu_expect(out_error <= tolerance && lse_error <= tolerance,
               "%s: attention differs by %.2e, lse by %.2e (at most %.0e)", what, out_error,
               lse_error, tolerance);
    wrong = differs(out + n * dim, e->host_out + n * dim, (all - n) * dim * 4) +
            differs(lse + n, e->host_lse + n, (all - n) * 4);
    gpu_expect(wrong == 0, "%s: rows of nobody were written", what);
    free(out);
    free(lse);
    free(bytes);
}

void engine_step(struct engine *e, const struct engine_step *s, int fixed, int capture,
                 const char *what) {
    uint32_t rows = make_slots(e, s), used = rows, queries = 0, most = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        queries += s->n_query[i];
        most = s->n_query[i] > most ? s->n_query[i] : most;
    }
    if (fixed)
        for (rows = e->max_rows; used < rows; used++)
            e->host_slots[used] = -1;
    make_step(e, s, rows, queries);
    run(e, s, 0, s->n_seqs, rows, queries);
    if (capture)
        capture_run(e, s, rows);
    if (e->graph)
        GPU_CUDA(cudaGraphLaunch(e->graph, e->pair->stream));
    else
        run(e, s, 1, fixed ? ENGINE_SEQS : s->n_seqs, rows, fixed ? rows : queries);
    compare(e, queries, most, what);
    free(e->host_k);
    free(e->host_v);
    free(e->host_q);
}
