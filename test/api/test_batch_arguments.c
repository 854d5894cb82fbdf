/* What batched steps refuse: bad arguments, calls in the wrong order, sequences that are busy.
 * A refusal changes nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/step.h"
#include "tq/snapshot.h"

enum { LAYERS = 2, HEADS = 2, GROUP = 2, DIM = 64, PAGE = 16, LENGTH = 20, MOST = 12 };

/* Three sequences, one of which is 20 tokens long and has a fork; two pages are free. */
static struct rig r;
static tq_batch *batch;
static tq_seq seqs[3];
static struct snapshot before;
static float rows[MOST * HEADS * GROUP * DIM], scratch[MOST * HEADS * GROUP * DIM];
static tq_rows_in in;
static tq_rows_out to;

static int open_rig(void **state) {
    (void)state;
    struct rng rng = {1};
    tq_cache_config c = plain_config(TQ_VARIANT_K8V4, DIM, HEADS, GROUP);
    c.n_layers = LAYERS;
    c.page_tokens = PAGE;
    c.max_pages = 4;
    c.max_seqs = 5;
    memset(&r, 0, sizeof r);
    memset(scratch, 0, sizeof scratch);
    rig_open(&r, &c);
    seqs[0] = rig_seq(&r);
    for (uint32_t l = 0; l < LAYERS; l++)
        rig_append_random(&r, seqs[0], l, LENGTH, &rng);
    seqs[1] = rig_seq(&r);
    seqs[2] = rig_fork(&r, seqs[0], UINT64_MAX);
    batch = batch_open(&r, 3, MOST);
    before = snapshot_take(&r, seqs[0]);
    in = rows_in(rows);
    to = rows_out(scratch);
    return 0;
}

static int close_rig(void **state) {
    (void)state;
    snapshot_free(&r, &before);
    tq_batch_destroy(batch);
    rig_close(&r);
    return 0;
}

static void not_written(void) {
    for (size_t i = 0; i < COUNT(scratch); i++)
        CHECK(scratch[i] == 0, "a refused call wrote output %zu", i);
}

/* Refused, and nothing has changed. */
#define REFUSED(call, status, word)         \
    do {                                    \
        FAILS(call, status, word);          \
        snapshot_check(&r, &before, #call); \
        not_written();                      \
    } while (0)
#define INVALID(call, word) REFUSED(call, TQ_ERR_INVALID_ARGUMENT, word)

static tq_batch_desc desc_of(uint32_t n, const tq_seq *list) {
    tq_batch_desc desc = {.struct_size = sizeof desc, .n_seqs = n, .seqs = list};
    return desc;
}

/* ---- create ------------------------------------------------------------------------------ */

static void test_create(void **state) {
    (void)state;
    tq_batch *out = NULL;
    INVALID(tq_batch_create(NULL, 1, 1, &out), "cache");
    INVALID(tq_batch_create(r.cache, 1, 1, NULL), "out");
    INVALID(tq_batch_create(r.cache, 0, 1, &out), "max_seqs");
    INVALID(tq_batch_create(r.cache, 6, 1, &out), "max_seqs");
    INVALID(tq_batch_create(r.cache, UINT32_MAX, 1, &out), "max_seqs");
    INVALID(tq_batch_create(r.cache, 1, 0, &out), "max_tokens");
    INVALID(tq_batch_create(r.cache, 1, (1u << 24) + 1, &out), "max_tokens");
    assert_null(out);
    tq_batch_destroy(NULL);
}

static void test_null_batch(void **state) {
    (void)state;
    tq_batch_desc desc = desc_of(1, seqs);
    INVALID(tq_batch_plan(NULL, &desc, NULL), "batch");
    INVALID(tq_batch_plan(batch, NULL, NULL), "desc");
    INVALID(tq_batch_append(NULL, 0, &in, &in, NULL), "batch");
    INVALID(tq_batch_attend(NULL, 0, NULL, &in, &to, NULL, NULL), "batch");
    INVALID(tq_batch_commit(NULL, NULL), "batch");
    INVALID(tq_batch_cancel(NULL), "batch");
}

/* ---- plan -------------------------------------------------------------------------------- */

static void test_struct_size(void **state) {
    (void)state;
    struct {
        tq_batch_desc desc;
        uint64_t later;
    } newer = {desc_of(1, seqs), 0};
    newer.desc.struct_size = sizeof newer;
    newer.later = 1;
    REFUSED(tq_batch_plan(batch, &newer.desc, NULL), TQ_ERR_VERSION, "byte");
    newer.later = 0;
    newer.desc.struct_size = sizeof newer.desc - 1;
    INVALID(tq_batch_plan(batch, &newer.desc, NULL), "struct_size");
    newer.desc.struct_size = 4097;
    INVALID(tq_batch_plan(batch, &newer.desc, NULL), "struct_size");
    newer.desc.struct_size = sizeof newer;
    OK(tq_batch_plan(batch, &newer.desc, NULL));
    OK(tq_batch_cancel(batch));
}

static void test_bad_sequences(void **state) {
    (void)state;
    tq_seq none[] = {seqs[0], 0}, twice[] = {seqs[1], seqs[0], seqs[1]}, stale = rig_seq(&r);
    tq_batch_desc desc = desc_of(2, none);
    OK(tq_seq_destroy(r.cache, stale));
    REFUSED(tq_batch_plan(batch, &desc, NULL), TQ_ERR_NOT_FOUND, "sequence");
    none[1] = stale;
    REFUSED(tq_batch_plan(batch, &desc, NULL), TQ_ERR_NOT_FOUND, "sequence");
    none[1] = UINT64_MAX;
    REFUSED(tq_batch_plan(batch, &desc, NULL), TQ_ERR_NOT_FOUND, "sequence");
    desc = desc_of(3, twice);
    INVALID(tq_batch_plan(batch, &desc, NULL), "twice");
    desc = desc_of(1, NULL);
    INVALID(tq_batch_plan(batch, &desc, NULL), "seqs");
    desc = desc_of(4, twice);
    INVALID(tq_batch_plan(batch, &desc, NULL), "n_seqs");
    desc = desc_of(UINT32_MAX, twice);
    INVALID(tq_batch_plan(batch, &desc, NULL), "n_seqs");
    desc = desc_of(3, seqs); /* none of them has been left busy */
    OK(tq_batch_plan(batch, &desc, NULL));
    OK(tq_batch_cancel(batch));
}

static void test_too_many_rows(void **state) {
    (void)state;
    static const uint32_t few[] = {1, 1, 1}, most[] = {5, 5, 3}, wraps[] = {5, UINT32_MAX, 2};
    tq_batch_desc desc = desc_of(3, seqs);
    desc.n_append = most;
    desc.n_query = few;
    INVALID(tq_batch_plan(batch, &desc, NULL), "n_append");
    desc.n_append = wraps;
    INVALID(tq_batch_plan(batch, &desc, NULL), "n_append");
    desc.n_append = few;
    desc.n_query = most;
    INVALID(tq_batch_plan(batch, &desc, NULL), "n_query");
    desc.n_query = wraps;
    INVALID(tq_batch_plan(batch, &desc, NULL), "n_query");
}

/* Layers of one length are asked of every sequence. */
static void test_uneven_layers(void **state) {
    (void)state;
    tq_batch_desc desc = desc_of(2, seqs);
    rig_append(&r, seqs[1], 0, 1, rows, rows);
    FAILS(tq_batch_plan(batch, &desc, NULL), TQ_ERR_INVALID_STATE, "differ");
    rig_append(&r, seqs[1], 1, 1, rows, rows);
    OK(tq_batch_plan(batch, &desc, NULL));
}

/* Two pages are free. The shared page needs a copy for the first who writes, the other then has
 * it for itself; so both sequences fit with one new page, and not with two. */
static void test_out_of_pages(void **state) {
    (void)state;
    static const uint32_t fits[] = {12, 0, 12}, too_many[] = {12, 0, 13}, all[] = {12, 16, 12},
                          more[] = {12, 17, 12};
    tq_batch *large = batch_open(&r, 3, 60);
    struct snapshot now = snapshot_take(&r, seqs[0]);
    tq_batch_desc desc = desc_of(3, seqs);
    desc.n_append = more;
    FAILS(tq_batch_plan(large, &desc, NULL), TQ_ERR_OUT_OF_PAGES, "pages");
    snapshot_check_content(&r, &now, "out of pages");
    desc.n_append = fits;
    OK(tq_batch_plan(large, &desc, NULL));
    assert_int_equal(rig_stats(&r).pages_used, 3);
    OK(tq_batch_cancel(large));
    /* The copy has stayed: what is planned now needs no more. */
    assert_int_equal(rig_stats(&r).pages_used, 3);
    desc.n_append = all;
    OK(tq_batch_plan(large, &desc, NULL));
    assert_int_equal(rig_stats(&r).pages_used, 4);
    OK(tq_batch_cancel(large));
    rig_append(&r, seqs[1], 0, 1, rows, rows);
    rig_append(&r, seqs[1], 1, 1, rows, rows);
    desc.n_append = too_many;
    FAILS(tq_batch_plan(large, &desc, NULL), TQ_ERR_OUT_OF_PAGES, "pages");
    snapshot_free(&r, &now);
    tq_batch_destroy(large);
}

/* ---- the order of calls ------------------------------------------------------------------ */

static void test_nothing_planned(void **state) {
    (void)state;
    REFUSED(tq_batch_append(batch, 0, &in, &in, NULL), TQ_ERR_INVALID_STATE, "planned");
    REFUSED(tq_batch_attend(batch, 0, NULL, &in, &to, NULL, NULL), TQ_ERR_INVALID_STATE, "planned");
    REFUSED(tq_batch_commit(batch, NULL), TQ_ERR_INVALID_STATE, "planned");
    REFUSED(tq_batch_cancel(batch), TQ_ERR_INVALID_STATE, "planned");
}

static void test_order(void **state) {
    (void)state;
    tq_batch_desc desc = desc_of(2, seqs);
    static const uint32_t keep[] = {0, 2};
    OK(tq_batch_plan(batch, &desc, NULL));
    FAILS(tq_batch_plan(batch, &desc, NULL), TQ_ERR_INVALID_STATE, "planned");
    FAILS(tq_batch_attend(batch, 0, NULL, &in, &to, NULL, NULL), TQ_ERR_INVALID_STATE, "appended");
    OK(tq_batch_append(batch, 0, &in, &in, NULL));
    FAILS(tq_batch_append(batch, 0, &in, &in, NULL), TQ_ERR_INVALID_STATE, "appended");
    FAILS(tq_batch_attend(batch, 1, NULL, &in, &to, NULL, NULL), TQ_ERR_INVALID_STATE, "appended");
    FAILS(tq_batch_commit(batch, NULL), TQ_ERR_INVALID_STATE, "layer 1");
    not_written();
    OK(tq_batch_append(batch, 1, &in, &in, NULL));
    FAILS(tq_batch_commit(batch, keep), TQ_ERR_INVALID_ARGUMENT, "n_keep[1]");
    assert_int_equal(rig_length(&r, seqs[0], 1), LENGTH + 1); /* still planned */
    OK(tq_batch_commit(batch, NULL));
    FAILS(tq_batch_cancel(batch), TQ_ERR_INVALID_STATE, "planned");
    assert_int_equal(rig_length(&r, seqs[1], 0), 1);
    /* The next step begins anew. */
    OK(tq_batch_plan(batch, &desc, NULL));
    FAILS(tq_batch_commit(batch, NULL), TQ_ERR_INVALID_STATE, "layer 0");
    OK(tq_batch_append(batch, 0, &in, &in, NULL));
}

static void test_rows_and_params(void **state) {
    (void)state;
    tq_batch_desc desc = desc_of(2, seqs);
    tq_rows_in bad = in;
    tq_rows_out bad_out = to;
    tq_attend_params params = {.struct_size = sizeof params, .scale = NAN};
    OK(tq_batch_plan(batch, &desc, NULL));
    struct snapshot now = snapshot_take(&r, seqs[0]);
    bad.dtype = 7;
    bad_out.data = NULL;
    FAILS(tq_batch_append(batch, LAYERS, &in, &in, NULL), TQ_ERR_INVALID_ARGUMENT, "layer");
    FAILS(tq_batch_append(batch, 0, &bad, &in, NULL), TQ_ERR_INVALID_ARGUMENT, "k:");
    FAILS(tq_batch_append(batch, 0, &in, NULL, NULL), TQ_ERR_INVALID_ARGUMENT, "v:");
    snapshot_check(&r, &now, "bad rows");
    OK(tq_batch_append(batch, 0, &in, &in, NULL));
    FAILS(tq_batch_attend(batch, LAYERS, NULL, &in, &to, NULL, NULL), TQ_ERR_INVALID_ARGUMENT,
          "layer");
    FAILS(tq_batch_attend(batch, 0, NULL, &bad, &to, NULL, NULL), TQ_ERR_INVALID_ARGUMENT, "q:");
    FAILS(tq_batch_attend(batch, 0, NULL, &in, &bad_out, NULL, NULL), TQ_ERR_INVALID_ARGUMENT,
          "out:");
    FAILS(tq_batch_attend(batch, 0, &params, &in, &to, NULL, NULL), TQ_ERR_INVALID_ARGUMENT,
          "scale");
    not_written();
    snapshot_free(&r, &now);
}

/* ---- busy sequences ---------------------------------------------------------------------- */

#define BUSY(call) FAILS(call, TQ_ERR_INVALID_STATE, "planned batch")

static void test_busy(void **state) {
    (void)state;
    static const uint32_t none[] = {0, 0, 0};
    tq_seq out = 0;
    uint32_t parents[] = {0, 0};
    size_t size = 0;
    tq_batch *other = batch_open(&r, 3, MOST);
    tq_batch_desc desc = desc_of(1, seqs), both = desc_of(2, seqs);
    OK(tq_seq_blob_size(r.cache, seqs[0], &size));
    void *blob = must_alloc(1, size);
    OK(tq_seq_save(r.cache, seqs[0], blob, size, &size));
    desc.n_append = none;
    OK(tq_batch_plan(batch, &desc, NULL));
    BUSY(tq_append(r.cache, seqs[0], 0, 1, &in, &in, NULL));
    BUSY(tq_seq_truncate(r.cache, seqs[0], 1));
    BUSY(tq_seq_fork(r.cache, seqs[0], 1, &out));
    BUSY(tq_seq_destroy(r.cache, seqs[0]));
    BUSY(tq_seq_remove(r.cache, seqs[0], 0, 1));
    BUSY(tq_seq_reorder(r.cache, 2, seqs, parents));
    BUSY(tq_seq_load_append(r.cache, seqs[0], blob, size));
    FAILS(tq_cache_reset(r.cache), TQ_ERR_INVALID_STATE, "planned batch");
    BUSY(tq_batch_plan(other, &both, NULL));
    snapshot_check_content(&r, &before, "busy"); /* which reads it all the while */
    desc = desc_of(1, seqs + 1);
    OK(tq_batch_plan(other, &desc, NULL)); /* another sequence is free */
    OK(tq_batch_cancel(other));
    OK(tq_batch_commit(batch, NULL));
    OK(tq_append(r.cache, seqs[0], 0, 1, &in, &in, NULL));
    OK(tq_seq_destroy(r.cache, seqs[0]));
    OK(tq_cache_reset(r.cache));
    tq_batch_destroy(other);
    snapshot_free(&r, &before);
    seqs[0] = rig_seq(&r);
    before = snapshot_take(&r, seqs[0]);
    free(blob);
}

/* ---- steps that do nothing --------------------------------------------------------------- */

static void test_empty_steps(void **state) {
    (void)state;
    static const uint32_t none[] = {0, 0, 0};
    for (uint32_t n = 0; n <= 3; n += 3) {
        tq_batch_desc desc = desc_of(n, n ? seqs : NULL);
        desc.n_append = n ? none : NULL;
        OK(tq_batch_plan(batch, &desc, NULL));
        OK(tq_batch_append(batch, 0, NULL, NULL, NULL)); /* rows are not looked at */
        OK(tq_batch_attend(batch, 1, NULL, NULL, NULL, NULL, NULL));
        OK(tq_batch_commit(batch, n ? none : NULL));
        snapshot_check_content(&r, &before, "empty step");
    }
    not_written();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_create),        TEST(test_null_batch),
        TEST(test_struct_size),   TEST(test_bad_sequences),
        TEST(test_too_many_rows), TEST(test_uneven_layers),
        TEST(test_out_of_pages),  TEST(test_nothing_planned),
        TEST(test_order),         TEST(test_rows_and_params),
        TEST(test_busy),          TEST(test_empty_steps),
    };
    return cmocka_run_group_tests_name("batch arguments", tests, NULL, NULL);
}
