/* Batched steps give what tq_append() and tq_attend() give for each sequence alone: the same
 * pages and the same answers, bit for bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"
#include "common/step.h"

enum { SEQS = 7, LAYERS = 2, KV_HEADS = 2, GROUP = 3, PAGE = 32, MOST_ROWS = 6000 };

/* Two caches with the same sequences: one gets steps, the other calls one by one. */
struct twins {
    struct rig batched, plain;
    tq_batch *batch;
    struct step_plan step; /* of the batched one */
    tq_seq seqs[SEQS];     /* of the plain one */
    struct rng rng;
};

static void twins_open(struct twins *t, const tq_cache_config *c, const tq_executor *executor) {
    memset(t, 0, sizeof *t);
    t->rng.state = c->variant + 1;
    rig_open_with(&t->batched, c, executor);
    rig_open(&t->plain, c);
    t->batch = batch_open(&t->batched, SEQS, MOST_ROWS);
    t->step.n = SEQS;
    for (uint32_t i = 0; i < SEQS; i++) {
        t->step.seqs[i] = rig_seq(&t->batched);
        t->seqs[i] = rig_seq(&t->plain);
    }
}

static void twins_close(struct twins *t) {
    tq_batch_destroy(t->batch);
    rig_close(&t->batched);
    rig_close(&t->plain);
}

/* One layer of the planned step, and the same for the twin. */
static void run_layer(struct twins *t, uint32_t layer, struct asked *a, const char *what) {
    const struct step_plan *p = &t->step;
    uint32_t rows = step_appends(p, p->n);
    float *k = random_rows(&t->rng, rows * rig_k_row(&t->plain), 1);
    float *v = random_rows(&t->rng, rows * rig_v_row(&t->plain), 1);
    batch_append(t->batch, layer, k, v);
    batch_ask(&t->batched, t->batch, layer, a);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t first = step_appends(p, i);
        rig_append(&t->plain, t->seqs[i], layer, p->n_append[i], k + first * rig_k_row(&t->plain),
                   v + first * rig_v_row(&t->plain));
        struct asked part = step_part(&t->batched, p, a, i);
        check_part(&t->plain, t->seqs[i], layer, &part, what);
    }
    free(k);
    free(v);
}

static void run_step(struct twins *t, const struct asked *how, const char *what) {
    OK(batch_plan(t->batch, &t->step));
    for (uint32_t l = 0; l < t->plain.c.n_layers; l++) {
        struct asked a =
            ask_make(&t->batched, step_queries(&t->step, t->step.n), how->flags, &t->rng);
        a.window = how->window;
        a.softcap = how->softcap;
        a.scale = how->scale;
        run_layer(t, l, &a, what);
        ask_free(&a);
    }
}

static void check_lengths(const struct twins *t, const char *what) {
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t l = 0; l < t->plain.c.n_layers; l++)
            CHECK(rig_length(&t->batched, t->step.seqs[i], l) ==
                      rig_length(&t->plain, t->seqs[i], l),
                  "%s: sequence %u, layer %u", what, i, l);
}

/* All rows of both, as decoded. */
static void check_rows(const struct twins *t, const char *what) {
    size_t row = rig_k_row(&t->plain);
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t l = 0; l < t->plain.c.n_layers; l++) {
            uint32_t n = (uint32_t)rig_length(&t->plain, t->seqs[i], l);
            float *a = must_alloc(n * row, sizeof *a), *b = must_alloc(n * row, sizeof *b);
            rig_read(&t->batched, t->step.seqs[i], l, 0, n, a, NULL);
            rig_read(&t->plain, t->seqs[i], l, 0, n, b, NULL);
            CHECK(memcmp(a, b, n * row * sizeof *a) == 0, "%s: keys of sequence %u", what, i);
            rig_read(&t->batched, t->step.seqs[i], l, 0, n, NULL, a);
            rig_read(&t->plain, t->seqs[i], l, 0, n, NULL, b);
            CHECK(memcmp(a, b, n * row * sizeof *a) == 0, "%s: values of sequence %u", what, i);
            free(a);
            free(b);
        }
}

static void check_twins(const struct twins *t, const char *what) {
    tq_cache_stats a = rig_stats(&t->batched), b = rig_stats(&t->plain);
    check_lengths(t, what);
    check_rows(t, what);
    CHECK(a.pages_used == b.pages_used, "%s: %llu pages instead of %llu", what,
          (unsigned long long)a.pages_used, (unsigned long long)b.pages_used);
    CHECK(a.tokens == b.tokens, "%s: tokens", what);
}

/* ---- steps of all kinds ------------------------------------------------------------------ */

/* Appends and queries of a step: prefill, chunks, decoding, drafts, nothing at all; rows without
 * queries, queries without rows, and a sequence that stays empty. */
static const struct {
    uint32_t n_append[SEQS], n_query[SEQS], flags;
} steps[] = {
    {{40, 1, 0, 0, 33, 7, 0}, {40, 1, 0, 2, 0, 3, 1}, TQ_ATTEND_CAUSAL},
    {{1, 1, 1, 0, 1, 1, 0}, {1, 1, 1, 1, 1, 1, 1}, TQ_ATTEND_CAUSAL},
    {{0, 30, 64, 0, 31, 5, 0}, {3, 30, 1, 0, 2, 5, 0}, 0},
    {{4, 4, 4, 0, 4, 4, 0}, {4, 4, 4, 2, 4, 4, 1}, TQ_ATTEND_CAUSAL},
    {{0, 0, 0, 0, 0, 0, 0}, {1, 0, 2, 1, 1, 1, 1}, TQ_ATTEND_CAUSAL},
    {{1, 0, 2, 0, 3, 0, 0}, {0, 0, 0, 0, 0, 0, 0}, 0},
    {{1, 1, 1, 0, 1, 1, 0}, {1, 1, 1, 1, 1, 1, 1}, 0},
};

static void run_steps(struct twins *t, const char *name) {
    for (size_t s = 0; s < COUNT(steps); s++) {
        struct asked how = {.flags = steps[s].flags};
        char what[64];
        (void)snprintf(what, sizeof what, "%s, step %zu", name, s);
        memcpy(t->step.n_append, steps[s].n_append, sizeof steps[s].n_append);
        memcpy(t->step.n_query, steps[s].n_query, sizeof steps[s].n_query);
        run_step(t, &how, what);
        OK(tq_batch_commit(t->batch, NULL));
        check_lengths(t, what);
    }
    check_twins(t, name);
}

static void test_all_variants(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        static struct twins t;
        tq_cache_config c = plain_config(variant_at(i).id, 64, KV_HEADS, GROUP);
        c.n_layers = LAYERS;
        c.page_tokens = PAGE;
        twins_open(&t, &c, NULL);
        run_steps(&t, variant_at(i).name);
        twins_close(&t);
    }
}

/* Workers share out the pages and tiles of all sequences; the bits stay. */
static void test_workers(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        static struct twins t;
        struct test_threads threads = {.n_workers = n};
        tq_executor executor = test_executor(&threads);
        tq_cache_config c = plain_config(TQ_VARIANT_K3V4_NC, 128, 4, 2);
        c.n_layers = LAYERS;
        c.page_tokens = PAGE;
        twins_open(&t, &c, &executor);
        run_steps(&t, "workers");
        assert_true(threads.tasks > 0);
        twins_close(&t);
    }
}

/* Lengths around the borders of pages and of splits, all in one step. */
static void test_long_and_short(void **state) {
    (void)state;
    static const uint32_t lengths[SEQS] = {2047, 1, 2048, 0, 2049, 4300, 64};
    static const struct asked ways[] = {{.flags = TQ_ATTEND_CAUSAL},
                                        {.window = 100, .flags = TQ_ATTEND_CAUSAL},
                                        {.window = 2500, .softcap = 4},
                                        {.scale = 0.25f}};
    static struct twins t;
    struct test_threads threads = {.n_workers = 2};
    tq_executor executor = test_executor(&threads);
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, 64, 1, 2);
    twins_open(&t, &c, &executor);
    for (uint32_t i = 0; i < SEQS; i++) {
        struct rng same = {i};
        rig_append_random(&t.batched, t.step.seqs[i], 0, lengths[i], &t.rng);
        OK(tq_seq_truncate(t.batched.cache, t.step.seqs[i], 0));
        rig_append_random(&t.batched, t.step.seqs[i], 0, lengths[i], &same);
        same.state = i;
        rig_append_random(&t.plain, t.seqs[i], 0, lengths[i], &same);
    }
    for (size_t w = 0; w < COUNT(ways); w++) {
        for (uint32_t i = 0; i < SEQS; i++) {
            t.step.n_append[i] = (uint32_t)w % 2 ? 1 : 3;
            t.step.n_query[i] = i % 2 ? 3 : 2;
        }
        run_step(&t, &ways[w], "long and short");
        OK(tq_batch_commit(t.batch, NULL));
    }
    check_twins(&t, "long and short");
    twins_close(&t);
}

/* So many query rows that they are taken in several blocks. */
static void test_blocks(void **state) {
    (void)state;
    static struct twins t;
    struct asked how = {.flags = TQ_ATTEND_CAUSAL};
    tq_cache_config c = plain_config(TQ_VARIANT_2BIT_NC, 256, 1, 16);
    twins_open(&t, &c, NULL);
    for (uint32_t i = 0; i < SEQS; i++)
        t.step.n_append[i] = t.step.n_query[i] = i == 3 ? 700 / FEWER : i == 5 ? 500 / FEWER : 1;
    run_step(&t, &how, "blocks");
    OK(tq_batch_commit(t.batch, NULL));
    check_twins(&t, "blocks");
    twins_close(&t);
}

/* ---- the end of a step ------------------------------------------------------------------- */

/* Rejected tokens leave no trace: neither in lengths nor in pages nor in what comes after. */
static void test_commit_of_fewer(void **state) {
    (void)state;
    static struct twins t;
    struct asked how = {.flags = TQ_ATTEND_CAUSAL};
    tq_cache_config c = plain_config(TQ_VARIANT_3BIT_NC, 64, KV_HEADS, GROUP);
    c.n_layers = LAYERS;
    c.page_tokens = 16;
    twins_open(&t, &c, NULL);
    for (uint32_t round = 0; round < 12; round++) {
        uint32_t keep[SEQS];
        for (uint32_t i = 0; i < SEQS; i++) {
            t.step.n_append[i] = t.step.n_query[i] = rng_below(&t.rng, 40);
            keep[i] = rng_below(&t.rng, t.step.n_append[i] + 1);
        }
        run_step(&t, &how, "rejected tokens");
        OK(tq_batch_commit(t.batch, keep));
        for (uint32_t i = 0; i < SEQS; i++)
            OK(tq_seq_truncate(t.plain.cache, t.seqs[i],
                               rig_length(&t.plain, t.seqs[i], 0) - t.step.n_append[i] + keep[i]));
        check_twins(&t, "rejected tokens");
    }
    twins_close(&t);
}

/* A step can be given up at any point. */
static void test_cancel(void **state) {
    (void)state;
    static struct twins t;
    struct asked how = {.flags = 0};
    tq_cache_config c = plain_config(TQ_VARIANT_K8V4, 64, KV_HEADS, GROUP);
    c.n_layers = LAYERS;
    c.page_tokens = 16;
    twins_open(&t, &c, NULL);
    for (uint32_t i = 0; i < SEQS; i++)
        t.step.n_append[i] = t.step.n_query[i] = 5 * i;
    run_step(&t, &how, "before");
    OK(tq_batch_commit(t.batch, NULL));
    for (uint32_t layers = 0; layers <= LAYERS; layers++) {
        struct snapshot before = snapshot_take(&t.batched, t.step.seqs[6]);
        uint32_t rows = step_appends(&t.step, SEQS);
        float *k = random_rows(&t.rng, rows * rig_k_row(&t.plain), 1);
        OK(batch_plan(t.batch, &t.step));
        for (uint32_t l = 0; l < layers; l++) {
            batch_append(t.batch, l, k, k);
            assert_int_equal(rig_length(&t.batched, t.step.seqs[6], l), 60);
        }
        OK(tq_batch_cancel(t.batch));
        snapshot_check_content(&t.batched, &before, "cancelled");
        check_twins(&t, "cancelled");
        snapshot_free(&t.batched, &before);
        free(k);
    }
    OK(batch_plan(t.batch, &t.step)); /* destroying a batch cancels as well */
    twins_close(&t);
}

/* ---- forks ------------------------------------------------------------------------------- */

/* Forks of one sequence in one step: each writes behind its own copy of the shared page, the
 * last one into the page itself when nobody else has it. */
static void test_forks_in_a_step(void **state) {
    (void)state;
    static struct twins t;
    struct asked how = {.flags = TQ_ATTEND_CAUSAL};
    tq_cache_config c = plain_config(TQ_VARIANT_PROD4, 64, KV_HEADS, GROUP);
    c.n_layers = LAYERS;
    c.page_tokens = 16;
    c.max_pages = 1 + SEQS; /* a shared page, and one each */
    twins_open(&t, &c, NULL);
    t.step.n_append[0] = 21;
    run_step(&t, &how, "prefix");
    OK(tq_batch_commit(t.batch, NULL));
    for (uint32_t i = 1; i < SEQS; i++) {
        OK(tq_seq_destroy(t.batched.cache, t.step.seqs[i]));
        OK(tq_seq_destroy(t.plain.cache, t.seqs[i]));
        t.step.seqs[i] = rig_fork(&t.batched, t.step.seqs[0], 21 - i % 4);
        t.seqs[i] = rig_fork(&t.plain, t.seqs[0], 21 - i % 4);
    }
    for (uint32_t i = 0; i < SEQS; i++)
        t.step.n_append[i] = t.step.n_query[i] = 1 + i;
    run_step(&t, &how, "forks");
    OK(tq_batch_commit(t.batch, NULL));
    check_twins(&t, "forks");
    assert_int_equal(rig_stats(&t.batched).pages_used, 1 + SEQS);
    twins_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_variants),    cmocka_unit_test(test_workers),
        cmocka_unit_test(test_long_and_short),  cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_commit_of_fewer), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_forks_in_a_step),
    };
    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
