/* Pages of the caller: the same codes and the same answers as over the library's own, bit for
 * bit, wherever pages lie and whatever they held before. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"
#include "common/step.h"
#include "tq/paged.h"

enum { SEQS = 5, LAYERS = 2, KV_HEADS = 2, GROUP = 3, PAGES = 64, TABLE = 13, GAP = 48 };

/* A cache that attends by itself, and an engine that has the same sequences in pools of its own:
 * pages in random order, with a gap behind each. */
struct twins {
    struct rig plain, engine;
    tq_seq seqs[SEQS];
    struct guarded pools[LAYERS], work;
    tq_paged_pool pool[LAYERS];
    int32_t table[SEQS * (TABLE + 2)], lengths[SEQS], starts[SEQS + 1];
    int32_t order[PAGES], taken; /* ids not yet in a table come from here */
    struct rng rng;
};

static void twins_open(struct twins *t, const tq_cache_config *c, const tq_executor *executor) {
    memset(t, 0, sizeof *t);
    t->rng.state = c->variant + 3;
    rig_open(&t->plain, c);
    rig_open_with(&t->engine, c, executor);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        size_t stride = tq_paged_page_bytes(t->engine.cache, l) + GAP;
        /* 16 behind an address aligned to 64: no more is promised. */
        t->pools[l] = guard_make(stride * PAGES, 16);
        guard_fill(&t->pools[l]);
        t->pool[l] =
            (tq_paged_pool){sizeof t->pool[l], 0, t->pools[l].data, (int64_t)stride, PAGES};
    }
    for (int32_t i = 0; i < PAGES; i++) {
        uint32_t at = rng_below(&t->rng, (uint32_t)i + 1);
        t->order[i] = t->order[at];
        t->order[at] = i;
    }
    for (uint32_t i = 0; i < SEQS; i++)
        t->seqs[i] = rig_seq(&t->plain);
    for (size_t i = 0; i < COUNT(t->table); i++)
        t->table[i] = -1; /* what is not needed may be anything */
}

/* Nothing but pages has been written. */
static void check_gaps(const struct twins *t, uint32_t l) {
    size_t bytes = tq_paged_page_bytes(t->engine.cache, l);
    for (size_t p = 0; p < PAGES; p++)
        for (size_t i = 0; i < GAP; i++)
            CHECK(((unsigned char *)t->pools[l].data)[p * (bytes + GAP) + bytes + i] == GUARD_FILL,
                  "gap behind page %zu", p);
}

static void twins_close(struct twins *t) {
    for (uint32_t l = 0; l < t->plain.c.n_layers; l++) {
        check_gaps(t, l);
        guard_free(&t->pools[l]);
    }
    rig_close(&t->plain);
    rig_close(&t->engine);
}

static int64_t slot_of(struct twins *t, uint32_t seq, uint32_t token) {
    uint32_t tokens = t->plain.c.page_tokens;
    int32_t *page = &t->table[seq * (TABLE + 2) + token / tokens];
    assert_true(token / tokens < TABLE);
    if (*page < 0)
        *page = t->order[t->taken++];
    return (int64_t)*page * tokens + token % tokens;
}

/* ---- one step ---------------------------------------------------------------------------- */

/* Rows of new tokens, with rows between them that belong to nobody. */
static void append(struct twins *t, uint32_t layer, const uint32_t *n_append) {
    uint32_t row = 0, total = 0;
    for (uint32_t i = 0; i < SEQS; i++)
        total += n_append[i] + 1;
    int64_t *slots = must_alloc(total, sizeof *slots);
    float *k = random_rows(&t->rng, total * rig_k_row(&t->plain), 1);
    float *v = random_rows(&t->rng, total * rig_v_row(&t->plain), 1);
    for (size_t i = 0; i < total * rig_k_row(&t->plain); i += 1000)
        k[i] = NAN; /* to be counted, but not in rows that are skipped */
    for (uint32_t i = 0; i < SEQS; i++) {
        rig_append(&t->plain, t->seqs[i], layer, n_append[i], k + row * rig_k_row(&t->plain),
                   v + row * rig_v_row(&t->plain));
        for (uint32_t j = 0; j < n_append[i]; j++)
            slots[row++] = slot_of(t, i, (uint32_t)t->lengths[i] + j);
        slots[row++] = i % 2 ? -1 : INT64_MIN;
    }
    tq_rows_in keys = rows_in(k), values = rows_in(v);
    OK(tq_paged_append(t->engine.cache, layer, &t->pool[layer], slots, total, &keys, &values,
                       NULL));
    free(slots);
    free(k);
    free(v);
}

static tq_paged_seqs seqs_of(const struct twins *t, uint32_t n_queries) {
    tq_paged_seqs s = {.struct_size = sizeof s,
                       .n_seqs = SEQS,
                       .block_table = t->table,
                       .table_stride = TABLE + 2,
                       .seq_lens = t->lengths,
                       .query_starts = t->starts,
                       .n_queries = n_queries};
    for (uint32_t i = 0; i < SEQS; i++)
        if ((uint32_t)t->lengths[i] > s.max_seq_len)
            s.max_seq_len = (uint32_t)t->lengths[i];
    return s;
}

/* All sequences at once, with a workspace that is just large enough and a row of nobody. */
static void attend(struct twins *t, uint32_t layer, const uint32_t *n_query,
                   const struct asked *how, const char *what) {
    struct step_plan parts = {.n = SEQS};
    size_t size = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        parts.n_query[i] = n_query[i];
        t->starts[i + 1] = t->starts[i] + (int32_t)n_query[i];
    }
    uint32_t rows = (uint32_t)t->starts[SEQS];
    struct asked a = ask_make(&t->plain, rows + 1, how->flags, &t->rng);
    a.window = how->window;
    a.softcap = how->softcap;
    tq_attend_params params = {.struct_size = sizeof params,
                               .flags = a.flags,
                               .logit_softcap = a.softcap,
                               .window = a.window};
    tq_rows_in q = rows_in(a.q);
    tq_rows_out out = rows_out(a.out);
    memset(a.out, 0xff, (rows + 1) * rig_out_row(&t->plain) * sizeof(float));
    tq_paged_seqs s = seqs_of(t, rows + 1);
    OK(tq_paged_workspace(t->engine.cache, SEQS, rows + 1, s.max_seq_len, &size));
    struct guarded work = guard_make(size, 0);
    uint64_t calls = t->engine.heap.calls;
    OK(tq_paged_attend(t->engine.cache, layer, &t->pool[layer], &s, &params, &q, &out, a.lse,
                       work.data, size, NULL));
    assert_true(t->engine.heap.calls == calls); /* no call allocates */
    guard_free(&work);
    for (uint32_t i = 0; i < SEQS; i++) {
        struct asked part = step_part(&t->plain, &parts, &a, i);
        check_part(&t->plain, t->seqs[i], layer, &part, what);
    }
    for (size_t i = 0; i < rig_out_row(&t->plain) * sizeof(float); i++)
        CHECK(((unsigned char *)(a.out + rows * rig_out_row(&t->plain)))[i] == 0xff,
              "%s: the row of nobody was written", what);
    ask_free(&a);
}

static void grow(struct twins *t, const uint32_t *n_append) {
    for (uint32_t i = 0; i < SEQS; i++)
        t->lengths[i] += (int32_t)n_append[i];
}

/* Full pages hold the bytes that the library's own hold. */
static void check_bytes(const struct twins *t, uint32_t layer) {
    uint32_t tokens = t->plain.c.page_tokens;
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t p = 0; p < (uint32_t)t->lengths[i] / tokens; p++)
            for (uint32_t h = 0; h < KV_HEADS; h++) {
                size_t size = 0;
                uint8_t *want = page_bytes(&t->plain, t->seqs[i], layer, p, h, &size);
                const uint8_t *got = (const uint8_t *)t->pools[layer].data +
                                     t->table[i * (TABLE + 2) + p] * t->pool[layer].page_stride +
                                     h * size;
                size_t same = 0;
                for (size_t b = 0; b < size; b++)
                    same += got[b] == want[b] || (want[b] == 0 && got[b] == GUARD_FILL);
                CHECK(same == size, "sequence %u, page %u, head %u", i, p, h);
                free(want);
            }
}

static const struct {
    uint32_t n_append[SEQS], n_query[SEQS];
    struct asked how;
} steps[] = {
    {{40, 1, 0, 33, 7}, {40, 1, 1, 2, 0}, {.flags = TQ_ATTEND_CAUSAL}},
    {{1, 1, 0, 1, 1}, {1, 1, 1, 1, 1}, {.flags = TQ_ATTEND_CAUSAL}},
    {{0, 64, 0, 31, 90}, {0, 3, 0, 31, 0}, {.flags = 0}},
    {{5, 2, 0, 5, 5}, {5, 1, 2, 5, 5}, {.flags = TQ_ATTEND_CAUSAL, .window = 20}},
    {{3, 0, 0, 1, 2}, {3, 1, 1, 1, 2}, {.flags = 0, .softcap = 5}},
};

static void run(const tq_cache_config *c, const tq_executor *executor, const char *name) {
    static struct twins t;
    twins_open(&t, c, executor);
    for (size_t s = 0; s < COUNT(steps); s++) {
        char what[64];
        (void)snprintf(what, sizeof what, "%s, step %zu", name, s);
        for (uint32_t l = 0; l < c->n_layers; l++)
            append(&t, l, steps[s].n_append);
        grow(&t, steps[s].n_append);
        for (uint32_t l = 0; l < c->n_layers; l++)
            attend(&t, l, steps[s].n_query, &steps[s].how, what);
    }
    for (uint32_t l = 0; l < c->n_layers; l++)
        check_bytes(&t, l);
    assert_int_equal(rig_stats(&t.engine).pages_used, 0);
    assert_true(rig_stats(&t.plain).nan_values > 0);
    assert_true(rig_stats(&t.engine).nan_values == rig_stats(&t.plain).nan_values);
    twins_close(&t);
}

static void test_all_variants(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_cache_config c = plain_config(variant_at(i).id, 64, KV_HEADS, GROUP);
        c.n_layers = LAYERS;
        c.page_tokens = 16;
        run(&c, NULL, variant_at(i).name);
    }
}

/* Tokens of a page share words at 2 and 3 bits: workers must not meet there. */
static void test_workers(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        struct test_threads threads = {.n_workers = n};
        tq_executor executor = test_executor(&threads);
        tq_cache_config c = plain_config(TQ_VARIANT_3BIT_NC, 80, KV_HEADS, GROUP);
        c.n_layers = LAYERS;
        c.page_tokens = 16;
        run(&c, &executor, "workers");
    }
}

/* ---- windows ----------------------------------------------------------------------------- */

/* An engine gives pages before the window away: their ids may be anything. */
static void test_pages_before_the_window(void **state) {
    (void)state;
    static struct twins t;
    static const uint32_t n_append[SEQS] = {100, 90, 80, 33, 17}, n_query[SEQS] = {3, 1, 2, 1, 1};
    struct asked how = {.flags = TQ_ATTEND_CAUSAL, .window = 20};
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, 64, KV_HEADS, GROUP);
    c.page_tokens = 16;
    twins_open(&t, &c, NULL);
    append(&t, 0, n_append);
    grow(&t, n_append);
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t p = 0; (p + 1) * 16 + 20 + n_query[i] <= n_append[i] + 1; p++)
            t.table[i * (TABLE + 2) + p] = INT32_MAX;
    assert_int_equal(t.table[0], INT32_MAX);
    attend(&t, 0, n_query, &how, "window");
    twins_close(&t);
}

/* ---- slots ------------------------------------------------------------------------------- */

/* The last of two tokens for a slot stays. */
static void test_slot_named_twice(void **state) {
    (void)state;
    static struct twins t;
    static const uint32_t one[SEQS] = {1};
    static const int64_t slots[] = {32, 32, 32};
    struct asked how = {.flags = 0};
    struct test_threads threads = {.n_workers = 2};
    tq_executor executor = test_executor(&threads);
    tq_cache_config c = plain_config(TQ_VARIANT_2BIT_NC, 64, KV_HEADS, GROUP);
    c.page_tokens = 16;
    twins_open(&t, &c, &executor);
    float *k = random_rows(&t.rng, 3 * rig_k_row(&t.plain), 1);
    tq_rows_in rows = rows_in(k);
    OK(tq_paged_append(t.engine.cache, 0, &t.pool[0], slots, 3, &rows, &rows, NULL));
    rig_append(&t.plain, t.seqs[0], 0, 1, k + 2 * rig_k_row(&t.plain), k + 2 * rig_k_row(&t.plain));
    t.table[0] = 2;
    t.lengths[0] = 1;
    attend(&t, 0, one, &how, "slot named twice");
    free(k);
    twins_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_variants),
        cmocka_unit_test(test_workers),
        cmocka_unit_test(test_pages_before_the_window),
        cmocka_unit_test(test_slot_named_twice),
    };
    return cmocka_run_group_tests_name("paged", tests, NULL, NULL);
}
