/* Thousands of random operations on a cache and on a model made of plain lists
 * (common/seq_model.h), which knows the status of every call, every counter, and every answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"
#include "common/cache.h"
#include "common/seq_model.h"
#include "common/table.h"

enum { LAYERS = MODEL_LAYERS, MOST_SEQS = 7, MOST_TOKENS = MODEL_TOKENS, TOKENS = 150, STALE = 64 };

static const tq_layer_formats formats[LAYERS] = {{TQ_FORMAT_LM3, TQ_FORMAT_LM4},
                                                 {TQ_FORMAT_BF16, TQ_FORMAT_LM2},
                                                 {TQ_FORMAT_LM2_QJL, TQ_FORMAT_INT8}};

struct model {
    struct rig rig, other; /* other: a cache on the way of copies */
    struct rng rng;
    struct table table[LAYERS];
    struct model_seq seqs[MOST_SEQS];
    struct model_pool pool;
    tq_seq stale[STALE];
    uint32_t n_stale, step;
    uint32_t done[16], refused, without_pages; /* counted, so that no operation goes missing */
    char what[64];
};

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* ---- operations ------------------------------------------------------------------------ */

static struct model_seq *pick(struct model *m, int alive) {
    uint32_t first = rng_below(&m->rng, MOST_SEQS);
    for (uint32_t i = 0; i < MOST_SEQS; i++) {
        struct model_seq *s = &m->seqs[(first + i) % MOST_SEQS];
        if ((s->id != 0) == alive)
            return s;
    }
    return NULL;
}

/* A call that must be refused, or must not. */
static int expect(struct model *m, tq_status got, tq_status want) {
    CHECK(got == want, "%s: %s instead of %s: %s", m->what, tq_status_name(got),
          tq_status_name(want), tq_last_error());
    m->refused += got != TQ_OK;
    return got == TQ_OK;
}

static void op_create(struct model *m) {
    struct model_seq *s = pick(m, 0);
    tq_seq id = 0;
    if (!expect(m, tq_seq_create(m->rig.cache, &id), s ? TQ_OK : TQ_ERR_INVALID_STATE))
        return;
    memset(s, 0, sizeof *s);
    s->id = id;
}

static void forget(struct model *m, struct model_seq *s) {
    model_keep_pages(&m->pool, s, 0);
    m->stale[m->n_stale++ % STALE] = s->id;
    s->id = 0;
}

static void op_destroy(struct model *m) {
    struct model_seq *s = pick(m, 1);
    if (s && expect(m, tq_seq_destroy(m->rig.cache, s->id), TQ_OK))
        forget(m, s);
}

static void op_reset(struct model *m) {
    if (rng_below(&m->rng, 20))
        return;
    OK(tq_cache_reset(m->rig.cache));
    for (int i = 0; i < MOST_SEQS; i++)
        if (m->seqs[i].id)
            forget(m, &m->seqs[i]);
}

static void append(struct model *m, struct model_seq *s, uint32_t layer, uint32_t n) {
    uint32_t list[MOST_TOKENS] = {0}, start = s->n[layer];
    n = least(n, MOST_TOKENS - start);
    for (uint32_t i = 0; i < n; i++)
        list[i] = rng_below(&m->rng, TOKENS);
    int room = n == 0 || model_make_room(&m->pool, s, start / m->rig.c.page_tokens,
                                         model_pages_for(&m->pool, start + n));
    tq_status status = table_append(&m->table[layer], m->rig.cache, s->id, layer, list, n);
    m->without_pages += !room;
    if (!expect(m, status, room ? TQ_OK : TQ_ERR_OUT_OF_PAGES))
        return;
    model_append(&m->pool, s, layer, list, n);
}

/* To one layer, or as a model does: the same number to each. */
static void op_append(struct model *m) {
    struct model_seq *s = pick(m, 1);
    uint32_t n = 1 + rng_below(&m->rng, rng_below(&m->rng, 3) ? 10 : 70);
    if (!s)
        return;
    if (rng_below(&m->rng, 4) == 0) {
        append(m, s, rng_below(&m->rng, LAYERS), n);
        return;
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        append(m, s, l, model_longest(s) + n - s->n[l]);
}

/* What fork and truncate say to a length. */
static tq_status prefix_status(const struct model_seq *s, uint32_t n) {
    return n > model_longest(s)    ? TQ_ERR_INVALID_ARGUMENT
           : n > model_shortest(s) ? TQ_ERR_INVALID_STATE
                                   : TQ_OK;
}

static void op_truncate(struct model *m) {
    struct model_seq *s = pick(m, 1);
    if (!s)
        return;
    uint32_t n = rng_below(&m->rng, model_longest(s) + 3);
    if (expect(m, tq_seq_truncate(m->rig.cache, s->id, n), prefix_status(s, n)))
        model_truncate(&m->pool, s, n);
}

static void op_fork(struct model *m) {
    struct model_seq *s = pick(m, 1), *to = pick(m, 0);
    tq_seq id = 0;
    if (!s)
        return;
    int all = rng_below(&m->rng, 3) == 0;
    uint32_t n = all ? model_longest(s) : rng_below(&m->rng, model_longest(s) + 3);
    tq_status want = prefix_status(s, n);
    if (want != TQ_OK && !to)
        return; /* wrong for two reasons, and tq.h does not rank them */
    want = to ? want : TQ_ERR_INVALID_STATE;
    if (!expect(m, tq_seq_fork(m->rig.cache, s->id, all ? UINT64_MAX : n, &id), want))
        return;
    model_share(&m->pool, s, to, n);
    to->id = id;
}

/* Any range, or one that moves whole pages. */
static void op_remove(struct model *m) {
    struct model_seq *s = pick(m, 1);
    if (!s)
        return;
    uint32_t length = model_longest(s), first = rng_below(&m->rng, length + 1);
    uint32_t n = rng_below(&m->rng, least(length - first + 2, 40));
    if (rng_below(&m->rng, 3) == 0)
        n = rng_below(&m->rng, 3) * m->rig.c.page_tokens;
    tq_status want = prefix_status(s, first + n);
    int room = want != TQ_OK || model_remove(&m->pool, s, first, n);
    m->without_pages += !room;
    expect(m, tq_seq_remove(m->rig.cache, s->id, first, n), room ? want : TQ_ERR_OUT_OF_PAGES);
}

/* Some sequences in a random order take over from random parents. */
static void op_reorder(struct model *m) {
    uint32_t parents[MOST_SEQS], n = 0;
    struct model_seq *seqs[MOST_SEQS];
    tq_seq ids[MOST_SEQS];
    tq_status want = TQ_OK;
    for (uint32_t i = 0; i < MOST_SEQS; i++) {
        struct model_seq *s = &m->seqs[i];
        if (!s->id || rng_below(&m->rng, 3) == 0)
            continue;
        uint32_t at = rng_below(&m->rng, ++n); /* a shuffle, as it grows */
        seqs[n - 1] = seqs[at];
        seqs[at] = s;
        if (model_longest(s) != model_shortest(s))
            want = TQ_ERR_INVALID_STATE;
    }
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = seqs[i]->id;
        parents[i] = rng_below(&m->rng, n);
    }
    if (expect(m, tq_seq_reorder(m->rig.cache, n, ids, parents), want))
        model_reorder(&m->pool, n, seqs, parents);
}

/* A range to pick from a sequence; more often than not it exists. */
static struct model_seq *pick_range(struct model *m, uint32_t *first, uint32_t *n) {
    struct model_seq *s = pick(m, 1);
    if (!s)
        return NULL;
    uint32_t length = model_longest(s);
    *first = rng_below(&m->rng, length + 1);
    *n = rng_below(&m->rng, length - *first + 2);
    if (rng_below(&m->rng, 3) == 0)
        *first = *first / m->rig.c.page_tokens * m->rig.c.page_tokens;
    return s;
}

/* To a new sequence. */
static void op_copy(struct model *m) {
    uint32_t first, n;
    struct model_seq *s = pick_range(m, &first, &n), *to = pick(m, 0);
    tq_seq id = 0;
    if (!s)
        return;
    tq_status want = prefix_status(s, first + n), got;
    if (want != TQ_OK && !to)
        return;
    if (to)
        memset(to, 0, sizeof *to);
    if (want == TQ_OK && !to)
        want = TQ_ERR_INVALID_STATE;
    else if (want == TQ_OK && !model_add_range(&m->pool, to, s, first, n))
        want = TQ_ERR_OUT_OF_PAGES;
    m->without_pages += want == TQ_ERR_OUT_OF_PAGES;
    int exists = first + n <= model_shortest(s);
    uint32_t way = exists ? rng_below(&m->rng, 3) : 0;
    got = way == 0   ? tq_seq_copy(m->rig.cache, m->rig.cache, s->id, first, n, &id)
          : way == 1 ? blob_copy_by(&m->rig, s->id, first, n, &m->other, &id)
                     : blob_reload(&m->rig, s->id, first, n, &id);
    if (expect(m, got, want))
        to->id = id;
}

/* Behind another sequence, or behind itself. */
static void op_load_append(struct model *m) {
    uint32_t first, n;
    struct model_seq *s = pick_range(m, &first, &n), *to = pick(m, 1);
    if (!s || first + n > model_shortest(s) || model_longest(to) + n > MOST_TOKENS)
        return;
    struct blob b = blob_save_range(&m->rig, s->id, first, n);
    tq_status want = model_longest(to) != model_shortest(to)      ? TQ_ERR_INVALID_STATE
                     : model_add_range(&m->pool, to, s, first, n) ? TQ_OK
                                                                  : TQ_ERR_OUT_OF_PAGES;
    m->without_pages += want == TQ_ERR_OUT_OF_PAGES;
    expect(m, tq_seq_load_append(m->rig.cache, to->id, b.bytes, b.size), want);
    blob_free(&b);
}

static void op_attend(struct model *m) {
    struct model_seq *s = pick(m, 1);
    if (!s)
        return;
    uint32_t l = rng_below(&m->rng, LAYERS), n_queries = 1 + rng_below(&m->rng, 4);
    struct asked a =
        ask_make(&m->rig, n_queries, rng_below(&m->rng, 2) ? TQ_ATTEND_CAUSAL : 0, &m->rng);
    ask(&m->rig, s->id, l, &a);
    table_judge_kept(&m->table[l], &m->rig, s->list[l], s->exact[l], s->n[l], &a, m->what);
    ask_free(&a);
}

static void op_stale(struct model *m) {
    if (!m->n_stale)
        return;
    tq_seq id = m->stale[rng_below(&m->rng, least(m->n_stale, STALE))], out = 0;
    uint64_t length = 0;
    uint32_t one = 0;
    expect(m, tq_seq_length(m->rig.cache, id, 0, &length), TQ_ERR_NOT_FOUND);
    expect(m, tq_seq_fork(m->rig.cache, id, 0, &out), TQ_ERR_NOT_FOUND);
    expect(m, tq_seq_truncate(m->rig.cache, id, 0), TQ_ERR_NOT_FOUND);
    expect(m, tq_seq_remove(m->rig.cache, id, 0, 0), TQ_ERR_NOT_FOUND);
    expect(m, tq_seq_reorder(m->rig.cache, 1, &id, &one), TQ_ERR_NOT_FOUND);
    expect(m, tq_seq_destroy(m->rig.cache, id), TQ_ERR_NOT_FOUND);
    expect(m, table_append(&m->table[0], m->rig.cache, id, 0, &one, 1), TQ_ERR_NOT_FOUND);
}

static const struct {
    const char *name;
    void (*run)(struct model *m);
    uint32_t weight; /* of 100 */
} operations[] = {
    {"append", op_append, 35},          {"attend", op_attend, 18},  {"fork", op_fork, 8},
    {"truncate", op_truncate, 5},       {"create", op_create, 6},   {"destroy", op_destroy, 8},
    {"remove", op_remove, 6},           {"reorder", op_reorder, 5}, {"copy", op_copy, 4},
    {"load behind", op_load_append, 2}, {"stale id", op_stale, 2},  {"reset", op_reset, 1}};

/* ---- comparison ------------------------------------------------------------------------ */

static void check_counters(const struct model *m) {
    tq_cache_stats s = rig_stats(&m->rig);
    uint64_t tokens = 0, seqs = 0;
    uint32_t shared = model_pages_shared(&m->pool), used = model_pages_used(&m->pool);
    for (int i = 0; i < MOST_SEQS; i++) {
        seqs += m->seqs[i].id != 0;
        tokens += m->seqs[i].id ? model_shortest(&m->seqs[i]) : 0;
        for (uint32_t l = 0; m->seqs[i].id && l < LAYERS; l++)
            CHECK(rig_length(&m->rig, m->seqs[i].id, l) == m->seqs[i].n[l], "%s: length", m->what);
    }
    CHECK(s.n_seqs == seqs, "%s: %u sequences", m->what, s.n_seqs);
    CHECK(s.tokens == tokens, "%s: %llu tokens", m->what, (unsigned long long)s.tokens);
    CHECK(s.pages_used == used, "%s: %llu pages instead of %u", m->what,
          (unsigned long long)s.pages_used, used);
    CHECK(s.pages_shared == shared, "%s: %llu pages shared", m->what,
          (unsigned long long)s.pages_shared);
}

static void check_contents(const struct model *m) {
    for (int i = 0; i < MOST_SEQS; i++)
        for (uint32_t l = 0; m->seqs[i].id && l < LAYERS; l++)
            table_check_kept(&m->table[l], &m->rig, m->seqs[i].id, l, m->seqs[i].list[l],
                             m->seqs[i].exact[l], m->seqs[i].n[l], m->what);
}

static void run_step(struct model *m, uint64_t seed) {
    uint32_t dice = rng_below(&m->rng, 100), op = 0;
    while (dice >= operations[op].weight)
        dice -= operations[op++].weight;
    (void)snprintf(m->what, sizeof m->what, "seed %llu, step %u, %s", (unsigned long long)seed,
                   m->step, operations[op].name);
    operations[op].run(m);
    m->done[op]++;
    check_counters(m);
    if (++m->step % 50 == 0)
        check_contents(m);
}

/* Every page has come back, of codes and of rows in 16 bits. */
static void end_sequences(struct model *m) {
    for (int i = 0; i < MOST_SEQS; i++)
        if (m->seqs[i].id)
            OK(tq_seq_destroy(m->rig.cache, m->seqs[i].id));
    assert_int_equal(rig_stats(&m->rig).pages_used, 0);
    assert_int_equal(rig_stats(&m->rig).protected_bytes, 0);
}

static tq_cache_config config_of(const struct model_pool *pool) {
    tq_cache_config c = pair_config(formats, 64, 1, 2);
    c.n_layers = LAYERS;
    c.page_tokens = pool->page_tokens;
    c.max_pages = pool->max_pages;
    c.sink_tokens = pool->sink_tokens;
    c.recent_tokens = pool->recent_tokens;
    c.max_seqs = MOST_SEQS;
    return c;
}

static void run_model(uint64_t seed, struct model_pool pool, uint32_t n_steps) {
    struct model *m = must_alloc(1, sizeof *m);
    tq_cache_config c = config_of(&pool);
    print_message("seed %llu\n", (unsigned long long)seed);
    m->rng.state = seed;
    m->pool = pool;
    rig_open(&m->rig, &c);
    c.max_pages = 0;
    rig_open(&m->other, &c);
    for (uint32_t l = 0; l < LAYERS; l++)
        m->table[l] = table_make(&c, l, TOKENS, seed + l);
    while (m->step < n_steps)
        run_step(m, seed);
    check_contents(m);
    for (size_t i = 0; i < COUNT(operations); i++)
        CHECK(m->done[i] * 200 >= n_steps * operations[i].weight, "too few: %s",
              operations[i].name);
    CHECK(m->refused * 100 >= n_steps, "only %u calls were refused", m->refused);
    CHECK(!pool.max_pages || m->without_pages * 100 >= n_steps, "pages ran out only %u times",
          m->without_pages);
    for (uint32_t l = 0; l < LAYERS; l++)
        table_free(&m->table[l]);
    end_sequences(m);
    rig_close(&m->rig);
    rig_close(&m->other);
    free(m);
}

static void test_model_with_few_pages(void **state) {
    (void)state;
    run_model(1, (struct model_pool){.page_tokens = 16, .max_pages = 45}, 12000 / FEWER);
}

static void test_model_with_larger_pages(void **state) {
    (void)state;
    run_model(2, (struct model_pool){.page_tokens = 64, .max_pages = 14}, 6000 / FEWER);
}

static void test_model_that_grows(void **state) {
    (void)state;
    run_model(3, (struct model_pool){.page_tokens = 32}, 6000 / FEWER);
}

/* The same with tokens in 16 bits beside their codes. */
static void test_model_with_sinks_and_window(void **state) {
    static const uint32_t kept[][2] = {{16, 40}, {32, 7}, {0, 64}, {48, 0}, {16, 1}};
    (void)state;
    for (uint64_t i = 0; i < COUNT(kept); i++)
        run_model(4 + i,
                  (struct model_pool){.page_tokens = i % 2 ? 32 : 16,
                                      .max_pages = i % 2 ? 0 : 45,
                                      .sink_tokens = kept[i][0],
                                      .recent_tokens = kept[i][1]},
                  5000 / FEWER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_with_few_pages),
        cmocka_unit_test(test_model_with_larger_pages),
        cmocka_unit_test(test_model_that_grows),
        cmocka_unit_test(test_model_with_sinks_and_window),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
