/* Continuous batching: requests of different lengths share one pool of pages and one batch.
 * Every step takes a chunk of each prompt that is still going in and a token of each answer.
 * When pages run out, the youngest request gives way and starts again later. In the end every
 * request must have got what it gets alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/tq.h"

enum {
    LAYERS = 3,
    KV_HEADS = 2,
    Q_HEADS = 8,
    DIM = 64,
    REQUESTS = 24,
    RUNNING = 8,       /* requests at a time */
    CHUNK = 48,        /* tokens of a prompt in a step */
    STEP_TOKENS = 128, /* rows of a step */
    PAGE_TOKENS = 32,
    PAGES = 24
};

struct request {
    uint32_t prompt, answer;   /* tokens */
    uint32_t done;             /* of both together */
    tq_seq seq;                /* 0 = waiting */
    float last[Q_HEADS * DIM]; /* output of the last layer and token */
};

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

/* Stands in for a layer's projections of one token of a request. */
static void project(float *row, uint32_t n, uint32_t request, uint32_t position, uint32_t layer) {
    for (uint32_t i = 0; i < n; i++)
        row[i] = sinf((float)(i + 1) * 0.37f + (float)(request * 7 + layer * 3) +
                      (float)position * 0.11f);
}

/* Rows of a step, one request behind another. */
struct rows {
    float k[STEP_TOKENS * KV_HEADS * DIM], v[STEP_TOKENS * KV_HEADS * DIM];
    float q[STEP_TOKENS * Q_HEADS * DIM], out[STEP_TOKENS * Q_HEADS * DIM];
};

/* Tokens of one request from row `row` on. */
static void fill(struct rows *r, uint32_t row, uint32_t number, uint32_t first, uint32_t n,
                 uint32_t layer) {
    for (uint32_t i = 0; i < n; i++) {
        project(r->k + (row + i) * KV_HEADS * DIM, KV_HEADS * DIM, number, first + i, layer);
        project(r->v + (row + i) * KV_HEADS * DIM, KV_HEADS * DIM, number, first + i, layer + 50);
        project(r->q + (row + i) * Q_HEADS * DIM, Q_HEADS * DIM, number, first + i, layer + 90);
    }
}

/* ---- the scheduler ------------------------------------------------------------------------ */

struct engine {
    tq_cache *cache;
    tq_batch *batch;
    struct request *requests;
    uint32_t running[RUNNING], n_running; /* oldest first */
    uint32_t n_append[RUNNING];
    uint32_t steps, preempted, most_running;
    struct rows rows;
};

/* Takes in waiting requests whose prompts fit into what is free now; their answers may turn out
 * not to. */
static void admit(struct engine *e) {
    tq_cache_stats stats = {.struct_size = sizeof stats};
    must(tq_cache_get_stats(e->cache, &stats));
    uint64_t free_pages = PAGES - stats.pages_used;
    for (uint32_t i = 0; i < REQUESTS && e->n_running < RUNNING; i++) {
        struct request *r = &e->requests[i];
        uint32_t pages = r->prompt / PAGE_TOKENS + 1;
        if (r->seq || r->done == r->prompt + r->answer || pages > free_pages)
            continue;
        free_pages -= pages;
        must(tq_seq_create(e->cache, &r->seq));
        e->running[e->n_running++] = i;
    }
}

/* The youngest request gives its pages back and will begin again. */
static void preempt(struct engine *e) {
    struct request *r = &e->requests[e->running[--e->n_running]];
    must(tq_seq_destroy(e->cache, r->seq));
    r->seq = 0;
    r->done = 0;
    e->preempted++;
}

/* Plans a step over all that runs; the pages for it are taken here and nowhere else. */
static void plan(struct engine *e) {
    for (;;) {
        tq_seq seqs[RUNNING];
        uint32_t left = STEP_TOKENS;
        for (uint32_t i = 0; i < e->n_running; i++) {
            const struct request *r = &e->requests[e->running[i]];
            uint32_t n = r->done < r->prompt ? r->prompt - r->done : 1;
            n = n < CHUNK ? n : CHUNK;
            seqs[i] = r->seq;
            e->n_append[i] = n < left ? n : left;
            left -= e->n_append[i];
        }
        tq_batch_desc desc = {.struct_size = sizeof desc,
                              .n_seqs = e->n_running,
                              .seqs = seqs,
                              .n_append = e->n_append};
        tq_status status = tq_batch_plan(e->batch, &desc, NULL);
        if (status == TQ_OK)
            return;
        if (status != TQ_ERR_OUT_OF_PAGES || e->n_running < 2)
            must(status);
        preempt(e);
    }
}

static void run_layer(struct engine *e, uint32_t layer) {
    struct rows *r = &e->rows;
    tq_rows_in k = {.data = r->k}, v = {.data = r->v}, q = {.data = r->q};
    tq_rows_out out = {.data = r->out};
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    uint32_t row = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        uint32_t number = e->running[i];
        fill(r, row, number, e->requests[number].done, e->n_append[i], layer);
        row += e->n_append[i];
    }
    must(tq_batch_append(e->batch, layer, &k, &v, NULL));
    must(tq_batch_attend(e->batch, layer, &params, &q, &out, NULL, NULL));
}

/* Requests that are complete leave, the others move up. */
static void retire(struct engine *e) {
    uint32_t kept = 0, row = 0;
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = &e->requests[e->running[i]];
        row += e->n_append[i];
        r->done += e->n_append[i];
        if (e->n_append[i])
            memcpy(r->last, e->rows.out + (row - 1) * Q_HEADS * DIM, sizeof r->last);
        if (r->done < r->prompt + r->answer) {
            e->running[kept++] = e->running[i];
            continue;
        }
        must(tq_seq_destroy(e->cache, r->seq));
        r->seq = 0;
    }
    e->n_running = kept;
}

static int step(struct engine *e) {
    admit(e);
    if (!e->n_running)
        return 0;
    plan(e);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        run_layer(e, layer);
    must(tq_batch_commit(e->batch, NULL));
    e->most_running = e->n_running > e->most_running ? e->n_running : e->most_running;
    retire(e);
    e->steps++;
    return 1;
}

/* ---- a request by itself ------------------------------------------------------------------ */

/* Whether a request alone, through the plain calls, ends with the same numbers. */
static int same_alone(struct engine *e, uint32_t number) {
    const struct request *r = &e->requests[number];
    struct rows *rows = &e->rows;
    uint32_t length = r->prompt + r->answer, n;
    tq_seq seq;
    tq_rows_in k = {.data = rows->k}, v = {.data = rows->v}, q = {.data = rows->q};
    tq_rows_out out = {.data = rows->out};
    must(tq_seq_create(e->cache, &seq));
    for (uint32_t first = 0; first < length; first += n) {
        n = length - first < STEP_TOKENS ? length - first : STEP_TOKENS;
        fill(rows, 0, number, first, n, LAYERS - 1);
        must(tq_append(e->cache, seq, LAYERS - 1, n, &k, &v, NULL));
    }
    fill(rows, 0, number, length - 1, 1, LAYERS - 1);
    must(tq_attend(e->cache, seq, LAYERS - 1, 1, NULL, &q, &out, NULL, NULL));
    must(tq_seq_destroy(e->cache, seq));
    return memcmp(rows->out, r->last, sizeof r->last) == 0;
}

int main(void) {
    static struct request requests[REQUESTS];
    static struct engine e = {.requests = requests};
    tq_context *ctx;
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = LAYERS,
                              .n_kv_heads = KV_HEADS,
                              .n_q_heads = Q_HEADS,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_4BIT_NC,
                              .page_tokens = PAGE_TOKENS,
                              .max_seqs = RUNNING + 1,
                              .max_pages = PAGES};
    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &e.cache));
    must(tq_batch_create(e.cache, RUNNING, STEP_TOKENS, &e.batch));
    uint32_t tokens = 0, good = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        requests[i].prompt = 10 + i * 53 % 190;
        requests[i].answer = 5 + i * 29 % 60;
        tokens += requests[i].prompt + requests[i].answer;
    }
    while (step(&e)) {
    }
    for (uint32_t i = 0; i < REQUESTS; i++)
        good += same_alone(&e, i) ? 1 : 0;
    printf("%d requests, %u tokens in %u steps, up to %u at a time, %u preempted; %u as alone\n",
           REQUESTS, tokens, e.steps, e.most_running, e.preempted, good);
    tq_batch_destroy(e.batch);
    tq_cache_destroy(e.cache);
    tq_context_destroy(ctx);
    return good == REQUESTS && e.preempted && e.most_running == RUNNING ? 0 : 1;
}
