/* What sequences, append, attend, reading, means and scales refuse. Every refusal leaves
 * the outputs, the counters and the answers of the cache as they were. */
#include <math.h>
#include <string.h>

#include "common/rig.h"

enum { LAYERS = 2, HEADS = 2, GROUP = 2, DIM = 64, PAGE = 16, LENGTH = 20, QUERIES = 2 };

/* A cache that is full but for two pages, with a sequence of 20 tokens in both layers. */
static struct rig r;
static tq_seq seq;
static struct snapshot before;
static float rows[64 * HEADS * GROUP * DIM], scratch[HEADS * GROUP * DIM];
static tq_rows_in in;
static tq_rows_out to; /* scratch, which no call must write */

static int open_rig(void **state) {
    (void)state;
    struct rng rng = {1};
    tq_cache_config c = plain_config(TQ_VARIANT_K8V4, DIM, HEADS, GROUP);
    c.n_layers = LAYERS;
    c.page_tokens = PAGE;
    c.max_pages = 4;
    c.max_seqs = 3;
    memset(&r, 0, sizeof r);
    rig_open(&r, &c);
    seq = rig_seq(&r);
    for (uint32_t l = 0; l < LAYERS; l++)
        rig_append_random(&r, seq, l, LENGTH, &rng);
    before = snapshot_take(&r, seq);
    in = rows_in(rows);
    to = rows_out(scratch);
    return 0;
}

static int close_rig(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(scratch); i++)
        CHECK(scratch[i] == 0, "a refused call wrote output %zu", i);
    snapshot_free(&r, &before);
    rig_close(&r);
    return 0;
}

/* Refused, and nothing has changed. */
#define REFUSED(call, status, word)         \
    do {                                    \
        FAILS(call, status, word);          \
        snapshot_check(&r, &before, #call); \
    } while (0)
#define INVALID(call, word) REFUSED(call, TQ_ERR_INVALID_ARGUMENT, word)

/* ---- handles --------------------------------------------------------------------------- */

static void test_null_cache(void **state) {
    (void)state;
    tq_seq out_seq = 7;
    uint64_t length = 7;
    size_t written = 7;
    tq_cache_stats stats = {.struct_size = sizeof stats};
    tq_cache_config config = {.struct_size = sizeof config};
    INVALID(tq_cache_reset(NULL), "cache");
    INVALID(tq_cache_set_means(NULL, 0, NULL, NULL), "cache");
    INVALID(tq_cache_fit_means(NULL, 0, 1, &in, &in), "cache");
    INVALID(tq_cache_set_fp8_scales(NULL, 0, NULL, NULL), "cache");
    INVALID(tq_cache_get_config(NULL, &config), "cache");
    INVALID(tq_cache_get_config(r.cache, NULL), "out");
    INVALID(tq_cache_get_stats(NULL, &stats), "cache");
    INVALID(tq_cache_get_stats(r.cache, NULL), "out");
    INVALID(tq_seq_create(NULL, &out_seq), "cache");
    INVALID(tq_seq_create(r.cache, NULL), "out");
    INVALID(tq_seq_destroy(NULL, seq), "cache");
    INVALID(tq_seq_fork(NULL, seq, 0, &out_seq), "cache");
    INVALID(tq_seq_fork(r.cache, seq, 0, NULL), "out");
    INVALID(tq_seq_truncate(NULL, seq, 0), "cache");
    INVALID(tq_seq_length(NULL, seq, 0, &length), "cache");
    INVALID(tq_seq_length(r.cache, seq, 0, NULL), "out");
    INVALID(tq_append(NULL, seq, 0, 1, &in, &in, NULL), "cache");
    INVALID(tq_attend(NULL, seq, 0, 1, NULL, &in, &to, NULL, NULL), "cache");
    INVALID(tq_read_rows(NULL, seq, 0, 0, 1, &to, &to), "cache");
    INVALID(tq_read_page(NULL, seq, 0, 0, 0, NULL, 0, &written), "cache");
    INVALID(tq_read_page(r.cache, seq, 0, 0, 0, NULL, 0, NULL), "written");
    assert_int_equal(out_seq, 7);
    assert_int_equal(length, 7);
    assert_int_equal(written, 7);
}

static void test_bad_layers(void **state) {
    (void)state;
    static const uint32_t layers[] = {LAYERS, LAYERS + 1, 1u << 31, UINT32_MAX};
    uint64_t length = 7;
    size_t written = 7;
    for (size_t i = 0; i < COUNT(layers); i++) {
        uint32_t l = layers[i];
        INVALID(tq_cache_set_means(r.cache, l, rows, rows), "layer");
        INVALID(tq_cache_fit_means(r.cache, l, 1, &in, &in), "layer");
        INVALID(tq_cache_set_fp8_scales(r.cache, l, NULL, NULL), "layer");
        INVALID(tq_seq_length(r.cache, seq, l, &length), "layer");
        INVALID(tq_append(r.cache, seq, l, 1, &in, &in, NULL), "layer");
        INVALID(tq_append(r.cache, seq, l, 0, &in, &in, NULL), "layer");
        INVALID(tq_attend(r.cache, seq, l, 1, NULL, &in, &to, NULL, NULL), "layer");
        INVALID(tq_read_rows(r.cache, seq, l, 0, 1, &to, &to), "layer");
        INVALID(tq_read_page(r.cache, seq, l, 0, 0, NULL, 0, &written), "layer");
        assert_null(tq_cache_kernel_name(r.cache, l, TQ_OP_SCORE));
    }
    assert_int_equal(length, 7);
    assert_int_equal(written, 7);
}

static void refuse_seq(tq_seq id) {
    tq_seq out_seq = 7;
    uint64_t length = 7;
    size_t written = 7;
    REFUSED(tq_seq_destroy(r.cache, id), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_seq_fork(r.cache, id, 0, &out_seq), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_seq_truncate(r.cache, id, 0), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_seq_length(r.cache, id, 0, &length), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_append(r.cache, id, 0, 1, &in, &in, NULL), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_append(r.cache, id, 0, 0, &in, &in, NULL), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_attend(r.cache, id, 0, 1, NULL, &in, &to, NULL, NULL), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_read_rows(r.cache, id, 0, 0, 0, &to, &to), TQ_ERR_NOT_FOUND, "sequence");
    REFUSED(tq_read_page(r.cache, id, 0, 0, 0, NULL, 0, &written), TQ_ERR_NOT_FOUND, "sequence");
    assert_int_equal(out_seq, 7);
    assert_int_equal(length, 7);
    assert_int_equal(written, 7);
}

/* Zero, garbage, ids of the past, and an id that only another cache has handed out. */
static void test_bad_sequences(void **state) {
    (void)state;
    struct rig other = {0};
    tq_seq foreign = 0, stale = rig_seq(&r);
    OK(tq_seq_destroy(r.cache, stale));
    rig_open(&other, &(tq_cache_config){.struct_size = sizeof(tq_cache_config),
                                        .n_layers = 1,
                                        .n_kv_heads = 1,
                                        .head_dim = 32,
                                        .variant = TQ_VARIANT_BF16});
    for (int i = 0; i < 40; i++)
        foreign = rig_seq(&other);
    const tq_seq bad[] = {
        0,     1000,   UINT64_MAX, seq + 1000, seq ^ UINT64_C(1) << 32, seq ^ UINT64_C(1) << 63,
        stale, foreign};
    for (size_t i = 0; i < COUNT(bad); i++)
        refuse_seq(bad[i]);
    rig_close(&other);
}

/* ---- sequences ------------------------------------------------------------------------- */

static void test_too_many_sequences(void **state) {
    (void)state;
    tq_seq more = rig_seq(&r), last = rig_fork(&r, seq, 3), out = 7;
    FAILS(tq_seq_create(r.cache, &out), TQ_ERR_INVALID_STATE, "max_seqs");
    FAILS(tq_seq_fork(r.cache, seq, 3, &out), TQ_ERR_INVALID_STATE, "max_seqs");
    assert_int_equal(out, 7);
    OK(tq_seq_destroy(r.cache, last));
    OK(tq_seq_create(r.cache, &out)); /* one may go and another come */
    OK(tq_seq_destroy(r.cache, out));
    OK(tq_seq_destroy(r.cache, more));
    snapshot_check_content(&r, &before, "sequences that have gone again");
}

static void test_prefix_beyond_the_end(void **state) {
    (void)state;
    static const uint64_t lengths[] = {LENGTH + 1,        PAGE * 2,  PAGE * 2 + 1,     UINT32_MAX,
                                       UINT64_C(1) << 32, INT64_MAX, UINT64_C(1) << 63};
    tq_seq out = 7;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        INVALID(tq_seq_fork(r.cache, seq, lengths[i], &out), "n_tokens");
        INVALID(tq_seq_truncate(r.cache, seq, lengths[i]), "n_tokens");
    }
    INVALID(tq_seq_fork(r.cache, seq, UINT64_MAX - 1, &out), "n_tokens");
    INVALID(tq_seq_truncate(r.cache, seq, UINT64_MAX), "n_tokens");
    assert_int_equal(out, 7);
}

/* ---- rows ------------------------------------------------------------------------------ */

/* All that can be wrong with rows of input; returns 0 behind the last fault. */
static int bad_rows(uint32_t fault, tq_rows_in *bad, const char **word) {
    static const tq_dtype dtypes[] = {-1, 3, 4, INT32_MAX, INT32_MIN};
    *bad = in;
    *word = "";
    if (fault == 0)
        bad->data = NULL;
    else if (fault < 4)
        bad->data = (const char *)rows + fault; /* f32 at 1, 2, 3 bytes */
    else if (fault < 6)
        bad->data = (const char *)rows + 1, bad->dtype = fault == 4 ? TQ_F16 : TQ_BF16;
    else if (fault < 11)
        bad->dtype = dtypes[fault - 6];
    else if (fault < 13)
        bad->reserved = fault == 11 ? 1 : 0x80000000u;
    else
        return 0;
    *word = fault == 0 ? "data" : fault < 6 ? "aligned" : fault < 11 ? "dtype" : "reserved";
    return 1;
}

static tq_rows_out as_output(const tq_rows_in *from, void *data) {
    ptrdiff_t shift = from->data ? (const char *)from->data - (const char *)rows : 0;
    return (tq_rows_out){.data = from->data ? (char *)data + shift : NULL,
                         .dtype = from->dtype,
                         .reserved = from->reserved};
}

static void test_append_rows(void **state) {
    (void)state;
    tq_rows_in bad;
    const char *word;
    INVALID(tq_append(r.cache, seq, 0, 1, NULL, &in, NULL), "k");
    INVALID(tq_append(r.cache, seq, 0, 1, &in, NULL, NULL), "v");
    for (uint32_t i = 0; bad_rows(i, &bad, &word); i++) {
        INVALID(tq_append(r.cache, seq, 1, 1, &bad, &in, NULL), word);
        INVALID(tq_append(r.cache, seq, 1, 1, &bad, &in, NULL), "k: ");
        INVALID(tq_append(r.cache, seq, 1, 1, &in, &bad, NULL), word);
        INVALID(tq_append(r.cache, seq, 1, 1, &in, &bad, NULL), "v: ");
    }
}

static void test_attend_rows(void **state) {
    (void)state;
    struct guarded out = guard_make(sizeof(float) * QUERIES * HEADS * GROUP * DIM, 0);
    struct guarded lse = guard_make(sizeof(float) * QUERIES * HEADS * GROUP, 0);
    tq_rows_out good = rows_out(out.data), wrong;
    tq_rows_in bad;
    const char *word;
    INVALID(tq_attend(r.cache, seq, 0, 1, NULL, NULL, &good, lse.data, NULL), "q");
    INVALID(tq_attend(r.cache, seq, 0, 1, NULL, &in, NULL, lse.data, NULL), "out");
    for (uint32_t i = 0; bad_rows(i, &bad, &word); i++) {
        wrong = as_output(&bad, out.data);
        INVALID(tq_attend(r.cache, seq, 0, QUERIES, NULL, &bad, &good, lse.data, NULL), word);
        INVALID(tq_attend(r.cache, seq, 0, QUERIES, NULL, &bad, &good, lse.data, NULL), "q: ");
        INVALID(tq_attend(r.cache, seq, 0, QUERIES, NULL, &in, &wrong, lse.data, NULL), word);
        INVALID(tq_attend(r.cache, seq, 0, QUERIES, NULL, &in, &wrong, lse.data, NULL), "out: ");
    }
    guard_unwritten(&out);
    guard_unwritten(&lse);
    guard_free(&out);
    guard_free(&lse);
}

static void test_attend_params(void **state) {
    (void)state;
    tq_attend_params p = {.struct_size = sizeof p};
    for (uint32_t bit = 3; bit < 32; bit++) { /* those below are known */
        p.flags = 1u << bit;
        INVALID(tq_attend(r.cache, seq, 0, 1, &p, &in, &to, NULL, NULL), "flags");
        INVALID(tq_attend(r.cache, seq, 0, 0, &p, &in, &to, NULL, NULL), "flags");
    }
    p.flags = TQ_ATTEND_CAUSAL | TQ_ATTEND_BATCH_INVARIANT;
    p.reserved = 1;
    INVALID(tq_attend(r.cache, seq, 0, 1, &p, &in, &to, NULL, NULL), "reserved");
    p.reserved = 0;
    const float scales[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(scales); i++) {
        p.scale = scales[i];
        INVALID(tq_attend(r.cache, seq, 0, 1, &p, &in, &to, NULL, NULL), "scale");
    }
}

static void test_read_rows(void **state) {
    (void)state;
    struct guarded out = guard_make(sizeof(float) * LENGTH * HEADS * DIM, 0);
    tq_rows_out good = rows_out(out.data), wrong;
    tq_rows_in bad;
    const char *word;
    static const uint64_t firsts[] = {LENGTH, LENGTH + 1, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < COUNT(firsts); i++)
        INVALID(tq_read_rows(r.cache, seq, 0, firsts[i], 1, &good, &good), "tokens");
    INVALID(tq_read_rows(r.cache, seq, 0, 0, LENGTH + 1, &good, &good), "tokens");
    INVALID(tq_read_rows(r.cache, seq, 0, LENGTH - 1, 2, NULL, &good), "tokens");
    INVALID(tq_read_rows(r.cache, seq, 0, 1, UINT32_MAX, NULL, NULL), "tokens");
    INVALID(tq_read_rows(r.cache, seq, 0, LENGTH + 1, 0, &good, &good), "tokens");
    for (uint32_t i = 0; bad_rows(i, &bad, &word); i++) {
        wrong = as_output(&bad, out.data);
        INVALID(tq_read_rows(r.cache, seq, 0, 0, 1, &wrong, &good), word);
        INVALID(tq_read_rows(r.cache, seq, 0, 0, 1, &wrong, &good), "k: ");
        INVALID(tq_read_rows(r.cache, seq, 0, 0, 1, &good, &wrong), word);
        INVALID(tq_read_rows(r.cache, seq, 0, 0, 1, NULL, &wrong), "v: ");
    }
    OK(tq_read_rows(r.cache, seq, 0, LENGTH, 0, &good, &good)); /* nothing, at the very end */
    guard_unwritten(&out);
    guard_free(&out);
}

static void test_read_page(void **state) {
    (void)state;
    size_t size = 0, written = 7;
    OK(tq_read_page(r.cache, seq, 0, 1, HEADS - 1, NULL, 0, &size));
    struct guarded buf = guard_make(size, 0);
    static const uint64_t pages[] = {2, 3, 4, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < COUNT(pages); i++)
        INVALID(tq_read_page(r.cache, seq, 0, pages[i], 0, buf.data, size, &written), "page");
    INVALID(tq_read_page(r.cache, seq, 0, 0, HEADS, buf.data, size, &written), "head");
    INVALID(tq_read_page(r.cache, seq, 0, 0, UINT32_MAX, buf.data, size, &written), "head");
    assert_int_equal(written, 7);
    for (size_t less = 1; less <= size; less *= 2) {
        written = 7;
        REFUSED(tq_read_page(r.cache, seq, 0, 1, 1, buf.data, size - less, &written),
                TQ_ERR_BUFFER_TOO_SMALL, "buf");
        assert_int_equal(written, size);
    }
    guard_unwritten(&buf);
    OK(tq_read_page(r.cache, seq, 0, 1, HEADS - 1, buf.data, size, &written));
    assert_int_equal(written, size);
    guard_free(&buf);
}

/* ---- pages, means, scales -------------------------------------------------------------- */

/* The rows of a call that finds no page are not even looked at: there may be billions. */
static void test_out_of_pages(void **state) {
    (void)state;
    static const uint32_t counts[] = {PAGE * 4, PAGE * 4 - LENGTH + 1, 1u << 20, 1u << 31,
                                      UINT32_MAX};
    for (size_t i = 0; i < COUNT(counts); i++)
        REFUSED(tq_append(r.cache, seq, 0, counts[i], &in, &in, NULL), TQ_ERR_OUT_OF_PAGES,
                "pages");
}

static void test_nothing_to_do(void **state) {
    (void)state;
    OK(tq_append(r.cache, seq, 0, 0, &in, &in, NULL));
    OK(tq_append(r.cache, seq, 0, 0, NULL, NULL, NULL));
    OK(tq_attend(r.cache, seq, 0, 0, NULL, NULL, NULL, NULL, NULL));
    snapshot_check(&r, &before, "calls that do nothing");
}

static void test_frozen_layers(void **state) {
    (void)state;
    for (uint32_t l = 0; l < LAYERS; l++) {
        REFUSED(tq_cache_set_means(r.cache, l, rows, NULL), TQ_ERR_INVALID_STATE, "layer");
        REFUSED(tq_cache_set_means(r.cache, l, NULL, NULL), TQ_ERR_INVALID_STATE, "layer");
        REFUSED(tq_cache_fit_means(r.cache, l, 1, &in, &in), TQ_ERR_INVALID_STATE, "layer");
        REFUSED(tq_cache_set_fp8_scales(r.cache, l, NULL, NULL), TQ_ERR_INVALID_STATE, "layer");
    }
}

static void test_means(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    float mean[HEADS * DIM] = {0};
    tq_rows_in bad_in;
    const char *word;
    OK(tq_cache_reset(r.cache));
    for (size_t i = 0; i < COUNT(bad); i++) {
        mean[HEADS * DIM - 1] = bad[i];
        FAILS(tq_cache_set_means(r.cache, 0, mean, NULL), TQ_ERR_INVALID_ARGUMENT, "k_mean");
        FAILS(tq_cache_set_means(r.cache, 0, rows, mean), TQ_ERR_INVALID_ARGUMENT, "v_mean");
    }
    FAILS(tq_cache_fit_means(r.cache, 0, 0, &in, &in), TQ_ERR_INVALID_ARGUMENT, "n_tokens");
    for (uint32_t i = 0; bad_rows(i, &bad_in, &word); i++) {
        FAILS(tq_cache_fit_means(r.cache, 0, 1, &bad_in, &in), TQ_ERR_INVALID_ARGUMENT, word);
        FAILS(tq_cache_fit_means(r.cache, 0, 1, &in, &bad_in), TQ_ERR_INVALID_ARGUMENT, "v: ");
    }
}

/* Keys are fp8 here, values are not. */
static void test_scales(void **state) {
    (void)state;
    const float bad[] = {0, -0.0f, -1, NAN, INFINITY, -INFINITY, 1e-40f};
    float scales[HEADS] = {1, 1};
    OK(tq_cache_reset(r.cache));
    for (size_t i = 0; i < COUNT(bad); i++) {
        scales[HEADS - 1] = bad[i];
        FAILS(tq_cache_set_fp8_scales(r.cache, 0, scales, NULL), TQ_ERR_INVALID_ARGUMENT,
              "k_scale");
    }
    scales[HEADS - 1] = 0.25f;
    FAILS(tq_cache_set_fp8_scales(r.cache, 0, NULL, scales), TQ_ERR_INVALID_ARGUMENT, "v_scale");
    FAILS(tq_cache_set_fp8_scales(r.cache, 0, scales, scales), TQ_ERR_INVALID_ARGUMENT, "v_scale");
    OK(tq_cache_set_fp8_scales(r.cache, 0, scales, NULL));
    OK(tq_cache_set_fp8_scales(r.cache, 0, NULL, NULL));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)
    const struct CMUnitTest tests[] = {
        TEST(test_null_cache),
        TEST(test_bad_layers),
        TEST(test_bad_sequences),
        TEST(test_too_many_sequences),
        TEST(test_prefix_beyond_the_end),
        TEST(test_append_rows),
        TEST(test_attend_rows),
        TEST(test_attend_params),
        TEST(test_read_rows),
        TEST(test_read_page),
        TEST(test_out_of_pages),
        TEST(test_nothing_to_do),
        TEST(test_frozen_layers),
        TEST(test_means),
        TEST(test_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
