/* Offsets beyond 31 and 32 bits: pools of more than 2 and 4 GiB, strides of billions of
 * elements. B73. Address space is cheap: memory comes from mmap and is there only where it is
 * written, and a pool of many layers is filled in its last layer alone. */
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"

enum { LAYERS = 128, HEADS = 8, GROUP = 2, DIM = 128, PAGE = 64 };

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

/* All pages but one go to a sequence that says little; the last one is used in earnest. */
static void use_last_page(tq_variant variant, uint64_t bytes) {
    struct rig r;
    struct rng rng = {73};
    tq_cache_config c = plain_config(variant, DIM, HEADS, GROUP);
    tq_footprint footprint = {.struct_size = sizeof footprint};
    tq_context *ctx = NULL;
    c.n_layers = LAYERS;
    c.page_tokens = PAGE;
    OK(tq_context_create(NULL, &ctx));
    OK(tq_cache_estimate(ctx, &c, &footprint));
    tq_context_destroy(ctx);
    c.max_pages = bytes / footprint.bytes_per_page + 2;
    open_sparse(&r, &c);
    assert_true(rig_stats(&r).host_bytes > bytes + footprint.bytes_per_page);
    float *same = random_rows(&rng, PAGE * rig_k_row(&r), 1);
    tq_seq filler = rig_seq(&r), last = rig_seq(&r);
    for (uint64_t page = 1; page < c.max_pages; page++)
        rig_append(&r, filler, LAYERS - 1, PAGE, same, same);
    rig_append_random(&r, last, LAYERS - 1, PAGE, &rng);
    assert_int_equal(rig_stats(&r).pages_used, c.max_pages);
    FAILS(tq_append(r.cache, last, LAYERS - 1, 1, &(tq_rows_in){.data = same},
                    &(tq_rows_in){.data = same}, NULL),
          TQ_ERR_OUT_OF_PAGES, "pages");
    check_attention(&r, last, LAYERS - 1, 3, &rng, "last page");
    rig_append_random(&r, last, 0, PAGE, &rng);
    rig_append_random(&r, filler, 0, PAGE, &rng);
    check_attention(&r, last, 0, 3, &rng, "last page, first layer");
    check_attention(&r, last, LAYERS - 1, 3, &rng, "last page, last layer");
    OK(tq_seq_truncate(r.cache, filler, 0));
    rig_append_random(&r, filler, LAYERS - 1, 2 * PAGE, &rng);
    check_attention(&r, filler, LAYERS - 1, 2, &rng, "pages that came back");
    check_attention(&r, last, LAYERS - 1, 3, &rng, "last page, at the end");
    free(same);
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

/* A copy of a page whose layers lie gigabytes apart. */
static void test_b73_copy_of_a_page(void **state) {
    (void)state;
    struct rig r;
    struct rng rng = {74};
    tq_cache_config c = plain_config(TQ_VARIANT_FP8, DIM, HEADS, GROUP);
    c.n_layers = 32;
    c.page_tokens = PAGE;
    c.max_pages = 1100; /* 32 layers of 128 KiB a page: 4.6 GB */
    open_sparse(&r, &c);
    assert_true(rig_stats(&r).host_bytes > UINT64_C(1) << 32);
    tq_seq seq = rig_seq(&r);
    for (uint32_t l = 0; l < c.n_layers; l += 31)
        rig_append_random(&r, seq, l, 20, &rng);
    for (uint32_t l = 1; l < 31; l++)
        rig_append_random(&r, seq, l, 20, &rng);
    tq_seq fork = rig_fork(&r, seq, 20);
    rig_append_random(&r, fork, 31, 5, &rng);
    assert_int_equal(rig_stats(&r).pages_used, 2);
    for (uint32_t l = 0; l < c.n_layers; l += 31) {
        check_attention(&r, seq, l, 2, &rng, "source");
        check_attention(&r, fork, l, 2, &rng, "fork");
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
        cmocka_unit_test(test_b73_pool_of_2_gib),
        cmocka_unit_test(test_b73_pool_of_4_gib),
        cmocka_unit_test(test_b73_copy_of_a_page),
        cmocka_unit_test(test_b73_far_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
