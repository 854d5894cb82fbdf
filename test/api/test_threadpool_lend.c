/* Threads of an engine that enter every operation as the ith of nth. */
#define _POSIX_C_SOURCE 200809L /* pthread_barrier_t */
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"
#include "common/jobs.h"
#include "tq/batch.h"

enum { THREADS = 4, STEPS = 40 / FEWER, TOKENS = 300, DIM = 64, KV_HEADS = 3, GROUP = 2 };

/* One step of an engine's layer: append a token, attend. */
struct step {
    struct rig *rig;
    tq_seq seq;
    const float *row;
    struct asked *asked;
    tq_status status;
    int runs;
};

static void do_step(void *arg) {
    struct step *s = arg;
    tq_rows_in kv = rows_in(s->row), q = rows_in(s->asked->q);
    tq_rows_out out = rows_out(s->asked->out);
    s->runs++;
    s->status = tq_append(s->rig->cache, s->seq, 0, 1, &kv, &kv, NULL);
    if (s->status == TQ_OK)
        s->status = tq_attend(s->rig->cache, s->seq, 0, s->asked->n_queries, NULL, &q, &out,
                              s->asked->lse, NULL);
}

/* The same as a batched step. */
static void do_batched_step(void *arg) {
    struct step *s = arg;
    tq_rows_in kv = rows_in(s->row), q = rows_in(s->asked->q);
    tq_rows_out out = rows_out(s->asked->out);
    const uint32_t n_append = 1;
    tq_batch *batch = NULL;
    tq_batch_desc desc = {sizeof desc, 1, &s->seq, &n_append, &s->asked->n_queries};
    s->runs++;
    s->status = tq_batch_create(s->rig->cache, 1, s->asked->n_queries, &batch);
    if (s->status == TQ_OK)
        s->status = tq_batch_plan(batch, &desc, NULL);
    if (s->status == TQ_OK)
        s->status = tq_batch_append(batch, 0, &kv, &kv, NULL);
    if (s->status == TQ_OK)
        s->status = tq_batch_attend(batch, 0, NULL, &q, &out, s->asked->lse, NULL);
    if (s->status == TQ_OK)
        s->status = tq_batch_commit(batch, NULL);
    tq_batch_destroy(batch);
}

/* A cache with TOKENS tokens and the steps that follow. */
struct engine {
    struct rig rig;
    tq_threadpool *pool;
    struct step steps[STEPS];
    struct asked asked[STEPS];
    float *rows;
};

static void engine_open(struct engine *e, tq_variant variant, int lent) {
    struct rng rng = {7};
    tq_cache_config c = plain_config(variant, DIM, KV_HEADS, GROUP);
    tq_threadpool_config p = {
        .struct_size = sizeof p, .flags = TQ_THREADPOOL_LENT, .n_threads = THREADS};
    memset(e, 0, sizeof *e);
    c.page_tokens = 32;
    if (lent)
        OK(tq_threadpool_create(&p, &e->pool));
    rig_open_with(&e->rig, &c, tq_threadpool_executor(e->pool));
    tq_seq seq = rig_seq(&e->rig);
    rig_append_random(&e->rig, seq, 0, TOKENS, &rng);
    e->rows = random_rows(&rng, STEPS * KV_HEADS * DIM, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        e->asked[i] = ask_make(&e->rig, 2, 0, &rng);
        e->steps[i] = (struct step){.rig = &e->rig,
                                    .seq = seq,
                                    .row = e->rows + i * KV_HEADS * DIM,
                                    .asked = &e->asked[i],
                                    .status = TQ_ERR_INTERNAL};
    }
}

static void engine_close(struct engine *e) {
    for (uint32_t i = 0; i < STEPS; i++)
        ask_free(&e->asked[i]);
    free(e->rows);
    rig_close(&e->rig);
    tq_threadpool_destroy(e->pool);
}

/* The steps of both ended well, in one call each, with the same bits. */
static void check_same(const struct engine *want, const struct engine *got) {
    for (uint32_t i = 0; i < STEPS; i++) {
        assert_int_equal(got->steps[i].runs, 1);
        assert_int_equal(got->steps[i].status, TQ_OK);
        CHECK(same_answer(&want->rig, &want->asked[i], &got->asked[i]), "step %u", i);
    }
}

static struct engine plain, lent;

static void open_both(tq_variant variant) {
    engine_open(&plain, variant, 0);
    engine_open(&lent, variant, 1);
    for (uint32_t i = 0; i < STEPS; i++)
        do_step(&plain.steps[i]);
}

static void close_both(void) {
    check_same(&plain, &lent);
    engine_close(&plain);
    engine_close(&lent);
}

/* ---- members ---------------------------------------------------------------------------- */

struct member {
    struct engine *engine;
    uint32_t ith;
    pthread_barrier_t *barrier; /* before every step; NULL = none */
    void (*call)(void *arg);
    const uint32_t *nth; /* of every step */
    int failed, early;
};

static void *work(void *arg) {
    struct member *m = arg;
    for (uint32_t i = 0; i < STEPS; i++) {
        struct step *s = &m->engine->steps[i];
        if (m->barrier)
            pthread_barrier_wait(m->barrier);
        if (m->ith >= m->nth[i])
            continue;
        m->failed += tq_threadpool_lend(m->engine->pool, m->ith, m->nth[i], m->call, s) != TQ_OK;
        m->early += s->status != TQ_OK || s->runs != 1;
    }
    return NULL;
}

static void work_together(void (*call)(void *), const uint32_t *nth, int with_barrier) {
    pthread_t threads[THREADS];
    struct member members[THREADS];
    pthread_barrier_t barrier;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        members[i] = (struct member){&lent, i, with_barrier ? &barrier : NULL, call, nth, 0, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &members[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        CHECK(members[i].failed == 0 && members[i].early == 0, "thread %u: %d failed, %d early", i,
              members[i].failed, members[i].early);
    }
    pthread_barrier_destroy(&barrier);
}

static void all_of(uint32_t *nth, uint32_t n) {
    for (uint32_t i = 0; i < STEPS; i++)
        nth[i] = n;
}

/* Nothing but the calls themselves keeps the threads in step. */
static void test_without_barriers(void **state) {
    (void)state;
    static const tq_variant variants[] = {TQ_VARIANT_4BIT_NC, TQ_VARIANT_K8V4, TQ_VARIANT_POLAR};
    uint32_t nth[STEPS];
    all_of(nth, THREADS);
    for (size_t i = 0; i < COUNT(variants); i++) {
        open_both(variants[i]);
        work_together(do_step, nth, 0);
        close_both();
    }
}

static void test_batched_steps(void **state) {
    (void)state;
    uint32_t nth[STEPS];
    all_of(nth, THREADS);
    open_both(TQ_VARIANT_4BIT_NC);
    work_together(do_batched_step, nth, 0);
    close_both();
}

static void test_number_that_changes(void **state) {
    (void)state;
    uint32_t nth[STEPS];
    struct rng rng = {3};
    for (uint32_t i = 0; i < STEPS; i++)
        nth[i] = 1 + rng_below(&rng, THREADS);
    open_both(TQ_VARIANT_K3V4_NC);
    work_together(do_step, nth, 1);
    close_both();
}

/* One thread runs the slices in any order. */
static void test_one_after_the_other(void **state) {
    (void)state;
    open_both(TQ_VARIANT_4BIT_NC);
    for (uint32_t i = 0; i < STEPS; i++)
        for (uint32_t k = 0; k < THREADS; k++)
            OK(tq_threadpool_lend(lent.pool, (i + k * 3) % THREADS, THREADS, do_step,
                                  &lent.steps[i]));
    close_both();
}

/* Members far behind find their calls done. */
static void test_members_far_behind(void **state) {
    (void)state;
    open_both(TQ_VARIANT_INT8);
    for (uint32_t k = 0; k < THREADS; k++)
        for (uint32_t i = 0; i < STEPS; i++)
            OK(tq_threadpool_lend(lent.pool, k, THREADS, do_step, &lent.steps[i]));
    close_both();
}

/* ---- sharing ----------------------------------------------------------------------------- */

struct meeting {
    tq_threadpool *pool;
    struct job job;
    uint32_t ith[THREADS];
    uint32_t errors;
};
static struct meeting meeting;

static void meet(void *arg) {
    struct meeting *m = arg;
    for (int i = 0; i < 20; i++)
        m->errors += job_run(&m->job, tq_threadpool_executor(m->pool), THREADS);
}

static void *come(void *arg) {
    uint32_t ith = *(const uint32_t *)arg;
    if (tq_threadpool_lend(meeting.pool, ith, THREADS, meet, &meeting) != TQ_OK)
        abort();
    return NULL;
}

/* Every thread gets a task when there are as many, in every job of a call. */
static void test_tasks_are_shared(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    tq_threadpool_config c = {
        .struct_size = sizeof c, .flags = TQ_THREADPOOL_LENT, .n_threads = THREADS + 2};
    memset(&meeting, 0, sizeof meeting);
    meeting.job.meet = THREADS;
    OK(tq_threadpool_create(&c, &meeting.pool));
    for (uint32_t i = 0; i < THREADS; i++) {
        meeting.ith[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, come, &meeting.ith[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(meeting.errors, 0);
    tq_threadpool_destroy(meeting.pool);
}

/* Outside of lend() a call over the executor is done by its own thread. */
static void test_outside(void **state) {
    (void)state;
    engine_open(&plain, TQ_VARIANT_4BIT_NC, 0);
    engine_open(&lent, TQ_VARIANT_4BIT_NC, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        do_step(&plain.steps[i]);
        do_step(&lent.steps[i]);
    }
    close_both();
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void nothing(void *arg) {
    (void)arg;
}

static void test_arguments(void **state) {
    (void)state;
    tq_threadpool_config c = {.struct_size = sizeof c, .flags = TQ_THREADPOOL_LENT, .n_threads = 3};
    tq_threadpool *pool = NULL, *own = NULL;
    int runs = 0;
    OK(tq_threadpool_create(&c, &pool));
    FAILS(tq_threadpool_lend(NULL, 0, 1, nothing, &runs), TQ_ERR_INVALID_ARGUMENT, "pool");
    FAILS(tq_threadpool_lend(pool, 0, 1, NULL, &runs), TQ_ERR_INVALID_ARGUMENT, "call");
    FAILS(tq_threadpool_lend(pool, 0, 0, nothing, &runs), TQ_ERR_INVALID_ARGUMENT, "nth");
    FAILS(tq_threadpool_lend(pool, 0, 4, nothing, &runs), TQ_ERR_INVALID_ARGUMENT, "nth");
    FAILS(tq_threadpool_lend(pool, 2, 2, nothing, &runs), TQ_ERR_INVALID_ARGUMENT, "ith");
    OK(tq_threadpool_lend(pool, 2, 3, nothing, &runs));
    c.flags = 0;
    OK(tq_threadpool_create(&c, &own));
    FAILS(tq_threadpool_lend(own, 0, 1, nothing, &runs), TQ_ERR_INVALID_STATE, "own");
    tq_threadpool_destroy(pool);
    tq_threadpool_destroy(own);
}

/* Inside a call of two: its leader again, a thread that takes no part, one with another nth. */
static void misbehave(void *arg) {
    tq_threadpool *pool = arg;
    FAILS(tq_threadpool_lend(pool, 0, 2, nothing, NULL), TQ_ERR_INVALID_STATE, "running");
    FAILS(tq_threadpool_lend(pool, 2, 3, nothing, NULL), TQ_ERR_INVALID_STATE, "running");
    FAILS(tq_threadpool_lend(pool, 1, 3, nothing, NULL), TQ_ERR_INVALID_ARGUMENT, "nth");
}

static void test_calls_that_overlap(void **state) {
    (void)state;
    tq_threadpool_config c = {.struct_size = sizeof c, .flags = TQ_THREADPOOL_LENT, .n_threads = 3};
    tq_threadpool *pool = NULL;
    OK(tq_threadpool_create(&c, &pool));
    for (int i = 0; i < 3; i++) {
        OK(tq_threadpool_lend(pool, 0, 2, misbehave, pool));
        OK(tq_threadpool_lend(pool, 1, 2, misbehave, pool)); /* late: it has been done */
    }
    tq_threadpool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_barriers),
        cmocka_unit_test(test_batched_steps),
        cmocka_unit_test(test_number_that_changes),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_members_far_behind),
        cmocka_unit_test(test_tasks_are_shared),
        cmocka_unit_test(test_outside),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_calls_that_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
