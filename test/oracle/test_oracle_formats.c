/*
 * Test of the oracle: gains and formats of a row.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "test_oracle.h"

#include <math.h>
#include <stdlib.h>

#define ROWS 8000

/* design notes 1.5: D and score error of each gain at b = 2, 3, 4. Its runs of
 * 10000 rows have errors of their own: 0.5 % of D, 2 to 4 % of the score error. */
static void test_gains(void **state) {
    static const char *const names[4] = {"S1", "nc", "MMSE", "unbiased"};
    static const double wanted[4][3] = {
        {.1160, .0340, .0093}, {.1187, .0338, .0092}, {.1152, .0335, .0092}, {.1304, .0347, .0093}};
    static const double scores[4][3] = {
        {.470, .0704, .0145}, {.189, .0346, .0079}, {.449, .0574, .0097}, {.102, .0275, .0074}};
    double *rotation = orc_rotation_hadamard(D, 1, 0);
    (void)state;
    for (int bits = 2; bits <= 4; bits++) {
        double book[16];
        double exact = orc_lloyd_sphere(D, bits, book);
        for (int g = 0; g < 4; g++) {
            orc_format f = {.kind = ORC_ROW_SCALAR, .d = D, .rotation = rotation, .bits = bits};
            orc_stat distortion, score;
            f.book = book;
            f.gain = (orc_gain)g;
            measure(&f, ROWS, 2026, &distortion, &score);
            double want = wanted[g][bits - 2], sampling = 5 * orc_stat_error(&distortion);
            print_message("  b = %d, gain %s\n", bits, names[g]);
            report("D", distortion.mean, want, 0.005 * want + sampling);
            report("score error", score.mean, scores[g][bits - 2], 0.05 * scores[g][bits - 2]);
            if (g == ORC_GAIN_S1) {
                check("D = d C(f, b)", distortion.mean, exact, sampling);
            }
        }
    }
    free(rotation);
}

/* D of nc with the Gaussian books, gain in fp16. */
static void test_nc_gaussian_book(void **state) {
    static const double wanted[3] = {.1189, .0338, .00919};
    double *rotation = orc_rotation_hadamard(D, 9, 0);
    (void)state;
    for (int bits = 2; bits <= 4; bits++) {
        double book[16];
        orc_stat distortion;
        (void)orc_lloyd_gaussian(bits, book);
        orc_format f = {.kind = ORC_ROW_SCALAR,
                        .d = D,
                        .rotation = rotation,
                        .bits = bits,
                        .book = book,
                        .gain = ORC_GAIN_NC,
                        .rounding = ORC_F16};
        orc_distortion(&f, ROWS, 11, &distortion);
        report("nc, fp16 gain, Gaussian book: D", distortion.mean, wanted[bits - 2],
               4 * orc_stat_error(&distortion));
    }
    free(rotation);
}

/* Properties of a single row. */
static void test_gain_identities(void **state) {
    double x[D], decoded[D], book[4];
    double *rotation = orc_rotation_hadamard(D, 1, 0);
    orc_format f = {.kind = ORC_ROW_SCALAR, .d = D, .rotation = rotation, .bits = 2, .book = book};
    (void)state;
    (void)orc_lloyd_gaussian(2, book);
    for (uint64_t r = 0; r < 50; r++) {
        for (int kind = 0; kind < 2; kind++) {
            f.kind = kind == 0 ? ORC_ROW_SCALAR : ORC_ROW_INT8;
            orc_gaussian_row(D, 3, r, x);
            double norm2 = orc_dot(D, x, x);
            f.gain = ORC_GAIN_NC;
            orc_roundtrip(&f, x, decoded);
            check("norm kept", orc_dot(D, decoded, decoded), norm2, 1e-10);
            f.gain = ORC_GAIN_MMSE;
            orc_roundtrip(&f, x, decoded);
            check("least squares", orc_dot(D, decoded, x), orc_dot(D, decoded, decoded), 1e-10);
            f.gain = ORC_GAIN_UNBIASED;
            orc_roundtrip(&f, x, decoded);
            check("<x^,x> = ||x||^2", orc_dot(D, decoded, x), norm2, 1e-10);
        }
    }
    free(rotation);
}

static void test_eight_bits_and_more(void **state) {
    double *rotation = orc_rotation_hadamard(D, 1, 0);
    orc_format f = {.kind = ORC_ROW_INT8, .d = D, .rotation = rotation, .gain = ORC_GAIN_NC};
    orc_stat int8, e4m3, bf16, f16, step = {0};
    double x[D], y[D];
    (void)state;
    orc_distortion(&f, ROWS / 2, 2026, &int8);
    /* A uniform error of one step, max / 127, except in two directions: the largest
     * coordinate is exact, and nc removes the error along the row to first order. */
    for (uint64_t r = 0; r < ROWS / 2; r++) {
        double largest = 0.0;
        orc_gaussian_row(D, 2026, r, x);
        orc_apply(D, D, rotation, x, y);
        for (size_t i = 0; i < D; i++) {
            largest = fmax(largest, fabs(y[i]));
        }
        orc_stat_add(&step, (D - 2) * pow(largest / 127.0, 2) / 12.0 / orc_dot(D, x, x));
    }
    report("int8: D", int8.mean, step.mean, 0.01 * step.mean);
    f = (orc_format){.kind = ORC_ROW_E4M3, .d = D};
    orc_distortion(&f, ROWS / 2, 2026, &e4m3);
    report("e4m3 over int8", e4m3.mean / int8.mean, 16.0, 2.0);
    f.kind = ORC_ROW_BF16;
    orc_distortion(&f, ROWS / 8, 2026, &bf16);
    f.kind = ORC_ROW_F16;
    orc_distortion(&f, ROWS / 8, 2026, &f16);
    report("bf16 over f16 (8^2)", bf16.mean / f16.mean, 64.0, 1.0);
    f = (orc_format){.kind = ORC_ROW_E4M3, .d = D, .scale = 0.5}; /* saturates at 224 */
    for (size_t i = 0; i < D; i++) {
        x[i] = 300.0;
    }
    orc_roundtrip(&f, x, y);
    check("e4m3 scale", y[0], 224.0, 0.0);
    free(rotation);
}

static void test_polar(void **state) {
    orc_polar_book book;
    orc_stat distortion, sketched;
    double x[D], decoded[D], angles[ORC_POLAR_ANGLES];
    double *rotation = orc_rotation_hadamard(D, 1, 0), *s = orc_projection_hadamard(D, 1);
    orc_format f = {.kind = ORC_ROW_POLAR, .d = D, .rotation = rotation};
    (void)state;
    orc_polar_book_make(&book);
    f.polar = &book;
    orc_gaussian_row(D, 3, 0, x);
    check("radius", orc_polar_forward(x, angles), orc_norm(16, x), 1e-13);
    check("level 1", tan(angles[3]), x[7] / x[6], 1e-12);
    check("level 2", tan(angles[8]), orc_norm(2, x + 2) / orc_norm(2, x), 1e-12);
    check("level 4", tan(angles[14]), orc_norm(8, x + 8) / orc_norm(8, x), 1e-12);
    orc_roundtrip(&f, x, decoded);
    check("norm kept", orc_norm(D, decoded), orc_norm(D, x), 1e-12);
    f.rounding = ORC_F16;
    orc_distortion(&f, ROWS, 2026, &distortion);
    report("polar, fp16 radii: D", distortion.mean, .0321, 4 * orc_stat_error(&distortion));
    f.sketch = ORC_SKETCH_ORTHONORMAL;
    f.projection = s;
    f.n_signs = D;
    orc_distortion(&f, ROWS / 2, 2026, &sketched);
    double u = orc_mean_abs_coordinate(D);
    report("polar + sketch: noise", sketched.mean, distortion.mean * (1 / (D * u * u) - 1),
           0.02 * sketched.mean);
    free(rotation);
    free(s);
}

/* Small rows by hand. */
static void test_codes_by_hand(void **state) {
    static const double book[4] = {-3, -1, 1, 3}, x[4] = {2.54, -1.0, 0.013, 0.0};
    static const int want[4] = {127, -50, 1, 0};
    double y[ORC_POLAR_BLOCK] = {cos(0.05), -sin(0.05)}, decoded[4];
    orc_polar_book polar;
    orc_row row;
    (void)state;
    check("nearest", orc_nearest(4, book, -9.0), 0, 0);
    check("nearest: a tie", orc_nearest(4, book, 2.0), 2, 0);
    check("nearest: a tie", orc_nearest(4, book, -2.0), 1, 0);
    check("nearest: 0", orc_nearest(4, book, 0.0), 2, 0);

    orc_format int8 = {.kind = ORC_ROW_INT8, .d = 4};
    orc_encode(&int8, x, &row);
    orc_decode(&int8, &row, decoded);
    for (size_t i = 0; i < 4; i++) {
        check("int8 code", row.code[i], want[i], 0);
        check("int8 S1", decoded[i], 0.02 * want[i], 1e-15);
    }

    orc_polar_book_make(&polar); /* an angle just below 2 pi, and a book with an entry at 0 */
    orc_format f = {
        .kind = ORC_ROW_POLAR, .d = ORC_POLAR_BLOCK, .polar = &polar, .rounding = ORC_F16};
    y[2] = 1e-4;
    y[3] = 2e-4;
    orc_encode(&f, y, &row);
    check("level 1 code", row.code[0], 15, 0);
    check("level 1 code", row.code[1], 2, 0);
    check("level 2 code", row.code[8], 0, 0);
    check("fp16 radius", row.radius[0], 1.0, 0.0);
    for (int k = 0; k < 16; k++) {
        polar.angle[0][k] -= ORC_PI / 16;
    }
    orc_encode(&f, y, &row);
    check("round the circle", row.code[0], 0, 0);
}

static void test_extreme_rows(void **state) {
    double x[D] = {0}, decoded[D], book[8];
    double *rotation = orc_rotation_hadamard(D, 1, 0), *s = orc_projection_hadamard(D, 1);
    orc_polar_book polar;
    orc_row row;
    (void)state;
    orc_polar_book_make(&polar);
    (void)orc_lloyd_gaussian(3, book);
    orc_format f = {.d = D,
                    .rotation = rotation,
                    .bits = 3,
                    .book = book,
                    .polar = &polar,
                    .projection = s,
                    .n_signs = D};
    for (int kind = ORC_ROW_F16; kind <= ORC_ROW_POLAR; kind++) {
        for (int i = 0; i < 16; i++) { /* every gain and sketch */
            f.kind = (orc_kind)kind;
            f.gain = (orc_gain)(i % 4);
            f.sketch = (orc_sketch)(i / 4);
            orc_roundtrip(&f, x, decoded);
            check("zero row", orc_norm(D, decoded), 0.0, 0.0);
        }
    }
    for (size_t i = 0; i < D; i++) {
        x[i] = i % 3 == 0 ? 3e38 : -3e38;
    }
    f = (orc_format){.kind = ORC_ROW_SCALAR,
                     .d = D,
                     .rotation = rotation,
                     .bits = 3,
                     .book = book,
                     .gain = ORC_GAIN_NC,
                     .rounding = ORC_F16};
    orc_encode(&f, x, &row);
    check("clamped gain", row.gain, 65504.0, 0.0);
    orc_decode(&f, &row, decoded);
    assert_true(isfinite(orc_norm(D, decoded)));
    free(rotation);
    free(s);
}

int run_format_tests(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gains),           cmocka_unit_test(test_nc_gaussian_book),
        cmocka_unit_test(test_gain_identities), cmocka_unit_test(test_eight_bits_and_more),
        cmocka_unit_test(test_polar),           cmocka_unit_test(test_codes_by_hand),
        cmocka_unit_test(test_extreme_rows),
    };
    return cmocka_run_group_tests_name("oracle formats", tests, NULL, NULL);
}
