/* The advice for typical questions stays what it is, and follows from what the library says of its
 * formats. */
#include <math.h>
#include <string.h>

#include "common/cache.h"
#include "tq/recommend.h"

struct advice {
    uint32_t head_dim, max_millibits, flags;
    double max_dot_error, max_mse;
    tq_variant variant; /* 0 = none keeps the limits */
    const char *word;   /* of the reason, or of the error */
};

static const struct advice pinned[] = {
    /* Memory is no concern. */
    {128, 0, 0, 0, 0, TQ_VARIANT_INT8, "as good as 16 bits"},
    {128, 16000, 0, 0, 0, TQ_VARIANT_INT8, "int8"},
    {64, 0, 0, 0, 0, TQ_VARIANT_INT8, "8.25 bits"},
    /* Memory is short, and shorter. */
    {128, 8100, 0, 0, 0, TQ_VARIANT_FP8, "on a CPU little faster than 16 bits"},
    {128, 6200, 0, 0, 0, TQ_VARIANT_K8V4, "on a CPU little faster than 16 bits"},
    {128, 4200, 0, 0, 0, TQ_VARIANT_4BIT_NC, "4.12 bits"},
    {128, 4200, 0, 0, 0, TQ_VARIANT_4BIT_NC, "3.9 times fewer to read"},
    {128, 4000, 0, 0, 0, TQ_VARIANT_K3V4_NC, "fit them before"},
    {128, 3700, TQ_RECOMMEND_CENTRED, 0, 0, TQ_VARIANT_K3V4_NC, "centred keys"},
    {128, 3200, TQ_RECOMMEND_CENTRED, 0, 0, TQ_VARIANT_3BIT_NC, "centred keys"},
    {128, 2700, 0, 0, 0, TQ_VARIANT_K3V2_NC, "means"},
    {128, 2200, 0, 0, 0, TQ_VARIANT_2BIT_NC, "means"},
    {128, 2000, 0, 0, 0, 0, "2bit_nc comes closest: 2125"},
    /* The gain weighs more on short rows. */
    {64, 4200, 0, 0, 0, TQ_VARIANT_K3V4_NC, "3.75 bits"},
    {64, 4300, 0, 0, 0, TQ_VARIANT_4BIT_NC, "4.25 bits"},
    {256, 4100, 0, 0, 0, TQ_VARIANT_4BIT_NC, "4.06 bits"},
    /* Rows that no rotation fits: formats without one. */
    {144, 0, 0, 0, 0, TQ_VARIANT_INT8, ""},
    {176, 9000, 0, 0, 0, TQ_VARIANT_FP8, ""},
    /* Large key means. */
    {128, 0, TQ_RECOMMEND_LARGE_KEY_MEANS, 0, 0, TQ_VARIANT_F16, "fit the means"},
    {128, 9000, TQ_RECOMMEND_LARGE_KEY_MEANS, 0, 0, 0, "f16 comes closest"},
    {128, 0, TQ_RECOMMEND_LARGE_KEY_MEANS | TQ_RECOMMEND_CENTRED, 0, 0, TQ_VARIANT_INT8, "int8"},
    {128, 4200, TQ_RECOMMEND_LARGE_KEY_MEANS | TQ_RECOMMEND_CENTRED, 0, 0, TQ_VARIANT_4BIT_NC, ""},
    /* Limits of errors: the fewest bits that keep them. */
    {128, 0, 0, 0.1, 0, TQ_VARIANT_4BIT_NC, ""},
    {128, 0, 0, 0.05, 0, TQ_VARIANT_K8V4, ""},
    {128, 0, 0, 0.05, 1e-3, TQ_VARIANT_FP8, ""},
    {128, 0, 0, 0.02, 0, TQ_VARIANT_INT8, ""},
    {128, 0, 0, 1e-3, 0, TQ_VARIANT_F16, "nothing smaller"},
    {128, 0, 0, 0, 0.04, TQ_VARIANT_3BIT_NC, ""},
    {128, 0, 0, 0, 0.2, TQ_VARIANT_2BIT_NC, ""},
    {128, 0, 0, 1e-9, 0, 0, "f16 comes closest"},
    {128, 5000, 0, 0.05, 0, 0, "4bit_nc comes closest"},
    /* Vector search. */
    {128, 4300, TQ_RECOMMEND_UNBIASED, 0, 0, TQ_VARIANT_PROD4, "unbiased"},
    {128, 3300, TQ_RECOMMEND_UNBIASED, 0, 0, TQ_VARIANT_PROD3, "unbiased"},
    {128, 0, TQ_RECOMMEND_UNBIASED, 0, 0, TQ_VARIANT_BF16, "nothing smaller"},
    {128, 5000, TQ_RECOMMEND_UNBIASED, 0, 0, TQ_VARIANT_PROD4, "unbiased"}, /* not polar_qjl */
};

static tq_recommend_query query_of(const struct advice *a) {
    tq_recommend_query q = {.struct_size = sizeof q,
                            .head_dim = a->head_dim,
                            .max_millibits = a->max_millibits,
                            .flags = a->flags,
                            .max_dot_error = a->max_dot_error,
                            .max_mse = a->max_mse};
    return q;
}

static void check_advice(const struct advice *a, size_t i) {
    tq_recommend_query q = query_of(a);
    tq_recommendation r = {.struct_size = sizeof r};
    tq_status status = tq_recommend(&q, &r);
    if (!a->variant) {
        CHECK(status == TQ_ERR_NOT_FOUND && strstr(tq_last_error(), a->word),
              "question %zu: %s, %s", i, tq_status_name(status), tq_last_error());
        return;
    }
    OK(status);
    tq_variant_info v = variant_of(r.variant);
    CHECK(r.variant == a->variant, "question %zu: %s, %s", i, v.name, r.reason);
    CHECK(strstr(r.reason, a->word) && strstr(r.reason, v.name), "question %zu: %s", i, r.reason);
    CHECK(r.reason[strlen(r.reason) - 1] == '.', "question %zu: cut off: %s", i, r.reason);
    CHECK(!a->max_millibits || r.millibits <= a->max_millibits, "question %zu: %u", i, r.millibits);
    assert_true(r.dot_error == format_of(v.k_format).dot_error);
    assert_true(r.mse == format_of(v.v_format).mse);
    assert_int_equal(r.page_tokens, 64);
}

static void test_pinned(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(pinned); i++)
        check_advice(&pinned[i], i);
}

/* Whatever is recommended can be created, and has the bits that were promised. */
static void test_advice_can_be_followed(void **state) {
    (void)state;
    for (uint32_t dim = 32; dim <= 1024; dim += 16)
        for (uint32_t budget = 0; budget <= 17000; budget += 1700) {
            tq_recommend_query q = {
                .struct_size = sizeof q, .head_dim = dim, .max_millibits = budget};
            tq_recommendation r = {.struct_size = sizeof r};
            tq_footprint f = {.struct_size = sizeof f};
            struct rig rig = {0};
            if (tq_recommend(&q, &r) != TQ_OK)
                continue;
            tq_cache_config c = plain_config(r.variant, dim, 1, 1);
            c.page_tokens = r.page_tokens;
            rig_open(&rig, &c);
            OK(tq_cache_estimate(rig.ctx, &c, &f));
            assert_int_equal(f.bytes_per_page * 8000 / (2 * dim * 64), r.millibits);
            rig_close(&rig);
        }
}

/* A larger budget never makes the error larger. */
static void test_more_bits_less_error(void **state) {
    double last = 10;
    (void)state;
    for (uint32_t budget = 2200; budget < 17000; budget += 100) {
        tq_recommend_query q = {.struct_size = sizeof q, .head_dim = 128, .max_millibits = budget};
        tq_recommendation r = {.struct_size = sizeof r};
        OK(tq_recommend(&q, &r));
        double error = r.dot_error * r.dot_error + r.mse;
        AT_MOST(error, last, "budget %u", budget);
        last = error;
    }
}

static void test_cuda(void **state) {
    tq_recommend_query q = {
        .struct_size = sizeof q, .device = TQ_DEVICE_CUDA, .head_dim = 128, .max_millibits = 4200};
    tq_recommendation r = {.struct_size = sizeof r};
    (void)state;
    if (format_of(TQ_FORMAT_LM4).devices & 1u << TQ_DEVICE_CUDA) {
        OK(tq_recommend(&q, &r));
        assert_int_equal(r.variant, TQ_VARIANT_4BIT_NC);
        q.max_millibits = 8100;
        OK(tq_recommend(&q, &r));
        assert_int_equal(r.variant, TQ_VARIANT_FP8);
        assert_null(strstr(r.reason, "CPU"));
    } else {
        FAILS(tq_recommend(&q, &r), TQ_ERR_UNSUPPORTED, "CUDA");
    }
}

static void test_refused(void **state) {
    static const tq_recommend_query good = {.struct_size = sizeof good, .head_dim = 128};
    tq_recommendation r = {.struct_size = sizeof r}, untouched = r;
    tq_recommend_query bad[8];
    static const char *const words[] = {"head_dim", "head_dim", "device",  "flags",
                                        "reserved", "max_dot",  "max_mse", "struct_size"};
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        bad[i] = good;
    bad[0].head_dim = 0;
    bad[1].head_dim = 130;
    bad[2].device = 7;
    bad[3].flags = 8;
    bad[4].reserved = 1;
    bad[5].max_dot_error = -1;
    bad[6].max_mse = (double)INFINITY;
    bad[7].struct_size = 8;
    for (size_t i = 0; i < COUNT(bad); i++)
        FAILS(tq_recommend(&bad[i], &r), TQ_ERR_INVALID_ARGUMENT, words[i]);
    FAILS(tq_recommend(NULL, &r), TQ_ERR_INVALID_ARGUMENT, "query");
    FAILS(tq_recommend(&good, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    assert_memory_equal(&r, &untouched, sizeof r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_advice_can_be_followed),
        cmocka_unit_test(test_more_bits_less_error),
        cmocka_unit_test(test_cuda),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
