/*
 * Test of the oracle: random numbers, small floats, rotations, codebooks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "test_oracle.h"

#include <math.h>
#include <stdlib.h>

static const size_t dims[] = {64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 512, 576};

/* ---- random numbers ------------------------------------------------------- */

static void test_philox_vectors(void **state) {
    static const uint32_t vectors[3][10] = {
        /* counter, key, output: Random123's kat_vectors */
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    (void)state;
    for (size_t i = 0; i < LENGTH(vectors); i++) {
        uint32_t out[4];
        orc_philox(vectors[i], vectors[i] + 4, out);
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
    }
}

static void test_signs(void **state) {
    static const double of_zero[4] = {1, -1, -1, -1}; /* bits 31 of the first vector */
    const uint64_t seed = UINT64_C(0x299f31d0a4093822), stream = UINT64_C(0x0370734413198a2e);
    const uint64_t block = UINT64_C(0x05a308d3243f6a88);
    const uint32_t counter[4] = {0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344};
    const uint32_t key[2] = {0xa4093822, 0x299f31d0};
    uint32_t out[4];
    (void)state;
    orc_philox(counter, key, out);
    for (uint64_t n = 0; n < 4; n++) {
        check("sign of seed 0", orc_sign(0, 0, n), of_zero[n], 0.0);
        double want = out[n] >= 0x80000000u ? -1.0 : 1.0;
        check("sign", orc_sign(seed, stream, 4 * block + n), want, 0.0);
    }
}

static void test_gaussian(void **state) {
    orc_stat mean = {0}, square = {0}, fourth = {0};
    (void)state;
    assert_true(orc_random(0, 0) == UINT64_C(0xe220a8397b1dcdaf)); /* splitmix64, seed 0 */
    assert_true(orc_random(0, 1) == UINT64_C(0x6e789e6aa1b965f4));
    assert_true(orc_random(0, 2) == UINT64_C(0x06c45d188009454f));
    for (uint64_t n = 0; n < 1000000; n++) {
        double g = orc_gaussian(1, n);
        orc_stat_add(&mean, g);
        orc_stat_add(&square, g * g);
        orc_stat_add(&fourth, g * g * g * g);
    }
    report("mean of N(0,1)", mean.mean, 0.0, 4 * orc_stat_error(&mean));
    report("second moment", square.mean, 1.0, 4 * orc_stat_error(&square));
    report("fourth moment", fourth.mean, 3.0, 4 * orc_stat_error(&fourth));
}

/* ---- small floating point formats ----------------------------------------- */

static void test_f16(void **state) {
    static const struct {
        double x;
        uint16_t bits;
    } corners[] = {{0.0, 0},
                   {-0.0, 0x8000},
                   {1.0, 0x3c00},
                   {-2.0, 0xc000},
                   {65504.0, 0x7bff},
                   {65519.99, 0x7bff},
                   {65520.0, 0x7c00},
                   {1e30, 0x7c00},
                   {-INFINITY, 0xfc00},
                   {0x1p-24, 1},
                   {0x1p-25, 0},
                   {0x1.000001p-25, 1},
                   {0x1p-14, 0x0400},
                   {0x1.ff8p-15, 0x03ff},
                   {1.0 + 0x1p-11, 0x3c00},
                   {1.0 / 3, 0x3555},
                   {1.0 + 3 * 0x1p-11, 0x3c02}};
    (void)state;
    for (size_t i = 0; i < LENGTH(corners); i++) {
        assert_int_equal(orc_f16_bits(corners[i].x), corners[i].bits);
    }
    assert_int_equal(orc_f16_bits(NAN), 0x7e00);
    assert_true(isnan(orc_f16_value(0x7c01)) && orc_f16_value(0xfc00) == -INF);
    check("clamped gain", orc_round(ORC_F16, 1e6), 65504.0, 0.0);
    check("clamped gain", orc_round(ORC_F16, -1e6), -65504.0, 0.0);
    check("kept gain", orc_round(ORC_KEEP, 1e300), 1e300, 0.0);
}

static void test_bf16(void **state) {
    const double largest = 0x1.fep127, next = 0x1p128;
    (void)state;
    assert_int_equal(orc_bf16_bits(1.0), 0x3f80);
    assert_int_equal(orc_bf16_bits(-0.0), 0x8000);
    assert_int_equal(orc_bf16_bits(1.0 + 0x1p-8), 0x3f80);
    assert_int_equal(orc_bf16_bits(1.0 + 3 * 0x1p-8), 0x3f82);
    assert_int_equal(orc_bf16_bits(3.140625), 0x4049);
    assert_int_equal(orc_bf16_bits(largest), 0x7f7f);
    assert_int_equal(orc_bf16_bits(0.5 * (largest + next)), 0x7f80);
    assert_int_equal(orc_bf16_bits(0x1p-133), 1);
    assert_int_equal(orc_bf16_bits(0x1p-134), 0);
    assert_int_equal(orc_bf16_bits(NAN), 0x7fc0);
    check("clamped gain", orc_round(ORC_BF16, 1e300), largest, 0.0);
}

static void test_e4m3(void **state) {
    static const struct {
        double x;
        uint8_t bits;
    } corners[] = {{0.0, 0},       {-0.0, 0x80},   {1.0, 0x38},    {448.0, 0x7e},
                   {449.0, 0x7e},  {1e9, 0x7e},    {-1e9, 0xfe},   {INFINITY, 0x7e},
                   {0x1p-6, 0x08}, {0x1p-9, 1},    {0x1p-10, 0},   {0x1.01p-10, 1},
                   {0x3p-10, 2},   {1.0625, 0x38}, {1.1875, 0x3a}, {240.0, 0x77}};
    (void)state;
    for (size_t i = 0; i < LENGTH(corners); i++) {
        assert_int_equal(orc_e4m3_bits(corners[i].x), corners[i].bits);
    }
    assert_int_equal(orc_e4m3_bits(NAN), 0x7f);
    assert_true(isnan(orc_e4m3_value(0xff)));
}

/* Every finite code survives, and midpoints go to the even code. */
static void test_float_round_trip(void **state) {
    (void)state;
    for (unsigned code = 0; code < 0x7f80; code++) {
        double b = orc_bf16_value((uint16_t)code), b1 = orc_bf16_value((uint16_t)(code + 1));
        assert_int_equal(orc_bf16_bits(b), code);
        assert_int_equal(orc_bf16_bits(-b), code + 0x8000);
        if (code < 0x7f7f) {
            assert_int_equal(orc_bf16_bits(0.5 * (b + b1)), (code + 1) & ~1u);
            assert_true((double)(float)b == b); /* bf16 is the upper half of a float */
        }
        if (code < 0x7c00) {
            double h = orc_f16_value((uint16_t)code);
            double h1 = code < 0x7bff ? orc_f16_value((uint16_t)(code + 1)) : 65536.0;
            assert_int_equal(orc_f16_bits(h), code);
            assert_int_equal(orc_f16_bits(0.5 * (h + h1)), (code + 1) & ~1u);
        }
        if (code < 0x7e) {
            double e = orc_e4m3_value((uint8_t)code), e1 = orc_e4m3_value((uint8_t)(code + 1));
            assert_int_equal(orc_e4m3_bits(e), code);
            assert_int_equal(orc_e4m3_bits(0.5 * (e + e1)), (code + 1) & ~1u);
        }
    }
}

/* ---- rotations ------------------------------------------------------------ */

static void test_hadamard_entries(void **state) {
    (void)state;
    for (size_t i = 0; i < 12; i++) { /* Paley I: H - I is skew; first row is ones */
        assert_int_equal(orc_hadamard_entry(12, 0, i), 1);
        for (size_t j = 0; j < i; j++) {
            assert_int_equal(orc_hadamard_entry(12, i, j), -orc_hadamard_entry(12, j, i));
        }
    }
    /* Squares modulo 11 are 1 3 4 5 9: row 1 is -1, then chi(0 - j) + [j = 0]. */
    static const int row1[12] = {-1, 1, -1, 1, -1, -1, -1, 1, 1, 1, -1, 1};
    for (size_t j = 0; j < 12; j++) {
        assert_int_equal(orc_hadamard_entry(12, 1, j), row1[j]);
    }
    for (size_t i = 0; i < 28; i++) { /* Paley II is symmetric */
        for (size_t j = 0; j < i; j++) {
            assert_int_equal(orc_hadamard_entry(28, i, j), orc_hadamard_entry(28, j, i));
        }
    }
    assert_int_equal(orc_hadamard_entry(28, 0, 0), 1); /* I's [[1,-1],[-1,-1]] on C's 0 */
    assert_int_equal(orc_hadamard_entry(28, 1, 0), -1);
    assert_int_equal(orc_hadamard_entry(28, 1, 1), -1);
    assert_int_equal(orc_hadamard_entry(28, 0, 2), 1);
    assert_int_equal(orc_hadamard_entry(8, 3, 5), -1);
    for (size_t i = 0; i < 80; i++) { /* 80 = 20 (x) 4: index 4 a + b */
        for (size_t j = 0; j < 80; j++) {
            int want = orc_hadamard_entry(20, i / 4, j / 4) * orc_hadamard_entry(4, i % 4, j % 4);
            assert_int_equal(orc_hadamard_entry(80, i, j), want);
        }
    }
    assert_int_equal(orc_hadamard_entry(88, 0, 0), 0);
    assert_null(orc_rotation_hadamard(100, 1, 0));
    assert_null(orc_rotation_hadamard(0, 1, 0));
}

static void test_rotations_are_orthogonal(void **state) {
    double x[ORC_MAX_DIM], y[ORC_MAX_DIM], back[ORC_MAX_DIM];
    double worst = 0.0;
    (void)state;
    for (size_t i = 0; i < LENGTH(dims); i++) {
        size_t d = dims[i];
        double *m = orc_rotation_hadamard(d, 42, 0);
        worst = fmax(worst, orc_orthogonality_error(d, d, m));
        orc_gaussian_row(d, 7, 0, x);
        orc_apply(d, d, m, x, y);
        orc_apply_transposed(d, d, m, y, back);
        check("norm", orc_norm(d, y), orc_norm(d, x), 1e-12);
        check("inverse", orc_relative_l2(d, back, x), 0.0, 1e-13);
        free(m);
    }
    report("worst |H H^T - I|, 12 dims", worst, 0.0, 1e-13);
    double *haar = orc_rotation_haar(D, 5), *two = orc_projection_hadamard(D, 5);
    report("Haar", orc_orthogonality_error(D, D, haar), 0.0, 1e-13);
    report("two signed rounds", orc_orthogonality_error(D, D, two), 0.0, 1e-13);
    double *first = orc_rotation_hadamard(D, 5, 1), *second = orc_rotation_hadamard(D, 5, 2);
    orc_apply(D, D, first, x, y);
    orc_apply(D, D, second, y, back);
    orc_apply(D, D, two, x, y);
    check("stream 1 first, then 2", orc_relative_l2(D, y, back), 0.0, 1e-13);
    free(haar);
    free(two);
    free(first);
    free(second);
}

/* ---- codebooks ------------------------------------------------------------ */

typedef struct {
    size_t d; /* 0: Gaussian */
    int bits;
    double error;
    double positive[16];
} table;

static const table gaussian_tables[] = {
    {0, 1, .363380, {.797885}},
    {0, 2, .117482, {.452780, 1.510418}},
    {0, 3, .034548, {.245094, .756005, 1.343909, 2.151946}},
    {0, 4, .009501, {.128395, .388048, .656759, .942340, 1.256231, 1.618046, 2.069017, 2.732590}},
    {0,
     5,
     .002505,
     {.065890, .198052, .331378, .466700, .604934, .747136, .894565, 1.048783, 1.211804, 1.386340,
      1.576228, 1.787233, 2.028728, 2.317739, 2.691120, 3.260732}}};

static const table sphere_tables[] = {
    {64, 1, .35839, {.801007}},
    {64, 2, .11453, {.452119, 1.499975}},
    {64, 3, .03339, {.243753, .750658, 1.329343, 2.111311}},
    {64, 4, .00913, {.127352, .384718, .650494, .931894, 1.239404, 1.590849, 2.023310, 2.646370}},
    {96, 3, .03377, {.244201, .752439, 1.334174, 2.124716}},
    {128, 1, .36089, {.799444}},
    {128, 2, .11600, {.452453, 1.505193}},
    {128, 3, .03397, {.244425, .753330, 1.336599, 2.131471}},
    {128, 4, .00932, {.127873, .386381, .653619, .937097, 1.247770, 1.604343, 2.045925, 2.688859}},
    {256, 3, .03426, {.244760, .754667, 1.340247, 2.141669}},
    {576, 4, .00946, {.128279, .387677, .656060, .941172, 1.254343, 1.614983, 2.063844, 2.722763}}};

static void check_table(const table *t, double digit) {
    double book[32];
    double error =
        t->d == 0 ? orc_lloyd_gaussian(t->bits, book) : orc_lloyd_sphere(t->d, t->bits, book);
    int half = 1 << (t->bits - 1);
    for (int i = 0; i < half; i++) {
        check("centroid", book[half + i], t->positive[i], 0.6e-6);
        check("odd book", book[half - 1 - i], -book[half + i], 0.0);
    }
    check("distortion", error, t->error, 0.6 * digit);
}

static void test_lloyd_max(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(gaussian_tables); i++) {
        check_table(&gaussian_tables[i], 1e-6);
    }
    for (size_t i = 0; i < LENGTH(sphere_tables); i++) {
        check_table(&sphere_tables[i], 1e-5);
    }
    double book[32]; /* 5 bits on the sphere: no table; between the bound and Panter-Dite */
    double error = orc_lloyd_sphere(D, 5, book);
    assert_true(error > 1.0 / 1024 && error < 2.7207 / 1024);
}

/* Level 2, 3, 4 from the closed forms of the moments of cos^n(2u) (Lloyd outside
 * this program); design notes 1.4 is up to 7e-6 away. */
static void test_polar_books(void **state) {
    static const double low[3][2] = {
        {.309756117, .633980240}, {.426249693, .674384998}, {.524214091, .705909406}};
    static const double error[3] = {.009909, .006162, .003393};
    orc_polar_book book;
    (void)state;
    orc_polar_book_make(&book);
    for (int level = 2; level <= 4; level++) {
        double four[4];
        check("angle error", orc_lloyd_angle(level, 2, four), error[level - 2], 0.6e-6);
        for (int k = 0; k < 4; k++) {
            double want = k < 2 ? low[level - 2][k] : ORC_PI / 2 - low[level - 2][3 - k];
            check("angle", four[k], want, 1e-9);
            check("angle", book.angle[level - 1][k], four[k], 0.0);
        }
    }
    check("level 1", book.angle[0][15], 15.5 * ORC_PI / 8, 1e-15);
}

int run_number_tests(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_vectors),
        cmocka_unit_test(test_signs),
        cmocka_unit_test(test_gaussian),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_float_round_trip),
        cmocka_unit_test(test_hadamard_entries),
        cmocka_unit_test(test_rotations_are_orthogonal),
        cmocka_unit_test(test_lloyd_max),
        cmocka_unit_test(test_polar_books),
    };
    return cmocka_run_group_tests_name("oracle numbers", tests, NULL, NULL);
}
