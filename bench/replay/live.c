#include "live.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tq/tq.h"

enum { LAYERS = 4, KV_HEADS = 2, Q_HEADS = 8, DIM = 64 };

struct live {
    tq_context *context;
    tq_cache *cache;
    tq_batch *batch;
    tq_seq *seqs; /* of requests; 0: none */
    uint32_t *stored, n_requests;
    tq_seq *step_seqs;
    uint32_t *n_append;
    float *k, *v, *q, *out;
    uint64_t pages;
    uint32_t page_tokens, mismatches;
};

static void must(tq_status status) {
    if (status == TQ_OK)
        return;
    fprintf(stderr, "replay: %s: %s\n", tq_status_name(status), tq_last_error());
    exit(1);
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Rows that stand in for a model's. */
static float *make_rows(size_t n) {
    float *rows = malloc(n * sizeof *rows);
    for (size_t i = 0; rows && i < n; i++)
        rows[i] = sinf((float)(i % 8191) * 0.37f) + cosf((float)(i % 509) * 1.1f);
    return rows;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static uint32_t describe(struct live *l, const struct step *step) {
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < step->n; i++) {
        const struct item *item = &step->items[i];
        if (l->seqs[item->request] == 0)
            must(tq_seq_create(l->cache, &l->seqs[item->request]));
        l->step_seqs[i] = l->seqs[item->request];
        l->n_append[i] = item->append;
        l->stored[item->request] += item->append;
        tokens += item->append;
    }
    return tokens;
}

/* Pages of the cache against those of the tokens that the scheduler says it holds. */
static void compare_pages(struct live *l) {
    tq_cache_stats stats = {.struct_size = sizeof stats};
    uint64_t pages = 0;
    must(tq_cache_get_stats(l->cache, &stats));
    for (uint32_t i = 0; i < l->n_requests; i++)
        pages += (l->stored[i] + l->page_tokens - 1) / l->page_tokens;
    l->mismatches += pages != stats.pages_used;
}

static double run_step(void *arg, const struct step *step) {
    struct live *l = arg;
    tq_rows_in k = {.data = l->k}, v = {.data = l->v}, q = {.data = l->q};
    tq_rows_out out = {.data = l->out};
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    tq_batch_desc desc = {.struct_size = sizeof desc,
                          .n_seqs = step->n,
                          .seqs = l->step_seqs,
                          .n_append = l->n_append};
    describe(l, step);
    double begin = seconds_now();
    must(tq_batch_plan(l->batch, &desc, NULL));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        must(tq_batch_append(l->batch, layer, &k, &v, NULL));
        must(tq_batch_attend(l->batch, layer, &params, &q, &out, NULL, NULL));
    }
    must(tq_batch_commit(l->batch, NULL));
    double seconds = seconds_now() - begin;
    compare_pages(l);
    return seconds;
}

static void forget(void *arg, uint32_t request) {
    struct live *l = arg;
    if (l->seqs[request])
        must(tq_seq_destroy(l->cache, l->seqs[request]));
    l->seqs[request] = 0;
    l->stored[request] = 0;
}

struct engine live_engine(struct live *l) {
    return (struct engine){run_step, forget, l};
}

/* ---- open and close ------------------------------------------------------------------------- */

static void open_cache(struct live *l, const char *variant, uint64_t bytes,
                       const struct limits *limits) {
    tq_context_config context = {.struct_size = sizeof context};
    tq_footprint footprint = {.struct_size = sizeof footprint};
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = LAYERS,
                         .n_kv_heads = KV_HEADS,
                         .n_q_heads = Q_HEADS,
                         .head_dim = DIM,
                         .page_tokens = limits->page_tokens,
                         .max_seqs = limits->most_running,
                         .max_pages = 1,
                         .seed = 1};
    must(tq_context_create(&context, &l->context));
    must(tq_variant_find(variant, &c.variant));
    must(tq_cache_estimate(l->context, &c, &footprint));
    l->pages = bytes / footprint.bytes_per_page;
    l->page_tokens = limits->page_tokens;
    c.max_pages = l->pages;
    must(tq_cache_create(l->context, &c, &l->cache));
    must(tq_batch_create(l->cache, limits->most_running, limits->step_tokens, &l->batch));
}

struct live *live_open(const char *variant, uint64_t bytes, const struct limits *limits,
                       uint32_t n_requests) {
    struct live *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->n_requests = n_requests;
    l->seqs = calloc(n_requests, sizeof *l->seqs);
    l->stored = calloc(n_requests, sizeof *l->stored);
    l->step_seqs = calloc(limits->most_running, sizeof *l->step_seqs);
    l->n_append = calloc(limits->most_running, sizeof *l->n_append);
    l->k = make_rows((size_t)limits->step_tokens * KV_HEADS * DIM);
    l->v = make_rows((size_t)limits->step_tokens * KV_HEADS * DIM);
    l->q = make_rows((size_t)limits->step_tokens * Q_HEADS * DIM);
    l->out = make_rows((size_t)limits->step_tokens * Q_HEADS * DIM);
    if (!l->seqs || !l->stored || !l->step_seqs || !l->n_append || !l->k || !l->v || !l->q ||
        !l->out) {
        fprintf(stderr, "replay: out of memory\n");
        live_close(l);
        return NULL;
    }
    open_cache(l, variant, bytes, limits);
    return l;
}

uint64_t live_pages(const struct live *l) {
    return l->pages;
}

uint32_t live_mismatches(const struct live *l) {
    return l->mismatches;
}

void live_close(struct live *l) {
    tq_batch_destroy(l->batch);
    tq_cache_destroy(l->cache);
    tq_context_destroy(l->context);
    free(l->seqs);
    free(l->stored);
    free(l->step_seqs);
    free(l->n_append);
    free(l->k);
    free(l->v);
    free(l->q);
    free(l->out);
    free(l);
}
