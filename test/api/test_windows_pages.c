/* Sliding windows: what is not read, and bits that do not change; what is refused of windows,
 * softcap and sinks. */
#define _GNU_SOURCE /* mmap flags */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/cache.h"

enum { DIM = 64, KV_HEADS = 2, PAGE = 16 };

/* ---- pages outside --------------------------------------------------------------------- */

/* One large block for pages, at the border of memory pages. */
static struct {
    char *at;
    size_t bytes;
} mapped;

static void *map_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)space;
    if (size < 1 << 18 || mapped.at)
        return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    mapped.at = p;
    mapped.bytes = size;
    return p;
}

static void map_free(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)alignment;
    (void)space;
    if (ptr != mapped.at) {
        free(ptr);
        return;
    }
    assert_int_equal(munmap(ptr, size), 0);
    mapped.at = NULL;
}

enum { PAGES = 6 };

/* Where a page of the sequence lies. */
static char *find_page(const struct rig *r, tq_seq seq, uint64_t page, size_t *size) {
    void *bytes = page_bytes(r, seq, 0, page, 0, size);
    char *found = NULL;
    for (size_t at = 0; at < mapped.bytes && !found; at += *size)
        found = memcmp(mapped.at + at, bytes, *size) == 0 ? mapped.at + at : NULL;
    free(bytes);
    assert_non_null(found);
    assert_int_equal(*size % 4096, 0);
    return found;
}

/* From now on touching the first n pages of the sequence ends the program. */
static void forbid(const struct rig *r, tq_seq seq, uint32_t n) {
    char *at[PAGES];
    size_t size = 0;
    for (uint32_t i = 0; i < n; i++)
        at[i] = find_page(r, seq, i, &size);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(mprotect(at[i], size, PROT_NONE), 0);
}

static void check_pages(struct rig *r, tq_seq seq, uint32_t n, uint32_t queries, uint32_t window) {
    struct asked a = ask_make(r, queries, TQ_ATTEND_CAUSAL, &(struct rng){window});
    uint32_t from = n - queries + 1 > window ? n - queries + 1 - window : 0;
    a.window = window;
    ask(r, seq, 0, &a);
    struct asked b = ask_make(r, queries, TQ_ATTEND_CAUSAL, &(struct rng){window});
    b.window = window;
    forbid(r, seq, from / PAGE);
    ask(r, seq, 0, &b);
    assert_int_equal(mprotect(mapped.at, mapped.bytes, PROT_READ | PROT_WRITE), 0);
    assert_true(same_answer(r, &a, &b));
    ask_free(&a);
    ask_free(&b);
}

static void test_pages_outside_are_not_read(void **state) {
    enum { N = PAGES * PAGE - 5 };
    static const uint32_t some[] = {1, 11, 12, 27, 28, 60};
    const tq_allocator hooks = {sizeof hooks, 0, NULL, map_alloc, map_free};
    const tq_context_config context = {.struct_size = sizeof context,
                                       .allocator = &hooks,
                                       .cpu_features_disabled = test_features_disabled()};
    struct rig r = {.c = plain_config(TQ_VARIANT_BF16, 1024, 1, 2)};
    (void)state;
    r.c.page_tokens = PAGE;
    r.c.max_pages = PAGES;
    OK(tq_context_create(&context, &r.ctx));
    OK(tq_cache_create(r.ctx, &r.c, &r.cache));
    OK(tq_cache_get_config(r.cache, &r.c));
    assert_non_null(mapped.at);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, N, &(struct rng){1});
    for (size_t i = 0; i < COUNT(some); i++)
        for (uint32_t queries = 1; queries <= 18; queries += 17)
            check_pages(&r, seq, N, queries, some[i]);
    tq_cache_destroy(r.cache);
    tq_context_destroy(r.ctx);
    assert_null(mapped.at);
}

/* ---- bits ------------------------------------------------------------------------------ */

/* A row's bits depend neither on the rows beside it nor on workers. */
static void check_bits(struct rig *r, struct rig *threaded, tq_seq seq, tq_seq same,
                       uint32_t window, float softcap) {
    enum { ROWS = 9 };
    struct asked all = ask_make(r, ROWS, TQ_ATTEND_CAUSAL, &(struct rng){7});
    struct asked other = ask_make(threaded, ROWS, TQ_ATTEND_CAUSAL, &(struct rng){7});
    all.window = other.window = window;
    all.softcap = other.softcap = softcap;
    ask(r, seq, 0, &all);
    ask(threaded, same, 0, &other);
    CHECK(same_answer(r, &all, &other), "window %u: workers", window);
    tq_seq shorter = rig_fork(r, seq, rig_length(r, seq, 0) - 3);
    struct asked one = ask_make(r, 1, 0, &(struct rng){0});
    memcpy(one.q, all.q + (ROWS - 4) * rig_q_row(r), rig_q_row(r) * sizeof(float));
    one.window = window;
    one.softcap = softcap;
    ask(r, shorter, 0, &one);
    CHECK(memcmp(one.out, all.out + (ROWS - 4) * rig_out_row(r), rig_out_row(r) * sizeof(float)) ==
              0,
          "window %u: a row alone", window);
    OK(tq_seq_destroy(r->cache, shorter));
    ask_free(&all);
    ask_free(&other);
    ask_free(&one);
}

static void test_same_bits(void **state) {
    static const tq_variant variants[] = {TQ_VARIANT_BF16, TQ_VARIANT_K3V4_NC};
    enum { LONG = 2100 };
    (void)state;
    for (size_t i = 0; i < COUNT(variants); i++) {
        struct test_threads threads = {.n_workers = 3};
        tq_executor executor = test_executor(&threads);
        struct rig r = {0}, threaded = {0};
        tq_cache_config c = plain_config(variants[i], DIM, KV_HEADS, 4);
        rig_open(&r, &c);
        rig_open_with(&threaded, &c, &executor);
        tq_seq seq = rig_seq(&r), same = rig_seq(&threaded);
        rig_append_random(&r, seq, 0, LONG, &(struct rng){i});
        rig_append_random(&threaded, same, 0, LONG, &(struct rng){i});
        for (uint32_t window = 0; window < LONG; window = window * 5 + 1)
            check_bits(&r, &threaded, seq, same, window, window % 2 ? 4 : 0);
        rig_close(&r);
        rig_close(&threaded);
    }
}

/* ---- refused --------------------------------------------------------------------------- */

static void test_refused_params(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1e-30f};
    struct rig r = {0};
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, DIM, KV_HEADS, 1);
    (void)state;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 5, &(struct rng){1});
    struct snapshot before = snapshot_take(&r, seq);
    float q[KV_HEADS * DIM] = {0}, out[KV_HEADS * DIM] = {-7};
    tq_rows_in in = rows_in(q);
    tq_rows_out to = rows_out(out);
    tq_attend_params p = {.struct_size = sizeof p, .flags = TQ_ATTEND_ALIBI};
    FAILS(tq_attend(r.cache, seq, 0, 1, &p, &in, &to, NULL, NULL), TQ_ERR_UNSUPPORTED, "ALiBi");
    p.flags |= TQ_ATTEND_CAUSAL;
    FAILS(tq_attend(r.cache, seq, 0, 0, &p, &in, &to, NULL, NULL), TQ_ERR_UNSUPPORTED, "ALiBi");
    p.flags = 0;
    for (size_t i = 0; i < COUNT(bad); i++) {
        p.logit_softcap = bad[i];
        FAILS(tq_attend(r.cache, seq, 0, 1, &p, &in, &to, NULL, NULL), TQ_ERR_INVALID_ARGUMENT,
              "logit_softcap");
    }
    assert_true(out[0] == -7);
    snapshot_check(&r, &before, "after refusals");
    snapshot_free(&r, &before);
    rig_close(&r);
}

static void test_refused_sinks(void **state) {
    static const float bad[] = {NAN, INFINITY};
    struct rig r = {0};
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, DIM, KV_HEADS, 1);
    float sinks[KV_HEADS] = {1, 2};
    (void)state;
    rig_open(&r, &c);
    tq_seq seq = rig_seq(&r);
    rig_append_random(&r, seq, 0, 5, &(struct rng){1});
    test_heap_fail(&r.heap, 1);
    FAILS(tq_cache_set_sink_logits(r.cache, 0, sinks), TQ_ERR_OUT_OF_MEMORY, "memory");
    test_heap_fail(&r.heap, 0);
    OK(tq_cache_set_sink_logits(r.cache, 0, sinks));
    struct snapshot before = snapshot_take(&r, seq);
    for (size_t i = 0; i < COUNT(bad); i++) {
        const float wrong[KV_HEADS] = {0, bad[i]};
        FAILS(tq_cache_set_sink_logits(r.cache, 0, wrong), TQ_ERR_INVALID_ARGUMENT, "element 1");
    }
    FAILS(tq_cache_set_sink_logits(r.cache, 1, sinks), TQ_ERR_INVALID_ARGUMENT, "layer");
    FAILS(tq_cache_set_sink_logits(NULL, 0, sinks), TQ_ERR_INVALID_ARGUMENT, "cache");
    snapshot_check(&r, &before, "after refusals");
    snapshot_free(&r, &before);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_outside_are_not_read),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refused_params),
        cmocka_unit_test(test_refused_sinks),
    };
    return cmocka_run_group_tests_name("windows: pages, refusals", tests, NULL, NULL);
}
