/* Centring: means are subtracted before coding and restored exactly by attention. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { K_DIM = 64, V_DIM = 96, KV_HEADS = 2, GROUP = 2 };

static void open_layers(struct rig *r, tq_variant variant, uint32_t n_layers) {
    tq_cache_config c = plain_config(variant, K_DIM, KV_HEADS, GROUP);
    c.v_head_dim = V_DIM;
    c.page_tokens = 16;
    c.n_layers = n_layers;
    rig_open(r, &c);
}

/* ---- means in attention ---------------------------------------------------------------- */

/* Means on some sides (bit 0: keys, bit 1: values), of another size in each layer. */
static void check_means(tq_variant_info variant, int sides) {
    struct rig r = {0};
    struct rng rng = {variant.id};
    char what[64];
    open_layers(&r, variant.id, 2);
    tq_seq seq = rig_seq(&r);
    (void)snprintf(what, sizeof what, "%s, means of sides %d", variant.name, sides);
    for (uint32_t l = 0; l < 2; l++) {
        float *k = random_rows(&rng, rig_k_row(&r), 3 * l + 1);
        float *v = random_rows(&rng, rig_v_row(&r), 3 * l + 1);
        OK(tq_cache_set_means(r.cache, l, sides & 1 ? k : NULL, sides & 2 ? v : NULL));
        free(k);
        free(v);
        rig_append_random(&r, seq, l, 37, &rng);
    }
    for (uint32_t l = 0; l < 2; l++) {
        check_attention(&r, seq, l, 3, &rng, what);
        struct asked a = ask_make(&r, 2, TQ_ATTEND_CAUSAL, &rng);
        a.scale = 0.375f;
        ask(&r, seq, l, &a);
        JUSTIFIED(judge(&r, seq, l, &a), "%s, with a scale", what);
        ask_free(&a);
    }
    rig_close(&r);
}

static void test_attention_restores_means(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (int sides = 1; sides <= 3; sides++)
            check_means(variant_at(i), sides);
}

/* Multiples of 1/8 up to 15/8: they and their distances are exact in bf16, their sums in f32. */
static float *exact_rows(struct rng *rng, size_t n) {
    float *rows = must_alloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = (float)((int)rng_below(rng, 31) - 15) / 8;
    return rows;
}

/* Where centring costs nothing, it changes nothing. */
static void test_exact_rows_do_not_notice(void **state) {
    enum { TOKENS = 40 };
    struct rig with = {0}, without = {0};
    struct rng rng = {1};
    (void)state;
    open_layers(&with, TQ_VARIANT_BF16, 1);
    open_layers(&without, TQ_VARIANT_BF16, 1);
    float *k = exact_rows(&rng, TOKENS * rig_k_row(&with));
    float *v = exact_rows(&rng, TOKENS * rig_v_row(&with));
    float *k_mean = exact_rows(&rng, rig_k_row(&with)),
          *v_mean = exact_rows(&rng, rig_v_row(&with));
    OK(tq_cache_set_means(with.cache, 0, k_mean, v_mean));
    tq_seq a = rig_seq(&with), b = rig_seq(&without);
    rig_append(&with, a, 0, TOKENS, k, v);
    rig_append(&without, b, 0, TOKENS, k, v);
    struct asked x = ask_make(&with, 3, TQ_ATTEND_CAUSAL, &rng), y;
    ask(&with, a, 0, &x);
    y = ask_with(&without, b, 0, 3, TQ_ATTEND_CAUSAL, x.q);
    check_against_rows(&with, &x, TOKENS, k, v, ATTEND_TOLERANCE, "with means");
    check_against_rows(&without, &y, TOKENS, k, v, ATTEND_TOLERANCE, "without");
    float *k_read = must_alloc(TOKENS * rig_k_row(&with), sizeof *k_read);
    float *v_read = must_alloc(TOKENS * rig_v_row(&with), sizeof *v_read);
    rig_read(&with, a, 0, 0, TOKENS, k_read, v_read);
    assert_memory_equal(k_read, k, TOKENS * rig_k_row(&with) * sizeof *k);
    assert_memory_equal(v_read, v, TOKENS * rig_v_row(&with) * sizeof *v);
    size_t size;
    void *page[2] = {page_bytes(&with, a, 0, 0, 0, &size), page_bytes(&without, b, 0, 0, 0, &size)};
    assert_memory_not_equal(page[0], page[1], size); /* but something was subtracted */
    free(page[0]);
    free(page[1]);
    free(k_read);
    free(v_read);
    ask_free(&x);
    ask_free(&y);
    free(k);
    free(v);
    free(k_mean);
    free(v_mean);
    rig_close(&with);
    rig_close(&without);
}

/* ---- fitting --------------------------------------------------------------------------- */

/* Mean over tokens of rows [n][width]. */
static float *mean_of(const float *rows, uint32_t n, size_t width) {
    float *mean = must_alloc(width, sizeof *mean);
    for (size_t i = 0; i < width; i++) {
        double sum = 0;
        for (uint32_t t = 0; t < n; t++)
            sum += (double)rows[t * width + i];
        mean[i] = (float)(sum / n);
    }
    return mean;
}

/* The same tokens in both; equal means give equal pages and answers. */
static void check_same_caches(struct rig *a, struct rig *b, const char *what) {
    enum { TOKENS = 48 };
    struct rng rng = {2}, again = {2}, ask_rng = {3};
    tq_seq x = rig_seq(a), y = rig_seq(b);
    rig_append_random(a, x, 0, TOKENS, &rng);
    rig_append_random(b, y, 0, TOKENS, &again);
    check_same_pages(a, x, b, y, 0, TOKENS, what);
    struct asked answer = ask_make(a, 2, 0, &ask_rng);
    ask(a, x, 0, &answer);
    check_answer(b, y, 0, &answer, what);
    ask_free(&answer);
}

/* Sums of the rows are exact, and so is the division by a power of two. */
static void check_fit(tq_variant variant, int sides) {
    enum { N = 32 };
    struct rig fitted = {0}, set = {0};
    struct rng rng = {4};
    open_layers(&fitted, variant, 1);
    open_layers(&set, variant, 1);
    float *k = exact_rows(&rng, N * rig_k_row(&set)), *v = exact_rows(&rng, N * rig_v_row(&set));
    k[5] = NAN; /* counts as 0 */
    tq_rows_in k_rows = rows_in(k), v_rows = rows_in(v);
    OK(tq_cache_fit_means(fitted.cache, 0, N, sides & 1 ? &k_rows : NULL,
                          sides & 2 ? &v_rows : NULL));
    k[5] = 0;
    float *k_mean = mean_of(k, N, rig_k_row(&set)), *v_mean = mean_of(v, N, rig_v_row(&set));
    OK(tq_cache_set_means(set.cache, 0, sides & 1 ? k_mean : NULL, sides & 2 ? v_mean : NULL));
    assert_int_equal(rig_stats(&fitted).nan_values, 0); /* nothing was appended */
    check_same_caches(&fitted, &set, "fitted means");
    free(k);
    free(v);
    free(k_mean);
    free(v_mean);
    rig_close(&fitted);
    rig_close(&set);
}

static void test_fit_is_the_mean(void **state) {
    (void)state;
    for (int sides = 0; sides <= 3; sides++) {
        check_fit(TQ_VARIANT_3BIT_NC, sides);
        check_fit(TQ_VARIANT_K8V4, sides);
        check_fit(TQ_VARIANT_F16, sides);
    }
}

/* The last call counts, and NULL takes a mean away. */
static void test_means_can_be_replaced(void **state) {
    struct rig r = {0}, plain = {0};
    struct rng rng = {5};
    (void)state;
    open_layers(&r, TQ_VARIANT_4BIT_NC, 1);
    open_layers(&plain, TQ_VARIANT_4BIT_NC, 1);
    float *means = random_rows(&rng, 2 * rig_v_row(&r), 2);
    OK(tq_cache_set_means(r.cache, 0, means, means));
    OK(tq_cache_set_means(r.cache, 0, means + 7, NULL));
    OK(tq_cache_set_means(plain.cache, 0, means + 7, NULL));
    check_same_caches(&r, &plain, "replaced");
    OK(tq_cache_reset(r.cache));
    OK(tq_cache_reset(plain.cache));
    check_same_caches(&r, &plain, "kept over reset");
    OK(tq_cache_reset(r.cache));
    OK(tq_cache_set_means(r.cache, 0, NULL, NULL));
    rig_close(&plain);
    memset(&plain, 0, sizeof plain);
    open_layers(&plain, TQ_VARIANT_4BIT_NC, 1);
    check_same_caches(&r, &plain, "taken away");
    free(means);
    rig_close(&r);
    rig_close(&plain);
}

/* ---- rules ----------------------------------------------------------------------------- */

static void check_frozen(struct rig *r, uint32_t layer, const float *means) {
    tq_rows_in rows = rows_in(means);
    FAILS(tq_cache_set_means(r->cache, layer, means, means), TQ_ERR_INVALID_STATE, "layer");
    FAILS(tq_cache_set_means(r->cache, layer, NULL, NULL), TQ_ERR_INVALID_STATE, "layer");
    FAILS(tq_cache_fit_means(r->cache, layer, 1, &rows, &rows), TQ_ERR_INVALID_STATE, "layer");
}

static void test_frozen_by_the_first_append(void **state) {
    struct rig r = {0};
    struct rng rng = {6};
    (void)state;
    open_layers(&r, TQ_VARIANT_4BIT_NC, 2);
    float *means = random_rows(&rng, rig_v_row(&r), 1);
    tq_rows_in rows = rows_in(means);
    tq_seq seq = rig_seq(&r);
    OK(tq_append(r.cache, seq, 1, 0, &rows, &rows, NULL)); /* does nothing */
    OK(tq_cache_set_means(r.cache, 1, means, means));
    rig_append_random(&r, seq, 1, 3, &rng);
    struct snapshot before = snapshot_take(&r, seq);
    check_frozen(&r, 1, means);
    OK(tq_cache_set_means(r.cache, 0, NULL, means)); /* the other layer is free */
    OK(tq_cache_fit_means(r.cache, 0, 1, &rows, NULL));
    snapshot_check_content(&r, &before, "other layer");
    snapshot_free(&r, &before);
    OK(tq_seq_truncate(r.cache, seq, 0));
    check_frozen(&r, 1, means);
    OK(tq_seq_destroy(r.cache, seq));
    check_frozen(&r, 1, means);
    OK(tq_cache_reset(r.cache));
    OK(tq_cache_set_means(r.cache, 1, means, means));
    OK(tq_cache_fit_means(r.cache, 1, 1, &rows, &rows));
    free(means);
    rig_close(&r);
}

/* Refused means leave those that were set. */
static void test_bad_means(void **state) {
    struct rig r = {0}, same = {0};
    struct rng rng = {7};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    open_layers(&r, TQ_VARIANT_K3V2_NC, 1);
    open_layers(&same, TQ_VARIANT_K3V2_NC, 1);
    float *means = random_rows(&rng, 2 * rig_v_row(&r), 1);
    tq_rows_in rows = rows_in(means);
    OK(tq_cache_set_means(r.cache, 0, means, means));
    OK(tq_cache_set_means(same.cache, 0, means, means));
    for (size_t i = 0; i < COUNT(bad); i++) {
        float *worse = random_rows(&rng, rig_v_row(&r), 1);
        worse[rig_k_row(&r) - 1] = bad[i];
        FAILS(tq_cache_set_means(r.cache, 0, worse, NULL), TQ_ERR_INVALID_ARGUMENT, "k_mean");
        FAILS(tq_cache_set_means(r.cache, 0, means + 1, worse), TQ_ERR_INVALID_ARGUMENT, "v_mean");
        free(worse);
    }
    FAILS(tq_cache_set_means(r.cache, 1, means + 1, means), TQ_ERR_INVALID_ARGUMENT, "layer");
    FAILS(tq_cache_fit_means(r.cache, 1, 1, &rows, &rows), TQ_ERR_INVALID_ARGUMENT, "layer");
    FAILS(tq_cache_fit_means(r.cache, 0, 0, &rows, &rows), TQ_ERR_INVALID_ARGUMENT, "n_tokens");
    check_same_caches(&r, &same, "after refusals");
    free(means);
    rig_close(&r);
    rig_close(&same);
}

/* Differences beyond the largest number: finite all the same. */
static void test_extreme_means(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r = {0};
        struct rng rng = {i};
        open_layers(&r, variant_at(i).id, 1);
        float *rows = must_alloc(3 * rig_v_row(&r), sizeof *rows);
        for (size_t n = 0; n < 3 * rig_v_row(&r); n++)
            rows[n] = FLT_MAX / 2;
        OK(tq_cache_set_means(r.cache, 0, rows, rows));
        for (size_t n = 0; n < 3 * rig_v_row(&r); n++)
            rows[n] = n % 2 ? -FLT_MAX : 0;
        tq_seq seq = rig_seq(&r);
        rig_append(&r, seq, 0, 3, rows, rows);
        struct asked a = ask_make(&r, 1, 0, &rng);
        ask(&r, seq, 0, &a);
        for (size_t n = 0; n < rig_out_row(&r); n++)
            CHECK(isfinite(a.out[n]), "%s: out[%zu] = %g", variant_at(i).name, n, (double)a.out[n]);
        ask_free(&a);
        free(rows);
        rig_close(&r);
    }
}

/* ---- what it is good for ----------------------------------------------------------------- */

enum { ROWS = 200 };

/* Variance over the tokens of q.(decoded - key), for keys of the first head and n queries. */
static double score_error(const struct rig *r, tq_seq seq, const float *k, uint32_t n,
                          uint64_t seed) {
    struct rng rng = {seed};
    float *decoded = must_alloc(ROWS * rig_k_row(r), sizeof *decoded);
    double variance = 0;
    rig_read(r, seq, 0, 0, ROWS, decoded, NULL);
    for (uint32_t i = 0; i < n; i++) {
        float *q = random_rows(&rng, K_DIM, 1);
        double sum = 0, squares = 0;
        for (uint32_t t = 0; t < ROWS; t++) {
            double e = 0;
            for (uint32_t d = 0; d < K_DIM; d++)
                e += (double)q[d] *
                     ((double)decoded[t * rig_k_row(r) + d] - (double)k[t * rig_k_row(r) + d]);
            sum += e;
            squares += e * e;
        }
        variance += (squares - sum * sum / ROWS) / ROWS / n;
        free(q);
    }
    free(decoded);
    return variance;
}

/* Keys around a mean of 100 times their energy. Softmax does not notice an error that all
 * scores share, so what counts is the spread of the error over the tokens. */
static void test_large_key_means(void **state) {
    double error[2];
    (void)state;
    for (int centred = 0; centred < 2; centred++) {
        struct rig r = {0};
        struct rng rng = {8};
        open_layers(&r, TQ_VARIANT_3BIT_NC, 1);
        float *k = random_rows(&rng, ROWS * rig_k_row(&r), 1);
        float *v = random_rows(&rng, ROWS * rig_v_row(&r), 1);
        float *mean = random_rows(&rng, rig_k_row(&r), 10);
        for (size_t i = 0; i < ROWS * rig_k_row(&r); i++)
            k[i] += mean[i % rig_k_row(&r)];
        tq_rows_in rows = rows_in(k);
        if (centred)
            OK(tq_cache_fit_means(r.cache, 0, ROWS, &rows, NULL));
        tq_seq seq = rig_seq(&r);
        rig_append(&r, seq, 0, ROWS, k, v);
        check_attention(&r, seq, 0, 2, &rng, "large means");
        error[centred] = sqrt(score_error(&r, seq, k, 100, 9));
        free(k);
        free(v);
        free(mean);
        rig_close(&r);
    }
    print_message("spread of score errors: %.3g, centred %.3g, %.1f times less\n", error[0],
                  error[1], error[0] / error[1]);
    assert_true(error[0] / error[1] > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_restores_means),
        cmocka_unit_test(test_exact_rows_do_not_notice),
        cmocka_unit_test(test_fit_is_the_mean),
        cmocka_unit_test(test_means_can_be_replaced),
        cmocka_unit_test(test_frozen_by_the_first_append),
        cmocka_unit_test(test_bad_means),
        cmocka_unit_test(test_extreme_means),
        cmocka_unit_test(test_large_key_means),
    };
    return cmocka_run_group_tests_name("centring", tests, NULL, NULL);
}
