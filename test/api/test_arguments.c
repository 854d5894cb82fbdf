/* What contexts and caches refuse, with which status and words, and that a refusal leaves
 * the caller's outputs alone. */
#include <math.h>
#include <string.h>

#include "common/rig.h"

/* Where outputs point before a call that must not set them. */
static char nowhere;
#define NOWHERE ((void *)&nowhere)

/* ---- context --------------------------------------------------------------------------- */

static void refuse_context(const tq_context_config *c, tq_status status, const char *word) {
    tq_context *out = NOWHERE;
    FAILS(tq_context_create(c, &out), status, word);
    assert_ptr_equal(out, NOWHERE);
}

static void accept_context(const tq_context_config *c) {
    tq_context *out = NULL;
    OK(tq_context_create(c, &out));
    assert_non_null(out);
    tq_context_destroy(out);
}

static tq_context_config context_config(void) {
    return (tq_context_config){.struct_size = sizeof(tq_context_config)};
}

static void test_context_config(void **state) {
    (void)state;
    tq_context_config c = context_config();
    FAILS(tq_context_create(&c, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    FAILS(tq_context_create(NULL, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    const uint32_t known = TQ_CONTEXT_FP8_NATIVE | TQ_CONTEXT_FP8_CONVERTED;
    for (uint32_t bit = 0; bit < 32; bit++) {
        c.flags = 1u << bit & known ? known : 1u << bit; /* the known ones exclude each other */
        refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "flags");
    }
    c.flags = TQ_CONTEXT_FP8_NATIVE;
    accept_context(&c);
    c = context_config();
    static const tq_device devices[] = {-1, 2, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT(devices); i++) {
        c.device = devices[i];
        refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "device");
    }
    c = context_config();
    c.device_index = 1; /* there is one CPU */
    refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "device_index");
    c.device_index = 0;
    accept_context(&c);
    accept_context(NULL);
    tq_context_destroy(NULL);
}

/* Without a GPU the refusal must be a status and words, not a crash or a CPU in disguise. */
static void test_context_without_gpu(void **state) {
    (void)state;
    tq_context_config c = context_config();
    tq_context *out = NOWHERE;
    c.device = TQ_DEVICE_CUDA;
    check_spoil_message();
    tq_status status = tq_context_create(&c, &out);
    if (status == TQ_OK) { /* a machine with a GPU */
        tq_context_destroy(out);
        skip();
    }
    check_failure(status, TQ_ERR_UNSUPPORTED, "CUDA", "CUDA context", __FILE__, __LINE__);
    assert_ptr_equal(out, NOWHERE);
}

static void *never_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    (void)user, (void)size, (void)alignment, (void)space;
    return NULL;
}

static void never_free(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    (void)user, (void)ptr, (void)size, (void)alignment, (void)space;
}

static void test_allocator_hooks(void **state) {
    (void)state;
    tq_allocator hooks = {.struct_size = sizeof hooks, .alloc = never_alloc};
    tq_context_config c = context_config();
    c.allocator = &hooks;
    refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "alloc");
    hooks.alloc = NULL;
    hooks.free = never_free;
    refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "alloc");
    hooks.alloc = never_alloc;
    refuse_context(&c, TQ_ERR_OUT_OF_MEMORY, "memory"); /* a good hook that has nothing */
}

static void test_allocator_reserved(void **state) {
    (void)state;
    struct test_heap heap = {0};
    tq_allocator hooks = test_allocator(&heap);
    tq_context_config c = context_config();
    c.allocator = &hooks;
    accept_context(&c);
    hooks.reserved = 1;
    refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "reserved");
    assert_int_equal(heap.live_blocks, 0);
}

/* "Both or neither are given." */
static void test_allocator_without_hooks(void **state) {
    (void)state;
    tq_allocator hooks = {.struct_size = sizeof hooks};
    tq_context_config c = context_config();
    c.allocator = &hooks;
    accept_context(&c);
}

static void test_executor_hooks(void **state) {
    (void)state;
    struct test_threads threads = {.n_workers = 1};
    tq_executor hooks = test_executor(&threads);
    tq_context_config c = context_config();
    c.executor = &hooks;
    accept_context(&c);
    hooks.n_workers = 0;
    refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "n_workers");
    hooks.n_workers = 1;
    hooks.parallel_for = NULL;
    refuse_context(&c, TQ_ERR_INVALID_ARGUMENT, "parallel_for");
}

/* Hooks and configuration are copied: what the caller does to them later does not matter. */
static void test_hooks_are_copied(void **state) {
    (void)state;
    struct test_heap heap = {0};
    tq_allocator hooks = test_allocator(&heap);
    tq_context_config c = context_config();
    tq_context *ctx = NULL;
    c.allocator = &hooks;
    OK(tq_context_create(&c, &ctx));
    memset(&hooks, 0xff, sizeof hooks);
    memset(&c, 0xff, sizeof c);
    assert_true(heap.live_blocks > 0);
    tq_context_destroy(ctx);
    assert_int_equal(heap.live_blocks, 0);
    assert_int_equal(heap.errors, 0);
}

static void test_cpu_features(void **state) {
    (void)state;
    tq_context_config c = context_config();
    tq_context *ctx = NULL;
    OK(tq_context_create(&c, &ctx));
    uint64_t all = tq_context_cpu_features(ctx);
    tq_context_destroy(ctx);
    for (uint32_t bit = 0; bit <= 64; bit++) {
        c.cpu_features_disabled = bit < 64 ? UINT64_C(1) << bit : UINT64_MAX;
        OK(tq_context_create(&c, &ctx));
        assert_int_equal(tq_context_cpu_features(ctx) & c.cpu_features_disabled, 0);
        assert_int_equal(tq_context_cpu_features(ctx) & ~all, 0);
        tq_context_destroy(ctx);
    }
    assert_int_equal(tq_context_cpu_features(NULL), 0);
}

/* ---- cache ----------------------------------------------------------------------------- */

static tq_context *ctx;

static int open_context(void **state) {
    (void)state;
    return tq_context_create(NULL, &ctx);
}

static int close_context(void **state) {
    (void)state;
    tq_context_destroy(ctx);
    return 0;
}

/* Create and estimate check alike, and leave their outputs alone. */
static void refuse_cache(const tq_cache_config *c, tq_status status, const char *word) {
    tq_cache *out = NOWHERE;
    tq_footprint footprint, untouched;
    FAILS(tq_cache_create(ctx, c, &out), status, word);
    assert_ptr_equal(out, NOWHERE);
    memset(&footprint, 0x5a, sizeof footprint);
    footprint.struct_size = sizeof footprint;
    untouched = footprint;
    FAILS(tq_cache_estimate(ctx, c, &footprint), status, word);
    assert_memory_equal(&footprint, &untouched, sizeof footprint);
}

static void accept_cache(const tq_cache_config *c) {
    tq_cache *cache = NULL;
    tq_footprint footprint = {.struct_size = sizeof footprint};
    OK(tq_cache_create(ctx, c, &cache));
    OK(tq_cache_estimate(ctx, c, &footprint));
    tq_cache_destroy(cache);
}

static void test_cache_pointers(void **state) {
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, 64, 2, 1);
    tq_cache *out = NOWHERE;
    tq_footprint footprint = {.struct_size = sizeof footprint};
    FAILS(tq_cache_create(NULL, &c, &out), TQ_ERR_INVALID_ARGUMENT, "context");
    FAILS(tq_cache_create(ctx, NULL, &out), TQ_ERR_INVALID_ARGUMENT, "config");
    FAILS(tq_cache_create(ctx, &c, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    FAILS(tq_cache_estimate(NULL, &c, &footprint), TQ_ERR_INVALID_ARGUMENT, "context");
    FAILS(tq_cache_estimate(ctx, NULL, &footprint), TQ_ERR_INVALID_ARGUMENT, "config");
    FAILS(tq_cache_estimate(ctx, &c, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    assert_ptr_equal(out, NOWHERE);
    tq_cache_destroy(NULL);
}

/* A field of 32 bits, a value and what must be said about it. */
struct bad_field {
    size_t offset;
    uint32_t value;
    tq_status status;
    const char *word;
};
#define BAD(field, value) \
    { offsetof(tq_cache_config, field), value, TQ_ERR_INVALID_ARGUMENT, #field }

static const struct bad_field bad_fields[] = {
    BAD(flags, 2),
    BAD(flags, 0x80000000u),
    BAD(reserved, 1),
    BAD(n_layers, 0),
    BAD(n_layers, 65537),
    BAD(n_layers, UINT32_MAX),
    BAD(n_kv_heads, 0),
    BAD(n_kv_heads, 65537),
    BAD(n_kv_heads, UINT32_MAX),
    BAD(n_q_heads, 1), /* of 2 kv heads */
    BAD(n_q_heads, 3),
    BAD(n_q_heads, 2 * 129),
    BAD(n_q_heads, UINT32_MAX - 1),
    BAD(head_dim, 0),
    BAD(head_dim, 16),
    BAD(head_dim, 33),
    BAD(head_dim, 40),
    BAD(head_dim, 120),
    BAD(head_dim, 1040),
    BAD(head_dim, 2048),
    BAD(head_dim, UINT32_MAX - 15),
    BAD(v_head_dim, 16),
    BAD(v_head_dim, 72),
    BAD(v_head_dim, 1040),
    BAD(page_tokens, 1),
    BAD(page_tokens, 8),
    BAD(page_tokens, 15),
    BAD(page_tokens, 48),
    BAD(page_tokens, 512),
    BAD(page_tokens, UINT32_MAX),
    BAD(max_seqs, (1u << 24) + 1),
    BAD(max_seqs, UINT32_MAX),
    BAD(variant, 0),
    {offsetof(tq_cache_config, variant), 15, TQ_ERR_NOT_FOUND, "variant"},
    {offsetof(tq_cache_config, variant), UINT32_MAX, TQ_ERR_NOT_FOUND, "variant"},
};

static void test_cache_fields(void **state) {
    (void)state;
    const tq_variant variants[] = {TQ_VARIANT_BF16, TQ_VARIANT_4BIT_NC, TQ_VARIANT_POLAR_QJL};
    for (size_t v = 0; v < COUNT(variants); v++)
        for (size_t i = 0; i < COUNT(bad_fields); i++) {
            tq_cache_config c = plain_config(variants[v], 64, 2, 1);
            const struct bad_field *bad = &bad_fields[i];
            accept_cache(&c);
            memcpy((char *)&c + bad->offset, &bad->value, sizeof bad->value);
            refuse_cache(&c, bad->status, bad->word);
        }
}

/* Multiples of 16 that no Hadamard matrix of the library fits: fine for formats that do not
 * rotate, refused for the others, for keys and for values. */
static void test_cache_dims_that_do_not_rotate(void **state) {
    (void)state;
    static const uint32_t dims[] = {176, 208, 272, 304, 240, 336, 1008};
    for (size_t i = 0; i < COUNT(dims); i++)
        for (uint32_t v = 0; v < tq_variant_count(); v++) {
            tq_variant_info info = variant_at(v);
            int k = (format_of(info.k_format).flags & TQ_FORMAT_ROTATED) != 0;
            int values = (format_of(info.v_format).flags & TQ_FORMAT_ROTATED) != 0;
            tq_cache_config c = plain_config(info.id, dims[i], 1, 1);
            if (k || values)
                refuse_cache(&c, TQ_ERR_INVALID_ARGUMENT, "head_dim");
            else
                accept_cache(&c);
            c.head_dim = 64;
            c.v_head_dim = dims[i];
            if (values)
                refuse_cache(&c, TQ_ERR_INVALID_ARGUMENT, "v_head_dim");
            else
                accept_cache(&c);
        }
}

/* Every multiple of 16 in the range: a format that rotates takes just those that the header
 * describes. */
static void test_cache_dims_that_rotate(void **state) {
    (void)state;
    static const uint32_t orders[] = {1, 12, 20, 28, 36};
    for (uint32_t dim = 32; dim <= 1024; dim += 16) {
        tq_cache_config c = plain_config(TQ_VARIANT_3BIT_NC, dim, 1, 1);
        int fits = 0;
        for (size_t i = 0; i < COUNT(orders); i++)
            for (uint32_t d = orders[i]; d <= dim; d *= 2)
                fits |= d == dim;
        if (fits)
            accept_cache(&c);
        else
            refuse_cache(&c, TQ_ERR_INVALID_ARGUMENT, "head_dim");
        c.variant = TQ_VARIANT_FP8;
        accept_cache(&c);
    }
}

static void test_cache_layer_formats(void **state) {
    (void)state;
    tq_layer_formats pairs[3] = {{TQ_FORMAT_LM4, TQ_FORMAT_LM4},
                                 {TQ_FORMAT_LM4, TQ_FORMAT_LM4},
                                 {TQ_FORMAT_LM4, TQ_FORMAT_LM4}};
    tq_cache_config c = pair_config(pairs, 64, 1, 1);
    static const tq_format unknown[] = {0, 8, 9, 10, 15, UINT32_MAX};
    c.n_layers = 3;
    accept_cache(&c);
    c.variant = TQ_VARIANT_4BIT_NC;
    refuse_cache(&c, TQ_ERR_INVALID_ARGUMENT, "variant");
    c.variant = 0;
    for (size_t i = 0; i < COUNT(unknown); i++) {
        pairs[2].k_format = unknown[i];
        refuse_cache(&c, TQ_ERR_NOT_FOUND, "layer 2");
        pairs[2].k_format = TQ_FORMAT_LM4;
        pairs[2].v_format = unknown[i];
        refuse_cache(&c, TQ_ERR_NOT_FOUND, "layer 2");
        pairs[2].v_format = TQ_FORMAT_LM4;
    }
}

/* Keys-only formats as values: refused at create, in words. */
static void test_cache_roles(void **state) {
    (void)state;
    uint32_t refused = 0;
    for (uint32_t i = 0; i < tq_format_count(); i++) {
        tq_format_info f = format_at(i);
        tq_layer_formats pair = {TQ_FORMAT_BF16, f.id};
        tq_cache_config c = pair_config(&pair, 64, 1, 1);
        assert_true(f.roles & TQ_ROLE_K);
        if (f.roles & TQ_ROLE_V) {
            accept_cache(&c);
            continue;
        }
        refuse_cache(&c, TQ_ERR_UNSUPPORTED, f.name);
        refused++;
    }
    assert_int_equal(refused, 3);
}

static void test_cache_accepts_the_edges(void **state) {
    (void)state;
    static const uint32_t pages[] = {0, 16, 32, 64, 128, 256};
    tq_cache_config c;
    for (size_t i = 0; i < COUNT(pages); i++) {
        c = plain_config(TQ_VARIANT_K3V2_NC, 32, 1, 128);
        c.page_tokens = pages[i];
        c.max_seqs = i % 2 ? 1 : 1u << 24;
        accept_cache(&c);
    }
    c = plain_config(TQ_VARIANT_POLAR_QJL, 1024, 1, 1);
    c.v_head_dim = 32;
    accept_cache(&c);
    c.boundary_layers = UINT32_MAX; /* more than there are: all of them */
    accept_cache(&c);
    c = plain_config(TQ_VARIANT_2BIT_NC, 32, 65536, 1);
    accept_cache(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_config),
        cmocka_unit_test(test_context_without_gpu),
        cmocka_unit_test(test_allocator_hooks),
        cmocka_unit_test(test_allocator_reserved),
        cmocka_unit_test(test_allocator_without_hooks),
        cmocka_unit_test(test_executor_hooks),
        cmocka_unit_test(test_hooks_are_copied),
        cmocka_unit_test(test_cpu_features),
        cmocka_unit_test(test_cache_pointers),
        cmocka_unit_test(test_cache_fields),
        cmocka_unit_test(test_cache_dims_that_do_not_rotate),
        cmocka_unit_test(test_cache_dims_that_rotate),
        cmocka_unit_test(test_cache_layer_formats),
        cmocka_unit_test(test_cache_roles),
        cmocka_unit_test(test_cache_accepts_the_edges),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
