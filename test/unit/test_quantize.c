/* The quantize stage against the nearest entry of the integer book, searched in double. */
#include "unit/unit.h"

#include <math.h>

#include "unit/rows.h"

enum { N = 256 };

static struct tqi_book book_of(uint32_t bits) {
    struct tqi_book book;
    tqi_book_make(&book, bits);
    return book;
}

static double value_of(const struct tqi_book *b, uint32_t code) {
    return b->step * b->code_v2[code] / 2;
}

/* Distance to the nearest entry, and to the nearest threshold, 0 included. */
static double best_distance(const struct tqi_book *b, double y) {
    double best = INFINITY;
    for (uint32_t code = 0; code < 2 * b->levels; code++)
        best = fmin(best, fabs(y - value_of(b, code)));
    return best;
}

static void check_nearest(const struct tqi_book *b, const float *u, float inv,
                          const uint8_t *codes) {
    for (int i = 0; i < N; i++) {
        double y = (double)u[i] * (double)inv;
        double distance = fabs(y - value_of(b, codes[i]));
        /* 2e-6: the product and the threshold are rounded to binary32. */
        CHECK(distance <= best_distance(b, y) + 2e-6, "%u bits: %g got code %u", b->bits, y,
              codes[i]);
    }
}

static void test_lm_is_nearest(void **state) {
    float u[N];
    uint8_t codes[N];
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        struct tqi_book b = book_of(bits);
        uint32_t used = 0;
        for (uint64_t seed = 1; seed <= 200; seed++) {
            uint64_t random = seed;
            float scale = ldexpf(1 + (float)unit_below(&random, 1000) / 1000,
                                 (int)unit_below(&random, 80) - 40);
            for (int i = 0; i < N; i++)
                u[i] = unit_bell(&random) * 1.7f * scale;
            uint32_t sum = tqk_quantize_lm_ref(&b, u, N, 1 / scale, codes), expected = 0;
            check_nearest(&b, u, 1 / scale, codes);
            for (int i = 0; i < N; i++) {
                expected += (uint32_t)(b.code_v2[codes[i]] * b.code_v2[codes[i]]);
                used |= 1u << codes[i];
            }
            assert_int_equal(sum, expected);
        }
        assert_int_equal(used, (1u << (1u << bits)) - 1); /* every code occurs */
    }
}

/* A value on a threshold belongs to the level below, the next float to the level above. */
static void test_lm_thresholds(void **state) {
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        struct tqi_book b = book_of(bits);
        for (uint32_t t = 0; t + 1 < b.levels; t++) {
            float above = nextafterf(b.threshold[t], INFINITY);
            float u[4] = {b.threshold[t], above, -b.threshold[t], -above};
            uint8_t codes[4];
            (void)tqk_quantize_lm_ref(&b, u, 4, 1, codes);
            assert_int_equal(codes[0], tqi_book_code(&b, t, 0));
            assert_int_equal(codes[1], tqi_book_code(&b, t + 1, 0));
            assert_int_equal(codes[2], tqi_book_code(&b, t, 1));
            assert_int_equal(codes[3], tqi_book_code(&b, t + 1, 1));
        }
    }
}

/* Zeros have a sign; values far outside take the last level. */
static void test_lm_edges(void **state) {
    const float u[6] = {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 1e30f, -1e30f};
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        struct tqi_book b = book_of(bits);
        uint8_t codes[6];
        (void)tqk_quantize_lm_ref(&b, u, 6, 1, codes);
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(codes[i], tqi_book_code(&b, i < 4 ? 0 : b.levels - 1, i & 1));
        /* A zero row comes with inv = 0: signs alone decide, even of large numbers. */
        (void)tqk_quantize_lm_ref(&b, u, 6, 0, codes);
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(codes[i], tqi_book_code(&b, 0, i & 1));
    }
}

/* ---- int8 ------------------------------------------------------------------------------ */

static void check_int8(const float *u, uint32_t n) {
    int8_t codes[N];
    uint32_t sum = tqk_quantize_int8_ref(u, n, codes), expected = 0, full = 0;
    double largest = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)u[i]));
    for (uint32_t i = 0; i < n; i++) {
        double exact = (double)u[i] * 127 / largest;
        CHECK(fabs(codes[i] - exact) <= 0.5 + 2e-5, "%g is coded as %d", exact, codes[i]);
        assert_in_range(codes[i] + 127, 0, 254); /* -128 never occurs */
        if (fabs((double)u[i]) == largest)
            assert_int_equal(codes[i], u[i] < 0 ? -127 : 127);
        full |= codes[i] == 127 || codes[i] == -127;
        expected += (uint32_t)(codes[i] * codes[i]);
    }
    assert_true(full);
    assert_int_equal(sum, expected);
}

static void test_int8(void **state) {
    float u[N];
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        int e = (int)unit_below(&random, 80) - 40;
        for (int i = 0; i < N; i++)
            u[i] = ldexpf(unit_bell(&random), e);
        u[unit_below(&random, N)] = ldexpf(seed & 1 ? -3.3f : 3.3f, e);
        check_int8(u, N);
    }
}

/* Halves go to the even code, and one large element alone gets 127. */
static void test_int8_edges(void **state) {
    const float u[8] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, -126.5f};
    const int expected[8] = {127, 0, 2, 2, 0, -2, -2, -126};
    float row[N] = {0};
    int8_t codes[N];
    (void)state;
    assert_int_equal(tqk_quantize_int8_ref(u, 8, codes), 127 * 127 + 4 * 4 + 126 * 126);
    for (int i = 0; i < 8; i++)
        assert_int_equal(codes[i], expected[i]);
    for (int i = 0; i < N; i++) {
        memset(row, 0, sizeof row);
        row[i] = i & 1 ? -0x1p-60f : 0x1.fffffep60f;
        check_int8(row, N);
        assert_int_equal(tqk_quantize_int8_ref(row, N, codes), 127 * 127);
    }
}

static void test_int8_of_zero(void **state) {
    float row[N] = {0};
    int8_t codes[N];
    (void)state;
    row[5] = -0.0f;
    memset(codes, 1, sizeof codes);
    assert_int_equal(tqk_quantize_int8_ref(row, N, codes), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(codes[i], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lm_is_nearest), cmocka_unit_test(test_lm_thresholds),
        cmocka_unit_test(test_lm_edges),      cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int8_edges),    cmocka_unit_test(test_int8_of_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
