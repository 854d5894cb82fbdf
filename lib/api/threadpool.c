#include "api/objects.h"
#include "threads/pool.h"

struct tq_threadpool {
    struct tqi_heap heap; /* holds the pool itself */
    struct tqi_threads threads;
    tq_executor executor;
    uint32_t lent;
};

static tq_status read_config(const tq_threadpool_config *config, tq_threadpool_config *to,
                             struct tqi_heap *heap) {
    tq_allocator allocator;
    *to = (tq_threadpool_config){.struct_size = sizeof *to};
    if (config)
        TQI_TRY(tqi_struct_in("threadpool config", to, sizeof *to, sizeof *to, config));
    TQI_REQUIRE((to->flags & ~TQ_THREADPOOL_LENT) == 0, "threadpool config: unknown flags 0x%x",
                to->flags);
    TQI_REQUIRE(to->reserved == 0, "threadpool config: reserved must be 0");
    TQI_REQUIRE(to->n_threads <= TQI_THREADS_LIMIT,
                "threadpool config: n_threads must be at most %d, not %u", TQI_THREADS_LIMIT,
                to->n_threads);
    if (to->allocator)
        TQI_TRY(tqi_struct_in("allocator", &allocator, sizeof allocator, sizeof allocator,
                              to->allocator));
    TQI_TRY(tqi_heap_init(heap, to->allocator ? &allocator : NULL));
    if (to->n_threads == 0) {
        uint32_t cpus = tqi_threads_cpus();
        to->n_threads = cpus < TQI_THREADS_LIMIT ? cpus : TQI_THREADS_LIMIT;
    }
    return TQ_OK;
}

tq_status tq_threadpool_create(const tq_threadpool_config *config, tq_threadpool **out) {
    tq_threadpool_config c;
    struct tqi_heap heap;
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(read_config(config, &c, &heap));
    tq_threadpool *pool = tqi_calloc(&heap, 1, sizeof *pool);
    if (!pool)
        return TQ_ERR_OUT_OF_MEMORY;
    pool->heap = heap;
    pool->lent = c.flags & TQ_THREADPOOL_LENT;
    tq_status status =
        tqi_threads_open(&pool->threads, &pool->heap, c.n_threads, pool->lent ? 1 : 0);
    if (status != TQ_OK) {
        tqi_free(&heap, pool, 1, sizeof *pool, TQ_MEM_HOST);
        return status;
    }
    pool->executor = (tq_executor){.struct_size = sizeof pool->executor,
                                   .n_workers = c.n_threads,
                                   .user = &pool->threads,
                                   .parallel_for = tqi_threads_run};
    *out = pool;
    return TQ_OK;
}

void tq_threadpool_destroy(tq_threadpool *pool) {
    if (!pool)
        return;
    tqi_threads_close(&pool->threads);
    struct tqi_heap heap = pool->heap;
    tqi_free(&heap, pool, 1, sizeof *pool, TQ_MEM_HOST);
}

const tq_executor *tq_threadpool_executor(const tq_threadpool *pool) {
    return pool ? &pool->executor : NULL;
}

tq_status tq_threadpool_lend(tq_threadpool *pool, uint32_t ith, uint32_t nth,
                             void (*call)(void *arg), void *arg) {
    TQI_REQUIRE(pool != NULL, "pool: must not be NULL");
    TQI_REQUIRE(call != NULL, "call: must not be NULL");
    TQI_REQUIRE(nth >= 1 && nth <= pool->threads.n, "nth: %u, the pool is for 1 to %u threads", nth,
                pool->threads.n);
    TQI_REQUIRE(ith < nth, "ith: %u of %u threads", ith, nth);
    if (!pool->lent)
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "the pool has threads of its own: TQ_THREADPOOL_LENT makes one without");
    return tqi_threads_lend(&pool->threads, ith, nth, call, arg);
}
