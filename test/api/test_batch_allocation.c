/* Memory and batched steps: every allocation of create and plan fails once and changes nothing;
 * append, attend and commit ask for none. */
#include <stdlib.h>
#include <string.h>

#include "common/step.h"

enum { SEQS = 5, LAYERS = 2, MOST = 400 };

static struct rig r;
static struct step_plan step;
static float *rows;

static void open_rig(const tq_executor *executor, uint64_t max_pages) {
    struct rng rng = {3};
    static const tq_layer_formats formats[LAYERS] = {{TQ_FORMAT_LM3, TQ_FORMAT_LM4},
                                                     {TQ_FORMAT_BF16, TQ_FORMAT_BF16}};
    tq_cache_config c = pair_config(formats, 64, 2, 4);
    c.n_layers = LAYERS;
    c.page_tokens = 16;
    c.max_pages = max_pages;
    memset(&r, 0, sizeof r);
    memset(&step, 0, sizeof step);
    rig_open_with(&r, &c, executor);
    step.n = SEQS;
    for (uint32_t i = 0; i < SEQS; i++) {
        step.seqs[i] = i == 1 ? rig_fork(&r, step.seqs[0], 7) : rig_seq(&r);
        for (uint32_t l = 0; l < LAYERS; l++)
            rig_append_random(&r, step.seqs[i], l, i == 1 ? 0 : 10 + i, &rng);
    }
    rows = random_rows(&rng, MOST * rig_q_row(&r), 1);
}

static void close_rig(void) {
    free(rows);
    rig_close(&r);
}

/* Accounts agree with what is held. */
static void check_bytes(uint64_t beside, const char *what) {
    CHECK(rig_stats(&r).host_bytes + beside == r.heap.live_bytes, "%s: bytes", what);
    assert_int_equal(r.heap.errors, 0);
}

static void test_create(void **state) {
    (void)state;
    open_rig(NULL, 0);
    uint64_t beside = r.heap.live_bytes - rig_stats(&r).host_bytes, bytes = r.heap.live_bytes;
    tq_batch *batch = NULL;
    uint32_t failures = 0;
    for (;; failures++) {
        test_heap_fail(&r.heap, failures + 1);
        tq_status status = tq_batch_create(r.cache, SEQS, MOST, &batch);
        test_heap_fail(&r.heap, 0);
        check_bytes(beside, "create");
        if (status == TQ_OK)
            break;
        assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
        assert_null(batch);
        assert_true(r.heap.live_bytes == bytes);
    }
    assert_true(failures >= 4);
    tq_batch_destroy(batch);
    assert_true(r.heap.live_bytes == bytes);
    close_rig();
}

/* The layers and the end of a planned step, with a heap that gives nothing. */
static void run_without_memory(tq_batch *batch) {
    struct rng rng = {4};
    uint64_t calls = r.heap.calls;
    r.heap.fail_at = r.heap.calls + 1;
    r.heap.fail_for_ever = 1;
    for (uint32_t l = 0; l < LAYERS; l++) {
        batch_append(batch, l, rows, rows);
        struct asked a = ask_make(&r, step_queries(&step, SEQS), TQ_ATTEND_CAUSAL, &rng);
        batch_ask(&r, batch, l, &a);
        ask_free(&a);
    }
    OK(tq_batch_commit(batch, NULL));
    assert_true(r.heap.calls == calls);
    r.heap.fail_for_ever = 0;
    test_heap_fail(&r.heap, 0);
}

static uint32_t plan_failing(tq_batch *batch, uint64_t beside) {
    uint32_t failures = 0;
    for (;; failures++) {
        struct snapshot before[SEQS];
        for (uint32_t i = 0; i < SEQS; i++)
            before[i] = snapshot_take(&r, step.seqs[i]);
        test_heap_fail(&r.heap, failures + 1);
        tq_status status = batch_plan(batch, &step);
        test_heap_fail(&r.heap, 0);
        check_bytes(beside, "plan");
        for (uint32_t i = 0; i < SEQS; i++) {
            if (status != TQ_OK)
                snapshot_check_content(&r, &before[i], "plan");
            snapshot_free(&r, &before[i]);
        }
        if (status == TQ_OK)
            return failures;
        check_failure(status, TQ_ERR_OUT_OF_MEMORY, "memory", "plan", __FILE__, __LINE__);
        FAILS(tq_batch_cancel(batch), TQ_ERR_INVALID_STATE, "planned");
    }
}

static void live(const tq_executor *executor, uint64_t max_pages) {
    struct rng rng = {5};
    uint32_t failures = 0;
    open_rig(executor, max_pages);
    uint64_t beside = r.heap.live_bytes - rig_stats(&r).host_bytes;
    tq_batch *batch = batch_open(&r, SEQS, MOST);
    for (uint32_t round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < SEQS; i++) {
            step.n_append[i] = rng_below(&rng, round * 12 + 2);
            step.n_query[i] = rng_below(&rng, 5);
        }
        failures += plan_failing(batch, beside);
        run_without_memory(batch);
    }
    assert_true(failures >= 5);
    tq_batch_destroy(batch);
    check_bytes(beside, "end");
    close_rig();
}

static void test_steps(void **state) {
    (void)state;
    live(NULL, 0);
    live(NULL, 200);
}

static void test_steps_with_workers(void **state) {
    (void)state;
    struct test_threads threads = {.n_workers = 3};
    tq_executor executor = test_executor(&threads);
    live(&executor, 0);
}

/* Decoding takes no memory at every step, though sequences grow all the time. */
static void test_decoding_allocates_rarely(void **state) {
    (void)state;
    enum { STEPS = 300 / FEWER };
    open_rig(NULL, 500);
    tq_batch *batch = batch_open(&r, SEQS, MOST);
    uint64_t calls = r.heap.calls;
    for (uint32_t i = 0; i < SEQS; i++)
        step.n_append[i] = step.n_query[i] = 1;
    for (uint32_t s = 0; s < STEPS; s++) {
        OK(batch_plan(batch, &step));
        run_without_memory(batch);
    }
    AT_MOST((double)(r.heap.calls - calls), 60, "allocations in %d steps", STEPS);
    tq_batch_destroy(batch);
    close_rig();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_steps_with_workers),
        cmocka_unit_test(test_decoding_allocates_rarely),
    };
    return cmocka_run_group_tests_name("batch allocation", tests, NULL, NULL);
}
