/* B14, B29: any key format beside any value format, each layer with its own pair. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { DIM = 64, KV_HEADS = 2, GROUP = 2, MOST_PAIRS = 256 };

/* All ordered pairs that the roles admit, or all that they do not. */
static uint32_t collect_pairs(tq_layer_formats *pairs, int admitted) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < tq_format_count(); k++)
        for (uint32_t v = 0; v < tq_format_count(); v++) {
            tq_format_info kf = format_at(k), vf = format_at(v);
            int fits = (kf.roles & TQ_ROLE_K) && (vf.roles & TQ_ROLE_V);
            if (fits == admitted)
                pairs[n++] = (tq_layer_formats){kf.id, vf.id};
        }
    assert_in_range(n, 1, MOST_PAIRS);
    return n;
}

static void name_pair(char what[64], tq_layer_formats pair) {
    (void)snprintf(what, 64, "%s / %s", format_of(pair.k_format).name,
                   format_of(pair.v_format).name);
}

/* ---- pairs ----------------------------------------------------------------------------- */

/* One-hot values: what comes out is weights. */
static void check_one_hot(struct rig *r, tq_format v_format, const char *what) {
    enum { TOKENS = DIM + 9 };
    struct rng rng = {7};
    tq_seq seq = rig_seq(r);
    float *k = random_rows(&rng, TOKENS * rig_k_row(r), 1);
    float *v = must_alloc(TOKENS * rig_v_row(r), sizeof *v);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < KV_HEADS; h++)
            v[(t * KV_HEADS + h) * DIM + t % DIM] = 1;
    rig_append(r, seq, 0, TOKENS, k, v);
    rig_read(r, seq, 0, 0, TOKENS, k, NULL);
    struct asked a = ask_make(r, 1, 0, &rng);
    ask(r, seq, 0, &a);
    check_against_rows(r, &a, TOKENS, k, v, ATTEND_TOLERANCE + one_hot_error(v_format, TQ_ROLE_V),
                       what);
    ask_free(&a);
    free(k);
    free(v);
}

static void test_b14_every_pair(void **state) {
    tq_layer_formats pairs[MOST_PAIRS];
    uint32_t n = collect_pairs(pairs, 1);
    char what[64];
    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        struct rig r = {0};
        struct rng rng = {i};
        tq_cache_config c = pair_config(&pairs[i], DIM, KV_HEADS, GROUP);
        c.page_tokens = 32;
        name_pair(what, pairs[i]);
        rig_open(&r, &c);
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, 70, &rng);
        check_attention(&r, seq, 0, 2, &rng, what);
        check_one_hot(&r, pairs[i].v_format, what);
        rig_close(&r);
    }
}

static void test_b14_refused_pairs(void **state) {
    tq_layer_formats pairs[MOST_PAIRS];
    uint32_t n = collect_pairs(pairs, 0);
    tq_context *ctx = NULL;
    (void)state;
    OK(tq_context_create(NULL, &ctx));
    for (uint32_t i = 0; i < n; i++) {
        tq_cache *cache = NULL;
        tq_footprint footprint = {.struct_size = sizeof footprint};
        tq_cache_config c = pair_config(&pairs[i], DIM, KV_HEADS, GROUP);
        const char *name = format_of(pairs[i].v_format).name;
        if (!(format_of(pairs[i].k_format).roles & TQ_ROLE_K))
            name = format_of(pairs[i].k_format).name;
        FAILS(tq_cache_create(ctx, &c, &cache), TQ_ERR_UNSUPPORTED, name);
        FAILS(tq_cache_estimate(ctx, &c, &footprint), TQ_ERR_UNSUPPORTED, name);
        assert_null(cache);
    }
    tq_context_destroy(ctx);
}

/* ---- layers ---------------------------------------------------------------------------- */

enum { TOKENS = 64 };

/* A layer of a cache against a cache of its own. */
static void check_layer(const struct rig *r, tq_seq seq, uint32_t layer, tq_layer_formats pair,
                        const float *k, const float *v) {
    struct rig own = {0};
    struct rng rng = {layer};
    char what[64];
    tq_cache_config c = pair_config(&pair, DIM, KV_HEADS, GROUP);
    rig_open(&own, &c);
    tq_seq own_seq = rig_seq(&own);
    name_pair(what, pair);
    rig_append(&own, own_seq, 0, TOKENS, k, v);
    struct asked a = ask_make(&own, 3, TQ_ATTEND_CAUSAL, &rng), b;
    ask(&own, own_seq, 0, &a);
    b = ask_with(r, seq, layer, 3, TQ_ATTEND_CAUSAL, a.q);
    CHECK(same_answer(r, &a, &b), "layer %u, %s: another answer", layer, what);
    CHECK(r->c.layer_formats[layer].k_format == pair.k_format &&
              r->c.layer_formats[layer].v_format == pair.v_format,
          "layer %u: not %s", layer, what);
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        size_t size, own_size;
        void *bytes = page_bytes(r, seq, layer, 0, head, &size);
        void *own_bytes = page_bytes(&own, own_seq, 0, 0, head, &own_size);
        CHECK(size == own_size && memcmp(bytes, own_bytes, size) == 0, "layer %u, %s: other bytes",
              layer, what);
        free(bytes);
        free(own_bytes);
    }
    ask_free(&a);
    ask_free(&b);
    rig_close(&own);
}

/* Fills all layers of a cache with the same rows and checks each. */
static void check_layers(const tq_cache_config *c, const tq_layer_formats *want) {
    struct rig r = {0};
    struct rng rng = {c->n_layers};
    rig_open(&r, c);
    float *k = random_rows(&rng, TOKENS * rig_k_row(&r), 1);
    float *v = random_rows(&rng, TOKENS * rig_v_row(&r), 1);
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < c->n_layers; l++)
        rig_append(&r, seq, l, TOKENS, k, v);
    for (uint32_t l = 0; l < c->n_layers; l++)
        check_layer(&r, seq, l, want[l], k, v);
    free(k);
    free(v);
    rig_close(&r);
}

static void test_b29_every_pair_in_one_cache(void **state) {
    tq_layer_formats pairs[MOST_PAIRS];
    uint32_t n = collect_pairs(pairs, 1);
    tq_cache_config c = pair_config(pairs, DIM, KV_HEADS, GROUP);
    (void)state;
    c.n_layers = n;
    check_layers(&c, pairs);
}

static void test_b29_boundary_layers(void **state) {
    enum { LAYERS = 5 };
    const tq_layer_formats bf16 = {TQ_FORMAT_BF16, TQ_FORMAT_BF16};
    const tq_layer_formats lm = {TQ_FORMAT_LM3, TQ_FORMAT_LM4};
    const tq_layer_formats given[LAYERS] = {lm, lm, {TQ_FORMAT_FP8, TQ_FORMAT_LM2}, lm, lm};
    (void)state;
    for (uint32_t boundary = 0; boundary <= 6; boundary++)
        for (int by_layer = 0; by_layer < 2; by_layer++) {
            tq_layer_formats want[LAYERS];
            tq_cache_config c = plain_config(TQ_VARIANT_K3V4_NC, DIM, KV_HEADS, GROUP);
            if (by_layer)
                c = pair_config(given, DIM, KV_HEADS, GROUP);
            c.n_layers = LAYERS;
            c.boundary_layers = boundary;
            for (uint32_t l = 0; l < LAYERS; l++) {
                int outer = l < boundary || LAYERS - l <= boundary;
                want[l] = outer ? bf16 : by_layer ? given[l] : lm;
            }
            check_layers(&c, want);
        }
}

/* Layers keep their tokens apart: each has a length and rows of its own. */
static void test_layers_are_independent(void **state) {
    enum { LAYERS = 4 };
    struct rig r = {0};
    struct rng rng = {9};
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_3BIT_NC, DIM, KV_HEADS, GROUP);
    c.n_layers = LAYERS;
    c.page_tokens = 16;
    c.boundary_layers = 1;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    for (uint32_t step = 0; step < 40; step++) {
        uint32_t layer = rng_below(&rng, LAYERS), other = rng_below(&rng, LAYERS);
        struct asked a = ask_make(&r, 1, 0, &rng);
        ask(&r, seq, other, &a);
        rig_append_random(&r, seq, layer, 1 + rng_below(&rng, 20), &rng);
        if (other != layer)
            check_answer(&r, seq, other, &a, "after an append to another layer");
        check_attention(&r, seq, layer, 1, &rng, "layer of several");
        ask_free(&a);
    }
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b14_every_pair),
        cmocka_unit_test(test_b14_refused_pairs),
        cmocka_unit_test(test_b29_every_pair_in_one_cache),
        cmocka_unit_test(test_b29_boundary_layers),
        cmocka_unit_test(test_layers_are_independent),
    };
    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
