/* Thousands of random operations between batched steps and within them, on a cache and on a
 * model made of plain lists (common/seq_model.h) that knows every status, counter and answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"
#include "common/seq_model.h"
#include "common/step.h"
#include "common/table.h"

enum { LAYERS = MODEL_LAYERS, MOST_SEQS = 8, BATCHES = 2, MOST_ROWS = 90, TOKENS = 120 };

static const tq_layer_formats formats[LAYERS] = {{TQ_FORMAT_LM3, TQ_FORMAT_LM4},
                                                 {TQ_FORMAT_BF16, TQ_FORMAT_LM2},
                                                 {TQ_FORMAT_LM2_QJL, TQ_FORMAT_INT8}};

/* A step that is planned, and the tokens that it appends. */
struct planned {
    tq_batch *batch;
    struct step_plan step;
    struct model_seq *seqs[MOST_SEQS];
    uint32_t tokens[LAYERS][MOST_ROWS];
    uint32_t appended[LAYERS];
    int active;
};

struct model {
    struct rig rig;
    struct rng rng;
    struct table table[LAYERS];
    struct model_seq seqs[MOST_SEQS];
    int busy[MOST_SEQS];
    struct model_pool pool;
    struct planned batches[BATCHES];
    uint32_t step, done[16], refused, without_pages;
    char what[64];
};

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static int *busy_of(struct model *m, const struct model_seq *s) {
    return &m->busy[s - m->seqs];
}

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

/* ---- sequences one by one ---------------------------------------------------------------- */

static void op_create(struct model *m) {
    struct model_seq *s = pick(m, 0);
    tq_seq id = 0;
    if (!expect(m, tq_seq_create(m->rig.cache, &id), s ? TQ_OK : TQ_ERR_INVALID_STATE))
        return;
    memset(s, 0, sizeof *s);
    s->id = id;
}

static void op_destroy(struct model *m) {
    struct model_seq *s = pick(m, 1);
    if (!s)
        return;
    tq_status want = *busy_of(m, s) ? TQ_ERR_INVALID_STATE : TQ_OK;
    if (!expect(m, tq_seq_destroy(m->rig.cache, s->id), want))
        return;
    model_keep_pages(&m->pool, s, 0);
    s->id = 0;
}

static void op_truncate(struct model *m) {
    struct model_seq *s = pick(m, 1);
    if (!s)
        return;
    uint32_t n = rng_below(&m->rng, s->n[0] + 1);
    tq_status want = *busy_of(m, s) ? TQ_ERR_INVALID_STATE : TQ_OK;
    if (expect(m, tq_seq_truncate(m->rig.cache, s->id, n), want))
        model_truncate(&m->pool, s, n);
}

static void op_fork(struct model *m) {
    struct model_seq *s = pick(m, 1), *to = pick(m, 0);
    tq_seq id = 0;
    if (!s)
        return;
    uint32_t n = rng_below(&m->rng, s->n[0] + 1);
    tq_status want = *busy_of(m, s) || !to ? TQ_ERR_INVALID_STATE : TQ_OK;
    if (!expect(m, tq_seq_fork(m->rig.cache, s->id, n, &id), want))
        return;
    model_share(&m->pool, s, to, n);
    to->id = id;
}

/* The simple path among the steps. */
static void op_append(struct model *m) {
    struct model_seq *s = pick(m, 1);
    uint32_t list[MODEL_TOKENS] = {0};
    if (!s)
        return;
    uint32_t start = s->n[0], n = least(1 + rng_below(&m->rng, 30), MODEL_TOKENS - start);
    int busy = *busy_of(m, s);
    int room = busy || n == 0 ||
               model_make_room(&m->pool, s, start / m->rig.c.page_tokens,
                               model_pages_for(&m->pool, start + n));
    m->without_pages += !room;
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t i = 0; i < n; i++)
            list[i] = rng_below(&m->rng, TOKENS);
        tq_status want = busy ? TQ_ERR_INVALID_STATE : room ? TQ_OK : TQ_ERR_OUT_OF_PAGES;
        tq_status got = table_append(&m->table[l], m->rig.cache, s->id, l, list, n);
        if (!expect(m, got, want))
            continue;
        memcpy(s->list[l] + start, list, n * sizeof *list);
        s->n[l] += n;
    }
}

/* ---- plan -------------------------------------------------------------------------------- */

/* Some sequences in a random order, with counts that fit. */
static void choose(struct model *m, struct planned *p) {
    uint32_t rows = 0, queries = 0;
    p->step.n = 0;
    for (uint32_t i = 0; i < MOST_SEQS; i++) {
        struct model_seq *s = &m->seqs[i];
        if (!s->id || rng_below(&m->rng, 3) == 0)
            continue;
        uint32_t at = rng_below(&m->rng, ++p->step.n);
        p->seqs[p->step.n - 1] = p->seqs[at];
        p->seqs[at] = s;
    }
    for (uint32_t i = 0; i < p->step.n; i++) {
        const struct model_seq *s = p->seqs[i];
        uint32_t most = least(rng_below(&m->rng, 4) ? 3 : 60, MODEL_TOKENS - s->n[0]);
        uint32_t n = least(rng_below(&m->rng, most + 1), MOST_ROWS - rows);
        p->step.seqs[i] = s->id;
        p->step.n_append[i] = n;
        p->step.n_query[i] = least(rng_below(&m->rng, 5), MOST_ROWS - queries);
        rows += n;
        queries += p->step.n_query[i];
    }
}

static void op_plan(struct model *m) {
    struct planned *p = &m->batches[rng_below(&m->rng, BATCHES)];
    if (p->active) {
        expect(m, batch_plan(p->batch, &p->step), TQ_ERR_INVALID_STATE);
        return;
    }
    choose(m, p);
    for (uint32_t i = 0; i < p->step.n; i++)
        if (*busy_of(m, p->seqs[i])) {
            expect(m, batch_plan(p->batch, &p->step), TQ_ERR_INVALID_STATE);
            return;
        }
    int room = model_make_rooms(&m->pool, p->step.n, p->seqs, p->step.n_append);
    m->without_pages += !room;
    if (!expect(m, batch_plan(p->batch, &p->step), room ? TQ_OK : TQ_ERR_OUT_OF_PAGES))
        return;
    p->active = 1;
    memset(p->appended, 0, sizeof p->appended);
    for (uint32_t i = 0; i < p->step.n; i++)
        *busy_of(m, p->seqs[i]) = 1;
}

/* ---- layers of a step -------------------------------------------------------------------- */

static int all_appended(const struct planned *p) {
    int all = 1;
    for (uint32_t l = 0; l < LAYERS; l++)
        all &= p->appended[l] != 0;
    return all || step_appends(&p->step, p->step.n) == 0;
}

static void append_layer(struct model *m, struct planned *p, uint32_t l) {
    const struct table *t = &m->table[l];
    uint32_t rows = step_appends(&p->step, p->step.n), row = 0;
    float *k = must_alloc(MOST_ROWS * t->k_row, sizeof *k);
    float *v = must_alloc(MOST_ROWS * t->v_row, sizeof *v);
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t token = rng_below(&m->rng, TOKENS);
        p->tokens[l][i] = token;
        memcpy(k + i * t->k_row, t->k + token * t->k_row, t->k_row * sizeof *k);
        memcpy(v + i * t->v_row, t->v + token * t->v_row, t->v_row * sizeof *v);
    }
    tq_rows_in keys = rows_in(k), values = rows_in(v);
    tq_status want = p->appended[l] && rows ? TQ_ERR_INVALID_STATE : TQ_OK;
    if (expect(m, tq_batch_append(p->batch, l, &keys, &values, NULL), want)) {
        p->appended[l] = 1;
        for (uint32_t i = 0; i < p->step.n; i++, row += p->step.n_append[i - 1]) {
            struct model_seq *s = p->seqs[i];
            memcpy(s->list[l] + s->n[l], p->tokens[l] + row,
                   p->step.n_append[i] * sizeof(uint32_t));
            s->n[l] += p->step.n_append[i];
        }
    }
    free(k);
    free(v);
}

static void op_batch_append(struct model *m) {
    struct planned *p = &m->batches[rng_below(&m->rng, BATCHES)];
    if (!p->active)
        expect(m, tq_batch_cancel(p->batch), TQ_ERR_INVALID_STATE);
    for (uint32_t l = 0; p->active && l < LAYERS; l++)
        if (rng_below(&m->rng, 4))
            append_layer(m, p, l);
}

/* Each part of the step against attention in double over the list of its sequence. */
static void check_parts(struct model *m, const struct planned *p, uint32_t l,
                        const struct asked *a) {
    for (uint32_t i = 0; i < p->step.n; i++) {
        struct asked part = step_part(&m->rig, &p->step, a, i);
        check_part(&m->rig, p->seqs[i]->id, l, &part, m->what);
        table_judge(&m->table[l], &m->rig, p->seqs[i]->list[l], p->seqs[i]->n[l], &part, m->what);
    }
}

static void op_batch_attend(struct model *m) {
    struct planned *p = &m->batches[rng_below(&m->rng, BATCHES)];
    uint32_t l = rng_below(&m->rng, LAYERS);
    if (!p->active)
        return;
    uint32_t n = step_queries(&p->step, p->step.n);
    struct asked a = ask_make(&m->rig, n, rng_below(&m->rng, 2) ? TQ_ATTEND_CAUSAL : 0, &m->rng);
    if (step_appends(&p->step, p->step.n) && !p->appended[l]) {
        tq_rows_in q = rows_in(a.q);
        tq_rows_out out = rows_out(a.out);
        expect(m, tq_batch_attend(p->batch, l, NULL, &q, &out, a.lse, NULL), TQ_ERR_INVALID_STATE);
    } else {
        batch_ask(&m->rig, p->batch, l, &a);
        check_parts(m, p, l, &a);
    }
    ask_free(&a);
}

/* ---- commit and cancel ------------------------------------------------------------------- */

static void end_step(struct model *m, struct planned *p, const uint32_t *keep) {
    p->active = 0;
    for (uint32_t i = 0; i < p->step.n; i++) {
        struct model_seq *s = p->seqs[i];
        uint32_t before = s->n[0] - (p->appended[0] ? p->step.n_append[i] : 0);
        for (uint32_t l = 0; l < LAYERS; l++)
            s->n[l] = before + keep[i];
        model_keep_pages(&m->pool, s, model_pages_for(&m->pool, before + keep[i]));
        *busy_of(m, s) = 0;
    }
}

static void op_commit(struct model *m) {
    struct planned *p = &m->batches[rng_below(&m->rng, BATCHES)];
    uint32_t keep[MOST_SEQS] = {0};
    int some = rng_below(&m->rng, 2) != 0;
    if (!p->active)
        return;
    for (uint32_t i = 0; i < p->step.n; i++)
        keep[i] = some ? rng_below(&m->rng, p->step.n_append[i] + 1) : p->step.n_append[i];
    tq_status want = all_appended(p) ? TQ_OK : TQ_ERR_INVALID_STATE;
    if (expect(m, tq_batch_commit(p->batch, some ? keep : NULL), want))
        end_step(m, p, keep);
}

static void op_cancel(struct model *m) {
    struct planned *p = &m->batches[rng_below(&m->rng, BATCHES)];
    uint32_t keep[MOST_SEQS] = {0};
    if (expect(m, tq_batch_cancel(p->batch), p->active ? TQ_OK : TQ_ERR_INVALID_STATE))
        end_step(m, p, keep);
}

static const struct {
    const char *name;
    void (*run)(struct model *m);
    uint32_t weight; /* of 100 */
} operations[] = {{"plan", op_plan, 18},
                  {"batch append", op_batch_append, 20},
                  {"batch attend", op_batch_attend, 14},
                  {"commit", op_commit, 14},
                  {"cancel", op_cancel, 4},
                  {"append", op_append, 9},

                  {"create", op_create, 6},
                  {"fork", op_fork, 6},
                  {"truncate", op_truncate, 5},
                  {"destroy", op_destroy, 4}};

/* ---- comparison -------------------------------------------------------------------------- */

static void check_counters(const struct model *m) {
    tq_cache_stats s = rig_stats(&m->rig);
    for (int i = 0; i < MOST_SEQS; i++)
        for (uint32_t l = 0; m->seqs[i].id && l < LAYERS; l++)
            CHECK(rig_length(&m->rig, m->seqs[i].id, l) == m->seqs[i].n[l], "%s: length", m->what);
    CHECK(s.pages_used == model_pages_used(&m->pool), "%s: %llu pages instead of %u", m->what,
          (unsigned long long)s.pages_used, model_pages_used(&m->pool));
    CHECK(s.pages_shared == model_pages_shared(&m->pool), "%s: %llu pages shared", m->what,
          (unsigned long long)s.pages_shared);
}

static void check_contents(const struct model *m) {
    for (int i = 0; i < MOST_SEQS; i++)
        for (uint32_t l = 0; m->seqs[i].id && l < LAYERS; l++)
            table_check(&m->table[l], &m->rig, m->seqs[i].id, l, m->seqs[i].list[l],
                        m->seqs[i].n[l], m->what);
}

static void run_operation(struct model *m, uint64_t seed) {
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

static void run_model(uint64_t seed, uint64_t max_pages, uint32_t page_tokens, uint32_t n_steps,
                      const tq_executor *executor) {
    struct model *m = must_alloc(1, sizeof *m);
    tq_cache_config c = pair_config(formats, 64, 1, 2);
    c.n_layers = LAYERS;
    c.page_tokens = page_tokens;
    c.max_pages = max_pages;
    c.max_seqs = MOST_SEQS;
    print_message("seed %llu\n", (unsigned long long)seed);
    m->rng.state = seed;
    m->pool.page_tokens = page_tokens;
    m->pool.max_pages = max_pages;
    rig_open_with(&m->rig, &c, executor);
    for (uint32_t l = 0; l < LAYERS; l++)
        m->table[l] = table_make(&c, l, TOKENS, seed + l);
    for (int i = 0; i < BATCHES; i++)
        m->batches[i].batch = batch_open(&m->rig, MOST_SEQS, MOST_ROWS);
    while (m->step < n_steps)
        run_operation(m, seed);
    check_contents(m);
    for (size_t i = 0; i < COUNT(operations); i++)
        CHECK(m->done[i] * 200 >= n_steps * operations[i].weight, "too few: %s",
              operations[i].name);
    CHECK(m->refused * 20 >= n_steps, "only %u calls were refused", m->refused);
    CHECK(!max_pages || m->without_pages * 200 >= n_steps, "pages ran out only %u times",
          m->without_pages);
    for (int i = 0; i < BATCHES; i++)
        tq_batch_destroy(m->batches[i].batch);
    for (uint32_t l = 0; l < LAYERS; l++)
        table_free(&m->table[l]);
    rig_close(&m->rig);
    free(m);
}

static void test_few_pages(void **state) {
    (void)state;
    run_model(11, 24, 16, 20000 / FEWER, NULL);
}

static void test_larger_pages(void **state) {
    (void)state;
    run_model(12, 8, 64, 12000 / FEWER, NULL);
}

static void test_growing_with_workers(void **state) {
    (void)state;
    struct test_threads threads = {.n_workers = 2};
    tq_executor executor = test_executor(&threads);
    run_model(13, 0, 32, 5000 / FEWER, &executor);
    assert_true(threads.tasks > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_pages),
        cmocka_unit_test(test_larger_pages),
        cmocka_unit_test(test_growing_with_workers),
    };
    return cmocka_run_group_tests_name("batch model", tests, NULL, NULL);
}
