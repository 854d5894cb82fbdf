/* Random operations on sequences against a model that keeps every token in plain arrays:
 * the same statuses, lengths and bytes, references that add up, ids that never return. The
 * allocator fails now and then, which must change nothing. */
#include "unit/unit.h"

#include "unit/seqs.h"

enum {
    PAGE = UNIT_PAGE_TOKENS,
    LAYERS = UNIT_LAYERS,
    MAX_SEQS = 20,
    MAX_TOKENS = 160,
    MAX_IDS = 20000
};

struct model_seq {
    tq_seq id;
    uint32_t lengths[LAYERS];
    uint32_t tags[LAYERS][MAX_TOKENS];
};

static struct {
    struct model_seq seqs[MAX_SEQS];
    uint32_t n_seqs;
    uint64_t max_pages;
    tq_seq ids[MAX_IDS]; /* ever given */
    uint32_t n_ids, next_tag;
    uint32_t done[8]; /* how often an operation of each kind succeeded, was refused, failed */
    uint32_t refused, failed;
} model;

static struct unit_seqs s;
static uint64_t seed;

static uint32_t below(uint32_t n) {
    return unit_below(&seed, n);
}

/* ---- the model ------------------------------------------------------------------------------- */

static uint32_t shortest(const struct model_seq *m) {
    uint32_t n = m->lengths[0];
    for (uint32_t l = 1; l < LAYERS; l++)
        n = m->lengths[l] < n ? m->lengths[l] : n;
    return n;
}

static uint32_t longest(const struct model_seq *m) {
    uint32_t n = m->lengths[0];
    for (uint32_t l = 1; l < LAYERS; l++)
        n = m->lengths[l] > n ? m->lengths[l] : n;
    return n;
}

static tq_status prefix_status(const struct model_seq *m, uint64_t n) {
    return n > longest(m)    ? TQ_ERR_INVALID_ARGUMENT
           : n > shortest(m) ? TQ_ERR_INVALID_STATE
                             : TQ_OK;
}

/* Pages that an append would take: new ones, and copies of shared ones. */
static uint64_t pages_needed(const struct model_seq *m, uint32_t layer, uint32_t n) {
    const struct tqi_seq *seq = tqi_seq_find(&s.seqs, m->id);
    uint64_t first = m->lengths[layer] / PAGE, need = 0;
    for (uint64_t i = first; i < (m->lengths[layer] + n + PAGE - 1) / PAGE; i++)
        need += i >= seq->n_pages || s.pool.pool.references[seq->pages[i]] > 1;
    return need;
}

/* A new sequence of the model; its id must be new as well. */
static struct model_seq *add(tq_seq id) {
    struct model_seq *m = &model.seqs[model.n_seqs++];
    for (uint32_t i = 0; i < model.n_ids; i++)
        CHECK(model.ids[i] != id, "id %llx has been given before", (unsigned long long)id);
    assert_true(model.n_ids < MAX_IDS);
    model.ids[model.n_ids++] = id;
    memset(m, 0, sizeof *m);
    m->id = id;
    return m;
}

/* ---- operations: each does one thing on both sides --------------------------------------------
 */

/* Whether the model's status came out; with a failing allocator there may be another. */
static int agree(tq_status status, tq_status expected, uint32_t kind) {
    int out_of_memory = s.pool.unit.fail_at && s.pool.unit.calls >= s.pool.unit.fail_at;
    if (out_of_memory && status == TQ_ERR_OUT_OF_MEMORY) {
        model.failed++;
        return 0;
    }
    CHECK(status == expected, "operation %u: status %d, not %d", kind, status, expected);
    model.done[kind] += status == TQ_OK;
    model.refused += status != TQ_OK;
    return status == TQ_OK;
}

static void do_create(void) {
    tq_seq id = 0;
    tq_status expected = model.n_seqs == MAX_SEQS ? TQ_ERR_INVALID_STATE : TQ_OK;
    if (agree(tqi_seqs_create(&s.seqs, &id), expected, 0))
        (void)add(id);
}

static void do_append(struct model_seq *m) {
    uint32_t tags[64], layer = below(LAYERS), n = below(4) ? below(8) : below(64);
    if (m->lengths[layer] + n > MAX_TOKENS)
        n = MAX_TOKENS - m->lengths[layer];
    uint64_t need = pages_needed(m, layer, n);
    int full = model.max_pages && need > s.pool.pool.n_free;
    for (uint32_t i = 0; i < n; i++)
        tags[i] = model.next_tag++;
    if (!agree(unit_append(&s, m->id, layer, n, tags), full ? TQ_ERR_OUT_OF_PAGES : TQ_OK, 1))
        return;
    memcpy(m->tags[layer] + m->lengths[layer], tags, n * sizeof *tags);
    m->lengths[layer] += n;
}

/* The same number in all layers, as a step of a model does it; makes forks possible. */
static void do_level(struct model_seq *m) {
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t n = longest(m) - m->lengths[l], tags[MAX_TOKENS];
        int full = model.max_pages && pages_needed(m, l, n) > s.pool.pool.n_free;
        for (uint32_t i = 0; i < n; i++)
            tags[i] = model.next_tag++;
        if (!agree(unit_append(&s, m->id, l, n, tags), full ? TQ_ERR_OUT_OF_PAGES : TQ_OK, 2))
            return;
        memcpy(m->tags[l] + m->lengths[l], tags, n * sizeof *tags);
        m->lengths[l] += n;
    }
}

static void do_fork(struct model_seq *m) {
    uint64_t n = below(3) ? below(longest(m) + 2) : UINT64_MAX;
    uint32_t take = n == UINT64_MAX ? longest(m) : (uint32_t)n;
    tq_seq id = 0;
    tq_status expected = prefix_status(m, take);
    if (expected == TQ_OK && model.n_seqs == MAX_SEQS)
        expected = TQ_ERR_INVALID_STATE;
    if (!agree(tqi_seqs_fork(&s.seqs, tqi_seq_find(&s.seqs, m->id), n, &id), expected, 3))
        return;
    struct model_seq *child = add(id);
    for (uint32_t l = 0; l < LAYERS; l++)
        child->lengths[l] = take;
    memcpy(child->tags, m->tags, sizeof m->tags);
}

static void do_truncate(struct model_seq *m) {
    uint64_t n = below(longest(m) + 2);
    struct tqi_seq *seq = tqi_seq_find(&s.seqs, m->id);
    if (!agree(tqi_seqs_truncate(&s.seqs, seq, n), prefix_status(m, n), 4))
        return;
    for (uint32_t l = 0; l < LAYERS; l++)
        m->lengths[l] = (uint32_t)n;
}

static void do_end(struct model_seq *m) {
    tqi_seqs_end(&s.seqs, tqi_seq_find(&s.seqs, m->id));
    assert_null(tqi_seq_find(&s.seqs, m->id));
    *m = model.seqs[--model.n_seqs];
    model.done[5]++;
}

static void do_reset(void) {
    tqi_seqs_reset(&s.seqs);
    model.n_seqs = 0;
    model.done[6]++;
}

static void step(void) {
    uint32_t kind = below(100);
    s.pool.unit.fail_at = below(8) ? 0 : s.pool.unit.calls + 1 + below(4);
    if (model.n_seqs == 0 || kind < 12) {
        do_create();
    } else {
        struct model_seq *m = &model.seqs[below(model.n_seqs)];
        if (kind < 45)
            do_append(m);
        else if (kind < 60)
            do_level(m);
        else if (kind < 80)
            do_fork(m);
        else if (kind < 90)
            do_truncate(m);
        else if (kind < 99 || below(10))
            do_end(m);
        else
            do_reset();
    }
    s.pool.unit.fail_at = 0;
}

/* ---- what must always hold ----------------------------------------------------------------------
 */

static void check_seq(const struct model_seq *m, uint32_t *references) {
    const struct tqi_seq *seq = tqi_seq_find(&s.seqs, m->id);
    assert_non_null(seq);
    assert_int_equal(seq->n_pages, (longest(m) + PAGE - 1) / PAGE);
    for (uint64_t i = 0; i < seq->n_pages; i++)
        references[seq->pages[i]]++;
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(seq->lengths[l], m->lengths[l]);
        for (uint32_t t = 0; t < m->lengths[l]; t++)
            CHECK(*unit_slot(&s, m->id, l, t) == m->tags[l][t], "layer %u token %u of %u", l, t,
                  m->lengths[l]);
    }
}

static void check_all(void) {
    uint32_t references[1 << 14] = {0};
    assert_true(s.pool.pool.n_pages <= COUNT(references));
    assert_int_equal(s.seqs.n_alive, model.n_seqs);
    for (uint32_t i = 0; i < model.n_seqs; i++)
        check_seq(&model.seqs[i], references);
    uint64_t used = 0;
    for (uint64_t i = 0; i < s.pool.pool.n_pages; i++) {
        assert_int_equal(s.pool.pool.references[i], references[i]);
        used += references[i] > 0;
    }
    assert_int_equal(s.pool.pool.n_free, s.pool.pool.n_pages - used);
    assert_int_equal(s.pool.heap.host_bytes, s.pool.unit.bytes);
}

/* Ids of the dead stay unknown. */
static void check_dead(void) {
    uint32_t alive = 0;
    for (uint32_t i = 0; i < model.n_ids; i++)
        alive += tqi_seq_find(&s.seqs, model.ids[i]) != NULL;
    assert_int_equal(alive, model.n_seqs);
}

static void run(uint64_t start, uint64_t max_pages, int steps) {
    memset(&model, 0, sizeof model);
    model.max_pages = max_pages;
    seed = start;
    unit_seqs_init(&s, max_pages, MAX_SEQS);
    for (int i = 0; i < steps; i++) {
        step();
        if (i % 8 == 0)
            check_all();
    }
    check_all();
    check_dead();
    unit_seqs_end(&s);
    for (uint32_t kind = 0; kind <= 6; kind++)
        CHECK(model.done[kind] > 0, "operation %u never succeeded", kind);
    assert_true(model.refused > 0 && model.failed > 0);
}

static void test_growing_pool(void **state) {
    (void)state;
    for (uint64_t start = 1; start <= 4; start++)
        run(start, 0, 8000);
}

/* So few pages that appends are refused all the time. */
static void test_small_pool(void **state) {
    (void)state;
    for (uint64_t start = 11; start <= 14; start++)
        run(start, 24, 8000);
}

static void test_medium_pool(void **state) {
    (void)state;
    for (uint64_t start = 21; start <= 24; start++)
        run(start, 70, 8000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growing_pool),
        cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_medium_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
