/* base/half.h: every pattern of the small float types against its definition, and rounding
 * against exact distances in double. */
#include "unit/unit.h"

#include <math.h>

#include "base/half.h"

/* A small float type: exponent and mantissa widths, patterns of the positive finite values. */
struct type {
    const char *name;
    int exponent_bits, mantissa_bits;
    uint32_t sign, largest; /* patterns */
    int saturates;
    double (*value)(uint32_t pattern);
    uint32_t (*round)(float value);
};

static double f16_value(uint32_t p) {
    return (double)tqi_f16_to_float((uint16_t)p);
}

static double bf16_value(uint32_t p) {
    return (double)tqi_bf16_to_float((uint16_t)p);
}

static double e4m3_value(uint32_t p) {
    return (double)tqi_e4m3_to_float((uint8_t)p);
}

static uint32_t to_f16(float f) {
    return tqi_float_to_f16(f);
}

static uint32_t to_bf16(float f) {
    return tqi_float_to_bf16(f);
}

static uint32_t to_e4m3(float f) {
    return tqi_float_to_e4m3(f);
}

static const struct type f16 = {"f16", 5, 10, 0x8000, 0x7bff, 0, f16_value, to_f16};
static const struct type bf16 = {"bf16", 8, 7, 0x8000, 0x7f7f, 0, bf16_value, to_bf16};
static const struct type e4m3 = {"e4m3", 4, 3, 0x80, 0x7e, 1, e4m3_value, to_e4m3};

/* What a finite pattern means: m * 2^(emin - bits) or (1 + m / 2^bits) * 2^(e - bias). */
static double defined_value(const struct type *t, uint32_t pattern) {
    int bias = (1 << (t->exponent_bits - 1)) - 1, width = t->mantissa_bits;
    int mantissa = (int)(pattern & ((1u << width) - 1));
    int exponent = (int)(pattern >> width & ((1u << t->exponent_bits) - 1));
    double magnitude = exponent ? ldexp((1 << width) + mantissa, exponent - bias - width)
                                : ldexp(mantissa, 1 - bias - width);
    return pattern & t->sign ? -magnitude : magnitude;
}

static int same(double a, double b) {
    return a == b && signbit(a) == signbit(b);
}

static void check_patterns(const struct type *t) {
    for (uint32_t p = 0; p < 2 * t->sign; p++) {
        if ((p & ~t->sign) > t->largest)
            continue;
        double value = t->value(p);
        CHECK(same(value, defined_value(t, p)), "%s 0x%x is %a", t->name, p, value);
        CHECK(t->round((float)value) == p, "%s 0x%x comes back as 0x%x", t->name, p,
              t->round((float)value));
    }
}

static void test_all_patterns(void **state) {
    (void)state;
    check_patterns(&f16);
    check_patterns(&bf16);
    check_patterns(&e4m3);
}

/* Patterns above the largest finite one. */
static void test_infinities_and_nans(void **state) {
    (void)state;
    for (uint32_t p = 0; p < 0x10000; p++) {
        uint32_t magnitude = p & 0x7fff;
        if (magnitude > f16.largest) {
            double value = f16_value(p);
            assert_true(magnitude == 0x7c00 ? isinf(value) : isnan(value));
            assert_int_equal(signbit(value) != 0, p >> 15);
        }
        if (magnitude > bf16.largest) {
            double value = bf16_value(p);
            assert_true(magnitude == 0x7f80 ? isinf(value) : isnan(value));
        }
    }
    assert_true(isnan(e4m3_value(0x7f)) && isnan(e4m3_value(0xff)));
    assert_int_equal(to_f16(INFINITY), 0x7c00);
    assert_int_equal(to_f16(-INFINITY), 0xfc00);
    assert_int_equal(to_bf16(INFINITY), 0x7f80);
    assert_int_equal(to_bf16(-INFINITY), 0xff80);
    assert_int_equal(to_e4m3(INFINITY), 0x7e);
    assert_int_equal(to_e4m3(-INFINITY), 0xfe);
}

/* Every NaN stays one, also those whose payload lies in bits that are cut off. */
static void test_nans_stay(void **state) {
    uint64_t seed = 1;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        uint32_t payload = i < 23 ? 1u << i : (uint32_t)unit_random(&seed) & 0x7fffffu;
        payload += payload == 0;
        float nan = tqi_bits_float((i & 1 ? 0xff800000u : 0x7f800000u) | payload);
        CHECK(isnan(f16_value(to_f16(nan))), "payload 0x%x", payload);
        CHECK(isnan(bf16_value(to_bf16(nan))), "payload 0x%x", payload);
        CHECK(isnan(e4m3_value(to_e4m3(nan))), "payload 0x%x", payload);
    }
}

/* Both signs of a value that must round to a pattern. */
static void check_rounds(const struct type *t, float value, uint32_t pattern) {
    CHECK(t->round(value) == pattern, "%s of %a is 0x%x, not 0x%x", t->name, (double)value,
          t->round(value), pattern);
    CHECK(t->round(-value) == (pattern | t->sign), "%s of %a", t->name, (double)-value);
}

/* All neighbours: the middle goes to the even pattern, everything beside it to the nearer. */
static void check_ties(const struct type *t) {
    for (uint32_t p = 0; p < t->largest; p++) {
        double low = defined_value(t, p), high = defined_value(t, p + 1);
        double middle = (low + high) / 2;
        float at = (float)middle;
        CHECK((double)at == middle, "%s: the tie above 0x%x is no float", t->name, p);
        check_rounds(t, at, p + (p & 1));
        check_rounds(t, nextafterf(at, 0), p);
        check_rounds(t, nextafterf(at, INFINITY), p + 1);
    }
}

static void test_all_ties(void **state) {
    (void)state;
    check_ties(&f16);
    check_ties(&bf16);
    check_ties(&e4m3);
}

/* The pattern of the nearest value by search, even on a tie; the type's own overflow. */
static uint32_t nearest(const struct type *t, double magnitude) {
    uint32_t low = 0, high = t->largest;
    double step = defined_value(t, t->largest) - defined_value(t, t->largest - 1);
    if (magnitude >= defined_value(t, t->largest) + step / 2)
        return t->saturates ? t->largest : t->largest + 1;
    if (magnitude >= defined_value(t, t->largest))
        return t->largest;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (defined_value(t, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - defined_value(t, low), above = defined_value(t, high) - magnitude;
    if (below == above)
        return low & 1 ? high : low;
    return below < above ? low : high;
}

static void check_random(const struct type *t, int n) {
    uint64_t seed = 7;
    for (int i = 0; i < n; i++) {
        /* Half of them anywhere, half in the range of the type. */
        float value = fabsf(unit_wild(&seed));
        if (i & 1)
            value = (float)ldexp((double)fabsf(unit_bell(&seed)), (int)unit_below(&seed, 40) - 30);
        check_rounds(t, value, nearest(t, (double)value));
    }
}

static void test_random_rounding(void **state) {
    (void)state;
    check_random(&f16, 300000);
    check_random(&bf16, 300000);
    check_random(&e4m3, 300000);
}

static void test_overflow(void **state) {
    (void)state;
    check_rounds(&f16, 65504, 0x7bff);
    check_rounds(&f16, nextafterf(65520, 0), 0x7bff);
    check_rounds(&f16, 65520, 0x7c00);
    check_rounds(&f16, 0x1.fffffep127f, 0x7c00);
    check_rounds(&bf16, 0x1.fep127f, 0x7f7f);
    check_rounds(&bf16, 0x1.fefffep127f, 0x7f7f);
    check_rounds(&bf16, 0x1.ffp127f, 0x7f80);
    check_rounds(&e4m3, 448, 0x7e);
    check_rounds(&e4m3, 464, 0x7e);
    check_rounds(&e4m3, 480, 0x7e);
    check_rounds(&e4m3, 0x1.fffffep127f, 0x7e);
}

static void test_underflow(void **state) {
    (void)state;
    check_rounds(&f16, 0x1p-25f, 0);
    check_rounds(&f16, nextafterf(0x1p-25f, 1), 1);
    check_rounds(&f16, 0x1p-149f, 0);
    check_rounds(&e4m3, 0x1p-10f, 0);
    check_rounds(&e4m3, nextafterf(0x1p-10f, 1), 1);
    check_rounds(&e4m3, 0x1p-149f, 0);
    check_rounds(&bf16, 0x1p-134f, 0);
    check_rounds(&bf16, nextafterf(0x1p-134f, 1), 1);
    check_rounds(&f16, 0, 0);
    check_rounds(&bf16, 0, 0);
    check_rounds(&e4m3, 0, 0);
}

/* The helper alone: nearest, ties to even, for every shift that is used. */
static void test_round_shift(void **state) {
    (void)state;
    for (uint32_t shift = 1; shift <= 24; shift++)
        for (uint32_t u = 0; u < 1u << 13; u++) {
            uint32_t value = u << (shift > 12 ? shift - 12 : 0);
            double exact = ldexp((double)value, -(int)shift);
            CHECK((double)tqi_round_shift(value, shift) == nearbyint(exact), "%u >> %u", value,
                  shift);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_patterns),    cmocka_unit_test(test_infinities_and_nans),
        cmocka_unit_test(test_nans_stay),       cmocka_unit_test(test_all_ties),
        cmocka_unit_test(test_random_rounding), cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_underflow),       cmocka_unit_test(test_round_shift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
