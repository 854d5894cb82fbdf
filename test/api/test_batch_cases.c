/* The behaviour cases about batches, one test per case. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/step.h"

/* A one-layer cache with n sequences that hold lengths[i] random tokens. */
static void open_lengths(struct rig *r, const tq_cache_config *c, uint32_t n, tq_seq *seqs,
                         const uint32_t *lengths) {
    struct rng rng = {17};
    memset(r, 0, sizeof *r);
    rig_open(r, c);
    for (uint32_t i = 0; i < n; i++) {
        seqs[i] = rig_seq(r);
        rig_append_random(r, seqs[i], 0, lengths[i], &rng);
    }
}

/* B32: the rows of a draft see the history and each other, row r just what it would see alone. */
static void test_b32_speculative_rows(void **state) {
    (void)state;
    enum { HISTORY = 200 };
    for (uint32_t n = 1; n <= 17; n++) {
        struct rig r;
        struct rng rng = {n};
        struct step_plan p = {.n = 2, .n_append = {n, 1}, .n_query = {n, 1}};
        uint32_t lengths[] = {HISTORY, 3};
        tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, 64, 2, 3);
        open_lengths(&r, &c, 2, p.seqs, lengths);
        tq_batch *batch = batch_open(&r, 2, 18);
        float *k = random_rows(&rng, (n + 1) * rig_k_row(&r), 1);
        struct asked a = ask_make(&r, n + 1, TQ_ATTEND_CAUSAL, &rng);
        OK(batch_plan(batch, &p));
        batch_append(batch, 0, k, k);
        batch_ask(&r, batch, 0, &a);
        OK(tq_batch_commit(batch, NULL));
        for (uint32_t row = n; row-- > 0;) {
            struct asked one = a;
            one.n_queries = 1;
            one.q += row * rig_q_row(&r);
            one.out += row * rig_out_row(&r);
            one.lse += (size_t)row * r.c.n_q_heads;
            OK(tq_seq_truncate(r.cache, p.seqs[0], HISTORY + row + 1));
            check_part(&r, p.seqs[0], 0, &one, "a draft's row");
        }
        ask_free(&a);
        free(k);
        tq_batch_destroy(batch);
        rig_close(&r);
    }
}

/* B38: empty sequences between others write zeros and -inf, and only their own rows. */
static void test_b38_empty_sequences(void **state) {
    (void)state;
    static const uint32_t lengths[] = {0, 5, 0};
    struct rig r;
    struct rng rng = {3};
    struct step_plan p = {.n = 3, .n_query = {2, 2, 2}};
    tq_cache_config c = plain_config(TQ_VARIANT_K3V4_NC, 64, 1, 4);
    open_lengths(&r, &c, 3, p.seqs, lengths);
    tq_batch *batch = batch_open(&r, 3, 6);
    struct asked a = ask_make(&r, 6, TQ_ATTEND_CAUSAL, &rng);
    OK(batch_plan(batch, &p));
    batch_ask(&r, batch, 0, &a);
    for (uint32_t i = 0; i < 3; i++) {
        struct asked part = step_part(&r, &p, &a, i);
        check_part(&r, p.seqs[i], 0, &part, "empty sequences");
        for (size_t j = 0; i != 1 && j < 2 * rig_out_row(&r); j++)
            assert_true(part.out[j] == 0);
        for (size_t j = 0; i != 1 && j < 2 * (size_t)r.c.n_q_heads; j++)
            assert_true(part.lse[j] == -INFINITY);
    }
    ask_free(&a);
    tq_batch_destroy(batch);
    rig_close(&r);
}

/* B47: more sequences than a grid dimension or a 16-bit number can count. */
static void test_b47_very_many_sequences(void **state) {
    (void)state;
    enum { MANY = 70000 / FEWER, DIM = 32 };
    struct rig r = {0};
    struct rng rng = {4};
    tq_cache_config c = plain_config(TQ_VARIANT_INT8, DIM, 1, 1);
    c.page_tokens = 16;
    c.max_seqs = MANY;
    rig_open(&r, &c);
    tq_batch *batch = batch_open(&r, MANY, MANY);
    tq_seq *seqs = must_alloc(MANY, sizeof *seqs);
    tq_batch_desc desc = {.struct_size = sizeof desc, .n_seqs = MANY, .seqs = seqs};
    float *rows = random_rows(&rng, (size_t)MANY * DIM, 1);
    for (uint32_t i = 0; i < MANY; i++)
        seqs[i] = rig_seq(&r);
    struct asked a = ask_make(&r, MANY, TQ_ATTEND_CAUSAL, &rng);
    OK(tq_batch_plan(batch, &desc, NULL));
    batch_append(batch, 0, rows, rows);
    batch_ask(&r, batch, 0, &a);
    OK(tq_batch_commit(batch, NULL));
    for (uint32_t i = 0; i < MANY; i += i < MANY - 300 ? 997 : 1) {
        float want[DIM];
        rig_read(&r, seqs[i], 0, 0, 1, NULL, want);
        for (uint32_t d = 0; d < DIM; d++) /* one token: its value */
            AT_MOST(fabs((double)a.out[(size_t)i * DIM + d] - (double)want[d]),
                    ATTEND_TOLERANCE * 4, "sequence %u", i);
    }
    free(rows);
    free(seqs);
    ask_free(&a);
    tq_batch_destroy(batch);
    rig_close(&r);
}

/* B55: sequences that grow in turns over one pool; one is cut and goes on. */
static void test_b55_interleaved(void **state) {
    (void)state;
    enum { SEQS = 4 };
    struct rig r, alone;
    struct rng rng = {5};
    struct step_plan p = {.n = SEQS};
    tq_seq seqs[SEQS];
    static const uint32_t none[SEQS] = {0};
    tq_cache_config c = plain_config(TQ_VARIANT_3BIT_NC, 64, 2, 2);
    c.page_tokens = 16;
    open_lengths(&r, &c, SEQS, p.seqs, none);
    open_lengths(&alone, &c, SEQS, seqs, none);
    tq_batch *batch = batch_open(&r, SEQS, SEQS * 5);
    for (uint32_t step = 0; step < 40; step++) {
        float *k = random_rows(&rng, SEQS * 5 * rig_k_row(&r), 1);
        for (uint32_t i = 0; i < SEQS; i++)
            p.n_append[i] = p.n_query[i] = 1 + (step + i) % 5;
        struct asked a = ask_make(&r, step_queries(&p, SEQS), TQ_ATTEND_CAUSAL, &rng);
        OK(batch_plan(batch, &p));
        batch_append(batch, 0, k, k);
        batch_ask(&r, batch, 0, &a);
        OK(tq_batch_commit(batch, NULL));
        for (uint32_t i = 0; i < SEQS; i++) {
            const float *mine = k + step_appends(&p, i) * rig_k_row(&r);
            struct asked part = step_part(&r, &p, &a, i);
            rig_append(&alone, seqs[i], 0, p.n_append[i], mine, mine);
            check_part(&alone, seqs[i], 0, &part, "interleaved");
        }
        if (step == 20) {
            OK(tq_seq_truncate(r.cache, p.seqs[1], 9));
            OK(tq_seq_truncate(alone.cache, seqs[1], 9));
        }
        ask_free(&a);
        free(k);
    }
    tq_batch_destroy(batch);
    rig_close(&r);
    rig_close(&alone);
}

/* B57: what else is in the batch never shows in a sequence's rows. */
static void test_b57_company(void **state) {
    (void)state;
    static const uint32_t sizes[] = {2, 7, 33};
    enum { MOST = 33, ROWS = 3 };
    struct rig r;
    struct rng rng = {6};
    tq_seq seqs[MOST];
    uint32_t lengths[MOST];
    tq_cache_config c = plain_config(TQ_VARIANT_K8V4, 64, 2, 4);
    for (uint32_t i = 0; i < MOST; i++)
        lengths[i] = i * i * 2;
    open_lengths(&r, &c, MOST, seqs, lengths);
    tq_batch *batch = batch_open(&r, MOST, MOST * ROWS);
    for (size_t s = 0; s < COUNT(sizes); s++) {
        struct step_plan p = {.n = sizes[s]};
        for (uint32_t i = 0; i < p.n; i++) {
            p.seqs[i] = seqs[(i * 5 + s) % MOST];
            p.n_query[i] = 1 + i % ROWS;
        }
        struct asked a = ask_make(&r, step_queries(&p, p.n), 0, &rng);
        OK(batch_plan(batch, &p));
        batch_ask(&r, batch, 0, &a);
        OK(tq_batch_cancel(batch));
        for (uint32_t i = 0; i < p.n; i++) {
            struct asked part = step_part(&r, &p, &a, i);
            check_part(&r, p.seqs[i], 0, &part, "company");
        }
        ask_free(&a);
    }
    tq_batch_destroy(batch);
    rig_close(&r);
}

/* B42: what freed pages held before, NaN in bf16, does not reach the next owner. */
static void test_b42_reused_pages(void **state) {
    (void)state;
    struct rig r = {0};
    struct rng rng = {7};
    struct step_plan p = {.n = 2, .n_append = {17, 1}, .n_query = {17, 1}};
    tq_cache_config c = plain_config(TQ_VARIANT_BF16, 64, 1, 2);
    c.page_tokens = 16;
    c.max_pages = 3;
    rig_open(&r, &c);
    p.seqs[0] = rig_seq(&r);
    p.seqs[1] = rig_seq(&r);
    tq_batch *batch = batch_open(&r, 2, 18);
    float *k = random_rows(&rng, 18 * rig_k_row(&r), 1e30f);
    for (int round = 0; round < 2; round++) {
        struct asked a = ask_make(&r, 18, TQ_ATTEND_CAUSAL, &rng);
        OK(batch_plan(batch, &p));
        batch_append(batch, 0, k, k);
        batch_ask(&r, batch, 0, &a);
        for (size_t i = 0; i < 18 * rig_out_row(&r); i++)
            CHECK(isfinite(a.out[i]), "round %d, element %zu", round, i);
        OK(tq_batch_cancel(batch));
        ask_free(&a);
    }
    free(k);
    tq_batch_destroy(batch);
    rig_close(&r);
}

/* ---- B80 --------------------------------------------------------------------------------- */

enum { READERS = 3, READER_ROWS = 4, READER_ROUNDS = 20 };

/* A thread with a batch of its own, or one that asks sequence by sequence. */
struct reader {
    const struct rig *rig;
    tq_batch *batch; /* NULL = asks alone */
    struct step_plan step;
    const struct asked *want;
    int failed, wrong;
};

static void *read_all(void *arg) {
    struct reader *r = arg;
    size_t n = READER_ROWS * rig_out_row(r->rig);
    float *buffer = must_alloc(n, sizeof *buffer);
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    tq_rows_in q = rows_in(r->want->q);
    tq_rows_out out = rows_out(buffer);
    for (int round = 0; round < READER_ROUNDS; round++) {
        tq_status status = r->batch ? tq_batch_attend(r->batch, 0, &params, &q, &out, NULL, NULL)
                                    : tq_attend(r->rig->cache, r->step.seqs[0], 0, READER_ROWS,
                                                &params, &q, &out, NULL, NULL);
        r->failed += status != TQ_OK;
        r->wrong += memcmp(buffer, r->want->out, n * sizeof *buffer) != 0;
    }
    free(buffer);
    return NULL;
}

/* B80: layers of planned batches are read by several threads at a time, and by tq_attend(). */
static void test_b80_readers(void **state) {
    (void)state;
    static const uint32_t lengths[READERS] = {300, 70, 150};
    struct rig r;
    struct rng rng = {8};
    struct reader readers[READERS];
    struct asked want[READERS];
    pthread_t threads[READERS];
    tq_seq seqs[READERS];
    tq_cache_config c = plain_config(TQ_VARIANT_K3V4_NC, 64, 2, 2);
    open_lengths(&r, &c, READERS, seqs, lengths);
    for (uint32_t i = 0; i < READERS; i++) {
        struct step_plan step = {.n = 1, .seqs = {seqs[i]}, .n_query = {READER_ROWS}};
        want[i] = ask_make(&r, READER_ROWS, TQ_ATTEND_CAUSAL, &rng);
        ask(&r, seqs[i], 0, &want[i]);
        readers[i] = (struct reader){&r, NULL, step, &want[i], 0, 0};
        if (i == 0)
            continue;
        readers[i].batch = batch_open(&r, 1, READER_ROWS);
        OK(batch_plan(readers[i].batch, &step));
    }
    for (uint32_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, &readers[i]), 0);
    for (uint32_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < READERS; i++) {
        CHECK(!readers[i].failed && !readers[i].wrong, "reader %u: %d failed, %d wrong", i,
              readers[i].failed, readers[i].wrong);
        tq_batch_destroy(readers[i].batch);
        ask_free(&want[i]);
    }
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b32_speculative_rows),
        cmocka_unit_test(test_b38_empty_sequences),
        cmocka_unit_test(test_b47_very_many_sequences),
        cmocka_unit_test(test_b55_interleaved),
        cmocka_unit_test(test_b57_company),
        cmocka_unit_test(test_b42_reused_pages),
        cmocka_unit_test(test_b80_readers),
    };
    return cmocka_run_group_tests_name("batch cases", tests, NULL, NULL);
}
