/* Queries, keys and values with which mistakes of one lane, dim or token show: zeros, one-hot
 * rows, single tokens. Every format. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { HEADS = 2, TOKENS = 150 };

static const struct {
    tq_format k, v;
    uint32_t dim;
} variants[] = {{TQ_FORMAT_BF16, TQ_FORMAT_BF16, 64}, {TQ_FORMAT_BF16, TQ_FORMAT_BF16, 128},
                {TQ_FORMAT_FP8, TQ_FORMAT_FP8, 64},   {TQ_FORMAT_FP8, TQ_FORMAT_FP8, 128},
                {TQ_FORMAT_FP8, TQ_FORMAT_FP8, 256},  {TQ_FORMAT_INT8, TQ_FORMAT_INT8, 128},
                {TQ_FORMAT_FP8, TQ_FORMAT_LM4, 128},  {TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128},
                {TQ_FORMAT_LM3, TQ_FORMAT_LM4, 128},  {TQ_FORMAT_LM3, TQ_FORMAT_LM3, 128},
                {TQ_FORMAT_LM2, TQ_FORMAT_LM2, 96},   {TQ_FORMAT_F16, TQ_FORMAT_F16, 80}};

/* Rows with one element that is not 0, another one in every token. */
static void one_hot_rows(float *rows, uint32_t dim) {
    memset(rows, 0, (size_t)TOKENS * HEADS * dim * sizeof *rows);
    for (uint32_t i = 0; i < TOKENS * HEADS; i++)
        rows[(size_t)i * dim + i * 7 % dim] = i % 2 ? -3.0f : 2.0f;
}

/* With q = 0 all tokens weigh the same: lse is the logarithm of their number. */
static void zero_query(struct pair *p, tq_seq seq) {
    size_t n = (size_t)p->config.n_q_heads * p->config.head_dim;
    float *q = calloc(n, sizeof *q), lse[64];
    float *device_q = gpu_upload(q, n * sizeof *q), *device_lse = gpu_buffer(sizeof lse);
    void *device_out = gpu_buffer(n * sizeof *q);
    tq_rows_in in = {.data = device_q, .dtype = TQ_F32};
    tq_rows_out out = {.data = device_out, .dtype = TQ_F32};
    tq_attend_params params = {.struct_size = sizeof params};
    pair_check_query(p, seq, q, &params, "q = 0");
    GPU_OK(tq_attend(p->gpu, seq, 0, 1, &params, &in, &out, device_lse, NULL));
    gpu_download(lse, device_lse, p->config.n_q_heads * sizeof *lse);
    for (uint32_t h = 0; h < p->config.n_q_heads; h++)
        gpu_expect(fabs(lse[h] - log(TOKENS)) < 1e-5, "q = 0: lse %.7g of head %u, not log %d",
                   (double)lse[h], h, TOKENS);
    gpu_release(device_q);
    gpu_release(device_out);
    gpu_release(device_lse);
    free(q);
}

/* Queries of one element: every dim in turn, a different one in every head. */
static void one_hot_queries(struct pair *p, tq_seq seq, const char *what) {
    const tq_cache_config *c = &p->config;
    size_t n = (size_t)c->n_q_heads * c->head_dim;
    float *q = calloc(n, sizeof *q);
    tq_attend_params params = {.struct_size = sizeof params};
    for (uint32_t first = 0; first < c->head_dim; first += c->n_q_heads) {
        memset(q, 0, n * sizeof *q);
        for (uint32_t h = 0; h < c->n_q_heads; h++)
            q[h * c->head_dim + (first + h) % c->head_dim] = h % 3 ? 1.5f : -2.0f;
        pair_check_query(p, seq, q, &params, what);
    }
    free(q);
}

/* Sequences of one token: its weight is 1. */
static void single_tokens(struct pair *p) {
    const uint32_t dim = p->config.head_dim;
    float *rows = calloc((size_t)HEADS * dim, sizeof *rows);
    tq_attend_params params = {.struct_size = sizeof params};
    for (uint32_t token = 0; token < 3; token++) {
        tq_seq seq = pair_seq(p);
        for (uint32_t i = 0; i < HEADS * dim; i++)
            rows[i] = gpu_gauss();
        pair_append_rows(p, seq, 1, rows);
        float *q = gpu_rows(TQ_F32, (size_t)p->config.n_q_heads * dim, dim);
        pair_check_query(p, seq, q, &params, "one token");
        free(q);
    }
    free(rows);
}

static void one_variant(size_t v) {
    const uint32_t dim = variants[v].dim;
    tq_cache_config config = {.n_kv_heads = HEADS, .n_q_heads = HEADS * 8, .head_dim = dim};
    struct pair p;
    float *rows = malloc((size_t)TOKENS * HEADS * dim * sizeof *rows);
    if (pair_create(&p, config, variants[v].k, variants[v].v)) {
        tq_seq hot = pair_seq(&p), random = pair_seq(&p);
        one_hot_rows(rows, dim);
        pair_append_rows(&p, hot, TOKENS, rows);
        pair_append(&p, random, TOKENS, TQ_BF16, 0);
        pair_check_attend(&p, hot, 1, 0, "one-hot rows");
        one_hot_queries(&p, hot, "one-hot rows and queries");
        one_hot_queries(&p, random, "one-hot queries");
        zero_query(&p, random);
        single_tokens(&p);
    }
    pair_destroy(&p);
    free(rows);
}

void check_special(void) {
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        one_variant(v);
    pair_use_flags(TQ_CONTEXT_FP8_NATIVE);
    for (size_t v = 2; v < 5; v++)
        one_variant(v);
    pair_use_flags(0);
}
