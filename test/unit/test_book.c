/* spec/book.c: the code books as they are used, against the numbers of the design. */
#include "unit/unit.h"

#include <math.h>

#include "spec/book.h"

/* Positive values in steps, and the step, as the design states them. */
static const struct {
    uint32_t bits, levels;
    double step, in_steps[8];
} design[] = {
    {4, 8, 0.023890, {5.5, 16.5, 27.5, 39.5, 52.5, 67.5, 86.5, 114.5}},
    {3, 4, 0.024446, {10, 31, 55, 88}},
    {2, 2, 0.151035, {3, 10}},
};

static void test_values(void **state) {
    (void)state;
    for (size_t b = 0; b < COUNT(design); b++) {
        struct tqi_book book;
        tqi_book_make(&book, design[b].bits);
        assert_int_equal(book.bits, design[b].bits);
        assert_int_equal(book.levels, design[b].levels);
        CHECK(fabs(book.step - design[b].step) < 6e-7, "%u bits: step %.9g", book.bits, book.step);
        for (uint32_t i = 0; i < book.levels; i++)
            CHECK(book.v2[i] == 2 * design[b].in_steps[i], "%u bits, level %u", book.bits, i);
    }
}

/* A signed byte holds n, and 4-bit values are n + 1/2 with the complement for the negative. */
static void test_values_fit_bytes(void **state) {
    (void)state;
    for (size_t b = 0; b < COUNT(design); b++) {
        struct tqi_book book;
        tqi_book_make(&book, design[b].bits);
        for (uint32_t i = 0; i < book.levels; i++) {
            assert_int_equal(book.v2[i] & 1, book.bits == 4);
            assert_in_range(book.v2[i] / 2, 1, 127);
            assert_true(i == 0 || book.v2[i] > book.v2[i - 1]);
            if (book.bits == 4) /* ~n means -(n + 1/2) */
                assert_int_equal(2 * ~(book.v2[i] / 2) + 1, -book.v2[i]);
        }
    }
}

/* Midpoints of neighbours, rounded once. */
static void test_thresholds(void **state) {
    (void)state;
    for (size_t b = 0; b < COUNT(design); b++) {
        struct tqi_book book;
        tqi_book_make(&book, design[b].bits);
        for (uint32_t i = 0; i + 1 < book.levels; i++) {
            double middle = book.step * (book.v2[i] / 2.0 + book.v2[i + 1] / 2.0) / 2;
            CHECK(fabs((double)book.threshold[i] - middle) <= middle * 0x1p-24, "level %u", i);
        }
    }
}

/* Every code stands for one value, negation is a code too, and 2 and 3 bits ascend. */
static void test_codes(void **state) {
    (void)state;
    for (size_t b = 0; b < COUNT(design); b++) {
        struct tqi_book book;
        uint32_t seen = 0;
        tqi_book_make(&book, design[b].bits);
        for (uint32_t level = 0; level < book.levels; level++)
            for (uint32_t negative = 0; negative < 2; negative++) {
                uint32_t code = tqi_book_code(&book, level, negative);
                assert_true(code < 1u << book.bits);
                seen |= 1u << code;
                assert_int_equal(book.code_v2[code], negative ? -book.v2[level] : book.v2[level]);
                double value = book.step * book.code_v2[code] / 2;
                assert_true(book.code_value[code] == (float)value);
            }
        assert_int_equal(seen, (1u << (1u << book.bits)) - 1);
        for (uint32_t code = 1; book.bits < 4 && code < 1u << book.bits; code++)
            assert_true(book.code_v2[code] > book.code_v2[code - 1]);
    }
}

/* 4-bit codes are sign and level, so that the level alone is looked up. */
static void test_codes_of_4_bits(void **state) {
    struct tqi_book book;
    (void)state;
    tqi_book_make(&book, 4);
    for (uint32_t level = 0; level < 8; level++) {
        assert_int_equal(tqi_book_code(&book, level, 0), level);
        assert_int_equal(tqi_book_code(&book, level, 1), level | 8);
    }
}

/* ---- polar ----------------------------------------------------------------------------- */

static void test_polar_directions(void **state) {
    struct tqi_polar_book book[TQI_POLAR_LEVELS];
    (void)state;
    tqi_polar_books_make(book);
    for (int l = 0; l < TQI_POLAR_LEVELS; l++)
        for (int c = 0; c < TQI_POLAR_CODES; c++) {
            double x = (double)book[l].cosine[c], y = (double)book[l].sine[c];
            CHECK(fabs(x * x + y * y - 1) < 0.004, "level %d code %d: length^2 %g", l + 1, c,
                  x * x + y * y);
            CHECK(fabs(hypot(x, y) - 1) < 0.002, "level %d code %d: length %g", l + 1, c,
                  hypot(x, y));
            /* Mirrored at pi/4. */
            assert_true(book[l].cosine[c] == book[l].sine[TQI_POLAR_CODES - 1 - c]);
            if (c > 0)
                assert_true(book[l].sine[c] > book[l].sine[c - 1]);
        }
}

static double angle(const float *cosine, const float *sine, int i) {
    return atan2((double)sine[i], (double)cosine[i]);
}

/* A boundary lies between its neighbours: halfway, but at level 1 (16 equal cells). */
static void test_polar_boundaries(void **state) {
    struct tqi_polar_book book[TQI_POLAR_LEVELS];
    const double pi = acos(-1);
    (void)state;
    tqi_polar_books_make(book);
    for (int l = 0; l < TQI_POLAR_LEVELS; l++)
        for (int i = 0; i < TQI_POLAR_CODES - 1; i++) {
            double below = angle(book[l].cosine, book[l].sine, i);
            double above = angle(book[l].cosine, book[l].sine, i + 1);
            double bound = angle(book[l].bound_cosine, book[l].bound_sine, i);
            double middle = l == 0 ? (i + 1) * pi / 8 : (below + above) / 2;
            assert_true(below < bound && bound < above);
            CHECK(fabs(bound - middle) < 1e-6, "level %d bound %d: %.7f", l + 1, i, bound);
            CHECK(fabs(hypot((double)book[l].bound_cosine[i], (double)book[l].bound_sine[i]) - 1) <
                      1e-7,
                  "level %d bound %d is no unit vector", l + 1, i);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),           cmocka_unit_test(test_values_fit_bytes),
        cmocka_unit_test(test_thresholds),       cmocka_unit_test(test_codes),
        cmocka_unit_test(test_codes_of_4_bits),  cmocka_unit_test(test_polar_directions),
        cmocka_unit_test(test_polar_boundaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
