/* spec/rotation.c and the rotate stage: a Hadamard matrix of every length, its inverse, and
 * the order of its additions, which is part of the byte format. */
#include "unit/unit.h"

#include <math.h>

#include "base/half.h"
#include "unit/rows.h"

enum { MAX = UNIT_MAX_DIM, LINE = 36 };

/* A rotation with the signs of a seed, or none. */
static struct tqi_rotation make(uint32_t dim, uint64_t seed, uint32_t *flips) {
    struct tqi_rotation r;
    memset(flips, 0, dim * sizeof *flips);
    assert_int_equal(tqi_rotation_split(dim, &r), 1);
    if (seed)
        tqi_rotation_signs(seed, TQI_STREAM_ROTATION, dim, flips);
    r.flips = flips;
    return r;
}

static void test_split(void **state) {
    static const uint32_t expected[][3] = {
        {32, 1, 5},   {64, 1, 6},    {80, 20, 2},  {96, 12, 3}, {112, 28, 2},  {128, 1, 7},
        {160, 20, 3}, {192, 12, 4},  {224, 28, 3}, {256, 1, 8}, {320, 20, 4},  {512, 1, 9},
        {576, 36, 4}, {1024, 1, 10}, {144, 36, 2}, {12, 12, 0}, {4096, 1, 12},
    };
    struct tqi_rotation r;
    (void)state;
    for (size_t i = 0; i < COUNT(expected); i++) {
        CHECK(tqi_rotation_split(expected[i][0], &r) == 1, "dim %u", expected[i][0]);
        assert_int_equal(r.dim, expected[i][0]);
        assert_int_equal(r.order, expected[i][1]);
        assert_int_equal(r.log2_block, expected[i][2]);
        assert_true((r.rows == NULL) == (r.order == 1));
    }
}

/* 2^k and 12, 20, 28, 36 times 2^k, and nothing else. */
static void test_refused_dims(void **state) {
    static const uint32_t orders[] = {1, 12, 20, 28, 36};
    (void)state;
    for (uint32_t dim = 0; dim <= 4100; dim++) {
        struct tqi_rotation r = {.dim = 77};
        int exists = 0;
        for (size_t m = 0; m < COUNT(orders); m++)
            for (uint32_t size = orders[m]; size <= dim; size *= 2)
                exists |= size == dim;
        CHECK(tqi_rotation_split(dim, &r) == exists, "dim %u", dim);
        if (!exists)
            assert_int_equal(r.dim, 77);
    }
}

/* Columns of the matrix as bits, 1 = minus. */
static uint64_t columns[MAX][MAX / 64];

static void read_columns(const struct tqi_rotation *r) {
    float x[MAX], line[LINE];
    memset(columns, 0, sizeof columns);
    for (uint32_t j = 0; j < r->dim; j++) {
        memset(x, 0, sizeof x);
        x[j] = 1;
        tqk_rotate_ref(r, x, line);
        for (uint32_t i = 0; i < r->dim; i++) {
            CHECK(fabsf(x[i]) == 1, "entry (%u, %u) is %g", i, j, (double)x[i]);
            columns[j][i / 64] |= (uint64_t)(x[i] < 0) << i % 64;
        }
    }
}

static uint32_t differences(const uint64_t *a, const uint64_t *b, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < (n + 63) / 64; i++)
        count += (uint32_t)__builtin_popcountll(a[i] ^ b[i]);
    return count;
}

/* Orthogonal columns of +-1 mean H^T H = dim I, which for a square matrix is H H^T = dim I. */
static void test_hadamard(void **state) {
    uint32_t flips[MAX];
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++) {
        struct tqi_rotation r = make(unit_dims[d], 0, flips);
        read_columns(&r);
        for (uint32_t i = 0; i < r.dim; i++)
            for (uint32_t j = 0; j < i; j++)
                CHECK(differences(columns[i], columns[j], r.dim) == r.dim / 2, "dim %u, %u and %u",
                      r.dim, i, j);
    }
}

/* Sign of entry (i, j), 1 = minus: Sylvester's matrix inside, H_m across blocks. */
static int minus(const struct tqi_rotation *r, uint32_t i, uint32_t j) {
    uint32_t k = r->log2_block, mask = (1u << k) - 1;
    int sylvester = __builtin_parity(i & j & mask);
    return r->order == 1 ? sylvester : sylvester ^ (int)(r->rows[i >> k] >> (j >> k) & 1);
}

static void test_kronecker_order(void **state) {
    uint32_t flips[MAX];
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++) {
        struct tqi_rotation r = make(unit_dims[d], 0, flips);
        read_columns(&r);
        for (uint32_t i = 0; i < r.dim; i++)
            for (uint32_t j = 0; j < r.dim; j++)
                CHECK((int)(columns[j][i / 64] >> i % 64 & 1) == minus(&r, i, j),
                      "dim %u, entry (%u, %u)", r.dim, i, j);
    }
}

/* Against a dense product in double. Each output is a tree of depth k and a sum of m. */
static void test_dense_product(void **state) {
    uint32_t flips[MAX];
    float x[MAX], y[MAX], line[LINE];
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++) {
        struct tqi_rotation r = make(unit_dims[d], 40 + d, flips);
        double sum_abs = 0;
        unit_bell_row(d, r.dim, x);
        for (uint32_t i = 0; i < r.dim; i++)
            sum_abs += fabs((double)x[i]);
        memcpy(y, x, sizeof y);
        tqk_rotate_ref(&r, y, line);
        double bound = 1.01 * (r.log2_block + r.order) * 0x1p-24 * sum_abs;
        for (uint32_t i = 0; i < r.dim; i++) {
            double exact = 0;
            for (uint32_t j = 0; j < r.dim; j++)
                exact += minus(&r, i, j) ^ (flips[j] != 0) ? -(double)x[j] : (double)x[j];
            CHECK(fabs((double)y[i] - exact) <= bound, "dim %u, %u: %g, not %g", r.dim, i,
                  (double)y[i], exact);
        }
    }
}

/* ---- the order of additions ------------------------------------------------------------ */

/* One butterfly step, out of place. */
static void step(uint32_t dim, uint32_t stride, const float *from, float *to) {
    for (uint32_t i = 0; i < dim; i++)
        to[i] = i & stride ? from[i - stride] - from[i] : from[i] + from[i + stride];
}

/* Row `a` of H_m over the blocks; `last` is where the sum begins when it runs backwards. */
static float across(const struct tqi_rotation *r, const float *x, uint32_t i, int backwards) {
    uint32_t block = 1u << r->log2_block, m = r->order;
    float sum = 0;
    for (uint32_t n = 0; n < m; n++) {
        uint32_t a = backwards ? m - 1 - n : n;
        float term = x[a * block + i % block];
        term = r->rows[i / block] >> a & 1 ? -term : term;
        sum = n == 0 ? term : sum + term;
    }
    return sum;
}

/* The three steps of rotation.h; backwards: the same sums in another order. */
static void contract(const struct tqi_rotation *r, const float *x, int backwards, float *y) {
    float a[MAX], b[MAX];
    for (uint32_t i = 0; i < r->dim; i++)
        a[i] = r->flips[i] ? -x[i] : x[i];
    for (uint32_t k = 0; k < r->log2_block; k++) {
        step(r->dim, 1u << (backwards ? r->log2_block - 1 - k : k), a, b);
        memcpy(a, b, sizeof a);
    }
    for (uint32_t i = 0; i < r->dim; i++)
        y[i] = r->order > 1 ? across(r, a, i, backwards) : a[i];
}

/* Magnitudes from 1 to 2^24, so that nearly every addition rounds. */
static void adversary(uint64_t seed, uint32_t n, float *x) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = ldexpf(unit_bell(&seed), (int)unit_below(&seed, 25));
}

static void test_order_of_additions(void **state) {
    uint32_t flips[MAX];
    float x[MAX], y[MAX], expected[MAX], other[MAX], line[LINE];
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct tqi_rotation r = make(unit_dims[d], seed, flips);
            adversary(seed, r.dim, x);
            contract(&r, x, 0, expected);
            contract(&r, x, 1, other);
            memcpy(y, x, sizeof y);
            tqk_rotate_ref(&r, y, line);
            assert_memory_equal(y, expected, r.dim * sizeof *y);
            /* The input would show another order. */
            assert_memory_not_equal(y, other, r.dim * sizeof *y);
        }
}

/* Zeros keep the sign that IEEE addition gives them: they choose codes. */
static void test_zeros(void **state) {
    uint32_t flips[MAX];
    float x[MAX], expected[MAX], line[LINE];
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++) {
        struct tqi_rotation r = make(unit_dims[d], 3, flips);
        for (uint32_t i = 0; i < r.dim; i++)
            x[i] = i % 3 == 0 ? -0.0f : 0.0f;
        contract(&r, x, 0, expected);
        tqk_rotate_ref(&r, x, line);
        assert_memory_equal(x, expected, r.dim * sizeof *x);
    }
}

/* ---- double ---------------------------------------------------------------------------- */

static double norm(const double *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void test_exact_rotation(void **state) {
    uint32_t flips[MAX];
    float x[MAX], line_float[LINE];
    double y[MAX], line[LINE];
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++) {
        struct tqi_rotation r = make(unit_dims[d], 70 + d, flips);
        unit_bell_row(d + 99, r.dim, x);
        for (uint32_t i = 0; i < r.dim; i++)
            y[i] = (double)x[i];
        double before = norm(y, r.dim), tolerance = 1e-14 * before * sqrt((double)r.dim);
        tqk_rotate_exact_ref(&r, y, line);
        CHECK(fabs(norm(y, r.dim) - before) < tolerance, "dim %u", r.dim);
        float u[MAX];
        memcpy(u, x, sizeof u);
        tqk_rotate_ref(&r, u, line_float);
        for (uint32_t i = 0; i < r.dim; i++)
            CHECK(fabs((double)u[i] / sqrt((double)r.dim) - y[i]) < 1e-5 * before, "dim %u", r.dim);
        tqk_unrotate_exact_ref(&r, y, line);
        for (uint32_t i = 0; i < r.dim; i++)
            CHECK(fabs(y[i] - (double)x[i]) < tolerance, "dim %u, %u", r.dim, i);
    }
}

/* The other way round, and norms kept by the inverse as well. */
static void test_exact_inverse(void **state) {
    uint32_t flips[MAX];
    double x[MAX], y[MAX], line[LINE];
    uint64_t seed = 8;
    (void)state;
    for (size_t d = 0; d < COUNT(unit_dims); d++) {
        struct tqi_rotation r = make(unit_dims[d], 90 + d, flips);
        for (uint32_t i = 0; i < r.dim; i++)
            x[i] = y[i] = (double)unit_bell(&seed);
        double before = norm(x, r.dim), tolerance = 1e-14 * before * sqrt((double)r.dim);
        tqk_unrotate_exact_ref(&r, y, line);
        CHECK(fabs(norm(y, r.dim) - before) < tolerance, "dim %u", r.dim);
        tqk_rotate_exact_ref(&r, y, line);
        for (uint32_t i = 0; i < r.dim; i++)
            CHECK(fabs(y[i] - x[i]) < tolerance, "dim %u, %u", r.dim, i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),         cmocka_unit_test(test_refused_dims),
        cmocka_unit_test(test_hadamard),      cmocka_unit_test(test_kronecker_order),
        cmocka_unit_test(test_dense_product), cmocka_unit_test(test_order_of_additions),
        cmocka_unit_test(test_zeros),         cmocka_unit_test(test_exact_rotation),
        cmocka_unit_test(test_exact_inverse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
