/* The generated tables against the published numbers, nothing computed again: Max 1960 as
 * quoted by the TurboQuant paper, and the angle books of the PolarQuant paper. */
#include "unit/unit.h"

#include <math.h>

#include "spec/codebook_data.h"
#include "spec/hadamard_data.h"

/* A positive half: entries are twice the value in steps. Within 1 %, but for the smallest
 * entries of 4 bits, which the grid of half-integers moves by up to a quarter of a step. */
static void check_scalar(const char *name, const int *v2, double step, const double *centroid,
                         int n) {
    for (int i = 0; i < n; i++) {
        double value = v2[i] * step / 2, tolerance = fmax(0.01 * centroid[i], 0.0065);
        CHECK(fabs(value - centroid[i]) < tolerance, "%s entry %d: %g, not %g", name, i, value,
              centroid[i]);
    }
}

static void test_lloyd_max(void **state) {
    static const int lm4[] = TQI_LM4_V2, lm3[] = TQI_LM3_V2, lm2[] = TQI_LM2_V2;
    static const double max4[] = {0.128395, 0.388048, 0.656759, 0.942340,
                                  1.256231, 1.618046, 2.069017, 2.732590};
    static const double max3[] = {0.245094, 0.756005, 1.343909, 2.151946};
    static const double max2[] = {0.452780, 1.510418};
    (void)state;
    assert_int_equal(COUNT(lm4), 8);
    assert_int_equal(COUNT(lm3), 4);
    assert_int_equal(COUNT(lm2), 2);
    check_scalar("lm4", lm4, TQI_LM4_STEP, max4, 8);
    check_scalar("lm3", lm3, TQI_LM3_STEP, max3, 4);
    check_scalar("lm2", lm2, TQI_LM2_STEP, max2, 2);
}

/* Rounding to bytes moves an angle by less than a third of a degree. */
static void check_angles(int level, const int *cosine, const int *sine, double step,
                         const double *published) {
    for (int i = 0; i < 4; i++) {
        double found = atan2(sine[i], cosine[i]);
        CHECK(fabs(found - published[i]) < 0.006, "level %d angle %d: %g, not %g", level, i, found,
              published[i]);
        CHECK(fabs(hypot(cosine[i], sine[i]) * step - 1) < 0.002, "level %d length %d", level, i);
    }
}

static void test_polar_angles(void **state) {
    static const int c1[] = TQI_POLAR1_COS, s1[] = TQI_POLAR1_SIN;
    static const int c2[] = TQI_POLAR2_COS, s2[] = TQI_POLAR2_SIN;
    static const int c3[] = TQI_POLAR3_COS, s3[] = TQI_POLAR3_SIN;
    static const int c4[] = TQI_POLAR4_COS, s4[] = TQI_POLAR4_SIN;
    /* Level 1 is uniform: (k + 1/2) * 2 pi / 16. */
    static const double level1[] = {0.196350, 0.589049, 0.981748, 1.374447};
    static const double level2[] = {0.309760, 0.633983, 0.936813, 1.261036};
    static const double level3[] = {0.426246, 0.674383, 0.896413, 1.144550};
    static const double level4[] = {0.524208, 0.705906, 0.864890, 1.046589};
    (void)state;
    check_angles(1, c1, s1, TQI_POLAR1_STEP, level1);
    check_angles(2, c2, s2, TQI_POLAR2_STEP, level2);
    check_angles(3, c3, s3, TQI_POLAR3_STEP, level3);
    check_angles(4, c4, s4, TQI_POLAR4_STEP, level4);
}

/* Two rows of a Hadamard matrix agree in half of their entries. */
static void check_rows(const uint64_t *rows, size_t order) {
    for (size_t i = 0; i < order; i++) {
        assert_true(rows[i] >> order == 0);
        for (size_t j = 0; j < i; j++)
            CHECK((size_t)__builtin_popcountll(rows[i] ^ rows[j]) == order / 2,
                  "order %zu, rows %zu and %zu", order, i, j);
    }
}

static void test_hadamard_rows(void **state) {
    static const uint64_t h12[] = TQI_H12_ROWS, h20[] = TQI_H20_ROWS;
    static const uint64_t h28[] = TQI_H28_ROWS, h36[] = TQI_H36_ROWS;
    (void)state;
    assert_true(COUNT(h12) == 12 && COUNT(h20) == 20 && COUNT(h28) == 28 && COUNT(h36) == 36);
    check_rows(h12, 12);
    check_rows(h20, 20);
    check_rows(h28, 28);
    check_rows(h36, 36);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lloyd_max),
        cmocka_unit_test(test_polar_angles),
        cmocka_unit_test(test_hadamard_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
