/* Cutting, sharing and reordering: a sequence that was operated on has the very bytes of one that
 * was appended to as if nothing had happened. B53, B54, B55, B58, B60. */
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/cache.h"
#include "common/table.h"

enum { DIM = 64, HEADS = 2, PAGE = 16, TOKENS = 100 };

static uint32_t list[TOKENS], want[TOKENS];

static int make_list(void **state) {
    (void)state;
    for (uint32_t i = 0; i < TOKENS; i++)
        list[i] = i;
    return 0;
}

static tq_cache_config config_of(tq_variant variant, uint32_t n_layers) {
    tq_cache_config c = plain_config(variant, DIM, HEADS, 1);
    c.page_tokens = PAGE;
    c.n_layers = n_layers;
    return c;
}

static tq_seq seq_of(const struct table *t, struct rig *r, const uint32_t *tokens, uint32_t n) {
    tq_seq seq = rig_seq(r);
    for (uint32_t l = 0; l < r->c.n_layers; l++)
        OK(table_append(t, r->cache, seq, l, tokens, n));
    return seq;
}

/* The same pages, and the same answers. */
static void check_twin(const struct table *t, struct rig *r, tq_seq seq, const uint32_t *tokens,
                       uint32_t n, const char *what) {
    struct rng rng = {n};
    tq_seq twin = seq_of(t, r, tokens, n);
    for (uint32_t l = 0; l < r->c.n_layers; l++) {
        CHECK(rig_length(r, seq, l) == n, "%s: length %llu", what,
              (unsigned long long)rig_length(r, seq, l));
        check_same_pages(r, seq, r, twin, l, n, what);
        struct asked a = ask_make(r, 2, TQ_ATTEND_CAUSAL, &rng);
        ask(r, twin, l, &a);
        check_answer(r, seq, l, &a, what);
        ask_free(&a);
    }
    OK(tq_seq_destroy(r->cache, twin));
}

static uint32_t without(uint32_t n, uint32_t first, uint32_t count) {
    memcpy(want, list, first * sizeof *list);
    memcpy(want + first, list + first + count, (n - first - count) * sizeof *list);
    return n - count;
}

/* ---- remove ---------------------------------------------------------------------------- */

static void remove_one(const struct table *t, struct rig *r, uint32_t n, uint32_t first,
                       uint32_t count) {
    tq_seq seq = seq_of(t, r, list, n);
    OK(tq_seq_remove(r->cache, seq, first, count));
    uint32_t left = without(n, first, count);
    check_twin(t, r, seq, want, left, "removed");
    OK(table_append(t, r->cache, seq, 0, list + 3, 5));
    memcpy(want + left, list + 3, 5 * sizeof *list);
    table_check(t, r, seq, 0, want, left + 5, "removed, then appended to");
    OK(tq_seq_destroy(r->cache, seq));
}

static void test_remove_in_all_variants(void **state) {
    static const uint32_t cuts[][2] = {{0, 1},  {0, 16}, {1, 16}, {5, 32}, {16, 16}, {15, 2},
                                       {7, 25}, {30, 4}, {0, 69}, {3, 64}, {31, 39}, {69, 1}};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        tq_cache_config c = config_of(variant_at(i).id, 2);
        struct table t = table_make(&c, 0, TOKENS, 1);
        rig_open(&r, &c);
        for (size_t j = 0; j < COUNT(cuts); j++)
            remove_one(&t, &r, 70, cuts[j][0], cuts[j][1]);
        assert_int_equal(rig_stats(&r).pages_used, 0);
        rig_close(&r);
        table_free(&t);
    }
}

/* Every range of a short sequence. */
static void test_remove_everywhere(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_K3V4_NC, 1);
    struct table t = table_make(&c, 0, TOKENS, 2);
    (void)state;
    rig_open(&r, &c);
    for (uint32_t first = 0; first < 40; first += FEWER)
        for (uint32_t count = 1; first + count <= 40; count += FEWER)
            remove_one(&t, &r, 40, first, count);
    rig_close(&r);
    table_free(&t);
}

/* Whole pages move in the table: nothing is copied but the page that is put together, and what
 * a fork shares stays as it is. */
static void test_remove_with_forks(void **state) {
    static const uint32_t cuts[][3] = {
        {16, 32, 0}, {20, 32, 1}, {0, 16, 0}, {20, 5, 5}, {64, 6, 2}};
    (void)state;
    for (size_t i = 0; i < COUNT(cuts); i++) {
        struct rig r = {0};
        tq_cache_config c = config_of(TQ_VARIANT_3BIT_NC, 2);
        struct table t = table_make(&c, 0, TOKENS, 3);
        rig_open(&r, &c);
        tq_seq seq = seq_of(&t, &r, list, 90), fork = rig_fork(&r, seq, 90);
        assert_int_equal(rig_stats(&r).pages_used, 6);
        OK(tq_seq_remove(r.cache, seq, cuts[i][0], cuts[i][1]));
        assert_int_equal(rig_stats(&r).pages_used, 6 + cuts[i][2]);
        check_twin(&t, &r, fork, list, 90, "fork of what was cut");
        check_twin(&t, &r, seq, want, without(90, cuts[i][0], cuts[i][1]), "cut beside a fork");
        rig_close(&r);
        table_free(&t);
    }
}

/* B54: ranges that do not exist. */
static void test_b54_bad_ranges(void **state) {
    static const struct {
        uint64_t first, n;
        const char *word;
    } bad[] = {{0, 71, "n_tokens"},         {70, 1, "n_tokens"},
               {71, 0, "n_tokens"},         {0, UINT64_MAX, "n_tokens"},
               {UINT64_MAX, 2, "overflow"}, {5, (uint64_t)INT64_MIN, "n_tokens"},
               {1, UINT64_MAX, "overflow"}, {(uint64_t)-16, 32, "overflow"}};
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_4BIT_NC, 2);
    struct table t = table_make(&c, 0, TOKENS, 4);
    (void)state;
    rig_open(&r, &c);
    tq_seq seq = seq_of(&t, &r, list, 70);
    struct snapshot before = snapshot_take(&r, seq);
    for (size_t i = 0; i < COUNT(bad); i++) {
        FAILS(tq_seq_remove(r.cache, seq, bad[i].first, bad[i].n), TQ_ERR_INVALID_ARGUMENT,
              bad[i].word);
        snapshot_check(&r, &before, "refused");
    }
    OK(tq_seq_remove(r.cache, seq, 70, 0));
    OK(tq_seq_remove(r.cache, seq, 3, 0));
    snapshot_check(&r, &before, "nothing to remove");
    snapshot_free(&r, &before);
    OK(table_append(&t, r.cache, seq, 1, list, 1)); /* now layer 1 is longer */
    FAILS(tq_seq_remove(r.cache, seq, 60, 11), TQ_ERR_INVALID_STATE, "layers");
    FAILS(tq_seq_remove(NULL, seq, 0, 1), TQ_ERR_INVALID_ARGUMENT, "cache");
    rig_close(&r);
    table_free(&t);
}

/* Layers of different lengths lose the same tokens. */
static void test_remove_in_the_middle_of_a_step(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_2BIT_NC, 2);
    struct table t = table_make(&c, 0, TOKENS, 5);
    (void)state;
    rig_open(&r, &c);
    for (uint32_t count = 1; count <= 32; count += 15) {
        tq_seq seq = seq_of(&t, &r, list, 50);
        OK(table_append(&t, r.cache, seq, 1, list + 50, 30));
        OK(tq_seq_remove(r.cache, seq, 10, count));
        table_check(&t, &r, seq, 0, want, without(50, 10, count), "shorter layer");
        table_check(&t, &r, seq, 1, want, without(80, 10, count), "longer layer");
        OK(table_append(&t, r.cache, seq, 0, list + 50, 30));
        check_twin(&t, &r, seq, want, 80 - count, "the step's end");
        OK(tq_seq_destroy(r.cache, seq));
    }
    rig_close(&r);
    table_free(&t);
}

/* ---- reorder --------------------------------------------------------------------------- */

/* Four beams of which two live on, step after step. */
static void test_reorder_beams(void **state) {
    enum { BEAMS = 4, STEPS = 20 };
    struct rig r = {0};
    struct rng rng = {6};
    tq_cache_config c = config_of(TQ_VARIANT_K3V4_NC, 2);
    struct table t = table_make(&c, 0, TOKENS, 6);
    uint32_t have[BEAMS][TOKENS], old[BEAMS][TOKENS], parents[BEAMS], n = 37;
    tq_seq seqs[BEAMS];
    (void)state;
    rig_open(&r, &c);
    for (int b = 0; b < BEAMS; b++) {
        memcpy(have[b], list, sizeof list);
        seqs[b] = b ? rig_fork(&r, seqs[0], n) : seq_of(&t, &r, list, n);
    }
    for (uint32_t step = 0; step < STEPS; step++, n++) {
        for (uint32_t b = 0; b < BEAMS; b++) {
            have[b][n] = rng_below(&rng, TOKENS);
            parents[b] = rng_below(&rng, BEAMS);
            for (uint32_t l = 0; l < 2; l++)
                OK(table_append(&t, r.cache, seqs[b], l, have[b] + n, 1));
        }
        OK(tq_seq_reorder(r.cache, BEAMS, seqs, parents));
        memcpy(old, have, sizeof have);
        for (uint32_t b = 0; b < BEAMS; b++) {
            memcpy(have[b], old[parents[b]], sizeof have[b]);
            table_check(&t, &r, seqs[b], b % 2, have[b], n + 1, "beam");
        }
        /* 37 tokens are common for ever: two pages. */
        assert_true(rig_stats(&r).pages_used <= 2 + BEAMS * 3);
    }
    check_twin(&t, &r, seqs[3], have[3], n, "a beam");
    rig_close(&r);
    table_free(&t);
}

static void test_reorder_swaps(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_INT8, 1);
    struct table t = table_make(&c, 0, TOKENS, 7);
    static const uint32_t swap[3] = {1, 0, 2}, all_empty[3] = {2, 2, 2};
    (void)state;
    rig_open(&r, &c);
    tq_seq seqs[3] = {seq_of(&t, &r, list, 40), seq_of(&t, &r, list + 50, 7), rig_seq(&r)};
    uint64_t used = rig_stats(&r).pages_used;
    OK(tq_seq_reorder(r.cache, 3, seqs, swap));
    table_check(&t, &r, seqs[0], 0, list + 50, 7, "swapped");
    table_check(&t, &r, seqs[1], 0, list, 40, "swapped");
    assert_int_equal(rig_stats(&r).pages_used, used);
    assert_int_equal(rig_stats(&r).pages_shared, 0);
    OK(tq_seq_reorder(r.cache, 3, seqs, all_empty));
    assert_int_equal(rig_stats(&r).pages_used, 0);
    OK(table_append(&t, r.cache, seqs[0], 0, list, 20));
    table_check(&t, &r, seqs[0], 0, list, 20, "empty, then appended to");
    rig_close(&r);
    table_free(&t);
}

static void test_reorder_refused(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_FP8, 2);
    struct table t = table_make(&c, 0, TOKENS, 8);
    static const uint32_t parents[2] = {1, 0}, beyond[2] = {0, 2};
    (void)state;
    rig_open(&r, &c);
    tq_seq a = seq_of(&t, &r, list, 20), b = seq_of(&t, &r, list + 20, 30);
    tq_seq seqs[2] = {a, b}, twice[2] = {a, a}, gone[2] = {a, b + 1000};
    struct snapshot before = snapshot_take(&r, a);
    FAILS(tq_seq_reorder(r.cache, 2, twice, parents), TQ_ERR_INVALID_ARGUMENT, "twice");
    FAILS(tq_seq_reorder(r.cache, 2, seqs, beyond), TQ_ERR_INVALID_ARGUMENT, "parents");
    FAILS(tq_seq_reorder(r.cache, 2, gone, parents), TQ_ERR_NOT_FOUND, "sequence");
    FAILS(tq_seq_reorder(r.cache, 2, NULL, parents), TQ_ERR_INVALID_ARGUMENT, "seqs");
    FAILS(tq_seq_reorder(r.cache, 2, seqs, NULL), TQ_ERR_INVALID_ARGUMENT, "parents");
    FAILS(tq_seq_reorder(NULL, 2, seqs, parents), TQ_ERR_INVALID_ARGUMENT, "cache");
    OK(tq_seq_reorder(r.cache, 0, NULL, NULL));
    snapshot_check(&r, &before, "refused");
    snapshot_free(&r, &before);
    OK(table_append(&t, r.cache, b, 0, list, 1));
    FAILS(tq_seq_reorder(r.cache, 2, seqs, parents), TQ_ERR_INVALID_STATE, "layers");
    OK(table_append(&t, r.cache, b, 1, list, 1));
    OK(tq_seq_reorder(r.cache, 2, seqs, parents)); /* no mark is left behind */
    rig_close(&r);
    table_free(&t);
}

/* ---- planned batches ------------------------------------------------------------------- */

/* A sequence whose step is under way is left alone, and is as before when that has been given up.
 */
static void test_busy_sequences(void **state) {
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_4BIT_NC, 2);
    struct table t = table_make(&c, 0, TOKENS, 10);
    static const uint32_t swap[2] = {1, 0};
    tq_batch *batch = NULL;
    size_t written = 1;
    tq_seq out = 1;
    (void)state;
    rig_open(&r, &c);
    tq_seq seqs[2] = {seq_of(&t, &r, list, 30), seq_of(&t, &r, list, 20)}, seq = seqs[0];
    struct blob blob = blob_save(&r, seq);
    tq_batch_desc desc = {.struct_size = sizeof desc, .n_seqs = 1, .seqs = seqs};
    OK(tq_batch_create(r.cache, 2, 8, &batch));
    OK(tq_batch_plan(batch, &desc, NULL));
    FAILS(tq_seq_remove(r.cache, seq, 0, 1), TQ_ERR_INVALID_STATE, "batch");
    FAILS(tq_seq_reorder(r.cache, 2, seqs, swap), TQ_ERR_INVALID_STATE, "batch");
    FAILS(tq_seq_save(r.cache, seq, NULL, 0, &written), TQ_ERR_INVALID_STATE, "batch");
    FAILS(tq_seq_load_append(r.cache, seq, blob.bytes, blob.size), TQ_ERR_INVALID_STATE, "batch");
    FAILS(tq_seq_copy(r.cache, r.cache, seq, 0, 1, &out), TQ_ERR_INVALID_STATE, "batch");
    assert_true(written == 1 && out == 1);
    OK(tq_batch_cancel(batch));
    check_twin(&t, &r, seq, list, 30, "after the batch");
    tq_batch_destroy(batch);
    blob_free(&blob);
    rig_close(&r);
    table_free(&t);
}

/* ---- shared prefixes ------------------------------------------------------------------- */

/* B60: eight answers to a prompt of 1000 tokens. */
static void test_b60_prefix_counted_once(void **state) {
    struct rig r = {0};
    struct rng rng = {9};
    tq_cache_config c = config_of(TQ_VARIANT_4BIT_NC, 1);
    tq_seq forks[8];
    (void)state;
    rig_open(&r, &c);
    tq_seq prompt = rig_seq(&r);
    rig_append_random(&r, prompt, 0, 1000, &rng);
    uint64_t alone = rig_stats(&r).pages_used;
    for (size_t i = 0; i < COUNT(forks); i++) {
        forks[i] = rig_fork(&r, prompt, UINT64_MAX);
        rig_append_random(&r, forks[i], 0, 20, &rng);
    }
    tq_cache_stats s = rig_stats(&r);
    assert_int_equal(alone, 63);
    assert_int_equal(s.pages_shared, 62);
    assert_int_equal(s.pages_used, 63 + 8 * 2);
    assert_int_equal(s.tokens, 1000 + 8 * 1020);
    OK(tq_seq_remove(r.cache, forks[0], 160, 320)); /* whole pages: nothing new */
    assert_int_equal(rig_stats(&r).pages_used, s.pages_used);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remove_in_all_variants),
        cmocka_unit_test(test_remove_everywhere),
        cmocka_unit_test(test_remove_with_forks),
        cmocka_unit_test(test_b54_bad_ranges),
        cmocka_unit_test(test_remove_in_the_middle_of_a_step),
        cmocka_unit_test(test_reorder_beams),
        cmocka_unit_test(test_reorder_swaps),
        cmocka_unit_test(test_reorder_refused),
        cmocka_unit_test(test_busy_sequences),
        cmocka_unit_test(test_b60_prefix_counted_once),
    };
    return cmocka_run_group_tests(tests, make_list, NULL);
}
