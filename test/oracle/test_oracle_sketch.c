/*
 * Test of the oracle: QJL, TurboQuant_prod, and unbiased estimates.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "test_oracle.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 8000

/* The expected errors of prod have closed forms. C = D(b-1); n is the noise of the
 * estimated residual, E ||r - r^||^2; a2 = E <r - r^, x>^2, all for ||x|| = 1.
 * The part of r along x is C (exact for Lloyd-Max books, on average).
 *
 * Gaussian S: n = C (pi/2 - 1/d), a2 = C (pi/2 - C) / d. Orthonormal S: r^ is
 * ||r|| c S^T sign(S r) of length ||r|| c sqrt(d), and its part along r is ||r|| c L,
 * L = ||u||_1 of a uniform unit row u; so n = C (c^2 d - 1) with c = 1 / E L, and the
 * rest of it is isotropic. The exact gain has c = 1 / L. */
typedef struct {
    double noise, along2;
} expectation;

static expectation expect_gaussian(double base) {
    return (expectation){base * (ORC_PI / 2 - 1.0 / D), base * (ORC_PI / 2 - base) / D};
}

static expectation expect_orthonormal(double base, bool exact) {
    double mean = D * orc_mean_abs_coordinate(D), mean2 = 1 + (D - 1) * 2 / ORC_PI;
    double variance = mean2 / (mean * mean) - 1; /* of L / E L */
    double noise = D / (mean * mean) - 1, along_r = variance;
    if (exact) { /* E 1/L^2 to second order */
        noise = D / (mean * mean) * (1 + 3 * variance) - 1;
        along_r = 0.0;
    }
    double along2 = base * along_r + (1 - base) * (noise - along_r) / (D - 1);
    return (expectation){base * noise, base * along2};
}

/* The published figures are simulations of 10000 rows with one query each, whose
 * squared error alone is uncertain by 1.4 %: three times that. */
static void check_prod(const char *what, const orc_stat *noise, const orc_stat *score,
                       expectation want, double published) {
    double cos2 = 0.64 / 3, across2 = (want.noise - want.along2) / (D - 1);
    double formula = D * (cos2 * want.along2 + (1 - cos2) * across2);
    print_message("  %s (times 1/d)\n", what);
    report("noise against the formula", noise->mean, want.noise, 4 * orc_stat_error(noise));
    report("score error against the formula", score->mean, formula,
           4 * orc_stat_error(score) + 0.005 * formula);
    report("score error as published", score->mean, published, 0.042 * published);
}

static void test_prod_gaussian(void **state) {
    static const double published[3] = {.536, .179, .0535};
    double *rotation = orc_rotation_haar(D, 2);
    (void)state;
    for (int bits = 1; bits <= 3; bits++) {
        double book[8];
        double base = orc_lloyd_sphere(D, bits, book);
        orc_stat noise = {0}, score = {0}; /* one sample a matrix: rows share it */
        for (uint64_t m = 0; m < 20; m++) {
            orc_stat one, one_score;
            double *s = orc_projection_gaussian(D, D, 100 + m);
            orc_format f = {.kind = ORC_ROW_SCALAR,
                            .d = D,
                            .rotation = rotation,
                            .bits = bits,
                            .book = book,
                            .sketch = ORC_SKETCH_GAUSSIAN,
                            .projection = s,
                            .n_signs = D};
            measure(&f, ROWS / 20, 200 + m, &one, &one_score);
            orc_stat_add(&noise, one.mean);
            orc_stat_add(&score, one_score.mean);
            free(s);
        }
        check_prod("prod, Gaussian S", &noise, &score, expect_gaussian(base), published[bits - 1]);
    }
    free(rotation);
}

static void test_prod_orthonormal(void **state) {
    static const double published[3] = {.187, .063, .019};
    double *rotation = orc_rotation_hadamard(D, 1, 0), *s = orc_projection_hadamard(D, 5);
    (void)state;
    for (int bits = 1; bits <= 3; bits++) {
        double book[8];
        double base = orc_lloyd_sphere(D, bits, book);
        orc_stat noise, score;
        orc_format f = {.kind = ORC_ROW_SCALAR,
                        .d = D,
                        .rotation = rotation,
                        .bits = bits,
                        .book = book,
                        .sketch = ORC_SKETCH_ORTHONORMAL,
                        .projection = s,
                        .n_signs = D};
        measure(&f, ROWS / 2, 2026, &noise, &score);
        check_prod("prod, orthonormal S", &noise, &score, expect_orthonormal(base, false),
                   published[bits - 1]);
        f.sketch = ORC_SKETCH_EXACT;
        measure(&f, ROWS / 2, 2026, &noise, &score);
        check_prod("prod, orthonormal S, exact gain", &noise, &score,
                   expect_orthonormal(base, true), published[bits - 1]);
    }
    free(rotation);
    free(s);
}

static void test_sketch_constants(void **state) {
    orc_stat mean = {0};
    double x[D];
    (void)state;
    check("E|u1|, d = 1", orc_mean_abs_coordinate(1), 1.0, 1e-14);
    check("E|u1|, d = 2", orc_mean_abs_coordinate(2), 2 / ORC_PI, 1e-14);
    check("E|u1|, d = 3", orc_mean_abs_coordinate(3), 0.5, 1e-14);
    for (uint64_t r = 0; r < 2000; r++) {
        orc_gaussian_row(D, 4, r, x);
        double sum = 0.0;
        for (size_t i = 0; i < D; i++) {
            sum += fabs(x[i]);
        }
        orc_stat_add(&mean, sum / D / orc_norm(D, x));
    }
    report("E|u1|, d = 128", orc_mean_abs_coordinate(D), mean.mean, 4 * orc_stat_error(&mean));
    check("Gaussian", orc_sketch_constant(ORC_SKETCH_GAUSSIAN, 256, D), sqrt(ORC_PI / 2) / 256,
          1e-15);
    double near = sqrt(ORC_PI / (2.0 * D)); /* design notes 1.2 */
    report("orthonormal constant", orc_sketch_constant(ORC_SKETCH_ORTHONORMAL, D, D), near,
           0.005 * near);
}

/* The estimate of the score is the inner product with the decoded row; the exact
 * gain keeps <r^, r>; more or fewer signs than dims are allowed. */
static void test_sketch_identities(void **state) {
    double x[D], q[D], decoded[D], book[4], base[D];
    double *rotation = orc_rotation_hadamard(D, 1, 0), *s = orc_projection_hadamard(D, 3);
    double *wide = orc_projection_gaussian(2 * D, D, 3);
    orc_format plain = {
        .kind = ORC_ROW_SCALAR, .d = D, .rotation = rotation, .bits = 2, .book = book};
    orc_row row;
    (void)state;
    (void)orc_lloyd_gaussian(2, book);
    for (uint64_t r = 0; r < 30; r++) {
        orc_gaussian_row(D, 3, r, x);
        orc_query_row(D, x, 0.3, 4, r, q);
        check("query cosine", orc_dot(D, q, x) / orc_norm(D, x), 0.3, 1e-13);
        check("query length", orc_norm(D, q), 1.0, 1e-13);
        for (int kind = ORC_SKETCH_NONE; kind <= ORC_SKETCH_EXACT; kind++) {
            orc_format f = plain;
            f.sketch = (orc_sketch)kind;
            f.projection = kind == ORC_SKETCH_GAUSSIAN ? wide : s;
            f.n_signs = kind == ORC_SKETCH_GAUSSIAN ? 2 * D : D;
            orc_encode(&f, x, &row);
            orc_decode(&f, &row, decoded);
            check("score", orc_score(&f, &row, q), orc_dot(D, q, decoded), 1e-11);
        }
        orc_roundtrip(&plain, x, base); /* decoded is now that of the exact gain */
        double along = 0.0, residual2 = 0.0;
        for (size_t i = 0; i < D; i++) {
            along += (decoded[i] - base[i]) * (x[i] - base[i]);
            residual2 += (x[i] - base[i]) * (x[i] - base[i]);
        }
        check("<r^,r> = ||r||^2", along, residual2, 1e-10);
    }
    free(rotation);
    free(s);
    free(wide);
}

/* orc_score_error samples queries; compare with the mean over queries. */
static void test_score_error(void **state) {
    double book[8];
    double *rotation = orc_rotation_hadamard(D, 1, 0);
    double exact = orc_lloyd_sphere(D, 3, book);
    orc_format f = {.kind = ORC_ROW_SCALAR, .d = D, .rotation = rotation, .bits = 3, .book = book};
    orc_stat bias, square;
    (void)state;
    orc_score_error(&f, 0.8, ROWS / 2, 2026, &bias, &square); /* S1 shrinks by 1 - D */
    report("S1 bias at cosine 0.8", bias.mean, -0.8 * exact, 4 * orc_stat_error(&bias));
    f.gain = ORC_GAIN_UNBIASED;
    orc_score_error(&f, 0.8, ROWS / 2, 2026, &bias, &square);
    report("unbiased at cosine 0.8", bias.mean, 0.0, 4 * orc_stat_error(&bias));
    report("its square", square.mean, 0.36 * .0347, 4 * orc_stat_error(&square));
    free(rotation);
}

/* The mean of the decoded row over random rotations (scalar) or projections. */
static void mean_over_seeds(orc_format f, const double *x, uint64_t n, double *mean) {
    double decoded[ORC_MAX_DIM];
    memset(mean, 0, f.d * sizeof *mean);
    for (uint64_t i = 0; i < n; i++) {
        double *rotation = orc_rotation_haar(f.d, 10 + i);
        double *s = f.sketch == ORC_SKETCH_GAUSSIAN ? orc_projection_gaussian(f.d, f.d, 1000000 + i)
                                                    : orc_rotation_haar(f.d, 1000000 + i);
        f.rotation = rotation;
        f.projection = s;
        orc_roundtrip(&f, x, decoded);
        for (size_t j = 0; j < f.d; j++) {
            mean[j] += decoded[j] / (double)n;
        }
        free(rotation);
        free(s);
    }
}

/* EDEN: one fixed, very uneven row; E over rotations of x^ is x. With n rotations
 * the mean is off by D / n; S1 is off by its shrinkage, D^2. */
static void test_unbiased(void **state) {
    enum { SMALL = 32, N = 2000 };
    double x[SMALL] = {5.0, -3.0}, mean[SMALL], book[4];
    (void)state;
    for (size_t i = 2; i < SMALL; i++) {
        x[i] = 0.1;
    }
    double exact = orc_lloyd_sphere(SMALL, 2, book);
    orc_format f = {.kind = ORC_ROW_SCALAR,
                    .d = SMALL,
                    .bits = 2,
                    .book = book,
                    .n_signs = SMALL,
                    .gain = ORC_GAIN_UNBIASED};
    mean_over_seeds(f, x, N, mean);
    double off = orc_relative_l2(SMALL, mean, x);
    report("EDEN: squared bias times n / D", off * off * N / exact, 1.0, 0.8);
    f.gain = ORC_GAIN_S1;
    mean_over_seeds(f, x, N, mean);
    off = orc_relative_l2(SMALL, mean, x);
    report("S1: bias over D", off / exact, 1.0, 0.03);
    for (int kind = ORC_SKETCH_GAUSSIAN; kind <= ORC_SKETCH_EXACT; kind++) {
        f.sketch = (orc_sketch)kind;
        mean_over_seeds(f, x, N, mean);
        off = orc_relative_l2(SMALL, mean, x);
        double variance = exact * (kind == ORC_SKETCH_GAUSSIAN ? ORC_PI / 2 : ORC_PI / 2 - 1);
        report("prod: squared bias times n / D", off * off * N / variance, 1.0, 0.8);
    }
}

int run_sketch_tests(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prod_gaussian),    cmocka_unit_test(test_prod_orthonormal),
        cmocka_unit_test(test_sketch_constants), cmocka_unit_test(test_sketch_identities),
        cmocka_unit_test(test_score_error),      cmocka_unit_test(test_unbiased),
    };
    return cmocka_run_group_tests_name("oracle sketch", tests, NULL, NULL);
}
