/* Pages: counting them, sharing them, running out of them, using them again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { DIM = 64, PAGE = 16 };

static void open_pool(struct rig *r, tq_variant variant, uint32_t n_layers, uint64_t max_pages) {
    tq_cache_config c = plain_config(variant, DIM, 1, 2);
    c.page_tokens = PAGE;
    c.n_layers = n_layers;
    c.max_pages = max_pages;
    rig_open(r, &c);
}

/* Appends that must find no pages: nothing changes for this sequence and another one. */
static void check_no_pages(struct rig *r, tq_seq seq, uint32_t layer, uint32_t n, tq_seq other) {
    struct rng rng = {n};
    struct snapshot before = snapshot_take(r, seq), bystander = snapshot_take(r, other);
    float *rows = random_rows(&rng, n * rig_k_row(r), 1);
    tq_rows_in in = rows_in(rows);
    FAILS(tq_append(r->cache, seq, layer, n, &in, &in, NULL), TQ_ERR_OUT_OF_PAGES, "pages");
    snapshot_check(r, &before, "no pages");
    snapshot_check(r, &bystander, "no pages, bystander");
    snapshot_free(r, &before);
    snapshot_free(r, &bystander);
    free(rows);
}

/* ---- out of pages ---------------------------------------------------------------------- */

static void test_out_of_pages(void **state) {
    struct rig r = {0};
    struct rng rng = {1};
    (void)state;
    open_pool(&r, TQ_VARIANT_4BIT_NC, 2, 6);
    tq_seq a = rig_seq(&r), b = rig_seq(&r);
    rig_append_random(&r, a, 0, 4 * PAGE - 3, &rng);
    rig_append_random(&r, b, 0, PAGE, &rng);
    assert_int_equal(rig_stats(&r).pages_used, 5);
    check_no_pages(&r, a, 0, PAGE + 4, b); /* one free, two needed */
    check_no_pages(&r, b, 1, 3 * PAGE, a);
    rig_append_random(&r, a, 0, 3 + PAGE, &rng); /* just fits */
    assert_int_equal(rig_stats(&r).pages_used, 6);
    check_no_pages(&r, a, 0, 1, b);
    check_no_pages(&r, b, 0, 1, a);
    rig_append_random(&r, b, 1, PAGE, &rng); /* the other layer has its part of the page */
    check_no_pages(&r, b, 1, 1, a);
    OK(tq_seq_destroy(r.cache, a));
    rig_append_random(&r, b, 0, 5 * PAGE, &rng);
    check_attention(&r, b, 0, 2, &rng, "after pages came back");
    rig_close(&r);
}

/* A shared page that must be copied needs a free one. */
static void test_out_of_pages_to_copy(void **state) {
    struct rig r = {0};
    struct rng rng = {2};
    (void)state;
    open_pool(&r, TQ_VARIANT_3BIT_NC, 1, 3);
    tq_seq a = rig_seq(&r);
    rig_append_random(&r, a, 0, 2 * PAGE + 5, &rng);
    tq_seq b = rig_fork(&r, a, UINT64_MAX);
    assert_int_equal(rig_stats(&r).pages_used, 3);
    check_no_pages(&r, b, 0, 1, a);
    check_no_pages(&r, a, 0, 1, b);
    OK(tq_seq_truncate(r.cache, b, 2 * PAGE));
    check_no_pages(&r, b, 0, 1, a);
    rig_append_random(&r, a, 0, PAGE - 5, &rng); /* shared no more: in place */
    check_no_pages(&r, a, 0, 1, b);
    check_attention(&r, a, 0, 2, &rng, "grown in place");
    OK(tq_seq_destroy(r.cache, a));
    rig_append_random(&r, b, 0, PAGE, &rng);
    check_attention(&r, b, 0, 2, &rng, "fork, after the source has gone");
    rig_close(&r);
}

/* Forks and truncations of a full pool cost no page, and reset gives all of them back. */
static void test_full_pool(void **state) {
    struct rig r = {0};
    struct rng rng = {3};
    (void)state;
    open_pool(&r, TQ_VARIANT_FP8, 1, 4);
    for (int round = 0; round < 3; round++) {
        tq_seq a = rig_seq(&r);
        rig_append_random(&r, a, 0, 4 * PAGE, &rng);
        tq_seq b = rig_fork(&r, a, UINT64_MAX), c = rig_fork(&r, a, 2 * PAGE + 1);
        check_no_pages(&r, b, 0, 1, a);
        check_no_pages(&r, c, 0, 1, b);
        assert_int_equal(rig_stats(&r).pages_used, 4);
        assert_int_equal(rig_stats(&r).pages_shared, 4);
        OK(tq_seq_truncate(r.cache, a, 0));
        OK(tq_seq_destroy(r.cache, b));
        rig_append_random(&r, a, 0, PAGE, &rng);
        OK(tq_cache_reset(r.cache));
        assert_int_equal(rig_stats(&r).pages_used, 0);
        assert_int_equal(rig_stats(&r).pages_shared, 0);
        assert_int_equal(rig_stats(&r).tokens, 0);
    }
    rig_close(&r);
}

/* ---- counting -------------------------------------------------------------------------- */

static void check_counts(const struct rig *r, uint32_t seqs, uint64_t used, uint64_t shared,
                         uint64_t tokens) {
    tq_cache_stats s = rig_stats(r);
    CHECK(s.n_seqs == seqs, "%u sequences", s.n_seqs);
    CHECK(s.pages_used == used, "%llu pages used", (unsigned long long)s.pages_used);
    CHECK(s.pages_shared == shared, "%llu pages shared", (unsigned long long)s.pages_shared);
    CHECK(s.tokens == tokens, "%llu tokens", (unsigned long long)s.tokens);
    CHECK(s.pages_total >= s.pages_used, "%llu pages", (unsigned long long)s.pages_total);
    CHECK(s.device_bytes == 0, "%llu device bytes", (unsigned long long)s.device_bytes);
}

/* 8 forks of 1000 tokens cost one prefix, and each its tail. Pages hold 64. */
static void test_b60_forks_share_their_prefix(void **state) {
    enum { FORKS = 8, PREFIX = 1000, TAIL = 30 };
    struct rig r = {0};
    struct rng rng = {4};
    tq_seq fork[FORKS];
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, DIM, 2, 1);
    rig_open(&r, &c);
    tq_seq src = rig_seq(&r);
    rig_append_random(&r, src, 0, PREFIX, &rng);
    check_counts(&r, 1, 16, 0, PREFIX);
    uint64_t bytes = rig_stats(&r).host_bytes;
    for (int i = 0; i < FORKS; i++)
        fork[i] = rig_fork(&r, src, PREFIX);
    check_counts(&r, 1 + FORKS, 16, 16, (1 + FORKS) * PREFIX);
    assert_true(rig_stats(&r).host_bytes < bytes + FORKS * 1024);
    for (uint64_t i = 0; i < FORKS; i++) {
        rig_append_random(&r, fork[i], 0, TAIL, &rng);
        check_counts(&r, 1 + FORKS, 16 + 2 * (i + 1), i + 1 < FORKS ? 16 : 15,
                     (1 + FORKS) * PREFIX + (i + 1) * TAIL);
    }
    OK(tq_seq_destroy(r.cache, src));
    check_counts(&r, FORKS, 15 + 2 * FORKS, 15, FORKS * (PREFIX + TAIL));
    for (int i = 0; i < FORKS; i++) {
        check_attention(&r, fork[i], 0, 1, &rng, "fork");
        OK(tq_seq_destroy(r.cache, fork[i]));
    }
    check_counts(&r, 0, 0, 0, 0);
    rig_close(&r);
}

/* 64 tokens as the first call fill one page of 64 slots: as many bytes as they promise. */
static void test_b68_first_append_is_coded(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_variant_info variant = variant_at(i);
        struct rig r = {0};
        struct rng rng = {5};
        tq_footprint f = {.struct_size = sizeof f};
        tq_cache_config c = plain_config(variant.id, 128, 2, 1);
        c.max_pages = 3;
        rig_open(&r, &c);
        OK(tq_cache_estimate(r.ctx, &c, &f));
        assert_int_equal(f.host_bytes, rig_stats(&r).host_bytes);
        rig_append_random(&r, rig_seq(&r), 0, 64, &rng);
        assert_int_equal(rig_stats(&r).pages_used, 1);
        assert_int_equal(f.page_tokens, 64);
        assert_int_equal(f.bytes_per_page, 64 * f.bytes_per_token);
        CHECK(f.bytes_per_token == (uint64_t)2 * variant.bytes_per_token_head,
              "%s: %llu bytes per token", variant.name, (unsigned long long)f.bytes_per_token);
        CHECK(variant.id <= TQ_VARIANT_F16 || f.bytes_per_token <= 2 * 2 * 130, "%s: not coded",
              variant.name);
        rig_close(&r);
    }
}

/* host_bytes is what the allocator has given, whatever happens. */
static void test_every_byte_is_counted(void **state) {
    struct rig r = {0};
    struct rng rng = {6};
    tq_seq seq[8] = {0};
    (void)state;
    open_pool(&r, TQ_VARIANT_K3V4_NC, 2, 0);
    uint64_t context_bytes = r.heap.live_bytes - rig_stats(&r).host_bytes;
    for (uint32_t step = 0; step < 200; step++) {
        uint32_t i = rng_below(&rng, COUNT(seq)), layer = rng_below(&rng, 2);
        if (!seq[i])
            seq[i] = rig_seq(&r);
        else if (rng_below(&rng, 10) == 0 && tq_seq_destroy(r.cache, seq[i]) == TQ_OK)
            seq[i] = 0;
        else
            rig_append_random(&r, seq[i], layer, rng_below(&rng, 100), &rng);
        CHECK(rig_stats(&r).host_bytes + context_bytes == r.heap.live_bytes,
              "step %u: %llu bytes, the allocator counts %llu", step,
              (unsigned long long)rig_stats(&r).host_bytes,
              (unsigned long long)(r.heap.live_bytes - context_bytes));
    }
    rig_close(&r);
}

/* ---- pages in their second life --------------------------------------------------------- */

/* Pages that held rows of the largest numbers, against pages that were never used. */
static void check_reuse(tq_variant_info variant) {
    struct rig used = {0}, fresh = {0};
    struct rng rng = {7};
    open_pool(&used, variant.id, 1, 4);
    open_pool(&fresh, variant.id, 1, 4);
    float *k = random_rows(&rng, 4 * PAGE * DIM, 1e38), *v = random_rows(&rng, 4 * PAGE * DIM, 3e4);
    for (uint32_t n = 1; n < 2 * PAGE; n += 5) {
        tq_seq old = rig_seq(&used), young, want = rig_seq(&fresh);
        rig_append(&used, old, 0, 4 * PAGE, n & 1 ? k : v, v);
        OK(tq_seq_destroy(used.cache, old));
        young = rig_seq(&used);
        struct rng same = {n}, again = {n};
        rig_append_random(&used, young, 0, n, &same);
        rig_append_random(&fresh, want, 0, n, &again);
        struct asked a = ask_make(&used, 2, 0, &rng);
        ask(&fresh, want, 0, &a);
        check_answer(&used, young, 0, &a, variant.name);
        ask_free(&a);
        OK(tq_seq_destroy(used.cache, young));
        OK(tq_seq_destroy(fresh.cache, want));
    }
    free(k);
    free(v);
    rig_close(&used);
    rig_close(&fresh);
}

static void test_reused_pages_do_not_leak(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        check_reuse(variant_at(i));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_out_of_pages),
        cmocka_unit_test(test_out_of_pages_to_copy),
        cmocka_unit_test(test_full_pool),
        cmocka_unit_test(test_b60_forks_share_their_prefix),
        cmocka_unit_test(test_b68_first_append_is_coded),
        cmocka_unit_test(test_every_byte_is_counted),
        cmocka_unit_test(test_reused_pages_do_not_leak),
    };
    return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
