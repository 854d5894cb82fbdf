/* How an append is cut into tasks: every page and head once, whatever the numbers. Nothing is
 * coded: the executor counts. */
#include "unit/unit.h"

#include "encode/encode.h"

struct count {
    uint64_t tasks;
};

static void count_tasks(void *user, uint32_t n_tasks, tqi_task_fn *task, void *arg) {
    struct count *c = user;
    (void)task;
    (void)arg;
    c->tasks += n_tasks;
}

static struct count cut(uint64_t length, uint32_t n_tokens, uint32_t page_tokens, uint32_t heads) {
    struct count c = {0};
    struct tqi_executor executor = {.n_workers = 2, .user = &c, .parallel_for = count_tasks};
    struct tqi_layer layer = {.n_kv_heads = heads};
    struct tqi_encode_job job = {.layer = &layer,
                                 .view = {.page_tokens = page_tokens, .length = length},
                                 .n_tokens = n_tokens,
                                 .executor = &executor};
    tqi_encode(&job);
    return c;
}

static void test_small(void **state) {
    (void)state;
    assert_int_equal(cut(0, 64, 64, 8).tasks, 8);
    assert_int_equal(cut(0, 65, 64, 8).tasks, 16);
    assert_int_equal(cut(63, 2, 64, 8).tasks, 16);
    assert_int_equal(cut(64, 1, 64, 3).tasks, 3);
}

/* More tasks than an executor can be given at once. */
static void test_huge(void **state) {
    (void)state;
    static const uint32_t heads[] = {1, 3, 17, 64, 1000, UINT32_MAX};
    static const uint32_t page_tokens[] = {16, 64, 256};
    for (size_t h = 0; h < COUNT(heads); h++)
        for (size_t p = 0; p < COUNT(page_tokens); p++) {
            uint64_t length = UINT64_C(1) << 40 | 5, tokens = page_tokens[p];
            uint64_t pages = (length + UINT32_MAX + tokens - 1) / tokens - length / tokens;
            if (heads[h] == UINT32_MAX) /* a call per page */
                pages = 1;
            uint32_t n = pages == 1 ? 1 : UINT32_MAX;
            struct count c = cut(length, n, page_tokens[p], heads[h]);
            assert_true(c.tasks == pages * heads[h]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_huge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
