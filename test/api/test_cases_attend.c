/* Cases of public bug reports that are about attention and geometry: B37 B43 B57 B72 B92.
 * test_cases.c says where the others are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/table.h"

/* ---- B37 ------------------------------------------------------------------------------- */

enum { B37_DIM = 64, B37_HEADS = 2, B37_PAGE = 16 };

/* q = 0 sees the mean of the values and lse = ln T. */
static void check_mean(const struct rig *r, tq_seq seq, uint32_t n, const char *what) {
    size_t row = rig_v_row(r);
    float *q = must_alloc(rig_q_row(r), sizeof *q), *out = must_alloc(row, sizeof *out);
    float *v = must_alloc(n * row, sizeof *v), lse[B37_HEADS];
    double *mean = must_alloc(row, sizeof *mean);
    tq_rows_in q_rows = rows_in(q);
    tq_rows_out o_rows = rows_out(out);
    OK(tq_attend(r->cache, seq, 0, 1, NULL, &q_rows, &o_rows, lse, NULL));
    rig_read(r, seq, 0, 0, n, NULL, v);
    for (uint32_t t = 0; t < n; t++)
        for (size_t i = 0; i < row; i++)
            mean[i] += (double)v[t * row + i] / n;
    AT_MOST(relative_error(out, mean, row), ATTEND_TOLERANCE, "%s, %u tokens: mean", what, n);
    for (uint32_t h = 0; h < B37_HEADS; h++)
        AT_MOST(fabs((double)lse[h] - log(n)), ATTEND_TOLERANCE, "%s, %u tokens: lse", what, n);
    free(q);
    free(out);
    free(v);
    free(mean);
}

/* A whole number of pages was counted as one more. The next page is there, with noise or with
 * the rows that a truncate has left in it, and another layer owns tokens in it. */
static void test_b37_full_pages(void **state) {
    (void)state;
    static const uint32_t lengths[] = {16, 32, 48, 64};
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t j = 0; j < COUNT(lengths); j++) {
            struct rng rng = {j};
            struct rig r = {0};
            tq_cache_config c = plain_config(variant_at(i).id, B37_DIM, B37_HEADS, 1);
            c.page_tokens = B37_PAGE;
            c.n_layers = 2;
            rig_open(&r, &c);
            tq_seq seq = rig_seq(&r);
            rig_append_random(&r, seq, 0, lengths[j], &rng);
            check_mean(&r, seq, lengths[j], variant_at(i).name);
            rig_append_random(&r, seq, 1, lengths[j] + 20, &rng);
            check_mean(&r, seq, lengths[j], variant_at(i).name);
            rig_append_random(&r, seq, 0, 20, &rng);
            OK(tq_seq_truncate(r.cache, seq, lengths[j]));
            check_mean(&r, seq, lengths[j], variant_at(i).name);
            rig_close(&r);
        }
}

/* ---- B43 ------------------------------------------------------------------------------- */

/* Long contexts were split wrongly. The library chooses splits by itself: lengths that end in
 * and around every part of them. */
static void test_b43_splits(void **state) {
    (void)state;
    static const uint32_t longer[] = {2047, 2048, 2049, 4095, 4096, 4097, 6145, 10000};
    static const tq_variant variants[] = {TQ_VARIANT_F16, TQ_VARIANT_3BIT_NC};
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct rng rng = {43};
        struct rig r = {0};
        tq_cache_config c = plain_config(variants[i], 32, 1, 2);
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        for (uint32_t n = 1; n <= 33; n++) {
            rig_append_random(&r, seq, 0, 1, &rng);
            check_attention(&r, seq, 0, 2, &rng, "short");
        }
        for (size_t j = 0; j < COUNT(longer); j++) {
            rig_append_random(&r, seq, 0, longer[j] - (uint32_t)rig_length(&r, seq, 0), &rng);
            check_attention(&r, seq, 0, 2, &rng, "long");
        }
        rig_close(&r);
    }
}

static void test_b43_131071_tokens(void **state) {
    (void)state;
    struct rng rng = {131071};
    struct rig r = {0};
    tq_cache_config c = plain_config(TQ_VARIANT_F16, 32, 1, 1);
    c.page_tokens = 256;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 131071 / FEWER, &rng);
    check_attention(&r, seq, 0, 1, &rng, "very long");
    rig_close(&r);
}

/* ---- B57 ------------------------------------------------------------------------------- */

/* Lengths of others in a batch changed the result. Here sequences share a pool. */
static void test_b57_others_do_not_matter(void **state) {
    (void)state;
    static const uint32_t others[] = {1, 6, 32};
    enum { TOKENS = 50 };
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_cache_config c = plain_config(variant_at(i).id, 64, 1, 3);
        c.page_tokens = 16;
        struct table t = table_make(&c, 0, TOKENS, 57);
        uint32_t list[TOKENS];
        struct rig alone = {0};
        rig_open(&alone, &c);
        for (uint32_t j = 0; j < TOKENS; j++)
            list[j] = j;
        tq_seq seq = rig_seq(&alone);
        OK(table_append(&t, alone.cache, seq, 0, list, TOKENS));
        struct asked want = ask_make(&alone, 2, 0, &(struct rng){58});
        ask(&alone, seq, 0, &want);
        for (size_t j = 0; j < COUNT(others); j++) {
            struct rig r = {0};
            struct rng rng = {j};
            rig_open(&r, &c);
            tq_seq mine = rig_seq(&r);
            for (uint32_t k = 0, done = 0; k < others[j]; k++) {
                uint32_t to = TOKENS * (k + 1) / others[j];
                rig_append_random(&r, rig_seq(&r), 0, 1 + k * 7 % 40, &rng);
                OK(table_append(&t, r.cache, mine, 0, list + done, to - done));
                done = to;
            }
            struct asked got = ask_make(&r, 2, 0, &(struct rng){58});
            ask(&r, mine, 0, &got);
            CHECK(same_answer(&r, &got, &want), "%s among %u", variant_at(i).name, others[j]);
            ask_free(&got);
            rig_close(&r);
        }
        ask_free(&want);
        rig_close(&alone);
        table_free(&t);
    }
}

/* ---- B72 ------------------------------------------------------------------------------- */

/* One geometry was assumed for all layers. Two caches of one context, each with its own. */
static void test_b72_two_geometries(void **state) {
    (void)state;
    struct rng rng = {72};
    struct test_heap heap = {0};
    struct rig r[2] = {{{0}}};
    tq_allocator hooks = test_allocator(&heap);
    tq_context_config config = {.struct_size = sizeof config,
                                .cpu_features_disabled = test_features_disabled(),
                                .allocator = &hooks};
    tq_context *ctx = NULL;
    tq_seq seq[2];
    OK(tq_context_create(&config, &ctx));
    for (int i = 0; i < 2; i++) {
        r[i].c = plain_config(TQ_VARIANT_3BIT_NC, i ? 512 : 256, i ? 3 : 2, i ? 1 : 4);
        r[i].c.page_tokens = i ? 16 : 128;
        OK(tq_cache_create(ctx, &r[i].c, &r[i].cache));
        OK(tq_cache_get_config(r[i].cache, &r[i].c));
        seq[i] = rig_seq(&r[i]);
    }
    for (int turn = 0; turn < 4; turn++)
        for (int i = 0; i < 2; i++) {
            rig_append_random(&r[i], seq[i], 0, 9, &rng);
            check_attention(&r[i], seq[i], 0, 2, &rng, i ? "512" : "256");
        }
    tq_cache_destroy(r[0].cache);
    check_attention(&r[1], seq[1], 0, 2, &rng, "the one that is left");
    tq_cache_destroy(r[1].cache);
    tq_context_destroy(ctx);
    assert_int_equal(heap.live_blocks + heap.errors, 0);
}

/* Layers of one cache whose pages have different sizes. */
static void test_b72_layers_of_other_sizes(void **state) {
    (void)state;
    enum { LAYERS = 5, HEADS = 3 };
    static const tq_layer_formats pairs[LAYERS] = {{TQ_FORMAT_BF16, TQ_FORMAT_BF16},
                                                   {TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM2},
                                                   {TQ_FORMAT_FP8, TQ_FORMAT_LM3},
                                                   {TQ_FORMAT_POLAR, TQ_FORMAT_INT8},
                                                   {TQ_FORMAT_F16, TQ_FORMAT_POLAR}};
    struct rng rng = {72};
    struct rig r = {0};
    tq_footprint footprint = {.struct_size = sizeof footprint};
    tq_cache_config c = pair_config(pairs, 96, HEADS, 2);
    size_t sum = 0, size, sizes[LAYERS];
    c.n_layers = LAYERS;
    c.page_tokens = 32;
    rig_open(&r, &c);
    OK(tq_cache_estimate(r.ctx, &c, &footprint));
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < LAYERS; l++) {
        rig_append_random(&r, seq, l, 70, &rng);
        check_attention(&r, seq, l, 2, &rng, "layer");
        OK(tq_read_page(r.cache, seq, l, 2, HEADS - 1, NULL, 0, &size));
        sizes[l] = size;
        sum += size * HEADS;
        for (uint32_t i = 0; i < l; i++)
            assert_int_not_equal(sizes[i], size);
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        check_attention(&r, seq, l, 2, &rng, "layer, all full");
    assert_int_equal(footprint.bytes_per_page, sum);
    rig_close(&r);
}

/* ---- B92 ------------------------------------------------------------------------------- */

/* f32 numbers that bf16 holds exactly. */
static float *exact_rows(struct rng *rng, size_t n) {
    float *rows = random_rows(rng, n, 1);
    void *narrow = convert_rows(rows, n, TQ_BF16);
    free(rows);
    rows = widen_rows(narrow, n, TQ_BF16);
    free(narrow);
    return rows;
}

/* One side was quantized, and the other one suffered. The exact side gives what it gives
 * beside an exact one. */
static void check_one_side(tq_format format, int keys) {
    enum { DIM = 64, TOKENS = 40, HEADS = 2 };
    struct rng rng = {92};
    tq_layer_formats pairs[2] = {{TQ_FORMAT_BF16, TQ_FORMAT_BF16},
                                 {keys ? format : TQ_FORMAT_BF16, keys ? TQ_FORMAT_BF16 : format}};
    tq_cache_config c = pair_config(pairs, DIM, HEADS, 2);
    float *k = exact_rows(&rng, TOKENS * HEADS * DIM), *v = exact_rows(&rng, TOKENS * HEADS * DIM);
    float *read = must_alloc(TOKENS * HEADS * DIM, sizeof *read);
    struct rig r = {0};
    struct asked a[2];
    c.n_layers = 2;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < 2; l++) {
        rig_append(&r, seq, l, TOKENS, k, v);
        a[l] = ask_make(&r, 3, TQ_ATTEND_CAUSAL, &(struct rng){93});
        ask(&r, seq, l, &a[l]);
        JUSTIFIED(judge(&r, seq, l, &a[l]), "format %u", format);
    }
    rig_read(&r, seq, 1, 0, TOKENS, keys ? NULL : read, keys ? read : NULL);
    assert_memory_equal(read, keys ? v : k, TOKENS * HEADS * DIM * sizeof *read);
    /* The scores are those of exact keys, where the same kernel computes them. */
    const char *kernels[2] = {tq_cache_kernel_name(r.cache, 0, TQ_OP_SCORE),
                              tq_cache_kernel_name(r.cache, 1, TQ_OP_SCORE)};
    if (!keys && strcmp(kernels[0], kernels[1]) == 0)
        assert_memory_equal(a[0].lse, a[1].lse, 3 * r.c.n_q_heads * sizeof(float));
    for (uint32_t l = 0; l < 2; l++)
        ask_free(&a[l]);
    free(k);
    free(v);
    free(read);
    rig_close(&r);
}

static void test_b92_one_side(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_format_count(); i++) {
        check_one_side(format_at(i).id, 1);
        if (format_at(i).roles & TQ_ROLE_V)
            check_one_side(format_at(i).id, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b37_full_pages),     cmocka_unit_test(test_b43_splits),
        cmocka_unit_test(test_b43_131071_tokens),  cmocka_unit_test(test_b57_others_do_not_matter),
        cmocka_unit_test(test_b72_two_geometries), cmocka_unit_test(test_b72_layers_of_other_sizes),
        cmocka_unit_test(test_b92_one_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
