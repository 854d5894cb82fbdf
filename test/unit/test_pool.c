/* page/pool.c: memory, references and the free list, by looking at bytes; the pool knows no
 * numbers and neither does this test. */
#include "unit/unit.h"

#include "unit/pool.h"

enum { LAYERS = 3 };

static const size_t small[LAYERS] = {128, 256, 384};
static const size_t large[LAYERS] = {100000, 200000, 49000}; /* three pages to a chunk */

static struct unit_pool p;

static uint32_t pattern(uint32_t layer, uint32_t page, size_t i) {
    return layer * 31 + page * 7 + (uint32_t)i;
}

static void write_page(uint32_t page) {
    for (uint32_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < p.pool.layer_bytes[l]; i++)
            tqi_pool_page(&p.pool, l, page)[i] = (uint8_t)pattern(l, page, i);
}

static void check_page(uint32_t page, uint32_t as) {
    for (uint32_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < p.pool.layer_bytes[l]; i++)
            CHECK(tqi_pool_page(&p.pool, l, page)[i] == (uint8_t)pattern(l, as, i),
                  "layer %u page %u byte %zu", l, page, i);
}

/* A fixed pool has its pages at once, hands out the low ones first, and ends. */
static void test_fixed(void **state) {
    const uint32_t one[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    (void)state;
    assert_int_equal(unit_pool_init(&p, LAYERS, small, 10, 0), TQ_OK);
    uint64_t calls = p.unit.calls;
    assert_int_equal(p.pool.n_pages, 10);
    assert_int_equal(tqi_pool_reserve(&p.pool, 11), TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(tqi_pool_reserve(&p.pool, 10), TQ_OK);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(tqi_pool_take(&p.pool), i);
        write_page(i);
    }
    unit_pool_check(&p, one);
    for (uint32_t i = 0; i < 10; i++)
        check_page(i, i);
    assert_int_equal(tqi_pool_reserve(&p.pool, 0), TQ_OK);
    assert_int_equal(tqi_pool_reserve(&p.pool, 1), TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(p.unit.calls, calls); /* no memory after the start */
    unit_pool_end(&p);
}

/* A growing pool starts empty, grows by chunks, and never moves a page. */
static void test_growing(void **state) {
    uint8_t *address[40];
    (void)state;
    assert_int_equal(unit_pool_init(&p, LAYERS, large, 0, 0), TQ_OK);
    assert_int_equal(p.pool.n_pages, 0);
    assert_int_equal(p.pool.chunk_pages, 3);
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(tqi_pool_reserve(&p.pool, 1), TQ_OK);
        uint32_t page = tqi_pool_take(&p.pool);
        assert_int_equal(page, i);
        address[i] = tqi_pool_page(&p.pool, 1, page);
        if (i % 5 == 0)
            write_page(page);
    }
    for (uint32_t i = 0; i < 32; i++) {
        assert_ptr_equal(tqi_pool_page(&p.pool, 1, i), address[i]);
        if (i % 5 == 0)
            check_page(i, i);
    }
    assert_true(p.pool.n_pages < 32 + p.pool.chunk_pages);
    assert_int_equal(tqi_pool_reserve(&p.pool, 30), TQ_OK); /* several chunks at once */
    assert_true(p.pool.n_free >= 30);
    unit_pool_end(&p);
}

/* Chunks hold at least one page, and small pages come by the thousand. */
static void test_chunk_sizes(void **state) {
    const size_t huge[1] = {(size_t)3 << 20}, tiny[1] = {128};
    (void)state;
    assert_int_equal(unit_pool_init(&p, 1, huge, 0, 0), TQ_OK);
    assert_int_equal(tqi_pool_reserve(&p.pool, 2), TQ_OK);
    assert_int_equal(p.pool.n_pages, 2);
    unit_pool_end(&p);
    assert_int_equal(unit_pool_init(&p, 1, tiny, 0, 0), TQ_OK);
    assert_int_equal(tqi_pool_reserve(&p.pool, 1), TQ_OK);
    assert_int_equal(p.pool.n_pages, 8192);
    unit_pool_end(&p);
}

/* Layers of a chunk lie together and do not overlap. */
static void test_addresses(void **state) {
    (void)state;
    assert_int_equal(unit_pool_init(&p, LAYERS, small, 7, 0), TQ_OK);
    const uint8_t *start = p.pool.chunks[0];
    size_t at = 0;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t page = 0; page < 7; page++) {
            assert_ptr_equal(tqi_pool_page(&p.pool, l, page), start + at);
            at += small[l];
        }
    assert_int_equal(at, 7 * p.pool.page_bytes);
    unit_pool_end(&p);
}

/* A page is free when its last reference goes. */
static void test_references(void **state) {
    uint32_t expected[4] = {0};
    (void)state;
    assert_int_equal(unit_pool_init(&p, LAYERS, small, 4, 0), TQ_OK);
    for (uint32_t i = 0; i < 3; i++)
        expected[tqi_pool_take(&p.pool)] = 1;
    for (int i = 0; i < 5; i++)
        tqi_pool_share(&p.pool, 1);
    expected[1] = 6;
    unit_pool_check(&p, expected);
    for (uint32_t left = 6; left-- > 0;) {
        tqi_pool_release(&p.pool, 1);
        expected[1] = left;
        unit_pool_check(&p, expected);
    }
    assert_int_equal(tqi_pool_take(&p.pool), 1); /* the last freed is taken first */
    expected[1] = 1;
    unit_pool_check(&p, expected);
    unit_pool_end(&p);
}

/* All layers of one page, and no other. */
static void test_copy(void **state) {
    (void)state;
    assert_int_equal(unit_pool_init(&p, LAYERS, small, 5, 0), TQ_OK);
    for (uint32_t i = 0; i < 5; i++)
        write_page(tqi_pool_take(&p.pool));
    tqi_pool_copy_page(&p.pool, 3, 1);
    assert_int_equal(p.copies, LAYERS);
    for (uint32_t i = 0; i < 5; i++)
        check_page(i, i == 3 ? 1 : i);
    unit_pool_end(&p);
}

static void test_reset(void **state) {
    const uint32_t none[64] = {0};
    (void)state;
    assert_int_equal(unit_pool_init(&p, LAYERS, large, 0, 0), TQ_OK);
    tqi_pool_reset(&p.pool); /* of a pool without pages */
    assert_int_equal(tqi_pool_reserve(&p.pool, 9), TQ_OK);
    uint64_t bytes = p.heap.host_bytes, pages = p.pool.n_pages;
    for (int i = 0; i < 9; i++)
        tqi_pool_share(&p.pool, tqi_pool_take(&p.pool));
    tqi_pool_reset(&p.pool);
    unit_pool_check(&p, none);
    assert_int_equal(p.heap.host_bytes, bytes);
    assert_int_equal(p.pool.n_pages, pages);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(tqi_pool_take(&p.pool), i);
    unit_pool_end(&p);
}

/* Chunks that came before one that was refused are given back, free pages included. */
static void test_shrink(void **state) {
    uint32_t expected[64] = {0};
    (void)state;
    assert_int_equal(unit_pool_init(&p, LAYERS, large, 0, 0), TQ_OK);
    assert_int_equal(tqi_pool_reserve(&p.pool, 5), TQ_OK);
    uint64_t bytes = p.heap.host_bytes, pages = p.pool.n_pages;
    expected[tqi_pool_take(&p.pool)] = 1;
    assert_int_equal(tqi_pool_reserve(&p.pool, UINT32_MAX), TQ_ERR_OUT_OF_PAGES);
    assert_int_equal(p.heap.host_bytes, bytes);
    assert_int_equal(tqi_pool_reserve(&p.pool, 20), TQ_OK);
    tqi_pool_shrink(&p.pool, 2);
    assert_int_equal(p.pool.n_pages, pages);
    unit_pool_check(&p, expected);
    for (uint32_t i = 1; i < pages; i++) {
        expected[tqi_pool_take(&p.pool)]++;
        write_page(i);
    }
    unit_pool_check(&p, expected);
    unit_pool_end(&p);
}

/* Sizes whose sums or products do not fit. */
static void test_overflow(void **state) {
    const size_t sum[2] = {SIZE_MAX - 100, 200}, product[1] = {SIZE_MAX / 16};
    (void)state;
    assert_int_equal(unit_pool_init(&p, 2, sum, 1, 0), TQ_ERR_OUT_OF_MEMORY);
    assert_int_equal(p.unit.blocks, 0);
    assert_int_equal(unit_pool_init(&p, 1, product, 17, 0), TQ_ERR_OUT_OF_MEMORY);
    assert_int_equal(p.unit.blocks, 0);
    assert_null(p.pool.heap); /* what cache destruction looks at */
}

/* ---- allocation failures ------------------------------------------------------------------- */

/* A pool that could not be made leaves nothing behind. */
static void test_failing_init(void **state) {
    (void)state;
    for (int fixed = 0; fixed < 2; fixed++) {
        uint64_t n = 1;
        for (;; n++) {
            tq_status status = unit_pool_init(&p, LAYERS, small, fixed ? 6 : 0, n);
            if (status == TQ_OK)
                break;
            assert_int_equal(status, TQ_ERR_OUT_OF_MEMORY);
            assert_int_equal(p.unit.blocks, 0);
            assert_int_equal(p.heap.host_bytes, 0);
        }
        assert_int_equal(n, fixed ? 7 : 3); /* every call has failed once */
        unit_pool_end(&p);
    }
}

/* A pool that could not grow keeps its pages and grows when there is memory again. */
static void test_failing_growth(void **state) {
    uint32_t expected[256];
    (void)state;
    for (uint64_t fail = 1; fail <= 14; fail++) {
        memset(expected, 0, sizeof expected);
        assert_int_equal(unit_pool_init(&p, LAYERS, large, 0, 0), TQ_OK);
        assert_int_equal(tqi_pool_reserve(&p.pool, 3), TQ_OK);
        for (uint32_t i = 0; i < 3; i++) {
            expected[tqi_pool_take(&p.pool)] = 1;
            write_page(i);
        }
        p.unit.fail_at = p.unit.calls + fail;
        tq_status status = tqi_pool_reserve(&p.pool, 26);
        int failed = p.unit.calls >= p.unit.fail_at;
        assert_int_equal(status, failed ? TQ_ERR_OUT_OF_MEMORY : TQ_OK);
        unit_pool_check(&p, expected);
        if (failed) /* all or nothing */
            assert_int_equal(p.pool.n_pages, 3);
        assert_int_equal(tqi_pool_reserve(&p.pool, 26), TQ_OK);
        unit_pool_check(&p, expected);
        for (uint32_t i = 0; i < 3; i++)
            check_page(i, i);
        unit_pool_end(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixed),          cmocka_unit_test(test_growing),
        cmocka_unit_test(test_chunk_sizes),    cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_references),     cmocka_unit_test(test_copy),
        cmocka_unit_test(test_reset),          cmocka_unit_test(test_shrink),
        cmocka_unit_test(test_overflow),       cmocka_unit_test(test_failing_init),
        cmocka_unit_test(test_failing_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
