/* An engine with threads of its own: all of them enter every operation as the ith of nth.
 * They lend themselves to the library and need no barrier behind it. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tq/tq.h"

enum { THREADS = 4, LAYERS = 3, TOKENS = 4096, KV_HEADS = 2, Q_HEADS = 8, DIM = 64 };

/* What the threads of the engine share. */
struct engine {
    tq_threadpool *pool;
    tq_context *ctx;
    tq_cache *cache;
    tq_seq seq;
    float kv[TOKENS * KV_HEADS * DIM], q[Q_HEADS * DIM];
};

/* One operation: a layer's prompt goes in, a query comes out. */
struct operation {
    struct engine *engine;
    uint32_t layer;
    float out[Q_HEADS * DIM];
    tq_status status;
};

static void run_operation(void *arg) {
    struct operation *op = arg;
    struct engine *e = op->engine;
    tq_rows_in kv = {.data = e->kv}, q = {.data = e->q};
    tq_rows_out out = {.data = op->out};
    op->status = tq_append(e->cache, e->seq, op->layer, TOKENS, &kv, &kv, NULL);
    if (op->status == TQ_OK)
        op->status = tq_attend(e->cache, e->seq, op->layer, 1, NULL, &q, &out, NULL, NULL);
}

static struct engine engine;
static struct operation operations[LAYERS];

/* The graph of the engine, as each of its threads walks it. */
static void *thread_main(void *arg) {
    uint32_t ith = *(const uint32_t *)arg;
    for (uint32_t l = 0; l < LAYERS; l++) {
        tq_status status =
            tq_threadpool_lend(engine.pool, ith, THREADS, run_operation, &operations[l]);
        if (status != TQ_OK || operations[l].status != TQ_OK)
            return NULL;
    }
    return arg;
}

static int open_engine(void) {
    tq_threadpool_config p = {sizeof p, TQ_THREADPOOL_LENT, THREADS, 0, NULL};
    tq_variant variant;
    tq_cache_config c = {.struct_size = sizeof c};
    c.n_layers = LAYERS;
    c.n_kv_heads = KV_HEADS;
    c.n_q_heads = Q_HEADS;
    c.head_dim = DIM;
    for (size_t i = 0; i < sizeof engine.kv / sizeof *engine.kv; i++)
        engine.kv[i] = sinf((float)i);
    for (size_t i = 0; i < sizeof engine.q / sizeof *engine.q; i++)
        engine.q[i] = cosf((float)i);
    if (tq_threadpool_create(&p, &engine.pool) != TQ_OK)
        return 0;
    tq_context_config x = {.struct_size = sizeof x,
                           .executor = tq_threadpool_executor(engine.pool)};
    if (tq_variant_find("4bit_nc", &variant) != TQ_OK ||
        tq_context_create(&x, &engine.ctx) != TQ_OK)
        return 0;
    c.variant = variant;
    for (uint32_t l = 0; l < LAYERS; l++)
        operations[l] = (struct operation){.engine = &engine, .layer = l};
    return tq_cache_create(engine.ctx, &c, &engine.cache) == TQ_OK &&
           tq_seq_create(engine.cache, &engine.seq) == TQ_OK;
}

int main(void) {
    pthread_t threads[THREADS];
    uint32_t ith[THREADS];
    if (!open_engine()) {
        fprintf(stderr, "%s\n", tq_last_error());
        return 1;
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        ith[i] = i;
        if (pthread_create(&threads[i], NULL, thread_main, &ith[i]) != 0)
            return 1;
    }
    int good = 1;
    for (uint32_t i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        good = good && result;
    }
    for (uint32_t l = 1; l < LAYERS; l++) /* the layers hold the same */
        good = good && memcmp(operations[0].out, operations[l].out, sizeof operations[0].out) == 0;
    tq_cache_destroy(engine.cache);
    tq_context_destroy(engine.ctx);
    tq_threadpool_destroy(engine.pool);
    printf("%d threads, %d layers: %s\n", THREADS, LAYERS, good ? "ok" : "FAILED");
    return good ? 0 : 1;
}
