/* The norm stage: sums over a full binary tree, bit for bit, and the range step. */
#include "unit/unit.h"

#include <float.h>
#include <math.h>

#include "unit/rows.h"

enum { MAX = UNIT_MAX_DIM };

/* ---- trees ----------------------------------------------------------------------------- */

/* Sum of x[from, from + size), size a power of two, zeros from n on; by halves. */
static float by_halves(const float *x, uint32_t from, uint32_t size, uint32_t n) {
    if (size == 1)
        return from < n ? x[from] : 0;
    float left = by_halves(x, from, size / 2, n);
    return left + by_halves(x, from + size / 2, size / 2, n);
}

static float expected_sum(const float *x, uint32_t n, int squares) {
    float terms[MAX];
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    for (uint32_t i = 0; i < n; i++)
        terms[i] = squares ? x[i] * x[i] : fabsf(x[i]);
    return by_halves(terms, 0, size, n);
}

/* Magnitudes from 2^-12 to 2^12, so that the order of additions shows. */
static void fill(uint64_t seed, uint32_t n, float *x) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = ldexpf(unit_bell(&seed), (int)unit_below(&seed, 25) - 12);
}

static void test_tree_sums(void **state) {
    float x[MAX], tree[MAX];
    uint32_t sequential_differs = 0;
    (void)state;
    for (uint32_t n = 1; n <= MAX; n += n < 70 ? 1 : 13)
        for (uint64_t seed = 1; seed <= 10; seed++) {
            fill(seed * 1000 + n, n, x);
            CHECK(tqk_sum_squares_ref(x, n, tree) == expected_sum(x, n, 1), "n %u", n);
            CHECK(tqk_sum_abs_ref(x, n, tree) == expected_sum(x, n, 0), "n %u", n);
            float sum = 0;
            for (uint32_t i = 0; i < n; i++)
                sum += x[i] * x[i];
            sequential_differs += sum != expected_sum(x, n, 1);
        }
    assert_true(sequential_differs > 100); /* the input tells orders apart */
}

/* The row is only read, and no float behind the tree is written. */
static void test_tree_stays_inside(void **state) {
    float x[MAX], copy[MAX], tree[MAX + 1];
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++) {
        uint32_t n = unit_dims[d], size = tqk_tree_floats(n);
        fill(d, n, x);
        memcpy(copy, x, sizeof copy);
        tree[size] = 42;
        (void)tqk_sum_squares_ref(x, n, tree);
        (void)tqk_sum_abs_ref(x, n, tree);
        assert_memory_equal(x, copy, n * sizeof *x);
        assert_true(tree[size] == 42);
        assert_true(size >= n && size < 2 * n && (size & (size - 1)) == 0);
    }
}

/* ---- range ----------------------------------------------------------------------------- */

/* x * 2^-e in exact arithmetic, rounded once where the result is subnormal. */
static void check_scaled(const float *before, const float *after, uint32_t n, int e) {
    for (uint32_t i = 0; i < n; i++) {
        float expected = (float)ldexp((double)before[i], -e);
        CHECK(after[i] == expected && signbit(after[i]) == signbit(before[i]),
              "%a * 2^-%d is not %a", (double)before[i], e, (double)after[i]);
    }
}

/* Runs the step and checks everything that must hold; returns the exponent. */
static int check_range(const float *row, uint32_t n) {
    float x[MAX], tree[MAX], sum, largest = 0;
    memcpy(x, row, n * sizeof *x);
    int e = tqk_range_ref(x, n, tree, &sum);
    check_scaled(row, x, n, e);
    CHECK(sum == expected_sum(x, n, 1), "the sum is not that of the scaled row");
    for (uint32_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(row[i]));
    float plain = expected_sum(row, n, 1);
    if (largest == 0 || (plain >= 0x1p-80f && plain <= 0x1p100f)) {
        assert_int_equal(e, 0);
    } else {
        assert_int_equal(e, ilogb((double)largest));
        assert_true(sum >= 1 && sum <= 4 * (float)n);
    }
    return e;
}

/* Every magnitude from the smallest subnormal to the largest float. */
static void test_range_of_all_magnitudes(void **state) {
    float row[96];
    int scaled = 0, plain = 0;
    (void)state;
    for (int e = -149; e <= 125; e++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            uint64_t random = seed;
            for (int i = 0; i < 96; i++)
                row[i] = ldexpf(unit_bell(&random), e);
            row[seed] = ldexpf(1.5f, e); /* so that it is no zero row */
            int step = check_range(row, 96);
            scaled += step != 0;
            plain += step == 0;
        }
    assert_true(scaled > 400 && plain > 400);
}

/* One element, which makes the sum exact: the borders belong to the inside. */
static void test_range_borders(void **state) {
    float row[32] = {0};
    (void)state;
    row[7] = 0x1p-40f;
    assert_int_equal(check_range(row, 32), 0);
    row[7] = nextafterf(0x1p-40f, 0);
    assert_int_equal(check_range(row, 32), -41);
    row[7] = -0x1p50f;
    assert_int_equal(check_range(row, 32), 0);
    row[7] = nextafterf(-0x1p50f, -INFINITY);
    assert_int_equal(check_range(row, 32), 50);
    row[7] = FLT_MAX;
    assert_int_equal(check_range(row, 32), 127);
    row[7] = -0x1p-149f;
    assert_int_equal(check_range(row, 32), -149);
}

static void test_range_of_zero(void **state) {
    float row[64] = {0};
    (void)state;
    assert_int_equal(check_range(row, 64), 0);
    row[3] = -0.0f;
    assert_int_equal(check_range(row, 64), 0);
}

/* Rows of numbers of any exponent, where the small ones vanish beside the large ones. */
static void test_range_of_wild_rows(void **state) {
    float row[128];
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        uint64_t random = seed;
        for (int i = 0; i < 128; i++)
            row[i] = unit_wild(&random);
        (void)check_range(row, 128);
    }
    for (int i = 0; i < 128; i++)
        row[i] = i & 1 ? FLT_MAX : -FLT_MAX;
    assert_int_equal(check_range(row, 128), 127);
}

/* value * 2^e is rounded once, everywhere. */
static void test_scale_exponent(void **state) {
    uint64_t seed = 2;
    (void)state;
    for (int i = 0; i < 300000; i++) {
        float value = unit_wild(&seed);
        int e = (int)unit_below(&seed, 300) - 150;
        float scaled = tqk_scale_exponent_ref(value, e);
        float expected = (float)ldexp((double)value, e);
        CHECK(scaled == expected, "%a * 2^%d is %a", (double)value, e, (double)scaled);
    }
    assert_true(tqk_scale_exponent_ref(0, 127) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_sums),
        cmocka_unit_test(test_tree_stays_inside),
        cmocka_unit_test(test_range_of_all_magnitudes),
        cmocka_unit_test(test_range_borders),
        cmocka_unit_test(test_range_of_zero),
        cmocka_unit_test(test_range_of_wild_rows),
        cmocka_unit_test(test_scale_exponent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
