/* Sink tokens and a recent window in 16 bits: random operations against lists of tokens that
 * know which are exact. A token that has left the window stays coded for ever. B58. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"
#include "common/numbers.h"
#include "common/step.h"

enum { DIM = 64, V_DIM = 32, HEADS = 2, GROUP = 2, LAYERS = 2, N_ROWS = 200, MOST = 400, SEQS = 5 };

/* Random tokens: as they are appended, in 16 bits, and as codes give them back. */
struct rows {
    size_t k_row, v_row;
    float *k, *v, *k_half, *v_half, *k_coded, *v_coded;
};

static float *halves(const float *rows, size_t n, tq_dtype dtype) {
    void *half = convert_rows(rows, n, dtype);
    float *wide = widen_rows(half, n, dtype);
    free(half);
    return wide;
}

/* rounded: whether codes are made of rows in 16 bits. */
static struct rows rows_make(const tq_cache_config *c, uint32_t layer, tq_dtype half, int rounded) {
    struct rng rng = {layer + 1};
    struct rig r = {0};
    tq_cache_config plain = *c;
    plain.sink_tokens = plain.recent_tokens = 0;
    rig_open(&r, &plain);
    struct rows t = {.k_row = rig_k_row(&r), .v_row = rig_v_row(&r)};
    t.k = random_rows(&rng, N_ROWS * t.k_row, 1);
    t.v = random_rows(&rng, N_ROWS * t.v_row, 1);
    t.k_half = halves(t.k, N_ROWS * t.k_row, half);
    t.v_half = halves(t.v, N_ROWS * t.v_row, half);
    t.k_coded = must_alloc(N_ROWS * t.k_row, sizeof *t.k_coded);
    t.v_coded = must_alloc(N_ROWS * t.v_row, sizeof *t.v_coded);
    tq_seq seq = rig_seq(&r);
    rig_append(&r, seq, layer, N_ROWS, rounded ? t.k_half : t.k, rounded ? t.v_half : t.v);
    rig_read(&r, seq, layer, 0, N_ROWS, t.k_coded, t.v_coded);
    rig_close(&r);
    return t;
}

static void rows_free(struct rows *t) {
    free(t->k);
    free(t->v);
    free(t->k_half);
    free(t->v_half);
    free(t->k_coded);
    free(t->v_coded);
}

/* ---- the model ------------------------------------------------------------------------- */

struct list {
    uint32_t n, token[MOST];
    uint8_t exact[MOST];
};

struct model {
    struct rig rig;
    struct rng rng;
    struct rows rows[LAYERS];
    tq_seq id[SEQS]; /* 0 = none */
    struct list list[SEQS][LAYERS];
    tq_dtype dtype; /* of appended rows */
    tq_batch *batch;
    uint32_t steps;
};

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* A token is exact as long as it is among the first tokens and all before it are exact too, or
 * among the last ones and all behind it are. */
static void settle(const struct model *m, struct list *l) {
    uint32_t head = 0, tail = 0;
    while (head < l->n && head < m->rig.c.sink_tokens && l->exact[head])
        head++;
    while (tail < l->n && tail < m->rig.c.recent_tokens && l->exact[l->n - 1 - tail])
        tail++;
    for (uint32_t i = 0; i < l->n; i++)
        l->exact[i] = i < head || i >= l->n - tail;
}

static void add(struct list *l, const uint32_t *tokens, uint32_t n) {
    memcpy(l->token + l->n, tokens, n * sizeof *tokens);
    memset(l->exact + l->n, 1, n);
    l->n += n;
}

static void cut(const struct model *m, struct list *l, uint32_t n) {
    l->n = n;
    settle(m, l);
}

static float *gather(const float *rows, size_t row, const uint32_t *list, uint32_t n) {
    float *out = must_alloc(n, row * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * row, rows + list[i] * row, row * sizeof *out);
    return out;
}

/* ---- checks ---------------------------------------------------------------------------- */

static void check_side(const struct list *l, const float *got, const float *half,
                       const float *coded, size_t row, const char *what) {
    for (uint32_t t = 0; t < l->n; t++) {
        int exact = l->exact[t];
        const float *want = (exact ? half : coded) + l->token[t] * row;
        CHECK(memcmp(got + t * row, want, row * sizeof *got) == 0, "%s: token %u of %u, exact %d",
              what, t, l->n, exact);
    }
}

static void check_layer(struct model *m, tq_seq id, uint32_t layer, const struct list *l) {
    const struct rows *t = &m->rows[layer];
    char what[64];
    (void)snprintf(what, sizeof what, "step %u, layer %u", m->steps, layer);
    assert_int_equal(rig_length(&m->rig, id, layer), l->n);
    float *k = must_alloc(l->n + 1, t->k_row * sizeof *k);
    float *v = must_alloc(l->n + 1, t->v_row * sizeof *v);
    rig_read(&m->rig, id, layer, 0, l->n, k, v);
    check_side(l, k, t->k_half, t->k_coded, t->k_row, what);
    check_side(l, v, t->v_half, t->v_coded, t->v_row, what);
    free(k);
    free(v);
    struct asked a = ask_make(&m->rig, 1 + rng_below(&m->rng, 5), TQ_ATTEND_CAUSAL, &m->rng);
    a.window = rng_below(&m->rng, 2) ? rng_below(&m->rng, 90) : 0;
    a.softcap = rng_below(&m->rng, 3) ? 0 : 4;
    ask(&m->rig, id, layer, &a);
    JUSTIFIED(judge(&m->rig, id, layer, &a), "%s, window %u", what, a.window);
    ask_free(&a);
}

static void check_all(struct model *m) {
    for (uint32_t s = 0; s < SEQS; s++)
        for (uint32_t l = 0; m->id[s] && l < LAYERS; l++)
            check_layer(m, m->id[s], l, &m->list[s][l]);
}

/* ---- operations ------------------------------------------------------------------------ */

static void pick_tokens(struct model *m, uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = rng_below(&m->rng, N_ROWS);
}

static void append_layer(struct model *m, uint32_t s, uint32_t layer, const uint32_t *tokens,
                         uint32_t n) {
    const struct rows *t = &m->rows[layer];
    float *k = gather(t->k, t->k_row, tokens, n), *v = gather(t->v, t->v_row, tokens, n);
    void *k_as = convert_rows(k, n * t->k_row, m->dtype),
         *v_as = convert_rows(v, n * t->v_row, m->dtype);
    tq_rows_in keys = {.data = k_as, .dtype = m->dtype}, values = {.data = v_as, .dtype = m->dtype};
    OK(tq_append(m->rig.cache, m->id[s], layer, n, &keys, &values, NULL));
    add(&m->list[s][layer], tokens, n);
    settle(m, &m->list[s][layer]);
    free(k);
    free(v);
    free(k_as);
    free(v_as);
}

/* Layers take different splits of the same number of tokens. */
static void append(struct model *m, uint32_t s) {
    uint32_t n = 1 + rng_below(&m->rng, rng_below(&m->rng, 2) ? 3 : 70), tokens[70];
    if (m->list[s][0].n + n > MOST)
        return;
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t first = rng_below(&m->rng, n + 1);
        pick_tokens(m, tokens, n);
        if (first)
            append_layer(m, s, l, tokens, first);
        if (first < n)
            append_layer(m, s, l, tokens + first, n - first);
    }
}

static void fork(struct model *m, uint32_t s, uint32_t to) {
    uint32_t n = rng_below(&m->rng, m->list[s][0].n + 1);
    if (m->id[to])
        return;
    m->id[to] = rig_fork(&m->rig, m->id[s], n);
    for (uint32_t l = 0; l < LAYERS; l++) {
        m->list[to][l] = m->list[s][l];
        cut(m, &m->list[to][l], n);
    }
}

static void truncate_to(struct model *m, uint32_t s) {
    uint32_t length = m->list[s][0].n, n = length - rng_below(&m->rng, least(length, 60) + 1);
    OK(tq_seq_truncate(m->rig.cache, m->id[s], n));
    for (uint32_t l = 0; l < LAYERS; l++)
        cut(m, &m->list[s][l], n);
}

static void remove_some(struct model *m, uint32_t s) {
    uint32_t length = m->list[s][0].n, first = rng_below(&m->rng, length + 1);
    uint32_t n = rng_below(&m->rng, length - first + 1);
    OK(tq_seq_remove(m->rig.cache, m->id[s], first, n));
    for (uint32_t i = 0; n && i < LAYERS; i++) {
        struct list *l = &m->list[s][i];
        uint32_t behind = length - first - n;
        memmove(l->token + first, l->token + first + n, behind * sizeof *l->token);
        memmove(l->exact + first, l->exact + first + n, behind);
        cut(m, l, length - n);
    }
}

static void swap(struct model *m, uint32_t a, uint32_t b) {
    const tq_seq ids[2] = {m->id[a], m->id[b]};
    static const uint32_t parents[] = {1, 1};
    if (a == b || !ids[0] || !ids[1])
        return;
    OK(tq_seq_reorder(m->rig.cache, 2, ids, parents));
    memcpy(m->list[a], m->list[b], sizeof m->list[a]);
}

/* All tokens of a step are exact until it is committed. */
static void step(struct model *m, uint32_t s) {
    uint32_t n = 1 + rng_below(&m->rng, 40), keep = rng_below(&m->rng, n + 1), tokens[40];
    tq_batch_desc desc = {
        .struct_size = sizeof desc, .n_seqs = 1, .seqs = &m->id[s], .n_append = &n};
    if (m->list[s][0].n + n > MOST)
        return;
    OK(tq_batch_plan(m->batch, &desc, NULL));
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct rows *t = &m->rows[l];
        pick_tokens(m, tokens, n);
        float *k = gather(t->k, t->k_row, tokens, n), *v = gather(t->v, t->v_row, tokens, n);
        tq_rows_in keys = rows_in(k), values = rows_in(v);
        OK(tq_batch_append(m->batch, l, &keys, &values, NULL));
        add(&m->list[s][l], tokens, n);
        if (!m->rig.c.recent_tokens)
            settle(m, &m->list[s][l]);
        struct asked a = ask_make(&m->rig, n, TQ_ATTEND_CAUSAL, &m->rng);
        tq_attend_params p = {.struct_size = sizeof p, .flags = TQ_ATTEND_CAUSAL};
        tq_rows_in q = rows_in(a.q);
        tq_rows_out out = rows_out(a.out);
        OK(tq_batch_attend(m->batch, l, &p, &q, &out, a.lse, NULL));
        JUSTIFIED(judge(&m->rig, m->id[s], l, &a), "step %u, batch", m->steps);
        ask_free(&a);
        check_layer(m, m->id[s], l, &m->list[s][l]);
        free(k);
        free(v);
    }
    OK(tq_batch_commit(m->batch, &keep));
    for (uint32_t l = 0; l < LAYERS; l++)
        cut(m, &m->list[s][l], m->list[s][l].n - n + keep);
}

static void operate(struct model *m) {
    uint32_t s = rng_below(&m->rng, SEQS), other = rng_below(&m->rng, SEQS);
    m->steps++;
    if (!m->id[s]) {
        m->id[s] = rig_seq(&m->rig);
        memset(m->list[s], 0, sizeof m->list[s]);
        return;
    }
    switch (rng_below(&m->rng, 12)) {
    case 0:
        fork(m, s, other);
        break;
    case 1:
        truncate_to(m, s);
        break;
    case 2:
        remove_some(m, s);
        break;
    case 3:
        swap(m, s, other);
        break;
    case 4:
        OK(tq_seq_destroy(m->rig.cache, m->id[s]));
        m->id[s] = 0;
        break;
    case 5:
    case 6:
        if (m->dtype == TQ_F32)
            step(m, s);
        break;
    default:
        append(m, s);
    }
}

static const tq_layer_formats formats[LAYERS] = {{TQ_FORMAT_LM3, TQ_FORMAT_LM4},
                                                 {TQ_FORMAT_LM2_QJL, TQ_FORMAT_FP8}};

static tq_cache_config config_of(uint32_t sinks, uint32_t recent) {
    tq_cache_config c = pair_config(formats, DIM, HEADS, GROUP);
    c.v_head_dim = V_DIM;
    c.n_layers = LAYERS;
    c.page_tokens = 32;
    c.max_seqs = SEQS;
    c.sink_tokens = sinks;
    c.recent_tokens = recent;
    return c;
}

static void run_model(uint32_t sinks, uint32_t recent, tq_dtype dtype, uint64_t max_pages) {
    static struct model m;
    tq_cache_config c = config_of(sinks, recent);
    memset(&m, 0, sizeof m);
    m.rng.state = sinks * 1000 + recent;
    m.dtype = dtype;
    c.max_pages = max_pages;
    for (uint32_t l = 0; l < LAYERS; l++)
        m.rows[l] =
            rows_make(&c, l, dtype == TQ_F16 ? TQ_F16 : TQ_BF16, recent > 0 || dtype != TQ_F32);
    rig_open(&m.rig, &c);
    assert_int_equal(m.rig.c.sink_tokens, (sinks + 15) / 16 * 16);
    OK(tq_batch_create(m.rig.cache, 2, 64, &m.batch));
    for (uint32_t i = 0; i < 300 / FEWER; i++) {
        operate(&m);
        if (i % 4 == 0)
            check_all(&m);
    }
    for (uint32_t s = 0; s < SEQS; s++)
        if (m.id[s])
            OK(tq_seq_destroy(m.rig.cache, m.id[s]));
    assert_int_equal(rig_stats(&m.rig).protected_bytes, 0); /* every page has come back */
    tq_batch_destroy(m.batch);
    for (uint32_t l = 0; l < LAYERS; l++)
        rows_free(&m.rows[l]);
    rig_close(&m.rig);
}

static void test_model(void **state) {
    (void)state;
    run_model(4, 40, TQ_F32, 0);
    run_model(32, 7, TQ_F16, 0);
    run_model(0, 64, TQ_BF16, 0);
    run_model(0, 1, TQ_F32, 100);
}

/* Without a window codes are made of the rows as they come. */
static void test_model_of_sinks(void **state) {
    (void)state;
    run_model(20, 0, TQ_F32, 0);
    run_model(20, 0, TQ_BF16, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_model_of_sinks),
    };
    return cmocka_run_group_tests_name("protected tokens against a model", tests, NULL, NULL);
}
