/* Steps over many sequences against the CPU: ragged lengths, page orders, formats, prefill
 * beside decode, graphs that are replayed while sequences grow, repeatability. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batches.h"

static const tq_layer_formats variants[] = {
    {TQ_FORMAT_LM4, TQ_FORMAT_LM4},     {TQ_FORMAT_LM3, TQ_FORMAT_LM3},
    {TQ_FORMAT_LM3, TQ_FORMAT_LM4},     {TQ_FORMAT_FP8, TQ_FORMAT_FP8},
    {TQ_FORMAT_INT8, TQ_FORMAT_INT8},   {TQ_FORMAT_FP8, TQ_FORMAT_LM4},
    {TQ_FORMAT_BF16, TQ_FORMAT_BF16},   {TQ_FORMAT_LM2, TQ_FORMAT_LM2},
    {TQ_FORMAT_POLAR, TQ_FORMAT_LM4},   {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4},
    {TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4}, {TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3}};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

struct shape {
    uint32_t kv_heads, group, dim, page_tokens, max_pages;
};

static int open_pair(struct pair *p, const struct shape *s, tq_layer_formats f) {
    tq_cache_config config = {.n_kv_heads = s->kv_heads,
                              .n_q_heads = s->kv_heads * s->group,
                              .head_dim = s->dim,
                              .page_tokens = s->page_tokens,
                              .max_pages = s->max_pages};
    return pair_create(p, config, f.k_format, f.v_format);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* Ragged batches of one shape: decode, speculation, chunks of prompts, queries alone. */
static void ragged(tq_layer_formats f, struct shape shape, uint32_t n, const uint32_t *lengths,
                   const char *name) {
    struct pair p;
    struct batches b;
    struct step s;
    char what[128];
    if (open_pair(&p, &shape, f) && batches_open(&b, &p, BATCH_SEQS, 400)) {
        snprintf(what, sizeof what, "%s: K %u V %u, group %u dim %u page %u", name, f.k_format,
                 f.v_format, shape.group, shape.dim, shape.page_tokens);
        batches_start(&b, &s, n, lengths);
        step_decode(&s);
        batches_step(&b, &s, 0, 0, what);
        b.flags = TQ_ATTEND_CAUSAL;
        for (uint32_t most = 1; most <= 8; most *= 4) {
            step_shuffle(&s, most, most);
            batches_step(&b, &s, most / 4, 0, what);
        }
        step_shuffle(&s, 1, 1);
        s.n_append[0] = s.n_query[0] = 70; /* a chunk of a prompt beside the rest */
        batches_step(&b, &s, 0, 0, what);
        batches_check_pages(&b, &s, what);
    }
    batches_close(&b);
    pair_destroy(&p);
}

static const uint32_t mixed[] = {0, 1, 63, 64, 65, 130, 400, 31, 0, 900, 2, 200};
static const uint32_t few[] = {1500, 40};
/* Beside short ones: kernels for long sequences see both. */
static const uint32_t longer[] = {2100, 1, 63, 700, 64, 2048, 5, 0, 130, 300, 2500, 77};
/* Long for groups up to four. */
static const uint32_t longest[] = {16400, 1, 70, 0, 2100};

static void formats_and_shapes(void) {
    static const uint32_t groups[] = {1, 4, 7, 16};
    static const uint32_t dims[] = {64, 96, 192, 256};
    for (int v = 0; v < N_VARIANTS; v++) {
        ragged(variants[v], (struct shape){2, 8, 128, 64, 300}, 12, mixed, "mixed");
        ragged(variants[v], (struct shape){1, 8, 128, 64, 300}, 2, few, "few");
        ragged(variants[v], (struct shape){2, groups[v % 4], 128, 64, 300}, 12, mixed, "groups");
        ragged(variants[v], (struct shape){1, 8, dims[v % 4], 64, 300}, 12, mixed, "dims");
        ragged(variants[v], (struct shape){2, 5 + (uint32_t)v % 4, 128, 64, 300}, 12, longer,
               "long");
        ragged(variants[v], (struct shape){15, 16, 128, 64, 300}, 12, mixed, "many heads");
    }
    for (uint32_t v = 0; v < 4; v++) /* the integer codes, and one of groups of one */
        ragged(variants[v % 3], (struct shape){2, 4 - v, 128, 64, 360}, 5, longest, "longest");
    for (int i = 0; i < 4; i++) {
        ragged(variants[0], (struct shape){2, groups[i], 128, 64, 300}, 12, mixed, "groups");
        ragged(variants[0], (struct shape){1, 4, dims[i], 64, 300}, 12, mixed, "dims");
    }
    ragged(variants[0], (struct shape){40, 1, 128, 64, 300}, 12, mixed, "many heads");
    ragged(variants[1], (struct shape){2, 4, 80, 32, 500}, 12, mixed, "generic");
    ragged(variants[6], (struct shape){1, 40, 64, 16, 900}, 12, mixed, "generic");
}

/* Many rows of short sequences, more than the blocks that join their pieces at once. */
static void many_rows(tq_layer_formats f, uint32_t dim) {
    struct shape shape = {40, 4, dim, 64, 300};
    uint32_t lengths[BATCH_SEQS];
    struct pair p;
    struct batches b;
    struct step s;
    for (uint32_t i = 0; i < BATCH_SEQS; i++)
        lengths[i] = i % 9 ? 60 + i : 0;
    if (open_pair(&p, &shape, f) && batches_open(&b, &p, BATCH_SEQS, 100)) {
        batches_start(&b, &s, BATCH_SEQS, lengths);
        step_decode(&s);
        batches_step(&b, &s, 0, 0, "many rows");
        b.flags = TQ_ATTEND_BATCH_INVARIANT; /* blocks take several pieces one behind another */
        step_decode(&s);
        batches_step(&b, &s, 0, 0, "many pieces");
    }
    batches_close(&b);
    pair_destroy(&p);
}

/* So few rows that blocks take items whole: single calls and batches of few tokens. */
static void few_rows(tq_layer_formats f, uint32_t dim, uint32_t group) {
    static const uint32_t lengths[] = {0, 70, 200};
    struct shape shape = {2, group, dim, 64, 60};
    struct pair p;
    struct batches b;
    struct step s;
    char what[96];
    snprintf(what, sizeof what, "few rows of K %u V %u, dim %u group %u", f.k_format, f.v_format,
             dim, group);
    if (open_pair(&p, &shape, f) && batches_open(&b, &p, 3, 6)) {
        batches_start(&b, &s, 3, lengths);
        step_decode(&s);
        batches_step(&b, &s, 0, 0, what);
        b.flags = TQ_ATTEND_CAUSAL;
        for (int i = 0; i < 4; i++) {
            step_shuffle(&s, 2, 2);
            batches_step(&b, &s, i & 1, 0, what);
            pair_check_attend(&p, s.seqs[0], 1, 0, what);
        }
        batches_check_pages(&b, &s, what);
    }
    batches_close(&b);
    pair_destroy(&p);
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* Captured in the first step, replayed while sequences grow, leave, come and change order. */
static void replayed(tq_layer_formats f, uint32_t dim, uint32_t max_tokens) {
    struct shape shape = {2, 8, dim, 64, 400};
    struct pair p;
    struct batches b;
    struct step s;
    cudaStream_t stream;
    char what[96];
    GPU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (open_pair(&p, &shape, f) && batches_open(&b, &p, 16, max_tokens)) {
        snprintf(what, sizeof what, "graph of K %u V %u dim %u, %u tokens", f.k_format, f.v_format,
                 dim, max_tokens);
        p.stream = stream;
        uint32_t n = max_tokens < 12 ? max_tokens : 12;
        batches_start(&b, &s, n, mixed + 12 - n);
        step_decode(&s);
        b.flags = TQ_ATTEND_CAUSAL;
        batches_step(&b, &s, 0, 1, what);
        for (int i = 0; i < 20; i++)
            batches_step(&b, &s, 0, 0, what);
        step_shuffle(&s, max_tokens > 64 ? 5 : 1, max_tokens > 64 ? 7 : 1);
        batches_step(&b, &s, 0, 0, what);
        s.n = n / 2;
        batches_step(&b, &s, 1, 0, what);
        s.n = 0; /* nothing to do */
        batches_step(&b, &s, 0, 0, what);
        s.n = n;
        if (max_tokens > 64) {
            s.n_append[3] = s.n_query[3] = 300; /* more rows than a block of them */
            s.n_append[7] = 0;
        }
        batches_step(&b, &s, 0, 0, what);
        batches_check_pages(&b, &s, what);
    }
    batches_close(&b);
    pair_destroy(&p);
    GPU_CUDA(cudaStreamDestroy(stream));
}

/* ---- repeatability ------------------------------------------------------------------------- */

/* The same step again and again: the same bits. With many kv heads, warps take a few pages of many
 * items that the L2 cache holds, so that copies come soon after their places are given back. */
static void repeated(tq_layer_formats f, uint32_t kv_heads, uint32_t group) {
    struct shape shape = {kv_heads, group, 128, 64, 400};
    struct pair p;
    struct batches b;
    struct step s;
    size_t bytes = (size_t)12 * kv_heads * group * 128 * 4;
    float *first = malloc(bytes), *again = malloc(bytes);
    if (open_pair(&p, &shape, f) && batches_open(&b, &p, 12, 400)) {
        batches_start(&b, &s, 12, mixed);
        step_decode(&s);
        batches_step(&b, &s, 0, 0, "repeated");
        gpu_download(first, b.out, bytes);
        memset(s.n_append, 0, sizeof s.n_append);
        tq_batch_desc desc = {sizeof desc, s.n, s.seqs, s.n_append, s.n_query};
        tq_rows_in q = {.data = b.q, .dtype = TQ_BF16};
        tq_rows_out out = {.data = b.out, .dtype = TQ_F32};
        int same = 1;
        for (int i = 0; i < 200; i++) {
            GPU_OK(tq_batch_plan(b.gpu, &desc, NULL));
            GPU_OK(tq_batch_attend(b.gpu, 0, NULL, &q, &out, NULL, NULL));
            gpu_download(again, b.out, bytes);
            GPU_OK(tq_batch_commit(b.gpu, NULL));
            same &= memcmp(first, again, bytes) == 0;
        }
        gpu_expect(same, "K %u V %u, %u kv heads: identical steps gave different bits", f.k_format,
                   f.v_format, kv_heads);
    }
    batches_close(&b);
    pair_destroy(&p);
    free(first);
    free(again);
}

/* Output of one query token for sequence `at` of the step, into host memory. */
static void ask_batch(struct batches *b, const struct step *s, uint32_t at, float *out) {
    const tq_cache_config *c = &b->pair->config;
    size_t row = (size_t)c->n_q_heads * c->v_head_dim;
    uint32_t none[BATCH_SEQS] = {0}, one[BATCH_SEQS];
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_BATCH_INVARIANT};
    tq_rows_in q = {.data = b->q, .dtype = TQ_BF16};
    tq_rows_out rows = {.data = b->out, .dtype = TQ_F32};
    for (uint32_t i = 0; i < s->n; i++)
        one[i] = 1;
    tq_batch_desc desc = {sizeof desc, s->n, s->seqs, none, one};
    GPU_OK(tq_batch_plan(b->gpu, &desc, NULL));
    GPU_OK(tq_batch_attend(b->gpu, 0, &params, &q, &rows, NULL, NULL));
    gpu_download(out, b->out + at * row, row * 4);
    GPU_OK(tq_batch_commit(b->gpu, NULL));
}

/* A sequence's bits do not depend on the batch around it. */
static void invariant(tq_layer_formats f, uint32_t dim) {
    struct shape shape = {4, 8, dim, 64, 400};
    struct pair p;
    struct batches b;
    struct step s;
    if (open_pair(&p, &shape, f) && batches_open(&b, &p, 12, 400)) {
        size_t row = (size_t)p.config.n_q_heads * p.config.v_head_dim;
        float *in_batch = malloc(row * 4), *alone = malloc(row * 4);
        int same = 1;
        batches_start(&b, &s, 12, mixed);
        step_decode(&s);
        b.flags = TQ_ATTEND_BATCH_INVARIANT;
        batches_step(&b, &s, 0, 0, "batch-invariant");
        for (uint32_t i = 0; i < s.n; i++) {
            ask_batch(&b, &s, i, in_batch);
            struct step single = {.n = 1, .seqs = {s.seqs[i]}};
            const uint16_t *q = b.q;
            b.q = (void *)(uintptr_t)(q + i * (size_t)p.config.n_q_heads * dim);
            ask_batch(&b, &single, 0, alone);
            same &= memcmp(in_batch, alone, row * 4) == 0;
            tq_attend_params params = {.struct_size = sizeof params,
                                       .flags = TQ_ATTEND_BATCH_INVARIANT};
            tq_rows_in q_rows = {.data = b.q, .dtype = TQ_BF16};
            tq_rows_out rows = {.data = b.out, .dtype = TQ_F32};
            GPU_OK(tq_attend(p.gpu, s.seqs[i], 0, 1, &params, &q_rows, &rows, NULL, NULL));
            gpu_download(alone, b.out, row * 4);
            same &= memcmp(in_batch, alone, row * 4) == 0;
            b.q = (void *)(uintptr_t)q;
        }
        gpu_expect(same, "K %u V %u dim %u: bits depend on the batch", f.k_format, f.v_format, dim);
        free(in_batch);
        free(alone);
    }
    batches_close(&b);
    pair_destroy(&p);
}

/* A new sequence of `tokens` rows and its attention. */
static void ask_new(tq_cache *cache, uint32_t tokens, const tq_rows_in *in, const tq_rows_out *to,
                    float *got, size_t row) {
    tq_seq seq;
    GPU_OK(tq_seq_create(cache, &seq));
    GPU_OK(tq_append(cache, seq, 0, tokens, in, in, NULL));
    GPU_OK(tq_attend(cache, seq, 0, 1, NULL, in, to, NULL, NULL));
    gpu_download(got, to->data, row * sizeof *got);
}

/* The same tokens in the first and in the last pages of a pool beyond 4 GiB: the same bits. */
static void large_pool(void) {
    enum { HEADS = 16, DIM = 128, TOKENS = 200, PAGES = 20000, ROW = HEADS * DIM };
    static float first[ROW], last[ROW];
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = HEADS,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_INT8,
                              .max_seqs = PAGES,
                              .max_pages = PAGES};
    tq_context_config on_gpu = {.struct_size = sizeof on_gpu, .device = TQ_DEVICE_CUDA};
    void *rows = gpu_rows(TQ_BF16, (size_t)TOKENS * ROW, DIM);
    tq_rows_in in = {.data = gpu_upload(rows, (size_t)TOKENS * ROW * 2), .dtype = TQ_BF16};
    tq_rows_out to = {.data = gpu_buffer(sizeof first), .dtype = TQ_F32};
    tq_context *context = NULL;
    tq_cache *cache = NULL;
    tq_seq seq;
    GPU_OK(tq_context_create(&on_gpu, &context));
    GPU_OK(tq_cache_create(context, &config, &cache));
    ask_new(cache, TOKENS, &in, &to, first, ROW);
    for (uint32_t i = 0; i < PAGES - 8; i++) {
        GPU_OK(tq_seq_create(cache, &seq));
        GPU_OK(tq_append(cache, seq, 0, 1, &in, &in, NULL));
    }
    ask_new(cache, TOKENS, &in, &to, last, ROW);
    gpu_expect(memcmp(first, last, sizeof first) == 0, "pages beyond 4 GiB give other bits");
    tq_cache_destroy(cache);
    tq_context_destroy(context);
    gpu_release((void *)(uintptr_t)in.data);
    gpu_release(to.data);
    free(rows);
}

/* Two batches planned at once, each on a stream of its own. */
static void two_batches(void) {
    struct shape shape = {2, 8, 128, 64, 400};
    struct pair p;
    struct batches a, b;
    struct step s, t;
    cudaStream_t streams[2];
    for (int i = 0; i < 2; i++)
        GPU_CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    if (open_pair(&p, &shape, variants[0]) && batches_open(&a, &p, 12, 400) &&
        batches_open(&b, &p, 12, 100)) {
        batches_start(&a, &s, 12, mixed);
        batches_start(&b, &t, 2, few);
        step_decode(&s);
        step_decode(&t);
        for (int i = 0; i < 5; i++) {
            p.stream = streams[0];
            batches_step(&a, &s, 0, 0, "first of two batches");
            p.stream = streams[1];
            batches_step(&b, &t, 0, 0, "second of two batches");
            pair_check_attend(&p, t.seqs[0], 1, 0, "a single call beside batches");
        }
    }
    batches_close(&a);
    batches_close(&b);
    pair_destroy(&p);
    for (int i = 0; i < 2; i++)
        GPU_CUDA(cudaStreamDestroy(streams[i]));
}

void check_batches_sanitize(void) {
    static const uint32_t lengths[] = {0, 1, 65, 130};
    for (int v = 0; v < N_VARIANTS; v += 3)
        ragged(variants[v], (struct shape){2, 8, 128, 64, 40}, 4, lengths, "sanitize");
    ragged(variants[0], (struct shape){40, 8, 128, 64, 40}, 4, lengths, "sanitize");
    ragged(variants[0], (struct shape){2, 4, 64, 16, 90}, 4, lengths, "sanitize");
    few_rows(variants[1], 128, 8);
}

void check_batches_of(tq_layer_formats f) {
    few_rows(f, 64, 8);
    few_rows(f, 128, 16);
    replayed(f, 128, 400);
    repeated(f, 4, 8);
    invariant(f, 128);
}

void check_batches(void) {
    formats_and_shapes();
    for (int v = 0; v < 2 * N_VARIANTS; v++)
        few_rows(variants[v / 2], v % 2 || v % 3 ? 128 : 64, v % 2 ? 16 : 8);
    many_rows(variants[0], 128);
    many_rows(variants[1], 64);
    few_rows(variants[0], 256, 4);
    few_rows(variants[0], 96, 4);
    few_rows(variants[0], 128, 3);
    replayed(variants[0], 128, 3);
    replayed(variants[0], 128, 12);
    replayed(variants[0], 128, 400);
    replayed(variants[3], 128, 400);
    replayed(variants[0], 80, 400);
    replayed(variants[9], 128, 400);
    for (int v = 0; v < N_VARIANTS; v++)
        repeated(variants[v], 4, 8);
    for (int v = 0; v < 4; v++)
        repeated(variants[v], 120, v % 2 ? 8 : 4);
    invariant(variants[0], 128);
    invariant(variants[3], 128);
    invariant(variants[1], 80);
    large_pool();
    two_batches();
}
