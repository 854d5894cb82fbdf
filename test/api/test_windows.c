/* Sliding windows, softcap and attention sinks, alone and together. B34, B35, B50. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { DIM = 64, V_DIM = 96, KV_HEADS = 2, PAGE = 16, TOKENS = 70 };

static void open_rig(struct rig *r, tq_variant variant, uint32_t group) {
    tq_cache_config c = plain_config(variant, DIM, KV_HEADS, group);
    c.v_head_dim = V_DIM;
    c.page_tokens = PAGE;
    memset(r, 0, sizeof *r);
    rig_open(r, &c);
}

/* Keys whose means show in every logit. */
static void set_means(struct rig *r, struct rng *rng) {
    float *k = random_rows(rng, rig_k_row(r), 0.5), *v = random_rows(rng, rig_v_row(r), 2);
    OK(tq_cache_set_means(r->cache, 0, k, v));
    free(k);
    free(v);
}

/* Some weak, some strong, one absent. */
static float *make_sinks(const struct rig *r, struct rng *rng) {
    float *sinks = random_rows(rng, r->c.n_q_heads, 3);
    sinks[r->c.n_q_heads / 2] = -INFINITY;
    return sinks;
}

/* ---- everything together --------------------------------------------------------------- */

static const uint32_t windows[] = {0,  1,          2,          PAGE - 1,   PAGE,       PAGE + 1,
                                   40, TOKENS - 1, TOKENS + 0, TOKENS + 1, UINT32_MAX, 3};

static void check_call(const struct rig *r, tq_seq seq, uint32_t n_queries, uint32_t flags,
                       uint32_t window, float softcap, const float *sinks, struct rng *rng) {
    char what[128];
    struct asked a = ask_make(r, n_queries, flags, rng);
    a.window = window;
    a.softcap = softcap;
    a.sinks = sinks;
    a.scale = rng_below(rng, 2) ? 0 : 0.3f;
    ask(r, seq, 0, &a);
    (void)snprintf(what, sizeof what,
                   "variant %u, group %u, %u queries, flags %u, window %u, softcap %g, sinks %d",
                   r->c.variant, r->c.n_q_heads / KV_HEADS, n_queries, flags, window,
                   (double)softcap, sinks != NULL);
    JUSTIFIED(judge(r, seq, 0, &a), "%s", what);
    ask_free(&a);
}

static void check_all_calls(struct rig *r, tq_seq seq, struct rng *rng) {
    static const float caps[] = {0, 1.5f, 30};
    static const uint32_t queries[] = {1, 5, TOKENS + 2};
    float *sinks = make_sinks(r, rng);
    for (int with = 0; with < 2; with++) {
        OK(tq_cache_set_sink_logits(r->cache, 0, with ? sinks : NULL));
        for (size_t w = 0; w < COUNT(windows); w++) {
            float cap = caps[rng_below(rng, COUNT(caps))];
            uint32_t n = queries[rng_below(rng, COUNT(queries))];
            for (uint32_t flags = 0; flags <= TQ_ATTEND_CAUSAL; flags++)
                check_call(r, seq, n, flags, windows[w], cap, with ? sinks : NULL, rng);
        }
    }
    free(sinks);
}

static void test_all_together(void **state) {
    static const uint32_t groups[] = {1, 3, 8};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t g = 0; g < COUNT(groups); g++) {
            struct rig r;
            struct rng rng = {i * 10 + g};
            open_rig(&r, variant_at(i).id, groups[g]);
            if ((i + g) % 2)
                set_means(&r, &rng);
            tq_seq seq = rig_seq(&r);
            rig_append_random(&r, seq, 0, TOKENS, &rng);
            check_all_calls(&r, seq, &rng);
            rig_close(&r);
        }
}

/* Windows that begin and end in other splits than the sequence. */
static void test_long_sequences(void **state) {
    static const tq_variant variants[] = {TQ_VARIANT_F16, TQ_VARIANT_4BIT_NC};
    static const uint32_t long_windows[] = {1, 100, 2047, 2048, 2049, 3000, 4500};
    enum { LONG = 5000 };
    (void)state;
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct rig r;
        struct rng rng = {i};
        open_rig(&r, variants[i], 2);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, LONG, &rng);
        for (size_t w = 0; w < COUNT(long_windows); w++)
            for (uint32_t n = 1; n <= 33; n += 32)
                check_call(&r, seq, n, TQ_ATTEND_CAUSAL, long_windows[w], w % 2 ? 5 : 0, NULL,
                           &rng);
        rig_close(&r);
    }
}

/* ---- B34, B35 -------------------------------------------------------------------------- */

/* Value t is a unit vector: the output shows what a row sees. Keys are 0. */
static void check_seen(const struct rig *r, tq_seq seq, uint32_t n, uint32_t n_queries,
                       uint32_t window, double error) {
    struct asked a = ask_make(r, n_queries, TQ_ATTEND_CAUSAL, &(struct rng){n});
    a.window = window;
    ask(r, seq, 0, &a);
    for (uint32_t q = 0; q < n_queries; q++) {
        uint32_t to = n - (n_queries - 1 - q), from = to > window ? to - window : 0;
        for (uint32_t t = 0; t < r->c.v_head_dim; t++) {
            double want = t >= from && t < to ? 1.0 / (to - from) : 0;
            double got = (double)a.out[q * rig_out_row(r) + t];
            CHECK(fabs(got - want) < error, "%u tokens, window %u, row %u, token %u: %g, not %g", n,
                  window, q, t, got, want);
        }
    }
    ask_free(&a);
}

static void test_b34_b35_visible_set(void **state) {
    enum { MANY = 96, QUERIES = 8 };
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r;
        double error = ATTEND_TOLERANCE + one_hot_error(variant_at(i).v_format, TQ_ROLE_V);
        open_rig(&r, variant_at(i).id, 1);
        tq_seq seq = rig_seq(&r);
        float *k = must_alloc(rig_k_row(&r), sizeof *k);
        for (uint32_t t = 0; t < MANY; t++) {
            float *one = must_alloc(rig_v_row(&r), sizeof *one);
            for (uint32_t h = 0; h < KV_HEADS; h++)
                one[h * V_DIM + t] = 1;
            rig_append(&r, seq, 0, 1, k, one);
            free(one);
            if (t < 20)
                check_seen(&r, seq, t + 1, 1, 4, error);
        }
        for (uint32_t window = 1; window <= MANY; window += 19)
            check_seen(&r, seq, MANY, QUERIES, window, error);
        free(k);
        rig_close(&r);
    }
}

/* ---- sinks ----------------------------------------------------------------------------- */

/* B50: lse = ln(sum + e^s), and the output shrinks by the sink's share; no tokens: nothing. */
static void test_b50_sinks(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r;
        struct rng rng = {i};
        open_rig(&r, variant_at(i).id, 3);
        set_means(&r, &rng);
        tq_seq seq = rig_seq(&r), empty = rig_seq(&r);
        rig_append_random(&r, seq, 0, 20, &rng);
        struct asked a = ask_make(&r, 1, 0, &rng);
        ask(&r, seq, 0, &a);
        float *sinks = make_sinks(&r, &rng);
        OK(tq_cache_set_sink_logits(r.cache, 0, sinks));
        struct asked b = ask_with(&r, seq, 0, 1, 0, a.q);
        for (uint32_t h = 0; h < r.c.n_q_heads; h++) {
            double lse = log(exp((double)a.lse[h]) + exp((double)sinks[h]));
            AT_MOST(fabs((double)b.lse[h] - lse), 1e-5, "lse");
            for (uint32_t d = 0; d < V_DIM; d++) {
                double want = (double)a.out[h * V_DIM + d] * exp((double)a.lse[h] - lse);
                AT_MOST(fabs((double)b.out[h * V_DIM + d] - want), 1e-5, "out");
            }
        }
        struct asked none = ask_with(&r, empty, 0, 1, 0, a.q);
        assert_true(none.lse[0] == -INFINITY && none.out[0] == 0 && none.out[V_DIM - 1] == 0);
        OK(tq_cache_reset(r.cache)); /* keeps them; NULL takes them away */
        OK(tq_cache_set_sink_logits(r.cache, 0, NULL));
        ask_free(&a);
        ask_free(&b);
        ask_free(&none);
        free(sinks);
        rig_close(&r);
    }
}

/* They belong to a layer, and outlive a reset. */
static void test_sinks_of_layers(void **state) {
    struct rig r = {0};
    struct rng rng = {5};
    tq_cache_config c = plain_config(TQ_VARIANT_INT8, DIM, 1, 2);
    c.n_layers = 2;
    (void)state;
    rig_open(&r, &c);
    static const float sinks[] = {1, -2};
    OK(tq_cache_set_sink_logits(r.cache, 1, sinks));
    OK(tq_cache_reset(r.cache));
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < 2; l++) {
        rig_append_random(&r, seq, l, 9, &rng);
        struct asked a = ask_make(&r, 2, TQ_ATTEND_CAUSAL, &rng);
        a.sinks = l ? sinks : NULL;
        ask(&r, seq, l, &a);
        JUSTIFIED(judge(&r, seq, l, &a), "layer %u", l);
        ask_free(&a);
    }
    rig_close(&r);
}

/* ---- what is not finite ---------------------------------------------------------------- */

/* A cap must not hide a query that is not finite. */
static void test_softcap_shows_bad_queries(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r;
        struct rng rng = {i};
        open_rig(&r, variant_at(i).id, 1);
        if (i % 2)
            set_means(&r, &rng);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, 18, &rng);
        for (size_t b = 0; b < COUNT(bad); b++) {
            struct asked a = ask_make(&r, 3, 0, &rng);
            a.softcap = 10;
            a.q[1 * rig_q_row(&r) + 5] = bad[b];
            ask(&r, seq, 0, &a);
            for (uint32_t q = 0; q < 3; q++) {
                int spoiled = isnan(a.lse[q * KV_HEADS]) && isnan(a.out[q * rig_out_row(&r)]);
                CHECK(spoiled == (q == 1), "%s: row %u", variant_at(i).name, q);
                assert_true(isfinite(a.lse[q * KV_HEADS + 1]));
            }
            ask_free(&a);
        }
        rig_close(&r);
    }
}

/* Scales, caps and queries at the ends of their range leave finite numbers. */
static void test_extreme(void **state) {
    static const float caps[] = {1e-30f, 1, 1e30f}, scales[] = {1e-30f, 1, -1e4f, 1e30f};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig r;
        struct rng rng = {i};
        open_rig(&r, variant_at(i).id, 2);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, 33, &rng);
        for (size_t c = 0; c < COUNT(caps) * COUNT(scales); c++) {
            struct asked a = ask_make(&r, 2, TQ_ATTEND_CAUSAL, &rng);
            a.softcap = caps[c % COUNT(caps)];
            a.scale = scales[c / COUNT(caps)];
            a.window = 20;
            ask(&r, seq, 0, &a);
            for (size_t j = 0; j < 2 * rig_out_row(&r); j++)
                CHECK(isfinite(a.out[j]), "%s, softcap %g, scale %g", variant_at(i).name,
                      (double)a.softcap, (double)a.scale);
            ask_free(&a);
        }
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_together),
        cmocka_unit_test(test_long_sequences),
        cmocka_unit_test(test_b34_b35_visible_set),
        cmocka_unit_test(test_b50_sinks),
        cmocka_unit_test(test_sinks_of_layers),
        cmocka_unit_test(test_softcap_shows_bad_queries),
        cmocka_unit_test(test_extreme),
    };
    return cmocka_run_group_tests_name("windows, softcap, sinks", tests, NULL, NULL);
}
