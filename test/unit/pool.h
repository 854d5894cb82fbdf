/* A page pool over the test allocator, for the tests of lib/page. */
#ifndef TEST_UNIT_POOL_H
#define TEST_UNIT_POOL_H

#include "page/pool.h"
#include "unit/heap.h"

static inline void unit_copy(void *user, void *to, const void *from, size_t bytes) {
    ++*(uint64_t *)user;
    memcpy(to, from, bytes);
}

/* heap counts what the pool holds; copies counts copied layers. */
struct unit_pool {
    struct unit_heap unit;
    struct tqi_heap heap;
    struct tqi_pool pool;
    uint64_t copies;
};

/* Where the pool must not move: it points at the heap beside it. */
static inline tq_status unit_pool_init(struct unit_pool *p, uint32_t n_layers,
                                       const size_t *layer_bytes, uint64_t max_pages,
                                       uint64_t fail_at) {
    struct tqi_pool_config config = {.n_layers = n_layers,
                                     .layer_bytes = layer_bytes,
                                     .max_pages = max_pages,
                                     .space = TQ_MEM_HOST,
                                     .copy = unit_copy,
                                     .copy_user = &p->copies};
    p->heap = unit_heap_make(&p->unit);
    p->unit.fail_at = fail_at;
    p->copies = 0;
    return tqi_pool_init(&p->pool, &p->heap, &config);
}

/* Ends the pool; nothing may be left. */
static inline void unit_pool_end(struct unit_pool *p) {
    tqi_pool_destroy(&p->pool);
    assert_int_equal(p->unit.blocks, 0);
    assert_int_equal(p->heap.host_bytes, 0);
}

/* References of a page, its place in the free list and the sums of both must agree with a
 * count made elsewhere: expected[page] for all pages of the pool. */
static inline void unit_pool_check(const struct unit_pool *p, const uint32_t *expected) {
    uint64_t n_free = 0;
    for (uint64_t i = 0; i < p->pool.n_pages; i++) {
        CHECK(p->pool.references[i] == expected[i], "page %d has %u references, not %u", (int)i,
              p->pool.references[i], expected[i]);
        n_free += expected[i] == 0;
    }
    assert_int_equal(p->pool.n_free, n_free);
    for (uint64_t i = 0; i < n_free; i++) {
        assert_int_equal(expected[p->pool.free_pages[i]], 0);
        for (uint64_t j = 0; j < i; j++)
            CHECK(p->pool.free_pages[i] != p->pool.free_pages[j], "page %u is free twice",
                  p->pool.free_pages[i]);
    }
    assert_int_equal(p->heap.host_bytes, p->unit.bytes);
}

#endif
