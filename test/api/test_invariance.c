/* Ways of asking for the same that must give the same bits: any split of appends (B27, B31),
 * any order among sequences, any number of queries in a call (B32), any executor, any time
 * (B13). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { KV_HEADS = 2, GROUP = 2, PAGE = 32 };

/* Keys and values of a sequence. */
struct data {
    uint32_t n_tokens;
    float *k, *v;
};

static struct data data_make(const struct rig *r, uint32_t n_tokens, struct rng *rng) {
    struct data d = {n_tokens, random_rows(rng, n_tokens * rig_k_row(r), 1), NULL};
    d.v = random_rows(rng, n_tokens * rig_v_row(r), 1);
    return d;
}

static void data_free(struct data *d) {
    free(d->k);
    free(d->v);
}

/* Appends tokens [first, first + n). */
static void append_part(struct rig *r, tq_seq seq, const struct data *d, uint32_t first,
                        uint32_t n) {
    rig_append(r, seq, 0, n, d->k + first * rig_k_row(r), d->v + first * rig_v_row(r));
}

/* From `first` to `last` in pieces of 1 to `most` tokens. */
static void append_pieces(struct rig *r, tq_seq seq, const struct data *d, uint32_t first,
                          uint32_t last, uint32_t most, struct rng *rng) {
    while (first < last) {
        uint32_t n = 1 + rng_below(rng, most);
        n = n < last - first ? n : last - first;
        append_part(r, seq, d, first, n);
        first += n;
    }
}

static void open_variant(struct rig *r, tq_variant variant, uint32_t dim,
                         const tq_executor *executor) {
    tq_cache_config c = plain_config(variant, dim, KV_HEADS, GROUP);
    c.page_tokens = PAGE;
    rig_open_with(r, &c, executor);
}

/* Decoded rows of both, bit for bit. */
static void check_same_rows(const struct rig *r, tq_seq a, tq_seq b, uint32_t n, const char *what) {
    size_t k_size = n * rig_k_row(r), v_size = n * rig_v_row(r);
    float *rows[4];
    for (int i = 0; i < 2; i++) {
        rows[i] = must_alloc(k_size, sizeof(float));
        rows[2 + i] = must_alloc(v_size, sizeof(float));
        rig_read(r, i ? b : a, 0, 0, n, rows[i], rows[2 + i]);
    }
    CHECK(memcmp(rows[0], rows[1], k_size * sizeof(float)) == 0, "%s: keys differ", what);
    CHECK(memcmp(rows[2], rows[3], v_size * sizeof(float)) == 0, "%s: values differ", what);
    for (int i = 0; i < 4; i++)
        free(rows[i]);
}

/* ---- append ---------------------------------------------------------------------------- */

enum { SPLIT_TOKENS = 97, FULL = 128 };

/* One sequence at once, others in pieces. Slots beyond the length hold anything, so pages are
 * compared when the same tail has filled them. */
static void check_splits(tq_variant_info variant, uint32_t dim) {
    static const uint32_t most[] = {1, 40, 5, 97};
    struct rig r = {0};
    struct rng rng = {dim};
    char what[80];
    open_variant(&r, variant.id, dim, NULL);
    struct data d = data_make(&r, FULL, &rng);
    tq_seq whole = rig_seq(&r);
    append_part(&r, whole, &d, 0, SPLIT_TOKENS);
    struct asked a = ask_make(&r, 2, TQ_ATTEND_CAUSAL, &rng);
    ask(&r, whole, 0, &a);
    for (size_t i = 0; i < (dim > 128 ? 2 : COUNT(most)); i++) {
        (void)snprintf(what, sizeof what, "%s, dim %u, pieces up to %u", variant.name, dim,
                       most[i]);
        tq_seq pieces = rig_seq(&r);
        append_pieces(&r, pieces, &d, 0, SPLIT_TOKENS, most[i], &rng);
        check_answer(&r, pieces, 0, &a, what);
        check_same_rows(&r, whole, pieces, SPLIT_TOKENS, what);
        tq_seq full = rig_fork(&r, whole, UINT64_MAX);
        append_part(&r, full, &d, SPLIT_TOKENS, FULL - SPLIT_TOKENS);
        append_part(&r, pieces, &d, SPLIT_TOKENS, FULL - SPLIT_TOKENS);
        check_same_pages(&r, full, &r, pieces, 0, FULL, what);
    }
    ask_free(&a);
    data_free(&d);
    rig_close(&r);
}

static void test_splits_of_appends(void **state) {
    static const uint32_t dims[] = {64, 80, 96, 112, 128, 160, 192, 256, 512, 576};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t d = i % FEWER; d < COUNT(dims); d += FEWER)
            check_splits(variant_at(i), dims[d]);
}

/* Two sequences that grow in turns, against each of them alone in a cache. */
static void check_interleaving(tq_variant_info variant) {
    struct rig together = {0}, alone = {0};
    struct rng rng = {variant.id};
    struct data d[2];
    tq_seq seq[2];
    uint32_t done[2] = {0, 0};
    open_variant(&together, variant.id, 96, NULL);
    for (int i = 0; i < 2; i++) {
        d[i] = data_make(&together, FULL, &rng);
        seq[i] = rig_seq(&together);
    }
    while (done[0] < FULL || done[1] < FULL) {
        uint32_t i = rng_below(&rng, 2), n = rng_below(&rng, 20);
        n = n < FULL - done[i] ? n : FULL - done[i];
        append_part(&together, seq[i], &d[i], done[i], n);
        done[i] += n;
    }
    open_variant(&alone, variant.id, 96, NULL);
    for (int i = 0; i < 2; i++) {
        tq_seq single = rig_seq(&alone);
        append_part(&alone, single, &d[i], 0, FULL);
        check_same_pages(&together, seq[i], &alone, single, 0, FULL, variant.name);
        struct asked a = ask_make(&alone, 3, TQ_ATTEND_CAUSAL, &rng);
        ask(&alone, single, 0, &a);
        check_answer(&together, seq[i], 0, &a, variant.name);
        ask_free(&a);
        OK(tq_seq_destroy(alone.cache, single));
        data_free(&d[i]);
    }
    rig_close(&together);
    rig_close(&alone);
}

static void test_interleaved_sequences(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        check_interleaving(variant_at(i));
}

/* ---- queries of a call ----------------------------------------------------------------- */

enum { MOST_QUERIES = 17 };

/* The last n queries in one call against each of them alone over what it sees. */
static void check_rows_of_call(const struct rig *r, tq_seq seq, const struct asked *single,
                               const float *q, uint32_t n, const char *what) {
    size_t q_row = rig_q_row(r), o_row = rig_out_row(r), heads = r->c.n_q_heads;
    uint32_t first = MOST_QUERIES - n;
    struct asked a = ask_with(r, seq, 0, n, TQ_ATTEND_CAUSAL, q + first * q_row);
    for (uint32_t i = 0; i < n; i++) {
        const struct asked *want = &single[first + i];
        CHECK(memcmp(a.out + i * o_row, want->out, o_row * sizeof(float)) == 0,
              "%s: out of query %u of %u", what, i, n);
        CHECK(memcmp(a.lse + i * heads, want->lse, heads * sizeof(float)) == 0,
              "%s: lse of query %u of %u", what, i, n);
    }
    ask_free(&a);
}

static void check_queries(tq_variant_info variant, uint32_t n_tokens) {
    struct rig r = {0};
    struct rng rng = {n_tokens};
    struct asked single[MOST_QUERIES];
    open_variant(&r, variant.id, 64, NULL);
    float *q = random_rows(&rng, MOST_QUERIES * rig_q_row(&r), 1);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, n_tokens, &rng);
    for (uint32_t i = 0; i < MOST_QUERIES; i++) {
        tq_seq fork = rig_fork(&r, seq, n_tokens);
        OK(tq_seq_truncate(r.cache, fork, n_tokens - (MOST_QUERIES - 1 - i)));
        single[i] = ask_with(&r, fork, 0, 1, TQ_ATTEND_CAUSAL, q + i * rig_q_row(&r));
        OK(tq_seq_destroy(r.cache, fork));
    }
    for (uint32_t n = 1; n <= MOST_QUERIES; n++)
        check_rows_of_call(&r, seq, single, q, n, variant.name);
    for (uint32_t i = 0; i < MOST_QUERIES; i++)
        ask_free(&single[i]);
    free(q);
    rig_close(&r);
}

/* Lengths that put the border of a page, and of 2048 tokens, between the queries. */
static void test_queries_of_a_call(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        check_queries(variant_at(i), 1004 / FEWER);
    check_queries(variant_of(TQ_VARIANT_4BIT_NC), 2056);
    check_queries(variant_of(TQ_VARIANT_F16), MOST_QUERIES);
}

/* ---- executors and time ---------------------------------------------------------------- */

static void check_executors(tq_variant_info variant, uint32_t n_tokens, uint32_t n_queries) {
    static const uint32_t workers[] = {1, 2, 3, 7};
    struct rig plain = {0};
    struct rng rng = {variant.id};
    open_variant(&plain, variant.id, 64, NULL);
    struct data d = data_make(&plain, n_tokens, &rng);
    tq_seq seq = rig_seq(&plain);
    append_part(&plain, seq, &d, 0, n_tokens);
    struct asked a = ask_make(&plain, n_queries, TQ_ATTEND_CAUSAL, &rng);
    ask(&plain, seq, 0, &a);
    for (size_t i = 0; i < COUNT(workers); i++) {
        struct rig r = {0};
        struct test_threads threads = {.n_workers = workers[i]};
        tq_executor executor = test_executor(&threads);
        open_variant(&r, variant.id, 64, &executor);
        tq_seq same = rig_seq(&r);
        append_part(&r, same, &d, 0, n_tokens);
        check_same_pages(&plain, seq, &r, same, 0, n_tokens, variant.name);
        check_answer(&r, same, 0, &a, variant.name);
        CHECK(threads.tasks > threads.calls, "%s: the executor got nothing to share", variant.name);
        rig_close(&r);
    }
    ask_free(&a);
    data_free(&d);
    rig_close(&plain);
}

static void test_executors(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        check_executors(variant_at(i), 4 * PAGE, 20);
    check_executors(variant_of(TQ_VARIANT_3BIT_NC), 2048 + 2 * PAGE, 40);
}

static void check_repeats(tq_variant variant, uint32_t dim) {
    struct rig r = {0};
    struct rng rng = {dim};
    open_variant(&r, variant, dim, NULL);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 50, &rng);
    struct asked a = ask_make(&r, 2, 0, &rng);
    ask(&r, seq, 0, &a);
    for (int i = 0; i < 200 / FEWER; i++)
        check_answer(&r, seq, 0, &a, "asked again");
    ask_free(&a);
    rig_close(&r);
}

static void test_b13_the_same_answer_200_times(void **state) {
    (void)state;
    check_repeats(TQ_VARIANT_4BIT_NC, 256);
    check_repeats(TQ_VARIANT_PROD4, 512);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits_of_appends),
        cmocka_unit_test(test_interleaved_sequences),
        cmocka_unit_test(test_queries_of_a_call),
        cmocka_unit_test(test_executors),
        cmocka_unit_test(test_b13_the_same_answer_200_times),
    };
    return cmocka_run_group_tests_name("invariance", tests, NULL, NULL);
}
