/* What memory held before is never seen: unused slots of NaN, pages of another sequence,
 * tokens behind a cut, a cache after reset. B42 (as far as pages go), B55. */
#include <stdlib.h>
#include <string.h>

#include "common/table.h"

enum { DIM = 64, HEADS = 2, GROUP = 1, PAGE = 16, TOKENS = 200, PAGES = 6 };

static tq_cache_config config_of(tq_variant variant, uint64_t max_pages) {
    tq_cache_config c = plain_config(variant, DIM, HEADS, GROUP);
    c.page_tokens = PAGE;
    c.max_pages = max_pages;
    return c;
}

static uint32_t list[TOKENS], other[TOKENS];

static int make_lists(void **state) {
    (void)state;
    for (uint32_t i = 0; i < TOKENS; i++) {
        list[i] = i;
        other[i] = TOKENS - 1 - i;
    }
    return 0;
}

/* Rows that would be seen at once if they leaked. */
static void append_loud(struct rig *r, tq_seq seq, uint32_t n) {
    size_t k_n = n * rig_k_row(r), v_n = n * rig_v_row(r);
    float *k = must_alloc(k_n, sizeof *k), *v = must_alloc(v_n, sizeof *v);
    for (size_t i = 0; i < k_n; i++)
        k[i] = i % 3 ? 1e4f : -1e4f;
    for (size_t i = 0; i < v_n; i++)
        v[i] = 1e30f;
    rig_append(r, seq, 0, n, k, v);
    free(k);
    free(v);
}

/* ---- unused slots ---------------------------------------------------------------------- */

enum memory { ZEROS, NANS, LOUD, KINDS };

/* Answers over n tokens in a pool whose memory was of some kind. */
static struct asked answers(tq_variant variant, const struct table *t, uint32_t n,
                            enum memory memory, struct rig *r) {
    struct rng rng = {n};
    tq_cache_config c = config_of(variant, PAGES);
    memset(r, 0, sizeof *r);
    r->heap.zero_fill = memory == ZEROS;
    rig_open(r, &c);
    if (memory == LOUD) {
        tq_seq before = rig_seq(r);
        append_loud(r, before, PAGES * PAGE);
        OK(tq_seq_destroy(r->cache, before));
    }
    tq_seq seq = rig_seq(r);
    OK(table_append(t, r->cache, seq, 0, list, n));
    struct asked a = ask_make(r, 3, TQ_ATTEND_CAUSAL, &rng);
    ask(r, seq, 0, &a);
    table_check(t, r, seq, 0, list, n, "rows");
    return a;
}

static void check_memory_kinds(tq_variant_info variant, const struct table *t, uint32_t n) {
    struct rig r[KINDS];
    struct asked a[KINDS];
    for (int kind = 0; kind < KINDS; kind++)
        a[kind] = answers(variant.id, t, n, (enum memory)kind, &r[kind]);
    CHECK(same_answer(&r[0], &a[ZEROS], &a[NANS]), "%s, %u tokens: NaN in unused slots",
          variant.name, n);
    CHECK(same_answer(&r[0], &a[ZEROS], &a[LOUD]), "%s, %u tokens: rows of another sequence",
          variant.name, n);
    for (int kind = 0; kind < KINDS; kind++) {
        ask_free(&a[kind]);
        rig_close(&r[kind]);
    }
}

static void test_b42_unused_slots(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 7, 8, 15, 16, 17, 31, 33, 79, 80};
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_cache_config c = config_of(variant_at(i).id, 0);
        struct table t = table_make(&c, 0, 80, 4);
        for (size_t j = 0; j < COUNT(lengths); j++)
            check_memory_kinds(variant_at(i), &t, lengths[j]);
        table_free(&t);
    }
}

/* Dims that end inside a group of 32: the padding of a row is not its business either. */
static void test_b42_padding_dims(void **state) {
    (void)state;
    static const uint32_t dims[] = {48, 80, 112};
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            struct asked a[2];
            struct rig r[2] = {{{0}}};
            for (int zero = 0; zero < 2; zero++) {
                struct rng rng = {dims[d]};
                tq_cache_config c = plain_config(variant_at(i).id, dims[d], 2, 2);
                c.page_tokens = PAGE;
                r[zero].heap.zero_fill = zero;
                rig_open(&r[zero], &c);
                tq_seq seq = rig_seq(&r[zero]);
                rig_append_random(&r[zero], seq, 0, 21, &rng);
                a[zero] = ask_make(&r[zero], 2, 0, &rng);
                ask(&r[zero], seq, 0, &a[zero]);
                JUSTIFIED(judge(&r[zero], seq, 0, &a[zero]), "%s, dim %u", variant_at(i).name,
                          dims[d]);
            }
            CHECK(same_answer(&r[0], &a[0], &a[1]), "%s, dim %u", variant_at(i).name, dims[d]);
            for (int zero = 0; zero < 2; zero++) {
                ask_free(&a[zero]);
                rig_close(&r[zero]);
            }
        }
}

/* ---- tokens behind a cut --------------------------------------------------------------- */

static void test_truncated_tokens(void **state) {
    (void)state;
    struct rng rng = {5};
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_cache_config c = config_of(variant_at(i).id, PAGES);
        struct table t = table_make(&c, 0, 80, 5);
        struct rig r = {0};
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        append_loud(&r, seq, PAGES * PAGE);
        for (uint32_t n = 0; n < 40; n += 3) {
            OK(tq_seq_truncate(r.cache, seq, 0));
            OK(table_append(&t, r.cache, seq, 0, list, n));
            table_attend(&t, &r, seq, 0, list, n, 2, 0, &rng, variant_at(i).name);
            OK(tq_seq_truncate(r.cache, seq, n / 2));
            table_attend(&t, &r, seq, 0, list, n / 2, 2, 0, &rng, variant_at(i).name);
        }
        rig_close(&r);
        table_free(&t);
    }
}

/* ---- sequences in turns ---------------------------------------------------------------- */

/* B55: four sequences take turns in one pool; one of the middle goes, the others go on. */
static void test_b55_sequences_in_turns(void **state) {
    (void)state;
    enum { SEQS = 4, TURNS = 13 };
    struct rig r = {0};
    struct rng rng = {6};
    tq_cache_config c = config_of(TQ_VARIANT_3BIT_NC, 0);
    struct table t = table_make(&c, 0, TOKENS, 6);
    uint32_t have[SEQS][TOKENS], n[SEQS] = {0};
    tq_seq seqs[SEQS];
    rig_open(&r, &c);
    for (int s = 0; s < SEQS; s++)
        seqs[s] = rig_seq(&r);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        if (turn == 7) {
            OK(tq_seq_destroy(r.cache, seqs[1]));
            seqs[1] = rig_seq(&r);
            n[1] = 0;
        }
        for (uint32_t s = 0; s < SEQS; s++) {
            uint32_t count = 1 + (turn * 5 + s * 3) % 11, from = turn * 10 + s;
            OK(table_append(&t, r.cache, seqs[s], 0, list + from, count));
            memcpy(have[s] + n[s], list + from, count * sizeof *list);
            n[s] += count;
        }
        for (uint32_t s = 0; s < SEQS; s++) {
            table_check(&t, &r, seqs[s], 0, have[s], n[s], "in turns");
            table_attend(&t, &r, seqs[s], 0, have[s], n[s], 1, 0, &rng, "in turns");
        }
    }
    rig_close(&r);
    table_free(&t);
}

/* ---- reset ----------------------------------------------------------------------------- */

static void test_reset(void **state) {
    (void)state;
    struct rig r = {0};
    tq_cache_config c = config_of(TQ_VARIANT_K3V2_NC, 0);
    struct table t = table_make(&c, 0, TOKENS, 7);
    float *bad = must_alloc(HEADS * DIM, sizeof *bad);
    rig_open(&r, &c);
    tq_seq a = rig_seq(&r);
    OK(table_append(&t, r.cache, a, 0, list, 100));
    memset(bad, 0xff, HEADS * DIM * sizeof *bad); /* NaN */
    rig_append(&r, rig_fork(&r, a, 50), 0, 1, bad, bad);
    tq_cache_stats before = rig_stats(&r);
    assert_int_equal(before.nan_values, 2 * HEADS * DIM);
    OK(tq_cache_reset(r.cache));
    tq_cache_stats after = rig_stats(&r);
    assert_int_equal(after.n_seqs + after.pages_used + after.pages_shared + after.tokens, 0);
    assert_int_equal(after.nan_values + after.inf_values, 0);
    assert_int_equal(after.pages_total, before.pages_total); /* memory is kept */
    FAILS(tq_seq_destroy(r.cache, a), TQ_ERR_NOT_FOUND, "sequence");
    a = rig_seq(&r);
    OK(table_append(&t, r.cache, a, 0, other, 100));
    table_check(&t, &r, a, 0, other, 100, "after reset");
    assert_int_equal(rig_stats(&r).pages_total, before.pages_total);
    OK(tq_cache_reset(r.cache));
    OK(tq_cache_reset(r.cache)); /* of an empty cache */
    free(bad);
    rig_close(&r);
    table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b42_unused_slots),
        cmocka_unit_test(test_b42_padding_dims),
        cmocka_unit_test(test_truncated_tokens),
        cmocka_unit_test(test_b55_sequences_in_turns),
        cmocka_unit_test(test_reset),
    };
    return cmocka_run_group_tests(tests, make_lists, NULL);
}
