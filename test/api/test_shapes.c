/* Lengths, pages, head dims, groups, scales, and calls with nothing to see or to do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

/* ---- lengths and pages ----------------------------------------------------------------- */

static const uint32_t lengths[] = {1,  15,  16,  17,  31,   32,   33,   63,  64,
                                   65, 127, 128, 129, 2047, 2048, 2049, 4100};

static void check_lengths(tq_variant variant, uint32_t page_tokens) {
    struct rig r = {0};
    struct rng rng = {page_tokens};
    char what[64];
    tq_cache_config c = plain_config(variant, 64, 1, 2);
    c.page_tokens = page_tokens;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        uint32_t have = (uint32_t)rig_length(&r, seq, 0);
        rig_append_random(&r, seq, 0, lengths[i] - have, &rng);
        (void)snprintf(what, sizeof what, "%u tokens in pages of %u", lengths[i], page_tokens);
        check_attention(&r, seq, 0, 2, &rng, what);
        CHECK(rig_stats(&r).pages_used == (lengths[i] + page_tokens - 1) / page_tokens, "%s", what);
    }
    rig_close(&r);
}

static void test_lengths_and_pages(void **state) {
    (void)state;
    for (uint32_t page_tokens = 16; page_tokens <= 256; page_tokens *= 2) {
        check_lengths(TQ_VARIANT_K3V2_NC, page_tokens);
        check_lengths(TQ_VARIANT_PROD4, page_tokens);
    }
}

/* Every format keeps its tokens apart whatever the page. */
static void test_pages_of_every_variant(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (uint32_t page_tokens = 16; page_tokens <= 256; page_tokens *= 2) {
            struct rig r = {0};
            struct rng rng = {i};
            tq_cache_config c = plain_config(variant_at(i).id, 96, 2, 1);
            c.page_tokens = page_tokens;
            rig_open(&r, &c);
            tq_seq seq = rig_seq(&r);
            rig_append_random(&r, seq, 0, page_tokens + 21, &rng);
            check_attention(&r, seq, 0, 1, &rng, variant_at(i).name);
            rig_close(&r);
        }
}

/* ---- groups ---------------------------------------------------------------------------- */

static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 64, 71, 128};

/* Values of kv head h are all h, so that an output tells which head it came from. */
static void test_b45_groups_read_their_head(void **state) {
    enum { HEADS = 3, DIM = 32, TOKENS = 5, QUERIES = 2 };
    float v[TOKENS][HEADS][DIM];
    (void)state;
    for (int i = 0; i < TOKENS * HEADS * DIM; i++)
        v[i / DIM / HEADS][i / DIM % HEADS][i % DIM] = (float)(i / DIM % HEADS);
    for (size_t g = 0; g < COUNT(groups); g++) {
        struct rig r = {0};
        struct rng rng = {groups[g]};
        tq_cache_config c = plain_config(TQ_VARIANT_BF16, DIM, HEADS, groups[g]);
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        float *k = random_rows(&rng, TOKENS * rig_k_row(&r), 1);
        rig_append(&r, seq, 0, TOKENS, k, &v[0][0][0]);
        struct asked a = ask_make(&r, QUERIES, 0, &rng);
        ask(&r, seq, 0, &a);
        for (uint32_t row = 0; row < QUERIES * c.n_q_heads; row++)
            for (uint32_t i = 0; i < DIM; i++)
                AT_MOST(fabs((double)a.out[row * DIM + i] - row % c.n_q_heads / groups[g]), 1e-6,
                        "group %u, row %u", groups[g], row);
        ask_free(&a);
        free(k);
        rig_close(&r);
    }
}

static void test_groups(void **state) {
    static const tq_variant variants[] = {TQ_VARIANT_K8V4, TQ_VARIANT_PROD3, TQ_VARIANT_POLAR};
    (void)state;
    for (size_t g = 0; g < COUNT(groups); g++) {
        struct rig r = {0};
        struct rng rng = {g};
        char what[32];
        tq_cache_config c = plain_config(variants[g % COUNT(variants)], 64, 2, groups[g]);
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, 70, &rng);
        (void)snprintf(what, sizeof what, "group %u", groups[g]);
        check_attention(&r, seq, 0, 3, &rng, what);
        rig_close(&r);
    }
}

/* ---- head dims ------------------------------------------------------------------------- */

static void check_dims(tq_variant variant, uint32_t k_dim, uint32_t v_dim) {
    struct rig r = {0};
    struct rng rng = {k_dim + v_dim};
    char what[64];
    tq_cache_config c = plain_config(variant, k_dim, 2, 2);
    c.v_head_dim = v_dim;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 18, &rng);
    (void)snprintf(what, sizeof what, "variant %u, head_dim %u, v_head_dim %u", variant, k_dim,
                   v_dim);
    check_attention(&r, seq, 0, 2, &rng, what);
    rig_close(&r);
}

static void test_v_head_dim(void **state) {
    static const uint32_t dims[][2] = {{64, 128}, {128, 64}, {192, 128}, {96, 80}, {576, 512}};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            check_dims(variant_at(i).id, dims[d][0], dims[d][1]);
}

/* 2^k or m * 2^k, as tq.h says. */
static int can_rotate(uint32_t dim) {
    static const uint32_t orders[] = {1, 12, 20, 28, 36};
    for (size_t i = 0; i < COUNT(orders); i++)
        if (dim % orders[i] == 0 && (dim / orders[i] & (dim / orders[i] - 1)) == 0)
            return 1;
    return 0;
}

/* All multiples of 16 work without rotation; of the rest, those that have one. */
static void test_all_head_dims(void **state) {
    (void)state;
    for (uint32_t dim = 32; dim <= 1024; dim += 16) {
        tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, dim, 1, 1);
        tq_context *ctx = NULL;
        tq_cache *cache = NULL;
        check_dims(TQ_VARIANT_FP8, dim, dim);
        if (can_rotate(dim)) {
            check_dims(TQ_VARIANT_4BIT_NC, dim, dim);
            continue;
        }
        OK(tq_context_create(NULL, &ctx));
        tq_status status = tq_cache_create(ctx, &c, &cache);
        CHECK(status == TQ_ERR_INVALID_ARGUMENT || status == TQ_ERR_UNSUPPORTED, "head_dim %u: %s",
              dim, tq_status_name(status));
        CHECK(strstr(tq_last_error(), "head_dim"), "head_dim %u: %s", dim, tq_last_error());
        assert_null(cache);
        tq_context_destroy(ctx);
    }
}

/* ---- parameters ------------------------------------------------------------------------ */

static void test_scale(void **state) {
    static const float scales[] = {0, 1, 0.125f, -0.5f, 3, 1e-30f};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        struct rng rng = {i};
        tq_cache_config c = plain_config(variant_at(i).id, 64, 1, 2);
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, 40, &rng);
        for (size_t s = 0; s < COUNT(scales); s++) {
            struct asked a = ask_make(&r, 2, TQ_ATTEND_CAUSAL, &rng);
            a.scale = scales[s];
            ask(&r, seq, 0, &a);
            JUSTIFIED(judge(&r, seq, 0, &a), "%s, scale %g", variant_at(i).name, (double)a.scale);
            ask_free(&a);
        }
        rig_close(&r);
    }
}

static void test_lse_may_be_null(void **state) {
    struct rig r = {0};
    struct rng rng = {1};
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_3BIT_NC, 64, 2, 2);
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 30, &rng);
    struct asked a = ask_make(&r, 2, 0, &rng);
    ask(&r, seq, 0, &a);
    float *out = must_alloc(2 * rig_out_row(&r), sizeof *out);
    tq_rows_in q_rows = rows_in(a.q);
    tq_rows_out o_rows = rows_out(out);
    OK(tq_attend(r.cache, seq, 0, 2, NULL, &q_rows, &o_rows, NULL, NULL));
    assert_memory_equal(out, a.out, 2 * rig_out_row(&r) * sizeof *out);
    free(out);
    ask_free(&a);
    rig_close(&r);
}

/* ---- nothing to see, nothing to do ------------------------------------------------------ */

/* A mean must not appear where there is nothing to average. */
static void open_with_means(struct rig *r, tq_variant variant) {
    struct rng rng = {3};
    tq_cache_config c = plain_config(variant, 64, 2, 2);
    rig_open(r, &c);
    float *means = random_rows(&rng, rig_k_row(r), 1);
    OK(tq_cache_set_means(r->cache, 0, means, means));
    free(means);
}

static void check_rows_are_empty(const struct rig *r, const struct asked *a, uint32_t n_rows) {
    for (size_t i = 0; i < n_rows * rig_out_row(r); i++)
        CHECK(a->out[i] == 0, "out[%zu] = %g", i, (double)a->out[i]);
    for (size_t i = 0; i < (size_t)n_rows * r->c.n_q_heads; i++)
        CHECK(a->lse[i] == -INFINITY, "lse[%zu] = %g", i, (double)a->lse[i]);
}

/* The first 6 of 9 causal queries over 3 tokens see none. */
static void test_more_queries_than_tokens(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        struct rng rng = {i};
        open_with_means(&r, variant_at(i).id);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, 3, &rng);
        struct asked a = ask_make(&r, 9, TQ_ATTEND_CAUSAL, &rng);
        ask(&r, seq, 0, &a);
        check_rows_are_empty(&r, &a, 6);
        JUSTIFIED(judge(&r, seq, 0, &a), "%s", variant_at(i).name);
        ask_free(&a);
        rig_close(&r);
    }
}

/* Empty from the start and emptied; ask() fills out with NaN, here it is 7. */
static void test_b38_empty_sequence(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4 * tq_variant_count(); i++) {
        struct rig r = {0};
        struct rng rng = {i};
        open_with_means(&r, variant_at(i / 4).id);
        tq_seq seq = rig_seq(&r);
        if (i & 1) {
            rig_append_random(&r, seq, 0, 20, &rng);
            OK(tq_seq_truncate(r.cache, seq, 0));
        }
        struct asked a = ask_make(&r, 2, i & 2 ? TQ_ATTEND_CAUSAL : 0, &rng);
        for (size_t n = 0; n < 2 * rig_out_row(&r); n++)
            a.out[n] = 7;
        tq_attend_params params = {.struct_size = sizeof params, .flags = a.flags};
        tq_rows_in q = rows_in(a.q);
        tq_rows_out out = rows_out(a.out);
        OK(tq_attend(r.cache, seq, 0, 2, &params, &q, &out, a.lse, NULL));
        check_rows_are_empty(&r, &a, 2);
        ask_free(&a);
        rig_close(&r);
    }
}

static void test_zero_queries_and_tokens(void **state) {
    struct rig r = {0};
    struct rng rng = {5};
    (void)state;
    open_with_means(&r, TQ_VARIANT_4BIT_NC);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 20, &rng);
    struct snapshot before = snapshot_take(&r, seq);
    struct guarded out = guard_make(4 * rig_out_row(&r), 0), lse = guard_make(16, 0);
    float *rows = random_rows(&rng, rig_q_row(&r), 1);
    tq_rows_in in = rows_in(rows);
    tq_rows_out o_rows = rows_out(out.data);
    OK(tq_attend(r.cache, seq, 0, 0, NULL, &in, &o_rows, lse.data, NULL));
    OK(tq_read_rows(r.cache, seq, 0, 20, 0, &o_rows, NULL));
    OK(tq_read_rows(r.cache, seq, 0, 7, 0, NULL, &o_rows));
    guard_unwritten(&out);
    guard_unwritten(&lse);
    OK(tq_append(r.cache, seq, 0, 0, &in, &in, NULL));
    snapshot_check(&r, &before, "zero tokens appended");
    snapshot_free(&r, &before);
    guard_free(&out);
    guard_free(&lse);
    free(rows);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths_and_pages),
        cmocka_unit_test(test_pages_of_every_variant),
        cmocka_unit_test(test_b45_groups_read_their_head),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_v_head_dim),
        cmocka_unit_test(test_all_head_dims),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_lse_may_be_null),
        cmocka_unit_test(test_more_queries_than_tokens),
        cmocka_unit_test(test_b38_empty_sequence),
        cmocka_unit_test(test_zero_queries_and_tokens),
    };
    return cmocka_run_group_tests_name("shapes", tests, NULL, NULL);
}
