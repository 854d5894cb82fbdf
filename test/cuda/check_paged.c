/* Pages of an engine against the CPU: pages in any order in a pool that starts as 0xFF bytes,
 * strides, slots that skip, sequences without tokens, graphs that are replayed while lengths grow,
 * two streams, page ids beyond 4 GiB. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static const tq_layer_formats variants[] = {
    {TQ_FORMAT_LM4, TQ_FORMAT_LM4},    {TQ_FORMAT_LM3, TQ_FORMAT_LM3},
    {TQ_FORMAT_LM3, TQ_FORMAT_LM4},    {TQ_FORMAT_FP8, TQ_FORMAT_FP8},
    {TQ_FORMAT_INT8, TQ_FORMAT_INT8},  {TQ_FORMAT_FP8, TQ_FORMAT_LM4},
    {TQ_FORMAT_BF16, TQ_FORMAT_BF16},  {TQ_FORMAT_LM2, TQ_FORMAT_LM2},
    {TQ_FORMAT_LM3, TQ_FORMAT_LM2},    {TQ_FORMAT_F16, TQ_FORMAT_F16},
    {TQ_FORMAT_POLAR, TQ_FORMAT_LM4},  {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4},
    {TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4}};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

struct shape {
    uint32_t kv_heads, group, dim, page_tokens;
};

static int open_pair(struct pair *p, const struct shape *s, tq_layer_formats f) {
    tq_cache_config config = {.n_kv_heads = s->kv_heads,
                              .n_q_heads = s->kv_heads * s->group,
                              .head_dim = s->dim,
                              .page_tokens = s->page_tokens,
                              .max_pages = 64};
    return pair_create(p, config, f.k_format, f.v_format);
}

/* ---- ragged steps ---------------------------------------------------------------------------- */

/* Tokens and queries of the sequences: prompts, chunks, decoding, speculation, nothing. */
static const struct engine_step steps[] = {
    {.n_seqs = 7,
     .n_append = {65, 1, 0, 130, 31, 300, 64},
     .n_query = {1, 1, 1, 2, 0, 1, 1},
     .params = {.flags = 0}},
    {.n_seqs = 7,
     .n_append = {1, 1, 0, 1, 1, 1, 1},
     .n_query = {1, 1, 1, 1, 1, 1, 1},
     .params = {.flags = TQ_ATTEND_CAUSAL}},
    {.n_seqs = 7,
     .n_append = {3, 40, 0, 5, 0, 17, 2},
     .n_query = {3, 40, 2, 5, 4, 1, 2},
     .params = {.flags = TQ_ATTEND_CAUSAL},
     .mixed = 1},
    {.n_seqs = 3,
     .n_append = {1, 2, 3},
     .n_query = {1, 1, 1},
     .params = {.flags = TQ_ATTEND_BATCH_INVARIANT},
     .mixed = 1},
    {.n_seqs = 6,
     .n_append = {2, 0, 0, 70, 1, 1},
     .n_query = {2, 1, 1, 3, 1, 2},
     .params = {.flags = TQ_ATTEND_CAUSAL, .window = 40}},
    {.n_seqs = 7,
     .n_append = {0, 0, 0, 0, 0, 0, 9},
     .n_query = {1, 0, 1, 0, 1, 0, 9},
     .params = {.flags = TQ_ATTEND_CAUSAL, .logit_softcap = 4}},
    {.n_seqs = 7, /* many rows beside few */
     .n_append = {200, 1, 0, 0, 0, 90, 1},
     .n_query = {200, 1, 1, 0, 70, 90, 1},
     .params = {.flags = TQ_ATTEND_CAUSAL, .window = 100}},
};
enum { N_STEPS = sizeof steps / sizeof *steps };

static void ragged(tq_layer_formats f, struct shape shape, int fixed, size_t n_steps) {
    struct pair p;
    struct engine e;
    char what[128];
    if (open_pair(&p, &shape, f) &&
        engine_open(&e, &p, 1600 / shape.page_tokens + 20, 800 / shape.page_tokens, 1000)) {
        for (size_t i = 0; i < n_steps; i++) {
            struct engine_step s = steps[i];
            s.params.struct_size = sizeof s.params;
            snprintf(what, sizeof what, "paged step %zu of K %u V %u, group %u dim %u page %u", i,
                     f.k_format, f.v_format, shape.group, shape.dim, shape.page_tokens);
            engine_step(&e, &s, fixed, 0, what);
        }
        engine_close(&e);
    }
    pair_destroy(&p);
}

/* ---- graphs ------------------------------------------------------------------------------------
 */

/* Captured in the first step; then sequences grow, come and go. */
static void replayed(tq_layer_formats f, uint32_t dim, uint32_t max_rows) {
    struct shape shape = {2, 8, dim, 64};
    struct pair p;
    struct engine e;
    cudaStream_t stream;
    char what[96];
    GPU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    snprintf(what, sizeof what, "paged graph of K %u V %u dim %u, %u rows", f.k_format, f.v_format,
             dim, max_rows);
    if (open_pair(&p, &shape, f) && engine_open(&e, &p, 80, 20, max_rows)) {
        struct engine_step s = {.n_seqs = max_rows < 7 ? max_rows : 7};
        s.params = (tq_attend_params){.struct_size = sizeof s.params, .flags = TQ_ATTEND_CAUSAL};
        p.stream = stream;
        for (int i = 0; i < 24; i++) {
            for (uint32_t q = 0; q < s.n_seqs; q++) {
                s.n_append[q] = i % 4 == 3 ? gpu_random() % (max_rows / s.n_seqs) : 1;
                s.n_query[q] = i % 4 == 3 ? gpu_random() % (max_rows / s.n_seqs) : 1;
            }
            s.mixed = max_rows > 100 && i % 3 == 1;
            if (i == 20)
                memset(s.n_query, 0, sizeof s.n_query);
            engine_step(&e, &s, 1, i == 0, what);
        }
        engine_close(&e);
    }
    pair_destroy(&p);
    GPU_CUDA(cudaStreamDestroy(stream));
}

/* ---- two streams -------------------------------------------------------------------------------
 */

/* Calls on two streams at a time, each with a workspace of its own: the bits of calls alone. */
static void two_streams(void) {
    struct shape shape = {2, 8, 128, 64};
    struct pair p;
    struct engine e[2];
    cudaStream_t streams[2];
    if (!open_pair(&p, &shape, variants[0]))
        return;
    size_t n = 7 * 16 * 128;
    float *alone = malloc(n * 4), *beside = malloc(n * 4);
    for (int i = 0; i < 2; i++) {
        GPU_CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        engine_open(&e[i], &p, 60, 20, 700);
        struct engine_step s = steps[0];
        s.params.struct_size = sizeof s.params;
        engine_step(&e[i], &s, 0, 0, "first of two streams");
    }
    gpu_download(alone, e[0].out, n * 4);
    int same = 1;
    for (int run = 0; run < 20; run++) {
        GPU_CUDA(cudaMemset(e[0].out, 0xff, n * 4));
        GPU_CUDA(cudaDeviceSynchronize());
        for (int i = 0; i < 2; i++) {
            tq_paged_pool pool = engine_pool(&e[i], 1, 0);
            tq_paged_seqs seqs = engine_seqs(&e[i], 1, 7, 7);
            tq_rows_in q = {.data = e[i].q, .dtype = TQ_BF16};
            tq_rows_out out = {.data = e[i].out, .dtype = TQ_F32};
            GPU_OK(tq_paged_attend(p.gpu, 0, &pool, &seqs, NULL, &q, &out, e[i].lse, e[i].work,
                                   e[i].work_size, streams[i]));
        }
        gpu_download(beside, e[0].out, n * 4);
        same &= memcmp(alone, beside, n * 4) == 0;
    }
    gpu_expect(same, "calls on two streams gave other bits than alone");
    for (int i = 0; i < 2; i++) {
        engine_close(&e[i]);
        GPU_CUDA(cudaStreamDestroy(streams[i]));
    }
    free(alone);
    free(beside);
    pair_destroy(&p);
}

/* ---- the cache path
 * ------------------------------------------------------------------------------ */

/* The same rows in the cache's own pages, attended by a batch with the same maxima. */
static void as_batch(tq_layer_formats f, struct shape shape, uint32_t flags) {
    enum { N = 3 };
    static const uint32_t lengths[N] = {70, 1, 200};
    struct pair p;
    struct engine e;
    tq_batch *batch = NULL;
    tq_seq seqs[N];
    if (!open_pair(&p, &shape, f) || !engine_open(&e, &p, 30, 16, 300))
        return;
    struct engine_step s = {.n_seqs = N, .n_append = {70, 1, 200}, .n_query = {1, 1, 1}};
    s.params = (tq_attend_params){.struct_size = sizeof s.params, .flags = flags};
    engine_step(&e, &s, 0, 0, "pages to compare with a batch");
    size_t n = (size_t)N * p.config.n_q_heads * p.config.v_head_dim, row = 0;
    float *paged = malloc(n * 4), *own = malloc(n * 4);
    gpu_download(paged, e.out, n * 4);
    uint32_t none[N] = {0}, one[N] = {1, 1, 1};
    for (int i = 0; i < N; i++) {
        size_t at = row * p.config.n_kv_heads * shape.dim * 2;
        tq_rows_in k = {.data = (char *)e.k + at, .dtype = TQ_BF16};
        tq_rows_in v = {.data = (char *)e.v + at, .dtype = TQ_BF16};
        GPU_OK(tq_seq_create(p.gpu, &seqs[i]));
        GPU_OK(tq_append(p.gpu, seqs[i], 0, lengths[i], &k, &v, NULL));
        row += lengths[i];
    }
    GPU_OK(tq_batch_create(p.gpu, N, N, &batch));
    tq_batch_desc desc = {sizeof desc, N, seqs, none, one};
    tq_rows_in q = {.data = e.q, .dtype = TQ_BF16};
    tq_rows_out out = {.data = e.out, .dtype = TQ_F32};
    GPU_OK(tq_batch_plan(batch, &desc, NULL));
    GPU_OK(tq_batch_attend(batch, 0, &s.params, &q, &out, NULL, NULL));
    gpu_download(own, e.out, n * 4);
    GPU_OK(tq_batch_commit(batch, NULL));
    gpu_expect(memcmp(paged, own, n * 4) == 0,
               "K %u V %u dim %u: pages of an engine give other bits than a batch", f.k_format,
               f.v_format, shape.dim);
    tq_batch_destroy(batch);
    free(paged);
    free(own);
    engine_close(&e);
    pair_destroy(&p);
}

/* ---- large pools
 * ---------------------------------------------------------------------------------- */

/* A sequence in the pages from `first` on of a pool beyond 4 GiB. */
static void ask_pages(tq_cache *cache, const tq_paged_pool *pool, uint32_t first, uint32_t tokens,
                      const tq_rows_in *in, const tq_rows_out *to, float *got, size_t row) {
    int32_t table[16], starts[2] = {0, 1}, length = (int32_t)tokens;
    int64_t *slots = malloc(tokens * sizeof *slots);
    size_t size = 0;
    for (uint32_t i = 0; i < 16; i++)
        table[i] = (int32_t)(first + i);
    for (uint32_t i = 0; i < tokens; i++)
        slots[i] = (int64_t)first * 64 + i;
    int64_t *d_slots = gpu_upload(slots, tokens * sizeof *slots);
    int32_t *d_table = gpu_upload(table, sizeof table), *d_starts = gpu_upload(starts, 8);
    int32_t *d_length = gpu_upload(&length, 4);
    tq_paged_seqs seqs = {.struct_size = sizeof seqs,
                          .n_seqs = 1,
                          .block_table = d_table,
                          .seq_lens = d_length,
                          .query_starts = d_starts,
                          .n_queries = 1,
                          .max_seq_len = tokens};
    GPU_OK(tq_paged_workspace(cache, 1, 1, tokens, &size));
    void *work = gpu_buffer(size);
    GPU_OK(tq_paged_append(cache, 0, pool, d_slots, tokens, in, in, NULL));
    GPU_OK(tq_paged_attend(cache, 0, pool, &seqs, NULL, in, to, NULL, work, size, NULL));
    gpu_download(got, to->data, row * sizeof *got);
    gpu_release(d_slots);
    gpu_release(d_table);
    gpu_release(d_starts);
    gpu_release(d_length);
    gpu_release(work);
    free(slots);
}

static void large_pool(tq_variant variant) {
    enum { HEADS = 16, DIM = 128, TOKENS = 200, ROW = HEADS * DIM, TOTAL = 5 };
    static float first[ROW], last[ROW];
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = HEADS,
                              .head_dim = DIM,
                              .variant = variant,
                              .max_pages = 1};
    tq_context_config on_gpu = {.struct_size = sizeof on_gpu, .device = TQ_DEVICE_CUDA};
    void *rows = gpu_rows(TQ_BF16, (size_t)TOKENS * ROW, DIM);
    tq_rows_in in = {.data = gpu_upload(rows, (size_t)TOKENS * ROW * 2), .dtype = TQ_BF16};
    tq_rows_out to = {.data = gpu_buffer(sizeof first), .dtype = TQ_F32};
    tq_context *context = NULL;
    tq_cache *cache = NULL;
    GPU_OK(tq_context_create(&on_gpu, &context));
    GPU_OK(tq_cache_create(context, &config, &cache));
    size_t page = tq_paged_page_bytes(cache, 0);
    uint64_t n_pages = (TOTAL * (UINT64_C(1) << 30) + page - 1) / page;
    tq_paged_pool pool = {sizeof pool, 0, gpu_buffer(page * n_pages), 0, n_pages};
    ask_pages(cache, &pool, 3, TOKENS, &in, &to, first, ROW);
    ask_pages(cache, &pool, (uint32_t)n_pages - 16, TOKENS, &in, &to, last, ROW);
    gpu_expect(memcmp(first, last, sizeof first) == 0, "page ids beyond 4 GiB give other bits");
    tq_cache_destroy(cache);
    tq_context_destroy(context);
    gpu_release(pool.pages);
    gpu_release((void *)(uintptr_t)in.data);
    gpu_release(to.data);
    free(rows);
}

/* ---- the checks
 * ------------------------------------------------------------------------------------ */

void check_paged_sanitize(void) {
    for (int v = 0; v < N_VARIANTS; v += 3)
        ragged(variants[v], (struct shape){2, 8, 128, 64}, v % 2, 3);
    ragged(variants[1], (struct shape){2, 4, 80, 16}, 0, 3);
    ragged(variants[0], (struct shape){1, 2, 64, 64}, 1, 2);
    as_batch(variants[0], (struct shape){1, 4, 64, 64}, 0);
    check_paged_refused();
}

void check_paged(void) {
    static const uint32_t dims[] = {64, 96, 192, 256};
    for (int v = 0; v < N_VARIANTS; v++) {
        ragged(variants[v], (struct shape){2, 8, 128, 64}, v % 2, N_STEPS);
        ragged(variants[v], (struct shape){2, 3, dims[v % 4], 64}, 0, N_STEPS);
        ragged(variants[v], (struct shape){2, 2, v % 2 ? 80 : 112, v % 3 ? 16 : 128}, 0, N_STEPS);
    }
    for (int i = 0; i < 4; i++)
        ragged(variants[i % 2], (struct shape){1, 4, dims[i], 64}, 1, N_STEPS);
    ragged(variants[0], (struct shape){40, 1, 128, 32}, 0, N_STEPS);
    replayed(variants[0], 128, 7);
    replayed(variants[0], 128, 400);
    replayed(variants[1], 128, 400);
    replayed(variants[3], 64, 400);
    replayed(variants[0], 80, 400);
    two_streams();
    for (int v = 0; v < N_VARIANTS; v++)
        as_batch(variants[v], (struct shape){2, 8, 128, 64}, v % 2 ? TQ_ATTEND_BATCH_INVARIANT : 0);
    as_batch(variants[0], (struct shape){40, 8, 128, 64}, 0);
    as_batch(variants[1], (struct shape){2, 3, 80, 16}, 0);
    large_pool(TQ_VARIANT_INT8);
    large_pool(TQ_VARIANT_K3V2_NC);
    check_paged_refused();
}
