/* base: the heap and its account, checked arithmetic, the executor, status and messages. */
#include "unit/unit.h"

#include "base/checked.h"
#include "base/executor.h"
#include "unit/heap.h"

/* ---- heap ---------------------------------------------------------------------------------- */

static void test_account(void **state) {
    struct unit_heap unit;
    struct tqi_heap heap = unit_heap_make(&unit);
    (void)state;
    void *a = tqi_alloc(&heap, 10, 3, TQ_MEM_HOST);
    void *b = tqi_alloc(&heap, 100, 1, TQ_MEM_HOST_PINNED);
    void *c = tqi_alloc(&heap, 7, 11, TQ_MEM_DEVICE);
    assert_true(a && b && c && (uintptr_t)a % TQI_ALIGNMENT == 0);
    assert_int_equal(heap.host_bytes, 130);
    assert_int_equal(heap.device_bytes, 77);
    tqi_free(&heap, c, 7, 11, TQ_MEM_DEVICE);
    tqi_free(&heap, a, 10, 3, TQ_MEM_HOST);
    tqi_free(&heap, NULL, 1000, 1000, TQ_MEM_HOST);
    assert_int_equal(heap.host_bytes, 100);
    assert_int_equal(heap.device_bytes, 0);
    struct tqi_heap like = tqi_heap_like(&heap);
    assert_int_equal(like.host_bytes, 0);
    assert_ptr_equal(like.hooks.user, &unit);
    tqi_free(&heap, b, 100, 1, TQ_MEM_HOST_PINNED);
    assert_int_equal(unit.blocks, 0);
}

static void test_calloc_clears(void **state) {
    static const char zeros[4096];
    struct unit_heap unit;
    struct tqi_heap heap = unit_heap_make(&unit);
    (void)state;
    char *p = tqi_calloc(&heap, 64, 64);
    assert_memory_equal(p, zeros, sizeof zeros);
    tqi_free(&heap, p, 64, 64, TQ_MEM_HOST);
    /* Nothing is a valid block too. */
    p = tqi_calloc(&heap, 0, 64);
    assert_non_null(p);
    tqi_free(&heap, p, 0, 64, TQ_MEM_HOST);
    assert_int_equal(unit.blocks, 0);
    assert_int_equal(heap.host_bytes, 0);
}

static void test_refusals(void **state) {
    struct unit_heap unit;
    struct tqi_heap heap = unit_heap_make(&unit);
    (void)state;
    assert_null(tqi_alloc(&heap, SIZE_MAX / 2, 3, TQ_MEM_HOST));
    assert_null(tqi_calloc(&heap, SIZE_MAX, SIZE_MAX));
    assert_int_equal(unit.calls, 0);
    assert_non_null(strstr(tqi_last_message(), "overflow"));
    unit.fail_at = 1;
    assert_null(tqi_alloc(&heap, 5, 5, TQ_MEM_HOST));
    assert_non_null(strstr(tqi_last_message(), "25 bytes"));
    assert_int_equal(heap.host_bytes, 0);
}

/* Without hooks the C library serves host memory and nothing else. */
static void test_default_hooks(void **state) {
    struct tqi_heap heap;
    tq_allocator half = {.struct_size = sizeof half, .alloc = unit_alloc};
    (void)state;
    assert_int_equal(tqi_heap_init(&heap, NULL), TQ_OK);
    char *p = tqi_alloc(&heap, 3, 33, TQ_MEM_HOST);
    assert_true(p && (uintptr_t)p % TQI_ALIGNMENT == 0);
    memset(p, 1, 99);
    tqi_free(&heap, p, 3, 33, TQ_MEM_HOST);
    assert_null(tqi_alloc(&heap, 1, 1, TQ_MEM_DEVICE));
    assert_null(tqi_alloc(&heap, 1, SIZE_MAX - 8, TQ_MEM_HOST));
    assert_int_equal(tqi_heap_init(&heap, &half), TQ_ERR_INVALID_ARGUMENT);
}

/* ---- checked arithmetic -------------------------------------------------------------------- */

static void test_checked(void **state) {
    size_t out = 0;
    (void)state;
    assert_true(tqi_mul_size(SIZE_MAX / 7, 7, &out) && out == SIZE_MAX / 7 * 7);
    assert_false(tqi_mul_size(SIZE_MAX / 7 + 1, 7, &out));
    assert_true(tqi_mul_size(0, SIZE_MAX, &out) && out == 0);
    assert_true(tqi_add_size(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_false(tqi_add_size(SIZE_MAX, 1, &out));
    for (size_t n = 0; n < 1000; n++) {
        size_t up = tqi_align_up(n, 64);
        assert_true(up % 64 == 0 && up >= n && up < n + 64);
        assert_int_equal(tqi_div_up(n, 7), (n + 6) / 7);
    }
    assert_int_equal(tqi_div_up(UINT64_MAX, 2), (uint64_t)1 << 63);
    assert_int_equal(tqi_div_up(UINT64_MAX, UINT64_MAX), 1);
}

/* ---- executor ------------------------------------------------------------------------------- */

struct counts {
    uint32_t runs[100], worker[100], hook_calls;
};

static void count_task(void *arg, uint32_t index, uint32_t worker) {
    struct counts *c = arg;
    c->runs[index]++;
    c->worker[index] = worker;
}

/* Backwards, with two worker numbers in turn. */
static void backwards(void *user, uint32_t n_tasks, void (*task)(void *, uint32_t, uint32_t),
                      void *arg) {
    ((struct counts *)user)->hook_calls++;
    for (uint32_t i = n_tasks; i-- > 0;)
        task(arg, i, i % 2);
}

static void test_executor(void **state) {
    struct tqi_executor executor;
    struct counts c;
    tq_executor config = {.struct_size = sizeof config, .n_workers = 2, .user = &c};
    config.parallel_for = backwards;
    (void)state;
    for (int hook = 0; hook < 2; hook++)
        for (uint32_t n = 0; n <= 100; n++) {
            memset(&c, 0, sizeof c);
            assert_int_equal(tqi_executor_init(&executor, hook ? &config : NULL), TQ_OK);
            assert_int_equal(executor.n_workers, hook ? 2 : 1);
            tqi_executor_run(&executor, n, count_task, &c);
            for (uint32_t i = 0; i < 100; i++) {
                assert_int_equal(c.runs[i], i < n);
                assert_true(c.worker[i] < executor.n_workers);
            }
            assert_int_equal(c.hook_calls, hook && n > 1); /* one task needs no hook */
        }
}

static void test_bad_executors(void **state) {
    struct tqi_executor executor;
    tq_executor config = {.struct_size = sizeof config, .n_workers = 1};
    (void)state;
    assert_int_equal(tqi_executor_init(&executor, &config), TQ_ERR_INVALID_ARGUMENT);
    config.parallel_for = backwards;
    config.n_workers = 0;
    assert_int_equal(tqi_executor_init(&executor, &config), TQ_ERR_INVALID_ARGUMENT);
    config.n_workers = 65537;
    assert_int_equal(tqi_executor_init(&executor, &config), TQ_ERR_INVALID_ARGUMENT);
    config.n_workers = 65536;
    assert_int_equal(tqi_executor_init(&executor, &config), TQ_OK);
}

/* ---- status ---------------------------------------------------------------------------------- */

static void test_status_names(void **state) {
    static const struct {
        tq_status status;
        const char *name;
    } known[] = {
        {0, "TQ_OK"},
        {-1, "TQ_ERR_INVALID_ARGUMENT"},
        {-2, "TQ_ERR_INVALID_STATE"},
        {-3, "TQ_ERR_UNSUPPORTED"},
        {-4, "TQ_ERR_VERSION"},
        {-5, "TQ_ERR_NOT_FOUND"},
        {-10, "TQ_ERR_OUT_OF_MEMORY"},
        {-11, "TQ_ERR_OUT_OF_PAGES"},
        {-12, "TQ_ERR_BUFFER_TOO_SMALL"},
        {-20, "TQ_ERR_CORRUPT"},
        {-21, "TQ_ERR_MISMATCH"},
        {-30, "TQ_ERR_DEVICE"},
        {-99, "TQ_ERR_INTERNAL"},
    };
    size_t named = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(known); i++)
        assert_string_equal(tqi_status_text(known[i].status), known[i].name);
    for (tq_status s = -200; s <= 200; s++)
        named += strcmp(tqi_status_text(s), "TQ_ERR_UNKNOWN") != 0;
    assert_int_equal(named, COUNT(known));
}

/* The message of a failure is whole or cut, never more than its room. */
static void test_messages(void **state) {
    char name[1000];
    (void)state;
    assert_int_equal(tqi_fail(TQ_ERR_DEVICE, "%s %d", "text", 7), TQ_ERR_DEVICE);
    assert_string_equal(tqi_last_message(), "text 7");
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    assert_int_equal(tqi_fail(TQ_ERR_CORRUPT, "%s", name), TQ_ERR_CORRUPT);
    assert_int_equal(strlen(tqi_last_message()), 255);
    assert_int_equal(strspn(tqi_last_message(), "x"), 255);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account),       cmocka_unit_test(test_calloc_clears),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_default_hooks),
        cmocka_unit_test(test_checked),       cmocka_unit_test(test_executor),
        cmocka_unit_test(test_bad_executors), cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
