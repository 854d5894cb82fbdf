/* What a refused call leaves in force: means and scales set before it. And the ends of some
 * ranges, names of statuses and kernels. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"

enum { DIM = 64, HEADS = 2, GROUP = 2, N_TOKENS = 32, PAGE = 16 };

/* ---- means and scales ------------------------------------------------------------------ */

/* A cache with fp8 keys and centred lm4 values, whose settings were then attacked. */
struct world {
    struct rig rig;
    tq_seq seq;
    float *mean, *rows;
};

static const float scales[HEADS] = {0.25f, 3};

static void open_world(struct world *w) {
    struct rng rng = {1};
    tq_cache_config c = plain_config(TQ_VARIANT_K8V4, DIM, HEADS, GROUP);
    memset(w, 0, sizeof *w);
    c.page_tokens = PAGE;
    rig_open(&w->rig, &c);
    w->mean = random_rows(&rng, HEADS * DIM, 1);
    w->rows = random_rows(&rng, N_TOKENS * HEADS * DIM, 1);
    w->seq = rig_seq(&w->rig);
    OK(tq_cache_set_means(w->rig.cache, 0, w->mean, w->mean));
    OK(tq_cache_set_fp8_scales(w->rig.cache, 0, scales, NULL));
}

static void close_world(struct world *w) {
    rig_close(&w->rig);
    free(w->mean);
    free(w->rows);
}

/* Appends the same rows to both; pages and answers must agree. */
static void check_same_world(struct world *a, struct world *b, const char *what) {
    struct rng rng = {2};
    rig_append(&a->rig, a->seq, 0, N_TOKENS, a->rows, a->rows);
    rig_append(&b->rig, b->seq, 0, N_TOKENS, b->rows, b->rows);
    for (uint32_t i = 0; i < HEADS * N_TOKENS / PAGE; i++) {
        size_t size = 0, written;
        OK(tq_read_page(a->rig.cache, a->seq, 0, i / HEADS, i % HEADS, NULL, 0, &size));
        char *bytes = must_alloc(2, size);
        OK(tq_read_page(a->rig.cache, a->seq, 0, i / HEADS, i % HEADS, bytes, size, &written));
        OK(tq_read_page(b->rig.cache, b->seq, 0, i / HEADS, i % HEADS, bytes + size, size,
                        &written));
        CHECK(memcmp(bytes, bytes + size, size) == 0, "%s: page %u", what, i / HEADS);
        free(bytes);
    }
    struct asked one = ask_make(&a->rig, 2, 0, &rng), two = ask_make(&b->rig, 2, 0, &rng);
    memcpy(two.q, one.q, 2 * rig_q_row(&a->rig) * sizeof(float));
    ask(&a->rig, a->seq, 0, &one);
    ask(&b->rig, b->seq, 0, &two);
    CHECK(same_answer(&a->rig, &one, &two), "%s: another answer", what);
    ask_free(&one);
    ask_free(&two);
}

static void bad_k_mean(struct world *w) {
    float bad[HEADS * DIM] = {0};
    bad[HEADS * DIM - 1] = NAN;
    FAILS(tq_cache_set_means(w->rig.cache, 0, bad, NULL), TQ_ERR_INVALID_ARGUMENT, "k_mean");
}

static void bad_v_mean(struct world *w) {
    float bad[HEADS * DIM] = {0};
    bad[0] = INFINITY;
    FAILS(tq_cache_set_means(w->rig.cache, 0, w->rows, bad), TQ_ERR_INVALID_ARGUMENT, "v_mean");
}

static void bad_fit(struct world *w) {
    tq_rows_in good = rows_in(w->rows), bad = good;
    bad.dtype = 9;
    FAILS(tq_cache_fit_means(w->rig.cache, 0, 3, &good, &bad), TQ_ERR_INVALID_ARGUMENT, "v: dtype");
    FAILS(tq_cache_fit_means(w->rig.cache, 0, 3, &bad, &good), TQ_ERR_INVALID_ARGUMENT, "k: dtype");
    FAILS(tq_cache_fit_means(w->rig.cache, 0, 0, &good, NULL), TQ_ERR_INVALID_ARGUMENT, "n_tokens");
}

static void bad_scale(struct world *w) {
    static const float bad[HEADS] = {1, 0}, good[HEADS] = {7, 7};
    FAILS(tq_cache_set_fp8_scales(w->rig.cache, 0, bad, NULL), TQ_ERR_INVALID_ARGUMENT, "k_scale");
    FAILS(tq_cache_set_fp8_scales(w->rig.cache, 0, good, good), TQ_ERR_INVALID_ARGUMENT, "v_scale");
}

static void too_late(struct world *w) {
    static const float late[HEADS] = {7, 7};
    tq_rows_in rows = rows_in(w->rows);
    rig_append(&w->rig, w->seq, 0, 3, w->rows, w->rows);
    FAILS(tq_cache_set_means(w->rig.cache, 0, w->rows, NULL), TQ_ERR_INVALID_STATE, "layer");
    FAILS(tq_cache_fit_means(w->rig.cache, 0, 3, &rows, &rows), TQ_ERR_INVALID_STATE, "layer");
    FAILS(tq_cache_set_fp8_scales(w->rig.cache, 0, late, NULL), TQ_ERR_INVALID_STATE, "layer");
    OK(tq_seq_truncate(w->rig.cache, w->seq, 0)); /* still frozen */
    FAILS(tq_cache_set_means(w->rig.cache, 0, NULL, NULL), TQ_ERR_INVALID_STATE, "layer");
}

static void check_settings_kept(void (*attack)(struct world *w), const char *what) {
    struct world calm, attacked;
    open_world(&calm);
    open_world(&attacked);
    attack(&attacked);
    check_same_world(&calm, &attacked, what);
    close_world(&calm);
    close_world(&attacked);
}

static void test_settings_kept(void **state) {
    (void)state;
    check_settings_kept(bad_k_mean, "a bad mean of keys");
    check_settings_kept(bad_v_mean, "a bad mean of values");
    check_settings_kept(bad_fit, "bad rows to fit to");
    check_settings_kept(bad_scale, "a bad scale");
    check_settings_kept(too_late, "settings that come too late");
}

/* The attacks above would show: means and scales do change bytes. */
static void test_settings_show(void **state) {
    struct world w;
    struct rig plain = {.ctx = NULL};
    size_t size = 0, written;
    (void)state;
    open_world(&w);
    tq_cache_config c = w.rig.c;
    c.layer_formats = NULL; /* variant says it, too */
    rig_open(&plain, &c);
    tq_seq seq = rig_seq(&plain);
    rig_append(&w.rig, w.seq, 0, PAGE, w.rows, w.rows);
    rig_append(&plain, seq, 0, PAGE, w.rows, w.rows);
    OK(tq_read_page(plain.cache, seq, 0, 0, 0, NULL, 0, &size));
    char *bytes = must_alloc(2, size);
    OK(tq_read_page(plain.cache, seq, 0, 0, 0, bytes, size, &written));
    OK(tq_read_page(w.rig.cache, w.seq, 0, 0, 0, bytes + size, size, &written));
    assert_memory_not_equal(bytes, bytes + size, size / 2);
    assert_memory_not_equal(bytes + size / 2, bytes + size + size / 2, size / 2);
    free(bytes);
    rig_close(&plain);
    close_world(&w);
}

static void test_scale_range(void **state) {
    float range[HEADS] = {FLT_MIN, 0x1p126f};
    struct world w;
    (void)state;
    open_world(&w);
    OK(tq_cache_set_fp8_scales(w.rig.cache, 0, range, NULL));
    range[0] = nextafterf(FLT_MIN, 0);
    FAILS(tq_cache_set_fp8_scales(w.rig.cache, 0, range, NULL), TQ_ERR_INVALID_ARGUMENT, "k_scale");
    close_world(&w);
}

/* ---- ends of ranges -------------------------------------------------------------------- */

static char nowhere;
#define NOWHERE ((void *)&nowhere)

static void test_max_pages(void **state) {
    struct rig rig = {.ctx = NULL};
    tq_cache_config c = plain_config(TQ_VARIANT_BF16, 1024, 1, 1);
    tq_cache *cache = NOWHERE;
    tq_footprint footprint = {.struct_size = sizeof footprint}, untouched = footprint;
    (void)state;
    rig_open(&rig, &c);
    c.max_pages = UINT64_C(1) << 32;
    FAILS(tq_cache_create(rig.ctx, &c, &cache), TQ_ERR_INVALID_ARGUMENT, "max_pages");
    FAILS(tq_cache_estimate(rig.ctx, &c, &footprint), TQ_ERR_INVALID_ARGUMENT, "max_pages");
    c.max_pages = UINT32_MAX; /* allowed, and more than there is */
    FAILS(tq_cache_create(rig.ctx, &c, &cache), TQ_ERR_OUT_OF_MEMORY, "memory");
    assert_memory_equal(&footprint, &untouched, sizeof footprint);
    OK(tq_cache_estimate(rig.ctx, &c, &footprint));
    assert_true(footprint.host_bytes > footprint.bytes_per_page * UINT32_MAX);
    assert_int_equal(footprint.bytes_per_page, 64 * 1024 * 2 * 2);
    assert_ptr_equal(cache, NOWHERE);
    rig_close(&rig);
}

/* A pool of 2^68 bytes. */
static void test_size_that_overflows(void **state) {
    struct rig rig = {.ctx = NULL};
    tq_cache_config c = plain_config(TQ_VARIANT_BF16, 1024, 1, 1);
    tq_cache *cache = NOWHERE;
    tq_footprint footprint = {.struct_size = sizeof footprint}, untouched = footprint;
    (void)state;
    rig_open(&rig, &c);
    c.n_kv_heads = c.n_q_heads = 65536;
    c.page_tokens = 256;
    c.max_pages = UINT32_MAX;
    FAILS(tq_cache_create(rig.ctx, &c, &cache), TQ_ERR_OUT_OF_MEMORY, "overflow");
    check_spoil_message();
    tq_status status = tq_cache_estimate(rig.ctx, &c, &footprint);
    assert_true(status == TQ_ERR_INVALID_ARGUMENT || status == TQ_ERR_OUT_OF_MEMORY);
    check_failure(status, status, "overflow", "estimate", __FILE__, __LINE__);
    assert_memory_equal(&footprint, &untouched, sizeof footprint);
    assert_ptr_equal(cache, NOWHERE);
    rig_close(&rig);
}

/* No machine has a hundred GPUs. */
static void test_no_such_gpu(void **state) {
    static const int32_t indices[] = {-1, 100, INT32_MAX, INT32_MIN};
    (void)state;
    for (size_t i = 0; i < COUNT(indices); i++) {
        tq_context_config c = {.struct_size = sizeof c, .device = TQ_DEVICE_CUDA};
        tq_context *ctx = NOWHERE;
        c.device_index = indices[i];
        check_spoil_message();
        tq_status status = tq_context_create(&c, &ctx);
        CHECK(status == TQ_ERR_UNSUPPORTED || status == TQ_ERR_NOT_FOUND, "index %d: %s",
              (int)indices[i], tq_status_name(status));
        check_failure(status, status, "device", "context", __FILE__, __LINE__);
        assert_ptr_equal(ctx, NOWHERE);
    }
}

/* ---- names ----------------------------------------------------------------------------- */

#define NAMED(status) assert_string_equal(tq_status_name(status), #status)

static void test_status_names(void **state) {
    (void)state;
    NAMED(TQ_OK);
    NAMED(TQ_ERR_INVALID_ARGUMENT);
    NAMED(TQ_ERR_INVALID_STATE);
    NAMED(TQ_ERR_UNSUPPORTED);
    NAMED(TQ_ERR_VERSION);
    NAMED(TQ_ERR_NOT_FOUND);
    NAMED(TQ_ERR_OUT_OF_MEMORY);
    NAMED(TQ_ERR_OUT_OF_PAGES);
    NAMED(TQ_ERR_BUFFER_TOO_SMALL);
    NAMED(TQ_ERR_CORRUPT);
    NAMED(TQ_ERR_MISMATCH);
    NAMED(TQ_ERR_DEVICE);
    NAMED(TQ_ERR_INTERNAL);
}

static void test_kernel_names(void **state) {
    static const tq_op ops[] = {-1, TQ_OP_PREFILL + 1, 6, 1000, INT32_MAX, INT32_MIN};
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct rig rig = {.ctx = NULL};
        tq_cache_config c = plain_config(variant_at(i).id, DIM, 1, 1);
        rig_open(&rig, &c);
        for (tq_op op = TQ_OP_ENCODE_K; op <= TQ_OP_PREFILL; op++) {
            const char *name = tq_cache_kernel_name(rig.cache, 0, op);
            assert_non_null(name);
            assert_true(strncmp(name, "tqk_", 4) == 0);
            assert_null(tq_cache_kernel_name(rig.cache, 1, op));
            assert_null(tq_cache_kernel_name(rig.cache, UINT32_MAX, op));
            assert_null(tq_cache_kernel_name(NULL, 0, op));
        }
        for (size_t j = 0; j < COUNT(ops); j++)
            assert_null(tq_cache_kernel_name(rig.cache, 0, ops[j]));
        rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings_kept), cmocka_unit_test(test_settings_show),
        cmocka_unit_test(test_scale_range),   cmocka_unit_test(test_max_pages),
        cmocka_unit_test(test_no_such_gpu),   cmocka_unit_test(test_size_that_overflows),
        cmocka_unit_test(test_status_names),  cmocka_unit_test(test_kernel_names),
    };
    return cmocka_run_group_tests_name("arguments, kept", tests, NULL, NULL);
}
