/*
 * Test of the oracle: attention and error measures.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "test_oracle.h"

#include <math.h>
#include <string.h>

enum { HEADS = 6, KV = 2, KEYS = 9, DK = 8, DV = 9 };

typedef struct {
    double q[16 * HEADS * DK], k[KEYS * KV * DK], v[KEYS * KV * DV];
    double out[16 * HEADS * DV], lse[16 * HEADS], weights[16 * HEADS * KEYS];
    double scores[16 * HEADS * KEYS];
} attention;

static void fill(attention *a) {
    orc_gaussian_row(LENGTH(a->q), 1, 0, a->q);
    orc_gaussian_row(LENGTH(a->k), 2, 0, a->k);
    orc_gaussian_row(LENGTH(a->v), 3, 0, a->v);
}

static orc_shape shape_of(size_t n_queries, bool causal) {
    return (orc_shape){.n_queries = n_queries,
                       .n_keys = KEYS,
                       .n_q_heads = HEADS,
                       .n_kv_heads = KV,
                       .dim_k = DK,
                       .dim_v = DV,
                       .scale = 0.35,
                       .causal = causal};
}

static void test_attention_identities(void **state) {
    attention a;
    orc_shape s = shape_of(3, false);
    (void)state;
    fill(&a);
    memset(a.q, 0, sizeof a.q); /* q = 0: the mean of V, lse = ln T */
    orc_attend(&s, a.q, a.k, a.v, a.out, a.lse, NULL);
    for (size_t i = 0; i < 3 * HEADS; i++) {
        double mean = 0.0;
        for (size_t t = 0; t < KEYS; t++) {
            mean += a.v[(t * KV + i % HEADS / 3) * DV + 4] / KEYS;
        }
        check("lse", a.lse[i], log(KEYS), 1e-14);
        check("mean of V", a.out[i * DV + 4], mean, 1e-14);
    }
    fill(&a);
    memset(a.v, 0, sizeof a.v); /* one-hot V (DV = KEYS) reads the weights */
    for (size_t i = 0; i < KEYS * KV; i++) {
        a.v[i * DV + i / KV] = 1.0;
    }
    orc_attend(&s, a.q, a.k, a.v, a.out, a.lse, a.weights);
    orc_scores(&s, a.q, a.k, a.scores);
    check("one-hot V", orc_max_difference(3 * HEADS * KEYS, a.out, a.weights), 0.0, 0.0);
    for (size_t i = 0; i < 3 * HEADS * KEYS; i++) {
        check("weight", a.weights[i], exp(a.scores[i] - a.lse[i / KEYS]), 1e-14);
    }
    /* GQA: query 1, head 4 uses kv head 1 */
    double dot = orc_dot(DK, a.q + (1 * HEADS + 4) * DK, a.k + (5 * KV + 1) * DK);
    check("score", a.scores[(1 * HEADS + 4) * KEYS + 5], 0.35 * dot, 1e-15);
    for (size_t i = 0; i < LENGTH(a.q); i++) { /* huge logits stay finite: a hard maximum */
        a.q[i] *= 1e6;
    }
    orc_attend(&s, a.q, a.k, a.v, a.out, a.lse, NULL);
    check("hard maximum", orc_norm(DV, a.out), 1.0, 1e-12);
}

static void test_attention_causal(void **state) {
    attention a, b;
    orc_shape s = shape_of(12, true); /* more queries than keys: three see nothing */
    (void)state;
    fill(&a);
    orc_attend(&s, a.q, a.k, a.v, a.out, a.lse, a.weights);
    for (size_t i = 0; i < 12; i++) {
        assert_int_equal(orc_visible_keys(&s, i), i < 3 ? 0 : i - 2);
    }
    for (size_t i = 0; i < 3 * HEADS; i++) {
        assert_true(a.lse[i] == -INF);
        check("empty", orc_norm(DV, a.out + i * DV) + orc_norm(KEYS, a.weights + i * KEYS), 0, 0);
    }
    for (size_t i = 3; i < 12; i++) { /* query i alone over its i - 2 keys */
        orc_shape one = shape_of(1, false);
        one.n_keys = i - 2;
        orc_attend(&one, a.q + i * HEADS * DK, a.k, a.v, b.out, b.lse, NULL);
        check("causal out", orc_max_difference(HEADS * DV, b.out, a.out + i * HEADS * DV), 0, 0);
        check("causal lse", orc_max_difference(HEADS, b.lse, a.lse + i * HEADS), 0, 0);
    }
    for (size_t i = 0; i < KV * DV; i++) { /* a hidden row may hold anything */
        a.k[8 * KV * DK + i % DK] = a.v[8 * KV * DV + i] = NAN;
    }
    orc_attend(&s, a.q, a.k, a.v, b.out, b.lse, NULL);
    check("hidden", orc_max_difference(11 * HEADS * DV, b.out, a.out), 0.0, 0.0);
    check("hidden", orc_max_difference(11 * HEADS, b.lse, a.lse), 0.0, 0.0);
    assert_true(isnan(b.out[11 * HEADS * DV]));
    orc_shape none = shape_of(1, false);
    none.n_keys = 0;
    orc_attend(&none, a.q, a.k, a.v, b.out, b.lse, NULL);
    check("no keys", orc_norm(HEADS * DV, b.out), 0.0, 0.0);
    assert_true(b.lse[0] == -INF);
}

/* Two parts merged by their lse give the whole; a shift of all keys moves lse only. */
static void test_attention_merge_and_shift(void **state) {
    attention a, b, c;
    orc_shape s = shape_of(2, false), left = s, right = s;
    (void)state;
    fill(&a);
    left.n_keys = 4;
    right.n_keys = KEYS - 4;
    orc_attend(&s, a.q, a.k, a.v, a.out, a.lse, NULL);
    orc_attend(&left, a.q, a.k, a.v, b.out, b.lse, NULL);
    orc_attend(&right, a.q, a.k + 4 * KV * DK, a.v + 4 * KV * DV, c.out, c.lse, NULL);
    for (size_t i = 0; i < 2 * HEADS; i++) {
        double wb = exp(b.lse[i] - a.lse[i]), wc = exp(c.lse[i] - a.lse[i]);
        check("merged weight", wb + wc, 1.0, 1e-14);
        for (size_t j = i * DV; j < (i + 1) * DV; j++) {
            check("merged", wb * b.out[j] + wc * c.out[j], a.out[j], 1e-14);
        }
    }
    for (size_t i = 0; i < LENGTH(a.k); i++) {
        b.k[i] = a.k[i] + (double)(i % DK);
    }
    orc_attend(&s, a.q, b.k, a.v, b.out, b.lse, NULL);
    check("shifted", orc_max_difference(2 * HEADS * DV, b.out, a.out), 0.0, 1e-13);
    static const double shift[DK] = {0, 1, 2, 3, 4, 5, 6, 7};
    check("shifted lse", b.lse[0], a.lse[0] + 0.35 * orc_dot(DK, a.q, shift), 1e-13);
}

/* A window equals the keys in it, alone. */
static void test_attention_window(void **state) {
    attention a, b;
    (void)state;
    fill(&a);
    for (size_t window = 1; window <= KEYS + 2; window++) {
        orc_shape s = shape_of(12, true);
        s.window = window;
        orc_attend(&s, a.q, a.k, a.v, a.out, a.lse, a.weights);
        for (size_t i = 0; i < 12; i++) {
            size_t sees = i < 3 ? 0 : i - 2, first = sees > window ? sees - window : 0;
            orc_shape one = shape_of(1, false);
            one.n_keys = sees - first;
            assert_int_equal(orc_first_key(&s, i), first);
            orc_attend(&one, a.q + i * HEADS * DK, a.k + first * KV * DK, a.v + first * KV * DV,
                       b.out, b.lse, NULL);
            check("out", orc_max_difference(HEADS * DV, b.out, a.out + i * HEADS * DV), 0, 0);
            check("lse", orc_max_difference(HEADS, b.lse, a.lse + i * HEADS), 0, 0);
            for (size_t t = 0; t < KEYS; t++) {
                double w = a.weights[(i * HEADS + 1) * KEYS + t];
                assert_true((w > 0) == (t >= first && t < sees));
            }
        }
    }
}

/* A sink is a key of value 0 whose score is given; a low one does nothing. */
static void test_attention_sinks(void **state) {
    static const double sinks[HEADS] = {-3, -0.5, 0, 1, 4, -(double)INFINITY};
    attention a, b;
    orc_shape s = shape_of(3, false);
    (void)state;
    fill(&a);
    orc_attend(&s, a.q, a.k, a.v, a.out, a.lse, NULL);
    s.sinks = sinks;
    orc_attend(&s, a.q, a.k, a.v, b.out, b.lse, b.weights);
    for (size_t i = 0; i < 3 * HEADS; i++) {
        double share = exp(sinks[i % HEADS] - b.lse[i]), sum = 0;
        check("lse", b.lse[i], log(exp(a.lse[i]) + exp(sinks[i % HEADS])), 1e-14);
        for (size_t j = i * DV; j < (i + 1) * DV; j++) {
            check("out", b.out[j], (1 - share) * a.out[j], 1e-14);
        }
        for (size_t t = 0; t < KEYS; t++) {
            sum += b.weights[i * KEYS + t];
        }
        check("weights", sum, 1 - share, 1e-14);
    }
    s.n_keys = 0;
    orc_attend(&s, a.q, a.k, a.v, b.out, b.lse, NULL);
    check("no keys", orc_norm(HEADS * DV, b.out), 0.0, 0.0);
    assert_true(b.lse[0] == -INF);
}

/* Scores stay below the cap and keep their order; a very large cap does nothing. */
static void test_attention_softcap(void **state) {
    attention a, b;
    orc_shape s = shape_of(3, false);
    (void)state;
    fill(&a);
    orc_scores(&s, a.q, a.k, a.scores);
    s.softcap = 1.5;
    orc_scores(&s, a.q, a.k, b.scores);
    for (size_t i = 0; i < 3 * HEADS * KEYS; i++) {
        double e = exp(2 * a.scores[i] / 1.5);
        check("capped", b.scores[i], 1.5 * (e - 1) / (e + 1), 1e-14);
        assert_true(fabs(b.scores[i]) < 1.5);
    }
    s.softcap = 1e12;
    orc_scores(&s, a.q, a.k, b.scores);
    check("a large cap", orc_max_difference(3 * HEADS * KEYS, b.scores, a.scores), 0, 1e-10);
}

static void test_measures(void **state) {
    static const double p[2] = {.5, .5}, q[2] = {.25, .75}, sure[2] = {1, 0}, zero[2] = {0, 0};
    static const double hidden[2] = {1.0, -INFINITY}, other[2] = {1.25, -INFINITY};
    static const double bad[2] = {NAN, 0};
    orc_stat s = {0};
    (void)state;
    check("KL", orc_divergence(2, p, q), 0.5 * log(4.0 / 3.0), 1e-15);
    check("KL of itself", orc_divergence(2, p, p), 0.0, 0.0);
    check("KL of a sure row", orc_divergence(2, sure, p), log(2.0), 1e-15);
    assert_true(orc_divergence(2, p, sure) == INF);
    check("relative L2", orc_relative_l2(2, q, p), 0.5, 1e-15);
    check("relative L2 of 0, 0", orc_relative_l2(2, zero, zero), 0.0, 0.0);
    assert_true(orc_relative_l2(2, p, zero) == INF);
    check("logit difference", orc_max_difference(2, hidden, other), 0.25, 0.0);
    assert_true(orc_max_difference(2, hidden, p) == INF && orc_max_difference(2, bad, p) == INF);
    for (int i = 1; i <= 4; i++) {
        orc_stat_add(&s, i);
    }
    check("mean", s.mean, 2.5, 1e-15);
    check("its error", orc_stat_error(&s), sqrt(5.0 / 3.0 / 4.0), 1e-15);
}

int run_attention_tests(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_identities),
        cmocka_unit_test(test_attention_causal),
        cmocka_unit_test(test_attention_merge_and_shift),
        cmocka_unit_test(test_attention_window),
        cmocka_unit_test(test_attention_sinks),
        cmocka_unit_test(test_attention_softcap),
        cmocka_unit_test(test_measures),
    };
    return cmocka_run_group_tests_name("oracle attention", tests, NULL, NULL);
}
