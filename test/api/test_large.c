/* Offsets beyond 31 and 32 bits: pools of more than 2 and 4 GiB, strides of billions of
 * elements. B73. Address space is cheap: memory comes from mmap and is there only where it is
 * written. */
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"

/* A cache over sparse memory; closed with close_sparse(). */
static void open_sparse(struct rig *r, const tq_cache_config *c) {
    tq_allocator hooks = sparse_allocator();
    tq_context_config config = {.struct_size = sizeof config,
                                .cpu_features_disabled = test_features_disabled(),
                                .allocator = &hooks};
    memset(r, 0, sizeof *r);
    OK(tq_context_create(&config, &r->ctx));
    OK(tq_cache_create(r->ctx, c, &r->cache));
    r->c.struct_size = sizeof r->c;
    OK(tq_cache_get_config(r->cache, &r->c));
}

static void close_sparse(struct rig *r) {
    tq_cache_destroy(r->cache);
    tq_context_destroy(r->ctx);
}

/* The least number of pages that holds more bytes than `bytes`. */
static uint64_t pages_beyond(const tq_cache_config *c, uint64_t bytes) {
    tq_footprint footprint = {.struct_size = sizeof footprint};
    tq_context *ctx = NULL;
    OK(tq_context_create(NULL, &ctx));
    OK(tq_cache_estimate(ctx, c, &footprint));
    tq_context_destroy(ctx);
    return bytes / footprint.bytes_per_page + 1;
}

/* ---- many layers ----------------------------------------------------------------------- */

/* The pool is a little larger than 2 or 4 GiB: an offset that lost its upper bits is one of
 * the first layers, so these are filled as well, and looked at again. */
enum { LAYERS = 512, FULL = 3, HEADS = 1, GROUP = 2, DIM = 128, PAGE = 64 };

static void fill(struct rig *r, tq_seq seq, uint32_t layer, uint64_t pages, const float *rows) {
    for (uint64_t page = 0; page < pages; page++)
        rig_append(r, seq, layer, PAGE, rows, rows);
}

static struct asked answer(const struct rig *r, tq_seq seq, uint32_t layer) {
    struct asked a = ask_make(r, 2, 0, &(struct rng){layer});
    ask(r, seq, layer, &a);
    return a;
}

static void use_last_page(tq_variant variant, uint64_t bytes) {
    struct rig r;
    struct rng rng = {73};
    tq_cache_config c = plain_config(variant, DIM, HEADS, GROUP);
    struct asked before[FULL], after;
    c.n_layers = LAYERS;
    c.page_tokens = PAGE;
    c.max_pages = pages_beyond(&c, bytes);
    open_sparse(&r, &c);
    assert_true(rig_stats(&r).host_bytes > bytes);
    float *rows = random_rows(&rng, PAGE * rig_k_row(&r), 1);
    tq_seq filler = rig_seq(&r), last = rig_seq(&r);
    for (uint32_t l = 0; l < FULL; l++) {
        fill(&r, filler, l, c.max_pages - 1, rows);
        before[l] = answer(&r, filler, l);
    }
    fill(&r, filler, LAYERS - 1, c.max_pages - 1, rows);
    rig_append_random(&r, last, LAYERS - 1, PAGE, &rng);
    assert_int_equal(rig_stats(&r).pages_used, c.max_pages);
    FAILS(tq_append(r.cache, last, LAYERS - 1, 1, &(tq_rows_in){.data = rows},
                    &(tq_rows_in){.data = rows}, NULL),
          TQ_ERR_OUT_OF_PAGES, "pages");
    check_attention(&r, last, LAYERS - 1, 3, &rng, "last page");
    for (uint32_t l = 0; l < FULL; l++) {
        after = answer(&r, filler, l);
        CHECK(same_answer(&r, &before[l], &after), "layer %u was overwritten", l);
        ask_free(&before[l]);
        ask_free(&after);
    }
    free(rows);
    close_sparse(&r);
}

static void test_b73_pool_of_2_gib(void **state) {
    (void)state;
    use_last_page(TQ_VARIANT_BF16, UINT64_C(1) << 31);
    use_last_page(TQ_VARIANT_4BIT_NC, UINT64_C(1) << 31);
}

static void test_b73_pool_of_4_gib(void **state) {
    (void)state;
    use_last_page(TQ_VARIANT_BF16, UINT64_C(1) << 32);
    use_last_page(TQ_VARIANT_4BIT_NC, UINT64_C(1) << 32);
}

static void check_same_rows(const struct rig *r, tq_seq a, tq_seq b, uint32_t layer, uint32_t n) {
    size_t size = n * rig_k_row(r);
    float *rows = must_alloc(2 * size, sizeof *rows);
    rig_read(r, a, layer, 0, n, rows, NULL);
    rig_read(r, b, layer, 0, n, rows + size, NULL);
    CHECK(memcmp(rows, rows + size, size * sizeof *rows) == 0, "layer %u of a copy", layer);
    free(rows);
}

/* A copy of a page whose layers lie gigabytes apart. */
static void test_b73_copy_of_a_page(void **state) {
    (void)state;
    enum { WIDE = 8, FEW = 32, TOKENS = 20 };
    struct rig r;
    struct rng rng = {74};
    tq_cache_config c = plain_config(TQ_VARIANT_FP8, DIM, WIDE, GROUP);
    c.n_layers = FEW;
    c.page_tokens = PAGE;
    c.max_pages = pages_beyond(&c, UINT64_C(9) << 29); /* 4.5 GiB */
    open_sparse(&r, &c);
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < FEW; l++)
        rig_append_random(&r, seq, l, TOKENS, &rng);
    tq_seq fork = rig_fork(&r, seq, TOKENS);
    rig_append_random(&r, fork, FEW - 1, 5, &rng);
    assert_int_equal(rig_stats(&r).pages_used, 2);
    for (uint32_t l = 0; l < FEW; l++)
        check_same_rows(&r, seq, fork, l, TOKENS);
    close_sparse(&r);
}

/* ---- one wide layer -------------------------------------------------------------------- */

/* Pages of one layer that lie more than 4 GiB apart. Sequences take a page each, with one
 * token in a second layer whose format is small, so that little memory is touched. */
static void test_b73_layer_of_4_gib(void **state) {
    (void)state;
    enum { WIDE = 16, LONG = 1024, TALL = 256, MOST = 300, TOKENS = 20 };
    static tq_seq seqs[MOST];
    static const tq_layer_formats pairs[2] = {{TQ_FORMAT_BF16, TQ_FORMAT_BF16},
                                              {TQ_FORMAT_LM2, TQ_FORMAT_LM2}};
    struct rig r;
    struct rng rng = {76};
    tq_cache_config c = pair_config(pairs, LONG, WIDE, 1);
    c.n_layers = 2;
    c.page_tokens = TALL;
    c.max_seqs = MOST;
    uint64_t page = (uint64_t)WIDE * TALL * LONG * 4; /* of the first layer */
    uint32_t n = (uint32_t)((UINT64_C(1) << 32) / page) + 2;
    c.max_pages = n;
    assert_true(n <= MOST);
    open_sparse(&r, &c);
    for (uint32_t i = 0; i < n; i++) {
        seqs[i] = rig_seq(&r);
        rig_append_random(&r, seqs[i], 1, 1, &rng);
    }
    for (uint32_t i = 0; i < 3; i++) /* where page n - 1 would be without its upper bits */
        rig_append_random(&r, seqs[i], 0, TOKENS, &rng);
    struct asked before[3], after;
    for (uint32_t i = 0; i < 3; i++)
        before[i] = answer(&r, seqs[i], 0);
    rig_append_random(&r, seqs[n - 2], 0, TOKENS, &rng);
    rig_append_random(&r, seqs[n - 1], 0, TOKENS, &rng);
    check_attention(&r, seqs[n - 1], 0, 2, &rng, "last page");
    for (uint32_t i = 0; i < 3; i++) {
        after = answer(&r, seqs[i], 0);
        CHECK(same_answer(&r, &before[i], &after), "page %u was overwritten", i);
        ask_free(&before[i]);
        ask_free(&after);
    }
    close_sparse(&r);
}

/* ---- strides --------------------------------------------------------------------------- */

enum { WIDE_DIM = 64, WIDE_HEADS = 2, WIDE_TOKENS = 3 };
#define TOKEN_STRIDE ((INT64_C(1) << 31) + 16)
#define HEAD_STRIDE ((INT64_C(1) << 30) + 8)
#define WIDE_BYTES ((size_t)2 * (WIDE_TOKENS * TOKEN_STRIDE + WIDE_HEADS * HEAD_STRIDE))

/* Copies rows [token][head][dim] of bf16 between adjacent and far memory. */
static void spread(uint16_t *far, uint16_t *near, int gather) {
    for (int t = 0; t < WIDE_TOKENS; t++)
        for (int h = 0; h < WIDE_HEADS; h++) {
            uint16_t *a = far + t * TOKEN_STRIDE + h * HEAD_STRIDE;
            uint16_t *b = near + (size_t)(t * WIDE_HEADS + h) * WIDE_DIM;
            memcpy(gather ? b : a, gather ? a : b, WIDE_DIM * sizeof *b);
        }
}

static void test_b73_far_strides(void **state) {
    (void)state;
    enum { N = WIDE_TOKENS * WIDE_HEADS * WIDE_DIM };
    struct rng rng = {75};
    struct rig r = {0};
    tq_cache_config c = plain_config(TQ_VARIANT_K3V4_NC, WIDE_DIM, WIDE_HEADS, 1);
    uint16_t *far = sparse_alloc(WIDE_BYTES), *far_out = sparse_alloc(WIDE_BYTES);
    float *rows = random_rows(&rng, N, 1);
    uint16_t *near = convert_rows(rows, N, TQ_BF16), got[N], want[N];
    tq_rows_in in = {far, TOKEN_STRIDE, HEAD_STRIDE, TQ_BF16, 0}, near_in = {.data = near};
    tq_rows_out out = {far_out, TOKEN_STRIDE, HEAD_STRIDE, TQ_BF16, 0}, near_out = {.data = want};
    near_in.dtype = near_out.dtype = TQ_BF16;
    rig_open(&r, &c);
    tq_seq a = rig_seq(&r), b = rig_seq(&r);
    spread(far, near, 0);
    OK(tq_append(r.cache, a, 0, WIDE_TOKENS, &in, &in, NULL));
    OK(tq_append(r.cache, b, 0, WIDE_TOKENS, &near_in, &near_in, NULL));
    OK(tq_attend(r.cache, a, 0, WIDE_TOKENS, NULL, &in, &out, NULL, NULL));
    OK(tq_attend(r.cache, b, 0, WIDE_TOKENS, NULL, &near_in, &near_out, NULL, NULL));
    spread(far_out, got, 1);
    assert_memory_equal(got, want, sizeof got);
    OK(tq_read_rows(r.cache, a, 0, 0, WIDE_TOKENS, NULL, &out));
    OK(tq_read_rows(r.cache, b, 0, 0, WIDE_TOKENS, NULL, &near_out));
    spread(far_out, got, 1);
    assert_memory_equal(got, want, sizeof got);
    free(rows);
    free(near);
    sparse_free(far, WIDE_BYTES);
    sparse_free(far_out, WIDE_BYTES);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b73_pool_of_2_gib),  cmocka_unit_test(test_b73_pool_of_4_gib),
        cmocka_unit_test(test_b73_copy_of_a_page), cmocka_unit_test(test_b73_layer_of_4_gib),
        cmocka_unit_test(test_b73_far_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
