/* Pools with threads of their own: the rules of an executor, the same bits for any number of
 * threads, calls inside tasks and at the same time, idleness, fork() and failures. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/cache.h"
#include "common/jobs.h"

static tq_threadpool *pool_of(uint32_t n_threads) {
    tq_threadpool_config c = {.struct_size = sizeof c, .n_threads = n_threads};
    tq_threadpool *pool = NULL;
    OK(tq_threadpool_create(&c, &pool));
    assert_non_null(pool);
    return pool;
}

/* ---- arguments ------------------------------------------------------------------------- */

static void refuse(const tq_threadpool_config *c, tq_status status, const char *word) {
    tq_threadpool *out = (void *)&status;
    FAILS(tq_threadpool_create(c, &out), status, word);
    assert_ptr_equal(out, &status);
}

static void test_arguments(void **state) {
    (void)state;
    tq_threadpool_config good = {.struct_size = sizeof good}, c = good;
    tq_allocator half = {.struct_size = sizeof half, .alloc = sparse_allocator().alloc};
    FAILS(tq_threadpool_create(NULL, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    for (uint32_t bit = 1; bit < 32; bit++) {
        c.flags = 1u << bit;
        refuse(&c, TQ_ERR_INVALID_ARGUMENT, "flags");
    }
    c = good;
    c.n_threads = 1025;
    refuse(&c, TQ_ERR_INVALID_ARGUMENT, "n_threads");
    c.n_threads = UINT32_MAX;
    refuse(&c, TQ_ERR_INVALID_ARGUMENT, "n_threads");
    c = good;
    c.reserved = 1;
    refuse(&c, TQ_ERR_INVALID_ARGUMENT, "reserved");
    c = good;
    c.struct_size = sizeof c - 1;
    refuse(&c, TQ_ERR_INVALID_ARGUMENT, "struct_size");
    c = good;
    c.allocator = &half;
    refuse(&c, TQ_ERR_INVALID_ARGUMENT, "allocator");
    tq_threadpool_destroy(NULL);
    assert_null(tq_threadpool_executor(NULL));
}

static void test_number_of_threads(void **state) {
    (void)state;
    static const uint32_t numbers[] = {1, 2, 7, 40};
    tq_threadpool *pool = pool_of(0);
    assert_true(tq_threadpool_executor(pool)->n_workers >= 1);
    tq_threadpool_destroy(pool);
    for (size_t i = 0; i < COUNT(numbers); i++) {
        pool = pool_of(numbers[i]);
        const tq_executor *e = tq_threadpool_executor(pool);
        assert_int_equal(e->struct_size, sizeof *e);
        assert_int_equal(e->n_workers, numbers[i]);
        tq_threadpool_destroy(pool);
    }
}

static void test_allocation(void **state) {
    (void)state;
    struct test_heap heap = {.lock = PTHREAD_MUTEX_INITIALIZER};
    tq_allocator hooks = test_allocator(&heap);
    tq_threadpool_config c = {.struct_size = sizeof c, .n_threads = 3, .allocator = &hooks};
    for (uint64_t n = 1;; n++) {
        tq_threadpool *pool = NULL;
        test_heap_fail(&heap, n);
        tq_status status = tq_threadpool_create(&c, &pool);
        test_heap_fail(&heap, 0);
        if (status == TQ_OK) {
            assert_true(n > 1 && heap.live_blocks > 0);
            tq_threadpool_destroy(pool);
            break;
        }
        assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
        assert_null(pool);
        assert_int_equal(heap.live_blocks, 0);
    }
    assert_int_equal(heap.live_blocks, 0);
    assert_int_equal(heap.errors, 0);
}

/* ---- jobs ------------------------------------------------------------------------------- */

static struct job jobs[4];

static void test_every_task_once(void **state) {
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 16};
    for (size_t i = 0; i < COUNT(threads); i++) {
        tq_threadpool *pool = pool_of(threads[i]);
        memset(jobs, 0, sizeof jobs);
        for (uint32_t n = 0; n < 60; n++)
            assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), n), 0);
        for (uint32_t n = 0; n < 200 / FEWER; n++)
            assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), 1 + n % 5), 0);
        assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), JOB_TASKS), 0);
        tq_threadpool_destroy(pool);
    }
}

/* All threads of the pool are inside tasks at the same time, also after a rest. */
static void test_all_threads_work(void **state) {
    (void)state;
    struct timespec rest = {0, 3000000};
    tq_threadpool *pool = pool_of(4);
    memset(jobs, 0, sizeof jobs);
    jobs[0].meet = 4;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), 4), 0);
        if (i % 2)
            nanosleep(&rest, NULL);
    }
    tq_threadpool_destroy(pool);
}

static void test_jobs_in_tasks(void **state) {
    (void)state;
    tq_threadpool *pool = pool_of(3);
    memset(jobs, 0, sizeof jobs);
    jobs[0].nest = 1;
    for (int i = 0; i < 20; i++)
        assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), 50), 0);
    tq_threadpool_destroy(pool);
}

struct caller {
    const tq_executor *executor;
    struct job *job;
    uint32_t errors;
};

static void *run_jobs(void *arg) {
    struct caller *c = arg;
    c->job->spin = 50;
    for (uint32_t i = 0; i < 200 / FEWER; i++)
        c->errors += job_run(c->job, c->executor, 1 + i % 20);
    return NULL;
}

static void test_jobs_at_once(void **state) {
    (void)state;
    tq_threadpool *pool = pool_of(3);
    pthread_t threads[4];
    struct caller callers[4];
    memset(jobs, 0, sizeof jobs);
    for (int i = 0; i < 4; i++) {
        callers[i] = (struct caller){tq_threadpool_executor(pool), &jobs[i], 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run_jobs, &callers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(callers[i].errors, 0);
    }
    tq_threadpool_destroy(pool);
}

/* ---- the library over it ---------------------------------------------------------------- */

enum { TOKENS = 700, QUERIES = 4 };

/* Appends in two steps, asks, and leaves the answer and a decoded row of every token. */
static struct asked answer(tq_variant variant, const tq_executor *executor, float *rows) {
    struct rig r = {0};
    struct rng rng = {variant};
    tq_cache_config c = plain_config(variant, 64, 3, 2);
    c.page_tokens = 32;
    rig_open_with(&r, &c, executor);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, TOKENS - 5, &rng);
    rig_append_random(&r, seq, 0, 5, &rng);
    struct asked a = ask_make(&r, QUERIES, TQ_ATTEND_CAUSAL, &rng);
    ask(&r, seq, 0, &a);
    rig_read(&r, seq, 0, 0, TOKENS, rows, NULL);
    rig_close(&r);
    return a;
}

static void test_same_bits(void **state) {
    (void)state;
    static const tq_variant variants[] = {TQ_VARIANT_4BIT_NC, TQ_VARIANT_K8V4, TQ_VARIANT_POLAR_QJL,
                                          TQ_VARIANT_BF16};
    static const uint32_t threads[] = {1, 2, 3, 5, 16};
    static float rows[2][TOKENS * 3 * 64];
    for (size_t v = 0; v < COUNT(variants); v++) {
        struct asked want = answer(variants[v], NULL, rows[0]);
        for (size_t i = 0; i < COUNT(threads); i++) {
            tq_threadpool *pool = pool_of(threads[i]);
            struct asked got = answer(variants[v], tq_threadpool_executor(pool), rows[1]);
            size_t n = QUERIES * 6;
            CHECK(memcmp(rows[0], rows[1], sizeof rows[0]) == 0, "rows, %u threads", threads[i]);
            CHECK(memcmp(want.out, got.out, n * 64 * sizeof(float)) == 0, "out, %u threads",
                  threads[i]);
            CHECK(memcmp(want.lse, got.lse, n * sizeof(float)) == 0, "lse, %u threads", threads[i]);
            ask_free(&got);
            tq_threadpool_destroy(pool);
        }
        ask_free(&want);
    }
}

/* ---- good manners ----------------------------------------------------------------------- */

/* Idle threads take next to no time, whatever they did before. */
static void test_idle(void **state) {
    (void)state;
    struct timespec rest = {0, 300000000};
    tq_threadpool *pool = pool_of(2);
    memset(jobs, 0, sizeof jobs);
    assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), 100), 0);
    clock_t start = clock();
    nanosleep(&rest, NULL);
    double used = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK(used < 0.1, "%.3f s of CPU time in 0.3 s of rest", used);
    tq_threadpool_destroy(pool);
}

/* In a child of fork() the pool works without threads and can be destroyed. */
static void test_fork(void **state) {
    (void)state;
    tq_threadpool *pool = pool_of(3);
    memset(jobs, 0, sizeof jobs);
    assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), 100), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        uint32_t errors = job_run(&jobs[0], tq_threadpool_executor(pool), 100);
        errors += job_run(&jobs[0], tq_threadpool_executor(pool), 7);
        tq_threadpool_destroy(pool);
        _exit(errors ? 1 : 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(job_run(&jobs[0], tq_threadpool_executor(pool), 100), 0);
    tq_threadpool_destroy(pool);
}

/* A signal to the process waits for the threads that its author made. */
static void test_signals(void **state) {
    (void)state;
    sigset_t usr1, before;
    struct timespec rest = {0, 20000000}, limit = {5, 0};
    tq_threadpool *pool = pool_of(4);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &usr1, &before), 0);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    nanosleep(&rest, NULL);
    assert_int_equal(sigtimedwait(&usr1, NULL, &limit), SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    tq_threadpool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_number_of_threads),
        cmocka_unit_test(test_allocation),
        cmocka_unit_test(test_every_task_once),
        cmocka_unit_test(test_all_threads_work),
        cmocka_unit_test(test_jobs_in_tasks),
        cmocka_unit_test(test_jobs_at_once),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
