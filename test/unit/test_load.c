/* The load stage (the caller's elements to binary32, what is not finite, means) and the
 * store stage (the other way). */
#include "unit/unit.h"

#include <float.h>
#include <math.h>

#include "base/half.h"
#include "unit/rows.h"

enum { N = 64 };

static const float bf16_max = 0x1.fep127f;

static const tq_dtype dtypes[] = {TQ_F32, TQ_F16, TQ_BF16};
static const float largest[] = {FLT_MAX, 65504, 0x1.fep127f};

/* Element i of a row of any type, from a float that the type can hold. */
static void set(void *row, tq_dtype dtype, int i, float value) {
    uint16_t half = dtype == TQ_F16 ? tqi_float_to_f16(value) : tqi_float_to_bf16(value);
    if (dtype == TQ_F32)
        memcpy((char *)row + 4 * i, &value, sizeof value);
    else
        memcpy((char *)row + 2 * i, &half, sizeof half);
}

static float get(const void *row, tq_dtype dtype, int i) {
    float value;
    uint16_t half;
    if (dtype == TQ_F32) {
        memcpy(&value, (const char *)row + 4 * i, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)row + 2 * i, sizeof half);
    return dtype == TQ_F16 ? tqi_f16_to_float(half) : tqi_bf16_to_float(half);
}

/* Halves and eighths: exact in all types. */
static void test_plain_values(void **state) {
    uint32_t row[N];
    float out[N];
    (void)state;
    for (size_t t = 0; t < COUNT(dtypes); t++) {
        struct tqi_nonfinite count = {0, 0};
        for (int i = 0; i < N; i++)
            set(row, dtypes[t], i, (float)(i - 32) / 8);
        tqk_load_ref(row, dtypes[t], N, NULL, out, &count);
        for (int i = 0; i < N; i++)
            assert_true(out[i] == (float)(i - 32) / 8);
        assert_true(count.nan == 0 && count.inf == 0);
    }
}

/* NaN becomes 0, infinities the largest value of the type, in that element only; both are
 * added to the counts. */
static void test_not_finite(void **state) {
    uint32_t row[N];
    float out[N];
    (void)state;
    for (size_t t = 0; t < COUNT(dtypes); t++) {
        struct tqi_nonfinite count = {100, 200};
        for (int i = 0; i < N; i++)
            set(row, dtypes[t], i, 1);
        set(row, dtypes[t], 3, NAN);
        set(row, dtypes[t], 7, -NAN);
        set(row, dtypes[t], 11, NAN);
        set(row, dtypes[t], 20, INFINITY);
        set(row, dtypes[t], 21, -INFINITY);
        tqk_load_ref(row, dtypes[t], N, NULL, out, &count);
        for (int i = 0; i < N; i++) {
            float expected = i == 3 || i == 7 || i == 11 ? 0
                             : i == 20                   ? largest[t]
                             : i == 21                   ? -largest[t]
                                                         : 1;
            CHECK(out[i] == expected, "dtype %d, element %d: %g", dtypes[t], i, (double)out[i]);
        }
        assert_int_equal(count.nan, 103);
        assert_int_equal(count.inf, 202);
    }
}

/* x - mean in binary32; the mean also applies to replaced elements; no infinity comes out. */
static void test_mean(void **state) {
    float row[4] = {3, NAN, FLT_MAX, -FLT_MAX}, mean[4] = {0.1f, 2, -FLT_MAX, FLT_MAX}, out[4];
    struct tqi_nonfinite count = {0, 0};
    (void)state;
    tqk_load_ref(row, TQ_F32, 4, mean, out, &count);
    assert_true(out[0] == 3 - 0.1f);
    assert_true(out[1] == -2);
    assert_true(out[2] == FLT_MAX);
    assert_true(out[3] == -FLT_MAX);
    assert_true(count.nan == 1 && count.inf == 0); /* these infinities were not in the input */
}

/* Extremes of the types themselves are values like others. */
static void test_extremes_are_kept(void **state) {
    uint32_t row[4];
    float out[4];
    (void)state;
    for (size_t t = 0; t < COUNT(dtypes); t++) {
        struct tqi_nonfinite count = {0, 0};
        float tiny = dtypes[t] == TQ_F32 ? 0x1p-149f : dtypes[t] == TQ_F16 ? 0x1p-24f : 0x1p-133f;
        set(row, dtypes[t], 0, largest[t]);
        set(row, dtypes[t], 1, -largest[t]);
        set(row, dtypes[t], 2, tiny);
        set(row, dtypes[t], 3, -0.0f);
        tqk_load_ref(row, dtypes[t], 4, NULL, out, &count);
        assert_true(out[0] == largest[t] && out[1] == -largest[t]);
        assert_true(out[2] == tiny);
        assert_true(out[3] == 0 && signbit(out[3]));
        assert_true(count.nan == 0 && count.inf == 0);
    }
}

/* ---- store -------------------------------------------------------------------------------- */

/* Floats in double go to the type by one rounding; what is outside becomes infinite. */
static void test_store(void **state) {
    double row[N];
    uint32_t out[N];
    uint64_t seed = 1;
    (void)state;
    for (size_t t = 0; t < COUNT(dtypes); t++)
        for (int pass = 0; pass < 500; pass++) {
            for (int i = 0; i < N; i++)
                row[i] = (double)(pass & 1 ? unit_wild(&seed) : unit_bell(&seed));
            tqk_store_ref(row, N, dtypes[t], out);
            for (int i = 0; i < N; i++) {
                uint32_t one;
                set(&one, dtypes[t], 0, (float)row[i]);
                assert_true(get(out, dtypes[t], i) == get(&one, dtypes[t], 0));
            }
        }
}

/* Doubles that lie beside the middle of two halves by less than a float can tell. */
static void test_store_rounds_once(void **state) {
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        int shift = i & 1 ? 8 : 11; /* bf16, f16 */
        double unit = 1 + unit_below(&seed, 1u << (shift - 1)) * pow(2, 1 - shift);
        double step = pow(2, 1 - shift), tiny = pow(2, -25 - (int)unit_below(&seed, 27));
        double side = unit_below(&seed, 2) ? 1 : -1, sign = unit_below(&seed, 2) ? 1 : -1;
        double row = sign * (unit + step / 2 + side * tiny);
        uint16_t out;
        tqk_store_ref(&row, 1, i & 1 ? TQ_BF16 : TQ_F16, &out);
        double value = (double)(i & 1 ? tqi_bf16_to_float(out) : tqi_f16_to_float(out));
        CHECK(value == sign * (side > 0 ? unit + step : unit), "%a became %a", row, value);
    }
}

static void test_store_extremes(void **state) {
    const double row[8] = {NAN, INFINITY, -INFINITY, 1e300, -1e300, 1e-300, 65519, -0.0};
    uint32_t out[8];
    (void)state;
    for (size_t t = 0; t < COUNT(dtypes); t++) {
        tqk_store_ref(row, 8, dtypes[t], out);
        assert_true(isnan(get(out, dtypes[t], 0)));
        assert_true(get(out, dtypes[t], 1) == INFINITY && get(out, dtypes[t], 2) == -INFINITY);
        assert_true(get(out, dtypes[t], 3) == INFINITY && get(out, dtypes[t], 4) == -INFINITY);
        assert_true(get(out, dtypes[t], 5) == 0 && get(out, dtypes[t], 7) == 0);
        assert_true(signbit(get(out, dtypes[t], 7)));
    }
    tqk_store_ref(row, 8, TQ_F16, out);
    assert_true(get(out, TQ_F16, 6) == 65504);
}

/* No byte beyond the row is read or written, and halves need no more than their alignment. */
static void test_bounds(void **state) {
    uint16_t halves[N + 2];
    double row[N];
    float out[N + 1];
    struct tqi_nonfinite count = {0, 0};
    (void)state;
    for (int i = 0; i < N; i++)
        row[i] = i;
    memset(halves, 0xa5, sizeof halves);
    tqk_store_ref(row, N, TQ_BF16, halves + 1);
    assert_true(halves[0] == 0xa5a5 && halves[N + 1] == 0xa5a5);
    out[N] = bf16_max;
    tqk_load_ref(halves + 1, TQ_BF16, N, NULL, out, &count);
    for (int i = 0; i < N; i++)
        assert_true(out[i] == (float)i);
    assert_true(out[N] == bf16_max);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_values),   cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_mean),           cmocka_unit_test(test_extremes_are_kept),
        cmocka_unit_test(test_store),          cmocka_unit_test(test_store_rounds_once),
        cmocka_unit_test(test_store_extremes), cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
