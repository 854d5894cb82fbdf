/* Continuous batching: requests of different lengths share one pool of pages. Every step takes a
 * chunk of each prompt that is still going in and a token of each answer. When pages run out, the
 * youngest request gives way and starts again later. In the end every request must have got what
 * it gets alone.
 *
 * Done by both ways into the library, batches over its own pages (tq/batch.h) and pages of the
 * engine (tq/paged.h), on the CPU and, where there is a GPU, there: all layers of a step are then
 * one graph, captured in the second step and launched in every later one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/gpu.h"
#include "common/toy_model.h"
#include "tq/paged.h"

enum {
    REQUESTS = 24,
    RUNNING = 8, /* requests at a time */
    CHUNK = 48,  /* tokens of a prompt in a step */
    PAGE_TOKENS = 32,
    PAGES = 24
};
enum way { BATCHES, ENGINE_PAGES };

struct request {
    uint32_t prompt, answer;           /* tokens */
    uint32_t done;                     /* of both together */
    tq_seq seq;                        /* of the way by batches */
    int32_t pages[PAGES + 1], n_pages; /* of the other */
    int running;
    float last[Q_ROW]; /* output of the last layer and token */
};

/* Arrays that calls read and write, in the device's memory; they stay where they are, as the graph
 * knows them. */
struct arrays {
    float *k[LAYERS], *v[LAYERS], *q[LAYERS], *out;
    void *pool[LAYERS], *work;
    int32_t *table, *lengths, *starts; /* [RUNNING][PAGES + 1], [RUNNING], [RUNNING + 1] */
    int64_t *slots;                    /* [STEP_TOKENS] */
    size_t work_size;
};

struct engine {
    enum way way;
    int on_gpu;
    tq_context *ctx;
    tq_cache *cache;
    tq_batch *batch;
    struct request requests[REQUESTS];
    struct arrays a;
    void *taken[4 * LAYERS + 6]; /* the memory of these */
    int n_taken;
    struct gpu_graph graph;
    int32_t free_pages[PAGES], n_free;    /* of the engine's pages */
    uint32_t running[RUNNING], n_running; /* oldest first */
    uint32_t n_append[RUNNING];
    uint32_t steps, preempted, most_running;
};

static void must(tq_status status) {
    if (status == TQ_OK)
        return;
    fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
    exit(1);
}

/* Rows of a step, one request behind another, for all layers. */
static void put_rows(struct engine *e) {
    static struct rows rows;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t row = 0;
        for (uint32_t i = 0; i < e->n_running; i++) {
            fill(&rows, row, e->running[i], e->requests[e->running[i]].done, e->n_append[i], layer);
            row += e->n_append[i];
        }
        place_put(e->on_gpu, e->a.k[layer], rows.k, sizeof rows.k);
        place_put(e->on_gpu, e->a.v[layer], rows.v, sizeof rows.v);
        place_put(e->on_gpu, e->a.q[layer], rows.q, sizeof rows.q);
    }
}

/* ---- pages --------------------------------------------------------------------------------- */

static uint32_t free_pages(const struct engine *e) {
    tq_cache_stats stats = {.struct_size = sizeof stats};
    if (e->way == ENGINE_PAGES)
        return (uint32_t)e->n_free;
    must(tq_cache_get_stats(e->cache, &stats));
    return PAGES - (uint32_t)stats.pages_used;
}

static void release(struct engine *e, struct request *r) {
    if (e->way == BATCHES)
        must(tq_seq_destroy(e->cache, r->seq));
    while (r->n_pages)
        e->free_pages[e->n_free++] = r->pages[--r->n_pages];
    r->running = 0;
}

/* The engine's own bookkeeping: pages for the step's tokens, the oldest request first; 0 when there
 * are too few. */
static int take_pages(struct engine *e) {
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = &e->requests[e->running[i]];
        while ((uint32_t)r->n_pages * PAGE_TOKENS < r->done + e->n_append[i]) {
            if (!e->n_free)
                return 0;
            r->pages[r->n_pages++] = e->free_pages[--e->n_free];
        }
    }
    return 1;
}

/* Slots, tables and lengths of the step; the rows and sequences that it lacks are nobody's. */
static void put_places(struct engine *e) {
    int32_t table[RUNNING][PAGES + 1] = {{0}}, lengths[RUNNING] = {0}, starts[RUNNING + 1] = {0};
    int64_t slots[STEP_TOKENS];
    uint32_t row = 0;
    for (uint32_t i = 0; i < RUNNING; i++) {
        const struct request *r = &e->requests[e->running[i]];
        uint32_t n = i < e->n_running ? e->n_append[i] : 0;
        starts[i + 1] = starts[i] + (int32_t)n;
        if (i >= e->n_running)
            continue;
        memcpy(table[i], r->pages, sizeof table[i]);
        lengths[i] = (int32_t)(r->done + n);
        for (uint32_t t = r->done; t < r->done + n; t++)
            slots[row++] = (int64_t)r->pages[t / PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS;
    }
    while (row < STEP_TOKENS)
        slots[row++] = -1;
    place_put(e->on_gpu, e->a.table, table, sizeof table);
    place_put(e->on_gpu, e->a.lengths, lengths, sizeof lengths);
    place_put(e->on_gpu, e->a.starts, starts, sizeof starts);
    place_put(e->on_gpu, e->a.slots, slots, sizeof slots);
}

/* ---- the scheduler ------------------------------------------------------------------------- */

/* Takes in waiting requests whose prompts fit into what is free now; their answers may turn out
 * not to. */
static void admit(struct engine *e) {
    uint32_t left = free_pages(e);
    for (uint32_t i = 0; i < REQUESTS && e->n_running < RUNNING; i++) {
        struct request *r = &e->requests[i];
        uint32_t pages = r->prompt / PAGE_TOKENS + 1;
        if (r->running || r->done == r->prompt + r->answer || pages > left)
            continue;
        left -= pages;
        if (e->way == BATCHES)
            must(tq_seq_create(e->cache, &r->seq));
        r->running = 1;
        e->running[e->n_running++] = i;
    }
}

/* The youngest request gives its pages back and will begin again. */
static void preempt(struct engine *e) {
    struct request *r = &e->requests[e->running[--e->n_running]];
    release(e, r);
    r->done = 0;
    e->preempted++;
}

/* Pages for the step: taken here and nowhere else. */
static tq_status plan_pages(struct engine *e) {
    tq_seq seqs[RUNNING];
    if (e->way == ENGINE_PAGES)
        return take_pages(e) ? TQ_OK : TQ_ERR_OUT_OF_PAGES;
    for (uint32_t i = 0; i < e->n_running; i++)
        seqs[i] = e->requests[e->running[i]].seq;
    tq_batch_desc desc = {
        .struct_size = sizeof desc, .n_seqs = e->n_running, .seqs = seqs, .n_append = e->n_append};
    return tq_batch_plan(e->batch, &desc, e->on_gpu ? gpu_stream() : NULL);
}

static void plan(struct engine *e) {
    for (;;) {
        uint32_t left = STEP_TOKENS;
        for (uint32_t i = 0; i < e->n_running; i++) {
            const struct request *r = &e->requests[e->running[i]];
            uint32_t n = r->done < r->prompt ? r->prompt - r->done : 1, most = CHUNK;
            most = most < left ? most : left;
            left -= e->n_append[i] = n < most ? n : most;
        }
        tq_status status = plan_pages(e);
        if (status == TQ_OK)
            return;
        if (status != TQ_ERR_OUT_OF_PAGES || e->n_running < 2)
            must(status);
        preempt(e);
    }
}

/* All layers of a step: what a graph holds. */
static void run_layers(void *arg) {
    struct engine *e = arg;
    const struct arrays *a = &e->a;
    tq_stream stream = e->on_gpu ? gpu_stream() : NULL;
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    tq_rows_out out = {.data = a->out};
    tq_paged_seqs seqs = {sizeof seqs, RUNNING,   a->table,    PAGES + 1,
                          a->lengths,  a->starts, STEP_TOKENS, PAGES * PAGE_TOKENS};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        tq_rows_in k = {.data = a->k[layer]}, v = {.data = a->v[layer]}, q = {.data = a->q[layer]};
        tq_paged_pool pool = {sizeof pool, 0, a->pool[layer], 0, PAGES};
        if (e->way == BATCHES) {
            must(tq_batch_append(e->batch, layer, &k, &v, stream));
            must(tq_batch_attend(e->batch, layer, &params, &q, &out, NULL, stream));
        } else {
            must(tq_paged_append(e->cache, layer, &pool, a->slots, STEP_TOKENS, &k, &v, stream));
            must(tq_paged_attend(e->cache, layer, &pool, &seqs, &params, &q, &out, NULL, a->work,
                                 a->work_size, stream));
        }
    }
}

/* Requests that are complete leave, the others move up. */
static void retire(struct engine *e) {
    static float out[STEP_TOKENS * Q_ROW];
    uint32_t kept = 0, row = 0;
    place_get(e->on_gpu, out, e->a.out, sizeof out);
    for (uint32_t i = 0; i < e->n_running; i++) {
        struct request *r = &e->requests[e->running[i]];
        row += e->n_append[i];
        r->done += e->n_append[i];
        if (e->n_append[i])
            memcpy(r->last, out + (row - 1) * Q_ROW, sizeof r->last);
        if (r->done < r->prompt + r->answer)
            e->running[kept++] = e->running[i];
        else
            release(e, r);
    }
    e->n_running = kept;
}

static int step(struct engine *e) {
    admit(e);
    if (!e->n_running)
        return 0;
    plan(e);
    put_rows(e);
    if (e->way == ENGINE_PAGES)
        put_places(e);
    if (e->on_gpu)
        gpu_run(&e->graph, run_layers, e);
    else
        run_layers(e);
    e->most_running = e->n_running > e->most_running ? e->n_running : e->most_running;
    if (e->way == BATCHES)
        must(tq_batch_commit(e->batch, NULL));
    retire(e);
    e->steps++;
    return 1;
}

/* ---- open and close ------------------------------------------------------------------------- */

static tq_cache_config config_of(void) {
    return (tq_cache_config){.struct_size = sizeof(tq_cache_config),
                             .n_layers = LAYERS,
                             .n_kv_heads = KV_HEADS,
                             .n_q_heads = Q_HEADS,
                             .head_dim = DIM,
                             .variant = TQ_VARIANT_4BIT_NC,
                             .page_tokens = PAGE_TOKENS,
                             .max_seqs = RUNNING + 1,
                             .max_pages = PAGES};
}

/* Memory of calls, given back in the end. */
static void *take(struct engine *e, size_t bytes) {
    return e->taken[e->n_taken++] = place_alloc(e->on_gpu, bytes);
}

static void open_engine(struct engine *e) {
    tq_context_config on = {.struct_size = sizeof on,
                            .device = e->on_gpu ? TQ_DEVICE_CUDA : TQ_DEVICE_CPU};
    tq_cache_config config = config_of();
    must(tq_context_create(&on, &e->ctx));
    must(tq_cache_create(e->ctx, &config, &e->cache));
    must(tq_batch_create(e->cache, RUNNING, STEP_TOKENS, &e->batch));
    if (e->way == ENGINE_PAGES)
        must(tq_paged_workspace(e->cache, RUNNING, STEP_TOKENS, PAGES * PAGE_TOKENS,
                                &e->a.work_size));
    for (uint32_t l = 0; l < LAYERS; l++) {
        e->a.k[l] = take(e, STEP_TOKENS * KV_ROW * sizeof(float));
        e->a.v[l] = take(e, STEP_TOKENS * KV_ROW * sizeof(float));
        e->a.q[l] = take(e, STEP_TOKENS * Q_ROW * sizeof(float));
        e->a.pool[l] = take(e, tq_paged_page_bytes(e->cache, l) * PAGES);
    }
    e->a.out = take(e, STEP_TOKENS * Q_ROW * sizeof(float));
    e->a.table = take(e, sizeof(int32_t) * RUNNING * (PAGES + 1));
    e->a.lengths = take(e, sizeof(int32_t) * RUNNING);
    e->a.starts = take(e, sizeof(int32_t) * (RUNNING + 1));
    e->a.slots = take(e, sizeof(int64_t) * STEP_TOKENS);
    e->a.work = take(e, e->a.work_size);
    for (; e->n_free < PAGES; e->n_free++)
        e->free_pages[e->n_free] = e->n_free;
}

static void close_engine(struct engine *e) {
    if (e->on_gpu)
        gpu_graph_free(&e->graph);
    while (e->n_taken)
        place_free(e->on_gpu, e->taken[--e->n_taken]);
    tq_batch_destroy(e->batch);
    tq_cache_destroy(e->cache);
    tq_context_destroy(e->ctx);
}

/* Largest difference of an answer from that of the request alone, on the CPU by plain calls. */
static float differs(tq_cache *alone, const struct request *r, uint32_t number) {
    static struct rows rows;
    float out[Q_ROW], most = 0;
    uint32_t length = r->prompt + r->answer, n;
    tq_rows_in k = {.data = rows.k}, v = {.data = rows.v}, q = {.data = rows.q};
    tq_rows_out to = {.data = out};
    tq_seq seq;
    must(tq_seq_create(alone, &seq));
    for (uint32_t first = 0; first < length; first += n) {
        n = length - first < STEP_TOKENS ? length - first : STEP_TOKENS;
        fill(&rows, 0, number, first, n, LAYERS - 1);
        must(tq_append(alone, seq, LAYERS - 1, n, &k, &v, NULL));
    }
    fill(&rows, 0, number, length - 1, 1, LAYERS - 1);
    must(tq_attend(alone, seq, LAYERS - 1, 1, NULL, &q, &to, NULL, NULL));
    must(tq_seq_destroy(alone, seq));
    for (uint32_t i = 0; i < Q_ROW; i++)
        most = fmaxf(most, fabsf(out[i] - r->last[i]));
    return most;
}

/* Whether the GPU has kernels for the engine's pages; else says why it has not. */
static int serves_pages(void) {
    tq_context_config on = {.struct_size = sizeof on, .device = TQ_DEVICE_CUDA};
    tq_cache_config config = config_of();
    tq_context *ctx;
    tq_cache *cache;
    size_t bytes;
    must(tq_context_create(&on, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    tq_status status = tq_paged_workspace(cache, 1, 1, 1, &bytes);
    if (status != TQ_OK)
        printf("GPU, pages of the engine: not run, %s\n", tq_last_error());
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return status == TQ_OK;
}

/* Whether all requests end as they do alone: on the CPU with the same bits. */
static int serve(enum way way, int on_gpu, tq_cache *alone) {
    static struct engine e;
    uint32_t tokens = 0, good = 0;
    e = (struct engine){.way = way, .on_gpu = on_gpu};
    open_engine(&e);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        e.requests[i].prompt = 10 + i * 53 % 190;
        e.requests[i].answer = 5 + i * 29 % 60;
        tokens += e.requests[i].prompt + e.requests[i].answer;
    }
    while (step(&e))
        ;
    for (uint32_t i = 0; i < REQUESTS; i++)
        good += differs(alone, &e.requests[i], i) <= (on_gpu ? 1e-3f : 0);
    printf("%s, %s: %d requests, %u tokens in %u steps, up to %u at a time, %u preempted; %u as "
           "alone\n",
           on_gpu ? "GPU, a graph" : "CPU", way == BATCHES ? "batches" : "pages of the engine",
           REQUESTS, tokens, e.steps, e.most_running, e.preempted, good);
    int ok = good == REQUESTS && e.preempted && e.most_running == RUNNING;
    close_engine(&e);
    return ok;
}

int main(void) {
    const char *missing = gpu_missing();
    tq_cache_config config = config_of();
    tq_context *ctx;
    tq_cache *alone;
    int good = 1;
    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &alone));
    for (int on_gpu = 0; on_gpu <= !missing; on_gpu++)
        for (int way = BATCHES; way <= ENGINE_PAGES; way++)
            if (way == BATCHES || !on_gpu || serves_pages())
                good &= serve((enum way)way, on_gpu, alone);
    if (missing)
        printf("GPU: not run, %s\n", missing);
    tq_cache_destroy(alone);
    tq_context_destroy(ctx);
    return good ? 0 : 1;
}
