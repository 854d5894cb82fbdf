/* CPU features that a context does without: the codes are the same bytes, attention is the
 * same within the tolerance of the widest path. Kernel names tell what runs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cache.h"

enum { HEADS = 2, GROUP = 3, TOKENS = 70, QUERIES = 2 };
#define INTEGER_TOLERANCE 2e-4

static const uint64_t choices[] = {0,
                                   TQ_CPU_AMX,
                                   TQ_CPU_AVX512VNNI,
                                   TQ_CPU_AVX512VNNI | TQ_CPU_AVX512,
                                   TQ_CPU_AVX512VNNI | TQ_CPU_AVX512 | TQ_CPU_AVXVNNI,
                                   UINT64_MAX};
enum { FUSED = 3, REFERENCE = COUNT(choices) - 1 }; /* with AVX-VNNI; AVX2 is the next */

/* A cache whose context does without some features. */
static void open_without(struct rig *r, const tq_cache_config *c, uint64_t disabled) {
    tq_allocator hooks = test_allocator(&r->heap);
    tq_context_config config = {
        .struct_size = sizeof config, .allocator = &hooks, .cpu_features_disabled = disabled};
    OK(tq_context_create(&config, &r->ctx));
    OK(tq_cache_create(r->ctx, c, &r->cache));
    r->c.struct_size = sizeof r->c;
    OK(tq_cache_get_config(r->cache, &r->c));
}

static void check_near(const struct rig *r, const struct asked *got, const struct asked *want,
                       const char *what) {
    size_t n = QUERIES * rig_out_row(r), n_lse = (size_t)QUERIES * r->c.n_q_heads;
    double *out = must_alloc(n, sizeof *out), *lse = must_alloc(n_lse, sizeof *lse);
    for (size_t i = 0; i < n; i++)
        out[i] = (double)want->out[i];
    for (size_t i = 0; i < n_lse; i++)
        lse[i] = (double)want->lse[i];
    AT_MOST(relative_error(got->out, out, n), INTEGER_TOLERANCE, "%s: out", what);
    AT_MOST(largest_difference(got->lse, lse, n_lse), INTEGER_TOLERANCE, "%s: lse", what);
    free(out);
    free(lse);
}

static void check_variant(tq_variant_info variant, uint32_t dim) {
    tq_cache_config c = plain_config(variant.id, dim, HEADS, GROUP);
    struct rig r[COUNT(choices)];
    struct asked a[COUNT(choices)];
    tq_seq seq[COUNT(choices)];
    memset(r, 0, sizeof r);
    for (size_t i = 0; i < COUNT(choices); i++) {
        struct rng rng = {dim};
        open_without(&r[i], &c, choices[i]);
        seq[i] = rig_seq(&r[i]);
        rig_append_random(&r[i], seq[i], 0, TOKENS, &rng);
        a[i] = ask_make(&r[i], QUERIES, TQ_ATTEND_CAUSAL, &rng);
        ask(&r[i], seq[i], 0, &a[i]);
    }
    JUSTIFIED(judge(&r[REFERENCE], seq[REFERENCE], 0, &a[REFERENCE]), "%s: reference kernels",
              variant.name);
    /* One or two instructions for a multiply-add: the integers are the same. */
    check_answer(&r[FUSED + 1], seq[FUSED + 1], 0, &a[FUSED], "AVX2 as AVX-VNNI");
    for (size_t i = 0; i < COUNT(choices); i++) {
        check_near(&r[i], &a[i], &a[REFERENCE], variant.name);
        check_same_pages(&r[i], seq[i], &r[REFERENCE], seq[REFERENCE], 0, TOKENS, variant.name);
    }
    for (size_t i = 0; i < COUNT(choices); i++) {
        ask_free(&a[i]);
        rig_close(&r[i]);
    }
}

static void test_without_features(void **state) {
    (void)state;
    static const uint32_t dims[] = {64, 80, 128, 256};
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            check_variant(variant_at(i), dims[d]);
}

static void check_name(const char *name, const char *stage, const char *format, int reference) {
    assert_non_null(name);
    CHECK(strncmp(name, "tqk_", 4) == 0 && strstr(name, stage) && strstr(name, format),
          "%s is no name for %s of %s", name, stage, format);
    CHECK(!reference || strcmp(name + strlen(name) - 4, "_ref") == 0, "%s without any feature",
          name);
}

/* With every feature disabled the reference kernels run and say so. */
static void test_kernel_names(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++)
        for (int reference = 0; reference < 2; reference++) {
            tq_variant_info v = variant_at(i);
            tq_cache_config c = plain_config(v.id, 128, 1, 1);
            struct rig r = {0};
            const char *k = format_of(v.k_format).name, *values = format_of(v.v_format).name;
            c.n_layers = 3;
            c.boundary_layers = 1;
            open_without(&r, &c, reference ? UINT64_MAX : 0);
            check_name(tq_cache_kernel_name(r.cache, 1, TQ_OP_ENCODE_K), "encode", k, reference);
            check_name(tq_cache_kernel_name(r.cache, 1, TQ_OP_ENCODE_V), "encode", values,
                       reference);
            check_name(tq_cache_kernel_name(r.cache, 1, TQ_OP_SCORE), "score", k, reference);
            check_name(tq_cache_kernel_name(r.cache, 1, TQ_OP_ACCUMULATE), "accumulate", values,
                       reference);
            check_name(tq_cache_kernel_name(r.cache, 0, TQ_OP_SCORE), "score", "bf16", reference);
            check_name(tq_cache_kernel_name(r.cache, 2, TQ_OP_SCORE), "score", "bf16", reference);
            assert_null(tq_cache_kernel_name(NULL, 0, TQ_OP_SCORE));
            assert_null(tq_cache_kernel_name(r.cache, 3, TQ_OP_SCORE));
            assert_null(tq_cache_kernel_name(r.cache, 0, -1));
            assert_null(tq_cache_kernel_name(r.cache, 0, TQ_OP_PREFILL + 1));
            assert_null(tq_cache_kernel_name(r.cache, 0, INT32_MIN));
            rig_close(&r);
        }
}

/* Tiles only on top of AVX-512; a context without them runs other kernels, and says so. */
static void test_tiles(void **state) {
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, 128, 1, 1);
    static const uint64_t without[] = {0, TQ_CPU_AMX, TQ_CPU_AVX512VNNI, TQ_CPU_AVX512,
                                       TQ_CPU_AVX2};
    const uint64_t vectors = TQ_CPU_AVX2 | TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI;
    for (size_t i = 0; i < COUNT(without); i++) {
        struct rig r = {0};
        open_without(&r, &c, without[i]);
        uint64_t features = tq_context_cpu_features(r.ctx);
        const char *name = tq_cache_kernel_name(r.cache, 0, TQ_OP_PREFILL);
        assert_int_equal(features & without[i], 0);
        if (features & TQ_CPU_AMX)
            assert_int_equal(features & vectors, vectors);
        CHECK((strstr(name, "_amx") != NULL) == ((features & TQ_CPU_AMX) != 0),
              "%s with the features 0x%llx", name, (unsigned long long)features);
        rig_close(&r);
    }
}

/* AVX-VNNI on top of AVX2 and below AVX-512. */
static void test_fused_products(void **state) {
    (void)state;
    tq_cache_config c = plain_config(TQ_VARIANT_4BIT_NC, 128, 1, 1);
    static const uint64_t without[] = {TQ_CPU_AVX512, TQ_CPU_AVX512 | TQ_CPU_AVXVNNI,
                                       TQ_CPU_AVX512 | TQ_CPU_AVX2};
    for (size_t i = 0; i < COUNT(without); i++) {
        struct rig r = {0};
        open_without(&r, &c, without[i]);
        uint64_t features = tq_context_cpu_features(r.ctx);
        int fused = (features & TQ_CPU_AVXVNNI) && (features & TQ_CPU_AVX2);
        const char *score = tq_cache_kernel_name(r.cache, 0, TQ_OP_SCORE);
        const char *sum = tq_cache_kernel_name(r.cache, 0, TQ_OP_ACCUMULATE);
        assert_int_equal(features & without[i], 0);
        CHECK((strstr(score, "_avxvnni") != NULL) == fused, "%s with the features 0x%llx", score,
              (unsigned long long)features);
        CHECK((strstr(sum, "_avxvnni") != NULL) == fused, "%s with the features 0x%llx", sum,
              (unsigned long long)features);
        rig_close(&r);
    }
}

/* Whether this thread's tiles hold anything that the system would have to save. */
static int tiles_in_use(void) {
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    return (low >> 17 & 3) != 0;
#else
    return 0;
#endif
}

/* Calls leave no tiles behind. The test of tiles itself is tested: it sees tiles that are set. */
static void test_tiles_are_released(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_cache_config c = plain_config(variant_at(i).id, 128, 1, 1);
        struct rig r = {0};
        struct rng rng = {1};
        open_without(&r, &c, 0);
        if (!(tq_context_cpu_features(r.ctx) & TQ_CPU_AMX)) {
            rig_close(&r);
            skip();
        }
        tq_seq seq = rig_seq(&r);
        rig_append_random(&r, seq, 0, TOKENS, &rng);
        struct asked a = ask_make(&r, 1, 0, &rng);
        ask(&r, seq, 0, &a);
        assert_int_equal(tiles_in_use(), 0);
        ask_free(&a);
        rig_close(&r);
    }
#ifdef TQI_HAVE_AMX
    static const uint8_t shapes[64] __attribute__((aligned(64))) = {[0] = 1, [16] = 64, [48] = 16};
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    int in_use = tiles_in_use();
    __asm__ volatile("tilerelease");
    assert_int_equal(in_use, 1);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),          cmocka_unit_test(test_tiles_are_released),
        cmocka_unit_test(test_fused_products), cmocka_unit_test(test_without_features),
        cmocka_unit_test(test_kernel_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
