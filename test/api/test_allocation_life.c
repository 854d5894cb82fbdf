/* The life of a cache, twice: in one world nothing happens, in the other every allocation of
 * every call fails once before it succeeds. A failed call says that memory is out, changes
 * nothing and leaks nothing, and in the end both worlds are the same, bit for bit. */
#include <stdlib.h>
#include <string.h>

#include "common/blob.h"

struct world {
    struct rig r;
    uint64_t context_bytes;
    tq_seq seqs[48];
    uint32_t n_seqs;
    struct asked asked;
    float *k, *v; /* rows that were read */
    float *mean;
    struct blob blob;
    const float *rows;
};

typedef tq_status step_fn(struct world *w);
enum { TOKENS = 700, READ = 40, QUERIES = 3 };

static tq_status append_some(struct world *w, tq_seq seq, uint32_t layer, uint32_t n) {
    tq_rows_in in = rows_in(w->rows);
    return tq_append(w->r.cache, seq, layer, n, &in, &in, NULL);
}

static tq_status set_means(struct world *w) {
    return tq_cache_set_means(w->r.cache, 0, w->mean, w->mean);
}

static tq_status fit_means(struct world *w) {
    tq_rows_in in = rows_in(w->rows);
    return tq_cache_fit_means(w->r.cache, 1, 100, &in, &in);
}

static tq_status create_seq(struct world *w) {
    tq_status status = tq_seq_create(w->r.cache, &w->seqs[w->n_seqs]);
    w->n_seqs += status == TQ_OK;
    return status;
}

static tq_status append_few(struct world *w) {
    return append_some(w, w->seqs[0], 0, 5);
}

static tq_status append_many(struct world *w) {
    return append_some(w, w->seqs[0], 0, TOKENS);
}

static tq_status append_behind(struct world *w) {
    return append_some(w, w->seqs[0], 1, TOKENS + 5);
}

static tq_status fork(struct world *w) {
    tq_status status = tq_seq_fork(w->r.cache, w->seqs[0], 300, &w->seqs[w->n_seqs]);
    w->n_seqs += status == TQ_OK;
    return status;
}

/* Copies a shared page. */
static tq_status append_to_fork(struct world *w) {
    return append_some(w, w->seqs[w->n_seqs - 1], 0, 1);
}

static tq_status attend_all(struct world *w) {
    tq_rows_in q = rows_in(w->asked.q);
    tq_rows_out out = rows_out(w->asked.out);
    return tq_attend(w->r.cache, w->seqs[0], 0, QUERIES, NULL, &q, &out, w->asked.lse, NULL);
}

static tq_status read_some(struct world *w) {
    tq_rows_out k = rows_out(w->k), v = rows_out(w->v);
    return tq_read_rows(w->r.cache, w->seqs[0], 1, 300, READ, &k, &v);
}

static tq_status remove_some(struct world *w) {
    return tq_seq_remove(w->r.cache, w->seqs[w->n_seqs - 1], 20, 7);
}

static tq_status remove_pages(struct world *w) {
    return tq_seq_remove(w->r.cache, w->seqs[w->n_seqs - 1], 20, 64);
}

static tq_status fork_whole(struct world *w) {
    tq_status status = tq_seq_fork(w->r.cache, w->seqs[0], UINT64_MAX, &w->seqs[w->n_seqs]);
    w->n_seqs += status == TQ_OK;
    return status;
}

/* The first and the last change places. */
static tq_status reorder(struct world *w) {
    static const uint32_t parents[] = {1, 0};
    tq_seq seqs[] = {w->seqs[0], w->seqs[w->n_seqs - 1]};
    return tq_seq_reorder(w->r.cache, 2, seqs, parents);
}

static tq_status save(struct world *w) {
    size_t written;
    if (!w->blob.bytes) {
        OK(tq_seq_blob_size(w->r.cache, w->seqs[0], &w->blob.size));
        w->blob.bytes = must_alloc(w->blob.size, 1);
    }
    return tq_seq_save(w->r.cache, w->seqs[0], w->blob.bytes, w->blob.size, &written);
}

static tq_status load(struct world *w) {
    tq_status status = tq_seq_load(w->r.cache, w->blob.bytes, w->blob.size, &w->seqs[w->n_seqs]);
    w->n_seqs += status == TQ_OK;
    return status;
}

static tq_status load_append(struct world *w) {
    return tq_seq_load_append(w->r.cache, w->seqs[w->n_seqs - 1], w->blob.bytes, w->blob.size);
}

static tq_status copy(struct world *w) {
    tq_status status = tq_seq_copy(w->r.cache, w->r.cache, w->seqs[0], 3, 100, &w->seqs[w->n_seqs]);
    w->n_seqs += status == TQ_OK;
    return status;
}

static const struct step {
    step_fn *run;
    const char *name;
} steps[] = {
    {set_means, "set_means"},
    {fit_means, "fit_means"},
    {set_means, "set_means again"},
    {create_seq, "seq_create"},
    {append_few, "first append"},
    {append_many, "append that grows"},
    {append_behind, "append in another layer"},
    {attend_all, "attend"},
    {read_some, "read_rows"},
    {fork, "fork"},
    {append_to_fork, "append to a fork"},
    {attend_all, "attend again"},
    {fork_whole, "fork of all"},
    {remove_some, "remove"},
    {remove_pages, "remove pages"},
    {reorder, "reorder"},
    {save, "save"},
    {load, "load"},
    {load_append, "load_append"},
    {copy, "copy"},
};

static void open_world(struct world *w, const tq_cache_config *c, const tq_executor *executor,
                       const float *rows) {
    struct rng rng = {3};
    memset(w, 0, sizeof *w);
    rig_open_with(&w->r, c, executor);
    w->context_bytes = w->r.heap.live_bytes - rig_stats(&w->r).host_bytes;
    w->rows = rows;
    w->asked = ask_make(&w->r, QUERIES, 0, &rng);
    w->k = must_alloc(READ * rig_k_row(&w->r), sizeof *w->k);
    w->v = must_alloc(READ * rig_v_row(&w->r), sizeof *w->v);
    w->mean = random_rows(&rng, rig_k_row(&w->r) + rig_v_row(&w->r), 1);
}

static void close_world(struct world *w) {
    ask_free(&w->asked);
    free(w->k);
    free(w->v);
    free(w->mean);
    blob_free(&w->blob);
    rig_close(&w->r);
}

/* Nothing that the library was to write has been written. */
static void clear_outputs(struct world *w) {
    memset(w->asked.out, 0, QUERIES * rig_out_row(&w->r) * sizeof(float));
    memset(w->asked.lse, 0, QUERIES * (size_t)w->r.c.n_q_heads * sizeof(float));
    memset(w->k, 0, READ * rig_k_row(&w->r) * sizeof(float));
    memset(w->v, 0, READ * rig_v_row(&w->r) * sizeof(float));
}

static void check_outputs_clear(const struct world *w, const char *what) {
    size_t n = QUERIES * rig_out_row(&w->r);
    for (size_t i = 0; i < n; i++)
        CHECK(w->asked.out[i] == 0, "%s failed and wrote out", what);
    for (size_t i = 0; i < READ * rig_v_row(&w->r); i++)
        CHECK(w->v[i] == 0, "%s failed and wrote rows", what);
}

static void check_bytes(const struct world *w, const char *what) {
    uint64_t counted = rig_stats(&w->r).host_bytes;
    CHECK(counted + w->context_bytes == w->r.heap.live_bytes, "%s: %llu bytes counted, %llu held",
          what, (unsigned long long)counted,
          (unsigned long long)(w->r.heap.live_bytes - w->context_bytes));
    assert_int_equal(w->r.heap.errors, 0);
}

/* Fails allocation after allocation until the step goes through; how often it failed. */
static uint32_t run_failing(struct world *w, const struct step *step) {
    struct snapshot before = {0};
    int probe = w->n_seqs > 0;
    uint32_t failures = 0;
    if (probe)
        before = snapshot_take(&w->r, w->seqs[0]);
    for (;; failures++) {
        clear_outputs(w);
        test_heap_fail(&w->r.heap, failures + 1);
        check_spoil_message();
        tq_status status = step->run(w);
        test_heap_fail(&w->r.heap, 0);
        check_bytes(w, step->name);
        if (status == TQ_OK)
            break;
        check_failure(status, TQ_ERR_OUT_OF_MEMORY, "memory", step->name, __FILE__, __LINE__);
        check_outputs_clear(w, step->name);
        if (probe)
            snapshot_check_content(&w->r, &before, step->name);
    }
    if (probe)
        snapshot_free(&w->r, &before);
    return failures;
}

static void check_same_world(const struct world *a, const struct world *b, const char *what) {
    CHECK(same_answer(&a->r, &a->asked, &b->asked), "%s: another answer", what);
    CHECK(memcmp(a->k, b->k, READ * rig_k_row(&a->r) * sizeof(float)) == 0, "%s: other keys", what);
    CHECK(memcmp(a->v, b->v, READ * rig_v_row(&a->r) * sizeof(float)) == 0, "%s: other values",
          what);
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        struct snapshot s = snapshot_take(&a->r, a->seqs[i]);
        s.seq = b->seqs[i];
        snapshot_check_content(&b->r, &s, what);
        snapshot_free(&a->r, &s);
    }
}

/* Enough sequences for the table of them to grow more than once, which is one allocation
 * beside that of each sequence. */
static void create_many(struct world *calm, struct world *failing) {
    static const struct step create = {create_seq, "one more sequence"};
    uint32_t failures = 0, first = calm->n_seqs;
    clear_outputs(calm);
    while (calm->n_seqs < COUNT(calm->seqs)) {
        OK(create_seq(calm));
        failures += run_failing(failing, &create);
    }
    assert_true(failures >= calm->n_seqs - first + 2);
}

static void live(const tq_cache_config *c, const tq_executor *executor) {
    struct rng rng = {2};
    struct world calm, failing;
    float *rows = random_rows(&rng, (size_t)(TOKENS + 5) * c->n_kv_heads * 128, 1);
    open_world(&calm, c, executor, rows);
    open_world(&failing, c, executor, rows);
    for (size_t i = 0; i < COUNT(steps); i++) {
        clear_outputs(&calm);
        OK(steps[i].run(&calm));
        uint32_t failures = run_failing(&failing, &steps[i]);
        /* With a fixed pool some appends need no memory. */
        CHECK(failures > 0 || c->max_pages || steps[i].run == append_behind ||
                  steps[i].run == append_to_fork,
              "%s allocates nothing?", steps[i].name);
        check_same_world(&calm, &failing, steps[i].name);
    }
    close_world(&calm);
    close_world(&failing);
    free(rows);
}

static void test_many_sequences(void **state) {
    (void)state;
    struct world calm, failing;
    tq_cache_config c = plain_config(TQ_VARIANT_INT8, 64, 1, 1);
    open_world(&calm, &c, NULL, NULL);
    open_world(&failing, &c, NULL, NULL);
    create_many(&calm, &failing);
    check_same_world(&calm, &failing, "many sequences");
    close_world(&calm);
    close_world(&failing);
}

static void test_life(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        tq_cache_config c = plain_config(i % 2 ? TQ_VARIANT_K3V4_NC : TQ_VARIANT_BF16, 128, 2, 2);
        c.n_layers = 2;
        c.page_tokens = 16;
        c.v_head_dim = i % 2 ? 64 : 0;
        c.max_pages = i < 2 ? 0 : 300;
        live(&c, NULL);
    }
}

/* With tokens in 16 bits beside their codes, which all of these calls take along. */
static void test_life_with_kept_rows(void **state) {
    static const uint32_t kept[][2] = {{16, 0}, {0, 300}, {32, 350}};
    (void)state;
    for (size_t i = 0; i < COUNT(kept); i++) {
        tq_cache_config c = plain_config(TQ_VARIANT_K3V4_NC, 128, 2, 2);
        c.n_layers = 2;
        c.page_tokens = 16;
        c.max_seqs = 40;
        c.sink_tokens = kept[i][0];
        c.recent_tokens = kept[i][1];
        live(&c, NULL);
    }
}

static void test_life_with_workers(void **state) {
    (void)state;
    struct test_threads threads = {.n_workers = 3};
    tq_executor executor = test_executor(&threads);
    tq_cache_config c = plain_config(TQ_VARIANT_PROD4, 64, 2, 2);
    c.n_layers = 2;
    live(&c, &executor);
    assert_true(threads.calls > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_life_with_kept_rows),
        cmocka_unit_test(test_many_sequences),
        cmocka_unit_test(test_life_with_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
