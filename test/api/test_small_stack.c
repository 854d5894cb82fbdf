/* The library from a thread whose stack is small: nothing that grows with heads or dims may
 * lie on it. B11. */
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/rig.h"

enum { WIDE_HEADS = 128, WIDE_DIM = 512 };

/* A stack of 64 KiB; sanitizers put red zones between all variables of a frame. */
static void run_in_small_stack(void *(*work)(void *arg), void *arg) {
    size_t stack = (size_t)1 << (FEWER > 1 ? 19 : 16);
    pthread_attr_t attr;
    pthread_t thread;
    stack = stack < (size_t)PTHREAD_STACK_MIN ? (size_t)PTHREAD_STACK_MIN : stack;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
    assert_int_equal(pthread_create(&thread, &attr, work, arg), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

struct wide {
    tq_variant variant;
    const float *rows; /* two tokens */
    float *out;
    tq_status status;
};

static tq_status live_in_small_stack(const struct wide *w, tq_context *ctx, tq_cache **cache) {
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = 2,
                         .n_kv_heads = WIDE_HEADS,
                         .head_dim = WIDE_DIM,
                         .variant = w->variant,
                         .page_tokens = 16};
    tq_rows_in in = rows_in(w->rows);
    tq_rows_out out = rows_out(w->out);
    tq_seq seq, copy;
    tq_status status = tq_cache_create(ctx, &c, cache);
    for (uint32_t l = 0; l < 2 && status == TQ_OK; l++) {
        status = tq_cache_fit_means(*cache, l, 2, &in, &in);
        if (l == 0 && status == TQ_OK)
            status = tq_seq_create(*cache, &seq);
        if (status == TQ_OK)
            status = tq_append(*cache, seq, l, 2, &in, &in, NULL);
        if (status == TQ_OK)
            status = tq_attend(*cache, seq, l, 2, NULL, &in, &out, NULL, NULL);
    }
    if (status == TQ_OK)
        status = tq_seq_fork(*cache, seq, 1, &copy);
    if (status == TQ_OK)
        status = tq_append(*cache, copy, 0, 1, &in, &in, NULL);
    return status == TQ_OK ? tq_read_rows(*cache, seq, 1, 0, 2, &out, NULL) : status;
}

static void *live_wide(void *arg) {
    struct wide *w = arg;
    tq_context *ctx = NULL;
    tq_cache *cache = NULL;
    w->status = tq_context_create(NULL, &ctx);
    if (w->status == TQ_OK)
        w->status = live_in_small_stack(w, ctx, &cache);
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return NULL;
}

/* B11: 128 kv heads of 512 dims from a thread with a stack of 64 KiB. */
static void test_b11_small_stack(void **state) {
    (void)state;
    struct rng rng = {12};
    float *rows = random_rows(&rng, 2 * WIDE_HEADS * WIDE_DIM, 1);
    float *out = must_alloc(2 * WIDE_HEADS * WIDE_DIM, sizeof *out);
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        struct wide w = {variant_at(i).id, rows, out, TQ_ERR_INTERNAL};
        run_in_small_stack(live_wide, &w);
        CHECK(w.status == TQ_OK, "%s: %s", variant_at(i).name, tq_status_name(w.status));
    }
    free(rows);
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b11_small_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
