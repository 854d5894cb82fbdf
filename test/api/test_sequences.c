/* Sequences: fork, truncate, lengths of layers, ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { DIM = 64, PAGE = 16 };

static void open_variant(struct rig *r, tq_variant variant, uint32_t n_layers) {
    tq_cache_config c = plain_config(variant, DIM, 1, 2);
    c.page_tokens = PAGE;
    c.n_layers = n_layers;
    rig_open(r, &c);
}

/* Tokens [first, first + n) of one endless story; token t is always the same. */
static void append_story(struct rig *r, tq_seq seq, uint64_t story, uint32_t first, uint32_t n) {
    for (uint32_t t = first; t < first + n; t++) {
        struct rng rng = {story * 1000003 + t};
        rig_append_random(r, seq, 0, 1, &rng);
    }
}

/* The sequence holds the first `shared` tokens of one story and goes on to `length` with
 * another: a fresh sequence that was told so gives the same answer. */
static void check_story(struct rig *r, tq_seq seq, uint64_t begin, uint32_t shared, uint64_t end,
                        uint32_t length, const char *what) {
    struct rng rng = {length};
    tq_seq fresh = rig_seq(r);
    append_story(r, fresh, begin, 0, shared);
    append_story(r, fresh, end, shared, length - shared);
    CHECK(rig_length(r, seq, 0) == length, "%s: wrong length", what);
    struct asked a = ask_make(r, 2, TQ_ATTEND_CAUSAL, &rng);
    ask(r, fresh, 0, &a);
    check_answer(r, seq, 0, &a, what);
    ask_free(&a);
    OK(tq_seq_destroy(r->cache, fresh));
}

/* ---- fork ------------------------------------------------------------------------------ */

/* Source of 40 tokens, fork of n; each grows, one before the other. */
static void check_fork(struct rig *r, uint32_t n, int fork_first, const char *what) {
    tq_seq src = rig_seq(r);
    append_story(r, src, 1, 0, 40);
    tq_seq fork = rig_fork(r, src, n);
    CHECK(fork != src, "%s: one id for two", what);
    check_story(r, fork, 1, n, 1, n, what);
    if (fork_first)
        append_story(r, fork, 2, n, 25);
    append_story(r, src, 3, 40, 25);
    if (!fork_first)
        append_story(r, fork, 2, n, 25);
    check_story(r, src, 1, 40, 3, 65, what);
    check_story(r, fork, 1, n, 2, n + 25, what);
    OK(tq_seq_destroy(r->cache, fork_first ? src : fork));
    if (fork_first)
        check_story(r, fork, 1, n, 2, n + 25, what);
    else
        check_story(r, src, 1, 40, 3, 65, what);
    OK(tq_seq_destroy(r->cache, fork_first ? fork : src));
    CHECK(rig_stats(r).pages_used == 0, "%s: pages are lost", what);
}

static void test_fork_and_grow(void **state) {
    static const uint32_t prefixes[] = {0, 1, 15, 16, 17, 31, 32, 33, 39, 40};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        open_variant(&r, variant_at(i).id, 1);
        for (size_t n = 0; n < COUNT(prefixes); n++) {
            check_fork(&r, prefixes[n], 0, variant_at(i).name);
            check_fork(&r, prefixes[n], 1, variant_at(i).name);
        }
        rig_close(&r);
    }
}

/* A chain of forks, each with a token of its own, destroyed from the middle. */
static void test_forks_of_forks(void **state) {
    enum { CHAIN = 40 };
    struct rig r = {0};
    tq_seq seq[CHAIN];
    (void)state;
    open_variant(&r, TQ_VARIANT_4BIT_NC, 1);
    seq[0] = rig_seq(&r);
    append_story(&r, seq[0], 1, 0, 1);
    for (uint32_t i = 1; i < CHAIN; i++) {
        seq[i] = rig_fork(&r, seq[i - 1], UINT64_MAX);
        append_story(&r, seq[i], 1, i, 1);
    }
    for (uint32_t i = 0; i < CHAIN; i += 2)
        OK(tq_seq_destroy(r.cache, seq[i]));
    for (uint32_t i = 1; i < CHAIN; i += 2)
        check_story(&r, seq[i], 1, i + 1, 1, i + 1, "chain");
    for (uint32_t i = 1; i < CHAIN; i += 2)
        OK(tq_seq_destroy(r.cache, seq[i]));
    assert_int_equal(rig_stats(&r).pages_used, 0);
    rig_close(&r);
}

/* ---- truncate -------------------------------------------------------------------------- */

/* To every length, alone or with its pages shared, and on with other tokens. */
static void test_truncate_and_grow(void **state) {
    enum { TOKENS = 50 };
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        const char *name = variant_at(i).name;
        open_variant(&r, variant_at(i).id, 1);
        tq_seq whole = rig_seq(&r);
        append_story(&r, whole, 1, 0, TOKENS);
        for (uint32_t n = i % FEWER; n <= TOKENS; n += FEWER) {
            tq_seq shared = rig_fork(&r, whole, UINT64_MAX), alone = rig_seq(&r);
            append_story(&r, alone, 1, 0, TOKENS);
            OK(tq_seq_truncate(r.cache, shared, n));
            OK(tq_seq_truncate(r.cache, alone, n));
            check_story(&r, shared, 1, n, 1, n, name);
            append_story(&r, shared, 2, n, 20);
            append_story(&r, alone, 2, n, 20);
            check_story(&r, shared, 1, n, 2, n + 20, name);
            check_story(&r, alone, 1, n, 2, n + 20, name);
            OK(tq_seq_destroy(r.cache, shared));
            OK(tq_seq_destroy(r.cache, alone));
        }
        check_story(&r, whole, 1, TOKENS, 1, TOKENS, name);
        rig_close(&r);
    }
}

static void test_truncate_gives_pages_back(void **state) {
    struct rig r = {0};
    (void)state;
    open_variant(&r, TQ_VARIANT_3BIT_NC, 1);
    tq_seq seq = rig_seq(&r);
    append_story(&r, seq, 1, 0, 100);
    for (uint32_t n = 100; n-- > 0;) {
        OK(tq_seq_truncate(r.cache, seq, n));
        assert_int_equal(rig_length(&r, seq, 0), n);
        assert_int_equal(rig_stats(&r).pages_used, (n + PAGE - 1) / PAGE);
        assert_int_equal(rig_stats(&r).tokens, n);
    }
    rig_close(&r);
}

/* ---- lengths of layers ----------------------------------------------------------------- */

/* Fork and truncate to a length that only some layers have. */
static void check_refused(struct rig *r, tq_seq seq, uint64_t n, tq_status status) {
    struct snapshot before = snapshot_take(r, seq);
    tq_seq out = 77;
    FAILS(tq_seq_fork(r->cache, seq, n, &out), status, "n_tokens");
    assert_int_equal(out, 77);
    if (n != UINT64_MAX)
        FAILS(tq_seq_truncate(r->cache, seq, n), status, "n_tokens");
    snapshot_check(r, &before, "refused");
    snapshot_free(r, &before);
}

static void test_layers_of_different_length(void **state) {
    static const uint32_t lengths[] = {40, 17, 33};
    struct rig r = {0};
    struct rng rng = {1};
    (void)state;
    open_variant(&r, TQ_VARIANT_K8V4, COUNT(lengths));
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < COUNT(lengths); l++)
        rig_append_random(&r, seq, l, lengths[l], &rng);
    for (uint32_t l = 0; l < COUNT(lengths); l++)
        assert_int_equal(rig_length(&r, seq, l), lengths[l]);
    assert_int_equal(rig_stats(&r).tokens, 17);
    check_refused(&r, seq, UINT64_MAX, TQ_ERR_INVALID_STATE);
    check_refused(&r, seq, 18, TQ_ERR_INVALID_STATE);
    check_refused(&r, seq, 40, TQ_ERR_INVALID_STATE);
    check_refused(&r, seq, 41, TQ_ERR_INVALID_ARGUMENT);
    check_refused(&r, seq, UINT64_MAX - 1, TQ_ERR_INVALID_ARGUMENT);
    tq_seq fork = rig_fork(&r, seq, 17);
    OK(tq_seq_truncate(r.cache, seq, 17));
    for (uint32_t l = 0; l < COUNT(lengths); l++) {
        struct asked a = ask_make(&r, 2, 0, &rng);
        assert_int_equal(rig_length(&r, seq, l), 17);
        assert_int_equal(rig_length(&r, fork, l), 17);
        ask(&r, seq, l, &a);
        check_answer(&r, fork, l, &a, "fork of the complete tokens");
        ask_free(&a);
    }
    rig_close(&r);
}

static void test_layers_of_equal_length(void **state) {
    struct rig r = {0};
    struct rng rng = {1};
    (void)state;
    open_variant(&r, TQ_VARIANT_K8V4, 2);
    tq_seq seq = rig_seq(&r);
    check_refused(&r, seq, 1, TQ_ERR_INVALID_ARGUMENT);
    for (uint32_t l = 0; l < 2; l++)
        rig_append_random(&r, seq, l, 20, &rng);
    check_refused(&r, seq, 21, TQ_ERR_INVALID_ARGUMENT);
    struct snapshot before = snapshot_take(&r, seq);
    OK(tq_seq_truncate(r.cache, seq, 20));
    snapshot_check(&r, &before, "truncated to its length");
    snapshot_free(&r, &before);
    assert_int_equal(rig_length(&r, rig_fork(&r, seq, UINT64_MAX), 1), 20);
    assert_int_equal(rig_length(&r, rig_fork(&r, seq, 20), 1), 20);
    assert_int_equal(rig_stats(&r).tokens, 60);
    rig_close(&r);
}

/* ---- ids ------------------------------------------------------------------------------- */

/* Everything that takes an id refuses this one and leaves its outputs. */
static void check_gone(struct rig *r, tq_seq seq) {
    float rows[2 * DIM];
    size_t written = 99;
    uint64_t length = 99;
    tq_seq out = 99;
    memset(rows, 0, sizeof rows);
    tq_rows_in in = rows_in(rows);
    tq_rows_out o_rows = rows_out(rows);
    FAILS(tq_seq_destroy(r->cache, seq), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_seq_fork(r->cache, seq, 0, &out), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_seq_truncate(r->cache, seq, 0), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_seq_length(r->cache, seq, 0, &length), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_append(r->cache, seq, 0, 1, &in, &in, NULL), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_attend(r->cache, seq, 0, 1, NULL, &in, &o_rows, NULL, NULL), TQ_ERR_NOT_FOUND,
          "sequence");
    FAILS(tq_read_rows(r->cache, seq, 0, 0, 0, &o_rows, NULL), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_read_page(r->cache, seq, 0, 0, 0, NULL, 0, &written), TQ_ERR_NOT_FOUND, "sequence");
    assert_true(written == 99 && length == 99 && out == 99);
}

static void test_ids_that_are_gone(void **state) {
    struct rig r = {0};
    (void)state;
    open_variant(&r, TQ_VARIANT_4BIT_NC, 1);
    tq_seq kept = rig_seq(&r), gone = rig_seq(&r);
    append_story(&r, kept, 1, 0, 20);
    append_story(&r, gone, 2, 0, 20);
    OK(tq_seq_destroy(r.cache, gone));
    check_gone(&r, gone);
    check_gone(&r, 0);
    check_gone(&r, UINT64_MAX);
    check_gone(&r, kept + 1000);
    tq_seq next = rig_seq(&r); /* likely in the place of the one that is gone */
    check_gone(&r, gone);
    check_story(&r, kept, 1, 20, 1, 20, "bystander");
    assert_int_equal(rig_length(&r, next, 0), 0);
    OK(tq_cache_reset(r.cache));
    check_gone(&r, kept);
    check_gone(&r, next);
    assert_int_equal(rig_stats(&r).n_seqs, 0);
    tq_seq after = rig_seq(&r);
    assert_true(after != kept && after != next && after != gone);
    append_story(&r, after, 3, 0, 20);
    check_story(&r, after, 3, 20, 3, 20, "after reset");
    rig_close(&r);
}

static int compare_ids(const void *a, const void *b) {
    const tq_seq *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Ids of sequences that live one after the other, two or three at a time, over resets. */
static void test_ids_do_not_come_back(void **state) {
    enum { IDS = 3000 };
    struct rig r = {0};
    static tq_seq ids[IDS];
    (void)state;
    open_variant(&r, TQ_VARIANT_4BIT_NC, 1);
    for (uint32_t i = 0; i < IDS; i++) {
        ids[i] = rig_seq(&r);
        assert_true(ids[i] != 0);
        if (i % 100 == 99)
            OK(tq_cache_reset(r.cache));
        else if (i % 100 >= 2)
            OK(tq_seq_destroy(r.cache, ids[i - 2]));
    }
    qsort(ids, IDS, sizeof *ids, compare_ids);
    for (uint32_t i = 1; i < IDS; i++)
        CHECK(ids[i] != ids[i - 1], "id %llu was given twice", (unsigned long long)ids[i]);
    rig_close(&r);
}

static void test_max_seqs(void **state) {
    struct rig r = {0};
    tq_seq seq[3], out = 5;
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, DIM, 1, 2);
    c.max_seqs = 3;
    rig_open(&r, &c);
    for (int i = 0; i < 3; i++)
        seq[i] = rig_seq(&r);
    FAILS(tq_seq_create(r.cache, &out), TQ_ERR_INVALID_STATE, "max_seqs");
    FAILS(tq_seq_fork(r.cache, seq[0], 0, &out), TQ_ERR_INVALID_STATE, "max_seqs");
    assert_int_equal(out, 5);
    assert_int_equal(rig_stats(&r).n_seqs, 3);
    OK(tq_seq_destroy(r.cache, seq[1]));
    (void)rig_fork(&r, seq[0], 0);
    FAILS(tq_seq_create(r.cache, &out), TQ_ERR_INVALID_STATE, "max_seqs");
    OK(tq_cache_reset(r.cache));
    for (int i = 0; i < 3; i++)
        (void)rig_seq(&r);
    rig_close(&r);
    open_variant(&r, TQ_VARIANT_4BIT_NC, 1);
    for (int i = 0; i < 256; i++)
        (void)rig_seq(&r);
    FAILS(tq_seq_create(r.cache, &out), TQ_ERR_INVALID_STATE, "max_seqs");
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_and_grow),
        cmocka_unit_test(test_forks_of_forks),
        cmocka_unit_test(test_truncate_and_grow),
        cmocka_unit_test(test_truncate_gives_pages_back),
        cmocka_unit_test(test_layers_of_different_length),
        cmocka_unit_test(test_layers_of_equal_length),
        cmocka_unit_test(test_ids_that_are_gone),
        cmocka_unit_test(test_ids_do_not_come_back),
        cmocka_unit_test(test_max_seqs),
    };
    return cmocka_run_group_tests_name("sequences", tests, NULL, NULL);
}
