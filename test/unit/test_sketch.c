/* The sketch stage against a dense projection in double: S = H D2 H D1 / dim. */
#include "unit/unit.h"

#include <math.h>

#include "unit/rows.h"

enum { MAX = 320, LINE = 36 };

static const uint32_t dims[] = {32, 64, 80, 96, 112, 128, 160, 256, 320};

/* Entry (i, j) of the unscaled Hadamard matrix of a rotation. */
static int entry(const struct tqi_rotation *r, uint32_t i, uint32_t j) {
    uint32_t k = r->log2_block;
    int minus = __builtin_parity(i & j & ((1u << k) - 1));
    if (r->order > 1)
        minus ^= (int)(r->rows[i >> k] >> (j >> k) & 1);
    return minus ? -1 : 1;
}

/* y = H D x, all sums in double. */
static void round_of(const struct tqi_rotation *r, const double *x, double *y) {
    for (uint32_t i = 0; i < r->dim; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < r->dim; j++)
            y[i] += entry(r, i, j) * (r->flips[j] ? -x[j] : x[j]);
    }
}

static void project(const struct tqi_rows *rows, const double *x, double *y) {
    double middle[MAX];
    round_of(&rows->sketch[0], x, middle);
    round_of(&rows->sketch[1], middle, y);
}

/* E|u1| by its formula, Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)). */
static double mean_abs(uint32_t d) {
    return exp(lgamma(d / 2.0) - lgamma((d + 1) / 2.0)) / sqrt(acos(-1));
}

static void test_mean_abs_coordinate(void **state) {
    (void)state;
    for (uint32_t d = 2; d <= 4096; d += 2)
        CHECK(fabs(tqi_mean_abs_coordinate(d) / mean_abs(d) - 1) < 1e-11, "dim %u", d);
}

static void test_constants(void **state) {
    struct unit_rows u;
    (void)state;
    for (size_t n = 0; n < COUNT(dims); n++) {
        double d = dims[n], mean = mean_abs(dims[n]);
        unit_row_form(&u, TQ_FORMAT_LM2_QJL, dims[n], 1);
        CHECK(fabs((double)u.rows.sketch_factor / (mean * pow(d, 1.5)) - 1) < 1e-7, "dim %g", d);
        CHECK(fabs(u.rows.sketch_unit * d * mean - 1) < 1e-12, "dim %g", d);
    }
}

/* Signs and gain of one residual; sign errors are allowed where the sum nearly vanishes. */
static void check_sketch(const struct unit_rows *u, const float *residual) {
    uint32_t dim = u->rows.layout.dim;
    float r[MAX], tree[512];
    double x[MAX] = {0}, f[MAX], sum = 0, energy = 0;
    uint8_t blob[1024] = {0};
    for (uint32_t i = 0; i < dim; i++) {
        r[i] = residual[i];
        x[i] = (double)residual[i];
        energy += x[i] * x[i];
    }
    project(&u->rows, x, f);
    for (uint32_t i = 0; i < dim; i++)
        sum += fabs(f[i]);
    double gain = (double)tqk_sketch_ref(&u->rows, r, blob, 0, tree);
    for (uint32_t i = 0; i < dim; i++) {
        int negative = (int)tqi_get_sketch(&u->rows.layout, blob, 0, i);
        int clear = fabs(f[i]) > 1e-5 * sum / dim;
        CHECK(!clear || negative == (f[i] < 0), "dim %u, sign %u of %g", dim, i, f[i]);
    }
    double expected = energy * mean_abs(dim) * pow(dim, 1.5) / sum;
    CHECK(fabs(gain / expected - 1) < 1e-5, "dim %u: gain %g, not %g", dim, gain, expected);
}

static void test_signs_and_gain(void **state) {
    struct unit_rows u;
    float r[MAX];
    (void)state;
    for (size_t n = 0; n < COUNT(dims); n++)
        for (uint64_t seed = 1; seed <= 8; seed++) {
            unit_row_form(&u, seed & 1 ? TQ_FORMAT_LM3_QJL : TQ_FORMAT_POLAR_QJL, dims[n], seed);
            unit_bell_row(seed, dims[n], r);
            check_sketch(&u, r);
            memset(r, 0, sizeof r);
            r[seed] = -2.5f; /* a residual of one coordinate */
            check_sketch(&u, r);
        }
}

/* With this gain the estimate of <r, r> is exact for every single projection. */
static void test_exact_along_residual(void **state) {
    struct unit_rows u;
    float r[MAX], copy[MAX], tree[512];
    double signs[MAX], x[MAX] = {0}, f[MAX], factor;
    (void)state;
    for (size_t n = 0; n < COUNT(dims); n++) {
        uint8_t blob[1024] = {0};
        uint32_t dim = dims[n];
        double estimate = 0, energy = 0;
        unit_row_form(&u, TQ_FORMAT_LM3_QJL, dim, n);
        unit_bell_row(n, dim, r);
        for (uint32_t i = 0; i < dim; i++) {
            copy[i] = r[i] / 64;
            x[i] = (double)copy[i];
            energy += x[i] * x[i];
        }
        project(&u.rows, x, f);
        float gain = tqk_sketch_ref(&u.rows, copy, blob, 0, tree);
        tqk_put_gain_ref(&u.rows.layout, blob + u.rows.layout.sketch_gains, gain);
        struct tqi_tile tile = {.blob = blob, .last = 1, .scale = 1};
        tqk_unpack_sketch_ref(&u.rows, &tile, 0, signs, &factor);
        /* In units of the row, S is H D2 H D1 / dim and the residual r / sqrt(dim). */
        for (uint32_t i = 0; i < dim; i++) {
            assert_true(fabs(signs[i]) == 1);
            estimate += factor * signs[i] * f[i] / dim * sqrt((double)dim);
        }
        CHECK(fabs(estimate / energy - 1) < 0.001, "dim %u: %g, not %g", dim, estimate, energy);
    }
}

static void test_zero_residual(void **state) {
    struct unit_rows u;
    float r[MAX] = {0}, tree[512];
    uint8_t blob[1024] = {0};
    (void)state;
    unit_row_form(&u, TQ_FORMAT_LM2_QJL, 128, 4);
    assert_true(tqk_sketch_ref(&u.rows, r, blob, 0, tree) == 0);
}

/* The rounds of the sketch are streams of their own. */
static void test_rounds_differ(void **state) {
    struct unit_rows u;
    (void)state;
    unit_row_form(&u, TQ_FORMAT_POLAR_QJL, 128, 11);
    size_t bytes = 128 * sizeof(uint32_t);
    assert_memory_not_equal(u.rows.rotation.flips, u.rows.sketch[0].flips, bytes);
    assert_memory_not_equal(u.rows.rotation.flips, u.rows.sketch[1].flips, bytes);
    assert_memory_not_equal(u.rows.sketch[0].flips, u.rows.sketch[1].flips, bytes);
    assert_int_equal(tqi_rows_flips(u.rows.format, 128), 3 * 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_abs_coordinate), cmocka_unit_test(test_constants),
        cmocka_unit_test(test_signs_and_gain),      cmocka_unit_test(test_exact_along_residual),
        cmocka_unit_test(test_zero_residual),       cmocka_unit_test(test_rounds_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
