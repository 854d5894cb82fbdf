/* What calls over pages of the caller refuse; nothing has been written then. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"
#include "tq/paged.h"

enum { DIM = 64, HEADS = 2, GROUP = 2, PAGE = 16, PAGES = 4, SEQS = 2 };

static struct rig r;
static struct guarded memory, work;
static tq_paged_pool pool;
static tq_paged_seqs seqs;
static int32_t table[SEQS * 2], lengths[SEQS], starts[SEQS + 1];
static int64_t slots[3];
static float rows[8 * HEADS * GROUP * DIM], scratch[8 * HEADS * GROUP * DIM];
static tq_rows_in in;
static tq_rows_out to;
static size_t work_size;

static int open_rig(void **state) {
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_K8V4, DIM, HEADS, GROUP);
    c.page_tokens = PAGE;
    memset(&r, 0, sizeof r);
    rig_open(&r, &c);
    memory = guard_make(tq_paged_page_bytes(r.cache, 0) * PAGES, 0);
    pool = (tq_paged_pool){sizeof pool, 0, memory.data, 0, PAGES};
    memcpy(table, (int32_t[]){3, 1, 0, 2}, sizeof table);
    memcpy(lengths, (int32_t[]){17, 5}, sizeof lengths);
    memcpy(starts, (int32_t[]){0, 2, 3}, sizeof starts);
    memcpy(slots, (int64_t[]){0, 63, -1}, sizeof slots);
    seqs = (tq_paged_seqs){sizeof seqs, SEQS, table, 2, lengths, starts, 3, 17};
    memset(scratch, 0, sizeof scratch);
    in = rows_in(rows);
    to = rows_out(scratch);
    OK(tq_paged_workspace(r.cache, SEQS, 3, 17, &work_size));
    work = guard_make(work_size, 0);
    return 0;
}

static int close_rig(void **state) {
    (void)state;
    guard_free(&memory);
    guard_free(&work);
    rig_close(&r);
    return 0;
}

static tq_status append(void) {
    return tq_paged_append(r.cache, 0, &pool, slots, 3, &in, &in, NULL);
}

static tq_status attend(void) {
    return tq_paged_attend(r.cache, 0, &pool, &seqs, NULL, &in, &to, NULL, work.data, work_size,
                           NULL);
}

#define INVALID(call, word)                          \
    do {                                             \
        FAILS(call, TQ_ERR_INVALID_ARGUMENT, word);  \
        guard_unwritten(&memory);                    \
        for (size_t i = 0; i < COUNT(scratch); i++)  \
            CHECK(scratch[i] == 0, "output %zu", i); \
    } while (0)

/* A field gets a bad value for one call of each function that looks at it. */
#define BAD(field, value, call, word)     \
    do {                                  \
        __typeof__(field) good = (field); \
        (field) = (value);                \
        INVALID(call, word);              \
        (field) = good;                   \
    } while (0)

static void test_handles(void **state) {
    (void)state;
    size_t size = 0;
    INVALID(tq_paged_append(NULL, 0, &pool, slots, 3, &in, &in, NULL), "cache");
    INVALID(tq_paged_append(r.cache, 1, &pool, slots, 3, &in, &in, NULL), "layer");
    INVALID(tq_paged_append(r.cache, 0, NULL, slots, 3, &in, &in, NULL), "pool");
    INVALID(tq_paged_append(r.cache, 0, &pool, NULL, 3, &in, &in, NULL), "slots");
    INVALID(tq_paged_append(r.cache, 0, &pool, slots, 3, NULL, &in, NULL), "k:");
    INVALID(tq_paged_append(r.cache, 0, &pool, slots, 3, &in, NULL, NULL), "v:");
    INVALID(
        tq_paged_attend(NULL, 0, &pool, &seqs, NULL, &in, &to, NULL, work.data, work_size, NULL),
        "cache");
    INVALID(
        tq_paged_attend(r.cache, 9, &pool, &seqs, NULL, &in, &to, NULL, work.data, work_size, NULL),
        "layer");
    INVALID(
        tq_paged_attend(r.cache, 0, NULL, &seqs, NULL, &in, &to, NULL, work.data, work_size, NULL),
        "pool");
    INVALID(
        tq_paged_attend(r.cache, 0, &pool, NULL, NULL, &in, &to, NULL, work.data, work_size, NULL),
        "seqs");
    INVALID(tq_paged_attend(r.cache, 0, &pool, &seqs, NULL, NULL, &to, NULL, work.data, work_size,
                            NULL),
            "q:");
    INVALID(tq_paged_attend(r.cache, 0, &pool, &seqs, NULL, &in, NULL, NULL, work.data, work_size,
                            NULL),
            "out:");
    INVALID(tq_paged_workspace(NULL, 1, 1, 1, &size), "cache");
    INVALID(tq_paged_workspace(r.cache, 1, 1, 1, NULL), "bytes");
    assert_int_equal(tq_paged_page_bytes(NULL, 0), 0);
    assert_int_equal(tq_paged_page_bytes(r.cache, 1), 0);
}

static void test_pool(void **state) {
    (void)state;
    int64_t bytes = (int64_t)tq_paged_page_bytes(r.cache, 0);
    BAD(pool.struct_size, 8, append(), "struct_size");
    BAD(pool.flags, 2, append(), "flags");
    BAD(pool.flags, 2, attend(), "flags");
    BAD(pool.pages, NULL, append(), "pages");
    BAD(pool.pages, (char *)memory.data + 8, attend(), "aligned");
    BAD(pool.page_stride, bytes - 16, append(), "page_stride");
    BAD(pool.page_stride, bytes + 8, attend(), "page_stride");
    BAD(pool.page_stride, -bytes, attend(), "page_stride");
    BAD(pool.n_pages, 0, append(), "n_pages");
    BAD(pool.n_pages, (UINT64_C(1) << 31) + 1, attend(), "n_pages");
}

/* A caller that knows no steps, and one whose step is of another size. */
static void test_step(void **state) {
    (void)state;
    tq_paged_step step = {.struct_size = sizeof step};
    BAD(seqs.step, (&(tq_paged_step){.struct_size = 8}), attend(), "step");
    BAD(seqs.struct_size, 40, attend(), "struct_size");
    seqs.struct_size = 48;
    seqs.step = (tq_paged_step *)1; /* beyond what the caller says it has */
    OK(attend());
    seqs.struct_size = sizeof seqs;
    seqs.step = &step;
    OK(attend());
    OK(attend());
    seqs.step = NULL;
}

static void test_slots(void **state) {
    (void)state;
    BAD(slots[1], PAGE * PAGES, append(), "slots[1]");
    BAD(slots[2], INT64_MAX, append(), "slots[2]");
    BAD(pool.n_pages, 3, append(), "slots[1]");
    OK(append());
}

static void test_sequences(void **state) {
    (void)state;
    BAD(seqs.struct_size, 40, attend(), "struct_size");
    BAD(seqs.block_table, NULL, attend(), "block_table");
    BAD(seqs.seq_lens, NULL, attend(), "seq_lens");
    BAD(seqs.query_starts, NULL, attend(), "query_starts");
    BAD(starts[0], 1, attend(), "query_starts[0]");
    BAD(starts[1], 4, attend(), "query_starts[1]");
    BAD(starts[1], -1, attend(), "query_starts[1]");
    BAD(starts[2], 1, attend(), "query_starts[2]");
    BAD(starts[2], INT32_MAX, attend(), "query_starts[2]");
    BAD(lengths[1], -1, attend(), "seq_lens[1]");
    BAD(lengths[0], 18, attend(), "seq_lens[0]");
    BAD(lengths[0], INT32_MIN, attend(), "seq_lens[0]");
    BAD(table[0], 4, attend(), "block_table");
    BAD(table[1], -1, attend(), "block_table");
    BAD(table[2], INT32_MIN, attend(), "block_table");
    BAD(table[2], INT32_MAX, attend(), "block_table");
    table[3] = -7; /* behind the length */
    OK(append());
    OK(attend());
}

static void test_params_and_workspace(void **state) {
    (void)state;
    tq_attend_params params = {.struct_size = sizeof params, .scale = INFINITY};
    INVALID(tq_paged_attend(r.cache, 0, &pool, &seqs, &params, &in, &to, NULL, work.data, work_size,
                            NULL),
            "scale");
    INVALID(tq_paged_attend(r.cache, 0, &pool, &seqs, NULL, &in, &to, NULL, NULL, work_size, NULL),
            "workspace");
    INVALID(tq_paged_attend(r.cache, 0, &pool, &seqs, NULL, &in, &to, NULL, (char *)work.data + 16,
                            work_size, NULL),
            "workspace");
    FAILS(tq_paged_attend(r.cache, 0, &pool, &seqs, NULL, &in, &to, NULL, work.data, work_size - 1,
                          NULL),
          TQ_ERR_BUFFER_TOO_SMALL, "workspace");
    guard_unwritten(&work);
}

/* The bound grows with every number. */
static void test_workspace_is_monotone(void **state) {
    (void)state;
    static const uint32_t numbers[] = {0, 1, 2, 7, 64, 1000, 65536, 1u << 24};
    for (size_t s = 0; s < COUNT(numbers); s++)
        for (size_t q = 0; q < COUNT(numbers); q++)
            for (size_t n = 0; n < COUNT(numbers); n++) {
                size_t most = 0, less = 0;
                OK(tq_paged_workspace(r.cache, numbers[s], numbers[q], numbers[n], &most));
                if (s)
                    OK(tq_paged_workspace(r.cache, numbers[s - 1], numbers[q], numbers[n], &less));
                assert_true(less <= most);
                if (q)
                    OK(tq_paged_workspace(r.cache, numbers[s], numbers[q - 1], numbers[n], &less));
                assert_true(less <= most);
                if (n)
                    OK(tq_paged_workspace(r.cache, numbers[s], numbers[q], numbers[n - 1], &less));
                assert_true(less <= most);
            }
}

static void test_nothing_to_do(void **state) {
    (void)state;
    OK(tq_paged_append(r.cache, 0, NULL, NULL, 0, NULL, NULL, NULL));
    seqs.n_seqs = 0;
    OK(tq_paged_attend(r.cache, 0, NULL, &seqs, NULL, NULL, NULL, NULL, NULL, 0, NULL));
    seqs.n_seqs = SEQS;
    seqs.n_queries = 0;
    OK(tq_paged_attend(r.cache, 0, NULL, &seqs, NULL, NULL, NULL, NULL, NULL, 0, NULL));
    guard_unwritten(&memory);
}

/* Constants stay once codes exist, and replaced elements are counted. */
static void test_layer_is_in_use(void **state) {
    (void)state;
    float scale[HEADS] = {2, 2};
    OK(tq_cache_set_fp8_scales(r.cache, 0, scale, NULL));
    rows[3] = NAN;
    OK(append());
    assert_true(rig_stats(&r).nan_values > 0);
    FAILS(tq_cache_set_fp8_scales(r.cache, 0, scale, NULL), TQ_ERR_INVALID_STATE, "frozen");
    rows[3] = 0;
}

/* Tokens beside the codes have no place in the caller's pages. */
static void test_protected_tokens(void **state) {
    (void)state;
    size_t size = 0;
    for (uint32_t i = 0; i < 2; i++) {
        tq_cache_config c = r.c;
        tq_cache *cache = NULL;
        c.variant = 0;
        c.sink_tokens = i ? 0 : 4;
        c.recent_tokens = i ? 16 : 0;
        OK(tq_cache_create(r.ctx, &c, &cache));
        FAILS(tq_paged_append(cache, 0, &pool, slots, 3, &in, &in, NULL), TQ_ERR_UNSUPPORTED,
              "recent_tokens");
        FAILS(tq_paged_attend(cache, 0, &pool, &seqs, NULL, &in, &to, NULL, work.data, work_size,
                              NULL),
              TQ_ERR_UNSUPPORTED, "recent_tokens");
        FAILS(tq_paged_workspace(cache, 1, 1, 1, &size), TQ_ERR_UNSUPPORTED, "recent_tokens");
        guard_unwritten(&memory);
        tq_cache_destroy(cache);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_handles),
        TEST(test_pool),
        TEST(test_slots),
        TEST(test_step),
        TEST(test_sequences),
        TEST(test_params_and_workspace),
        TEST(test_workspace_is_monotone),
        TEST(test_protected_tokens),
        TEST(test_nothing_to_do),
        TEST(test_layer_is_in_use),
    };
    return cmocka_run_group_tests_name("paged arguments", tests, NULL, NULL);
}
