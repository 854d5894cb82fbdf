/* Creating contexts, caches and codecs with every allocation failing once: the call says so,
 * its output stays, no byte is lost, every block goes back as it came, and the counters know
 * every byte. B71. */
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"
#include "tq/study.h"

static char nowhere;
#define NOWHERE ((void *)&nowhere)

/* ---- creation -------------------------------------------------------------------------- */

/* A context over a heap of the test's. */
static tq_status open_context(struct test_heap *heap, const tq_executor *executor,
                              tq_context **out) {
    tq_allocator hooks = test_allocator(heap);
    tq_context_config c = {.struct_size = sizeof c, .allocator = &hooks, .executor = executor};
    return tq_context_create(&c, out);
}

static void check_heap(const struct test_heap *heap, uint64_t blocks, uint64_t bytes) {
    assert_int_equal(heap->live_blocks, blocks);
    assert_int_equal(heap->live_bytes, bytes);
    assert_int_equal(heap->errors, 0);
}

static void test_context(void **state) {
    (void)state;
    uint64_t n = 0;
    for (tq_status status = TQ_ERR_OUT_OF_MEMORY; status != TQ_OK;) {
        struct test_heap heap = {.fail_at = ++n};
        tq_context *ctx = NOWHERE;
        check_spoil_message();
        status = open_context(&heap, NULL, &ctx);
        if (status == TQ_OK) {
            tq_context_destroy(ctx);
        } else {
            check_failure(status, TQ_ERR_OUT_OF_MEMORY, "memory", "create", __FILE__, __LINE__);
            assert_ptr_equal(ctx, NOWHERE);
        }
        check_heap(&heap, 0, 0);
    }
    assert_true(n > 1);
}

/* Configurations that take different ways: one and many layers, fixed and growing pools,
 * two row lengths, scales, boundary layers. */
enum { CONFIGS = 9 };
static tq_cache_config config_at(uint32_t i) {
    static const uint32_t layers[CONFIGS] = {1, 2, 127, 1, 2, 127, 1, 3, 1024};
    static const tq_variant variants[CONFIGS] = {
        TQ_VARIANT_BF16,    TQ_VARIANT_4BIT_NC,   TQ_VARIANT_K8V4,
        TQ_VARIANT_FP8,     TQ_VARIANT_INT8,      TQ_VARIANT_PROD3,
        TQ_VARIANT_K3V2_NC, TQ_VARIANT_POLAR_QJL, TQ_VARIANT_2BIT_NC};
    tq_cache_config c = plain_config(variants[i], 64, i % 3 + 1, 1);
    c.n_layers = layers[i];
    c.max_pages = i < 3 ? 0 : i < 6 ? 1 : 7;
    c.page_tokens = 16;
    c.v_head_dim = i % 2 ? 128 : 0;
    c.boundary_layers = i % 4 == 1;
    return c;
}

/* Runs create and estimate with the n-th allocation failing; whether both went through. */
static int create_failing_at(struct test_heap *heap, tq_context *ctx, const tq_cache_config *c,
                             uint64_t n) {
    tq_cache *cache = NOWHERE;
    tq_footprint footprint = {.struct_size = sizeof footprint}, untouched = footprint;
    uint64_t blocks = heap->live_blocks, bytes = heap->live_bytes;
    int done = 2;
    test_heap_fail(heap, n);
    if (tq_cache_create(ctx, c, &cache) == TQ_OK) {
        tq_cache_destroy(cache);
    } else {
        assert_ptr_equal(cache, NOWHERE);
        assert_non_null(strstr(tq_last_error(), "memory"));
        done--;
    }
    check_heap(heap, blocks, bytes);
    test_heap_fail(heap, n);
    if (tq_cache_estimate(ctx, c, &footprint) != TQ_OK) {
        assert_memory_equal(&footprint, &untouched, sizeof footprint);
        done--;
    }
    test_heap_fail(heap, 0);
    check_heap(heap, blocks, bytes);
    return done == 2;
}

static void test_cache(void **state) {
    (void)state;
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint32_t i = 0; i < CONFIGS; i++) {
            struct test_heap heap = {.fail_for_ever = for_ever};
            tq_cache_config c = config_at(i);
            tq_context *ctx = NULL;
            uint64_t n = 1;
            if (c.n_layers > 127 && (FEWER > 1 || for_ever))
                continue;
            OK(open_context(&heap, NULL, &ctx));
            while (!create_failing_at(&heap, ctx, &c, n))
                n += c.n_layers > 127 ? 61 : 1; /* not all of thousands */
            CHECK(n > 2u * c.n_layers, "only %u allocations", (unsigned)n);
            tq_context_destroy(ctx);
            check_heap(&heap, 0, 0);
        }
}

/* ---- bytes ----------------------------------------------------------------------------- */

static void test_footprint_and_stats(void **state) {
    (void)state;
    for (uint32_t i = 0; i < CONFIGS * 3; i++) {
        tq_cache_config c = config_at(i % CONFIGS);
        struct test_threads threads = {.n_workers = i / CONFIGS * 3};
        tq_executor executor = test_executor(&threads);
        struct test_heap heap = {0};
        tq_context *ctx = NULL;
        tq_cache *cache = NULL;
        tq_footprint footprint = {.struct_size = sizeof footprint};
        tq_cache_stats stats = {.struct_size = sizeof stats};
        OK(open_context(&heap, threads.n_workers ? &executor : NULL, &ctx));
        uint64_t before = heap.live_bytes;
        OK(tq_cache_estimate(ctx, &c, &footprint));
        OK(tq_cache_create(ctx, &c, &cache));
        OK(tq_cache_get_stats(cache, &stats));
        assert_int_equal(stats.host_bytes, heap.live_bytes - before);
        assert_int_equal(footprint.host_bytes, stats.host_bytes);
        assert_int_equal(footprint.device_bytes, 0);
        assert_int_equal(stats.device_bytes, 0);
        assert_int_equal(stats.pages_total, c.max_pages);
        assert_true(footprint.host_bytes > footprint.bytes_per_page * c.max_pages);
        assert_int_equal(footprint.page_tokens, 16);
        assert_int_equal(footprint.bytes_per_token, (footprint.bytes_per_page + 15) / 16);
        tq_cache_destroy(cache);
        tq_context_destroy(ctx);
    }
}

/* ---- codec ----------------------------------------------------------------------------- */

static void check_codec(struct test_heap *heap, const tq_codec *codec, const float *rows) {
    size_t bytes = tq_codec_row_bytes(codec);
    unsigned char want[3 * 512], codes[3 * 512];
    float decoded[3 * 64], dots[3];
    tq_rows_in in = rows_in(rows);
    tq_rows_out out = rows_out(decoded);
    uint64_t blocks = heap->live_blocks;
    OK(tq_codec_encode(codec, 3, &in, want));
    for (int call = 0; call < 3; call++) {
        memset(codes, 0, sizeof codes);
        test_heap_fail(heap, 1);
        FAILS(call == 0   ? tq_codec_encode(codec, 3, &in, codes)
              : call == 1 ? tq_codec_decode(codec, 3, want, &out)
                          : tq_codec_dot(codec, &in, 3, want, dots),
              TQ_ERR_OUT_OF_MEMORY, "memory");
        for (size_t i = 0; i < 3 * bytes; i++)
            assert_int_equal(codes[i], 0);
        test_heap_fail(heap, 0);
        assert_int_equal(heap->live_blocks, blocks);
    }
    OK(tq_codec_encode(codec, 3, &in, codes));
    assert_memory_equal(codes, want, 3 * bytes);
}

/* study: NULL = a codec of the format itself. */
static tq_status create_codec(tq_context *ctx, tq_format format, const tq_codec_study *study,
                              tq_codec **codec) {
    tq_codec_config c = {.struct_size = sizeof c, .format = format, .dim = 64};
    return study ? tq_codec_create_study(ctx, &c, study, codec) : tq_codec_create(ctx, &c, codec);
}

static void check_codec_of(tq_format format, const tq_codec_study *study, const float *rows) {
    struct test_heap heap = {0};
    tq_context *ctx = NULL;
    tq_codec *codec = NOWHERE;
    uint64_t n = 1;
    OK(open_context(&heap, NULL, &ctx));
    uint64_t blocks = heap.live_blocks, bytes = heap.live_bytes;
    for (test_heap_fail(&heap, n); create_codec(ctx, format, study, &codec) != TQ_OK;
         test_heap_fail(&heap, ++n)) {
        assert_non_null(strstr(tq_last_error(), "memory"));
        assert_ptr_equal(codec, NOWHERE);
        check_heap(&heap, blocks, bytes);
    }
    assert_true(n > 1);
    test_heap_fail(&heap, 0);
    check_codec(&heap, codec, rows);
    tq_codec_destroy(codec);
    check_heap(&heap, blocks, bytes);
    tq_context_destroy(ctx);
    check_heap(&heap, 0, 0);
}

static void test_codec(void **state) {
    (void)state;
    struct rng rng = {5};
    float *rows = random_rows(&rng, 3 * 64, 1);
    tq_codec_study study = {.struct_size = sizeof study};
    for (uint32_t i = 0; i < tq_format_count(); i++)
        check_codec_of(format_at(i).id, NULL, rows);
    for (tq_format f = TQ_FORMAT_POLAR; f <= TQ_FORMAT_LM2_QJL; f++)
        check_codec_of(f, &study, rows);
    free(rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_footprint_and_stats),
        cmocka_unit_test(test_codec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
