/* Every code that a format has decodes to a value of its own, and rows can reach it (B6).
 * docs/FORMAT.md, sections 1.6 and 2.2, has the row form and the values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec.h"

enum { SEED = 42 };

/* ---- books ----------------------------------------------------------------------------- */

/* Rows in the basis of their codes. Units of the int8 format show that basis: its code 1
 * with gain 1 decodes to a column of the rotation, times 1 / 32 / sqrt(dim). */
struct basis {
    uint32_t dim;
    float *columns; /* [dim][dim]: of the dims in their order */
};

static const unsigned char one[2] = {0x00, 0x3c}; /* a gain of 1 */

/* Byte of a dim in a row of int8: its lane, word of eight, half and place. */
static size_t int8_byte(uint32_t dim, uint32_t i) {
    uint32_t lane = i / (dim / 4), at = i % (dim / 4);
    return (size_t)(at / 4 * 4 + lane) * 4 + at % 4;
}

static struct basis basis_make(uint32_t dim) {
    struct basis b = {.dim = dim};
    tq_codec *codec = codec_make(TQ_FORMAT_INT8, dim, SEED);
    size_t size = tq_codec_row_bytes(codec);
    unsigned char *codes = must_alloc(dim, size);
    assert_int_equal(size, dim + sizeof one);
    for (uint32_t i = 0; i < dim; i++) {
        codes[i * size + int8_byte(dim, i)] = 1;
        memcpy(codes + i * size + dim, one, sizeof one);
    }
    b.columns = codec_rows(codec, codes, dim, dim);
    tq_codec_destroy(codec);
    free(codes);
    return b;
}

/* Such that a row with gain 1 shows step times the values of its codes. */
static double *to_basis(const struct basis *b, const float *row) {
    double *values = must_alloc(b->dim, sizeof *values);
    for (uint32_t i = 0; i < b->dim; i++)
        for (uint32_t j = 0; j < b->dim; j++)
            values[i] +=
                32.0 * b->dim * (double)b->columns[(size_t)i * b->dim + j] * (double)row[j];
    return values;
}

static int ascending(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Sorts, and moves the first of each run of equal numbers to the front. */
static size_t distinct(double *values, size_t n, double tolerance) {
    size_t found = 1;
    qsort(values, n, sizeof *values, ascending);
    for (size_t i = 1; i < n; i++)
        if (values[i] - values[i - 1] > tolerance)
            values[found++] = values[i];
    return found;
}

static const struct book {
    tq_format format;
    size_t n; /* positive values */
    double step, values[8];
} books[] = {{TQ_FORMAT_LM4, 8, 0.0238895761, {5.5, 16.5, 27.5, 39.5, 52.5, 67.5, 86.5, 114.5}},
             {TQ_FORMAT_LM3, 4, 0.0244461384, {10, 31, 55, 88}},
             {TQ_FORMAT_LM2, 2, 0.151034978, {3, 10}},
             {TQ_FORMAT_LM3_QJL, 4, 0.0244461384, {10, 31, 55, 88}},
             {TQ_FORMAT_LM2_QJL, 2, 0.151034978, {3, 10}}};

/* Random bits decode to all values of the book and to no other. */
static void check_all_codes(const struct basis *b, const struct book *book) {
    struct rng rng = {3};
    tq_codec *codec = codec_make(book->format, b->dim, SEED);
    size_t bits = book->n == 8 ? 4 : book->n == 4 ? 3 : 2, size = b->dim * bits / 8;
    unsigned char *codes = must_alloc(1, tq_codec_row_bytes(codec));
    for (size_t i = 0; i < size; i++)
        codes[i] = (unsigned char)rng_below(&rng, 256);
    /* a sketch has gain 0 here; its signs lie in front of the gain */
    memcpy(codes + size + (book->format >= TQ_FORMAT_LM3_QJL ? b->dim / 8 : 0), one, sizeof one);
    float *row = codec_rows(codec, codes, 1, b->dim);
    double *values = to_basis(b, row);
    assert_int_equal(distinct(values, b->dim, book->step), 2 * book->n);
    for (size_t i = 0; i < book->n; i++) {
        AT_MOST(fabs(values[book->n + i] / book->step - book->values[i]), 1e-3, "value %zu", i);
        AT_MOST(fabs(values[book->n - 1 - i] / book->step + book->values[i]), 1e-3, "-value %zu",
                i);
    }
    tq_codec_destroy(codec);
    free(codes);
    free(row);
    free(values);
}

/* Gaussian rows use every code. */
static void check_codes_used(const struct basis *b, const struct book *book) {
    struct rng rng = {4};
    tq_codec *codec = codec_make(book->format, b->dim, SEED);
    float *rows = random_rows(&rng, b->dim, 3);
    unsigned char *codes = codec_codes(codec, rows, 1);
    if (book->format >= TQ_FORMAT_LM3_QJL) /* without the sketch */
        memset(codes + tq_codec_row_bytes(codec) - 2, 0, 2);
    float *row = codec_rows(codec, codes, 1, b->dim);
    double *values = to_basis(b, row);
    assert_int_equal(distinct(values, b->dim, book->step), 2 * book->n);
    tq_codec_destroy(codec);
    free(rows);
    free(codes);
    free(row);
    free(values);
}

static void test_books(void **state) {
    struct basis b = basis_make(1024);
    (void)state;
    for (size_t i = 0; i < COUNT(books); i++) {
        check_all_codes(&b, &books[i]);
        check_codes_used(&b, &books[i]);
    }
    free(b.columns);
}

/* Each code of int8 once, and others that bring the root mean square to one: 32 steps. Coded
 * again, it is the same. */
static void test_int8_codes(void **state) {
    enum { DIM = 2048 };
    tq_codec *codec = codec_make(TQ_FORMAT_INT8, DIM, SEED);
    unsigned char *codes = must_alloc(1, DIM + sizeof one), seen[256] = {0};
    (void)state;
    for (int i = 0; i < DIM; i++)
        codes[i] = (unsigned char)(i < 255 ? i - 127 : i % 2 ? 20 : -20);
    memcpy(codes + DIM, one, sizeof one);
    float *row = codec_rows(codec, codes, 1, DIM);
    unsigned char *again = codec_codes(codec, row, 1);
    for (int i = 0; i < DIM; i++)
        seen[again[i]] = 1;
    for (int level = -128; level <= 127; level++)
        CHECK(seen[(unsigned char)level] == (level != -128), "level %d", level);
    assert_memory_equal(again, codes, DIM);
    tq_codec_destroy(codec);
    free(codes);
    free(row);
    free(again);
}

/* ---- polar ----------------------------------------------------------------------------- */

/* The angles of a level, whose points are pairs of the radii one level below; replaces the
 * n radii by n / 2 and returns how many angles differ. */
static size_t level_angles(double *radii, size_t n) {
    double *angles = must_alloc(n / 2, sizeof *angles);
    for (size_t i = 0; i < n / 2; i++) {
        double x = radii[2 * i], y = radii[2 * i + 1];
        angles[i] = atan2(y, x);
        radii[i] = hypot(x, y);
    }
    size_t found = distinct(angles, n / 2, 0.05);
    free(angles);
    return found;
}

static void check_angles(const struct basis *b, const tq_codec *codec, const unsigned char *codes,
                         const char *what) {
    static const size_t want[] = {16, 4, 4, 4};
    float *row = codec_rows(codec, codes, 1, b->dim);
    double *values = to_basis(b, row);
    for (size_t level = 0; level < COUNT(want); level++) {
        size_t found = level_angles(values, b->dim >> level);
        CHECK(found == want[level], "%s: level %zu has %zu angles", what, level + 1, found);
    }
    free(row);
    free(values);
}

static void test_polar_codes(void **state) {
    struct basis b = basis_make(1024);
    struct rng rng = {5};
    tq_codec *codec = codec_make(TQ_FORMAT_POLAR, b.dim, SEED);
    float *rows = random_rows(&rng, b.dim, 3);
    unsigned char *codes = codec_codes(codec, rows, 1);
    size_t radii = b.dim / 16 * 2, angles = tq_codec_row_bytes(codec) - radii;
    (void)state;
    check_angles(&b, codec, codes, "Gaussian row");
    for (size_t i = 0; i < angles; i++)
        codes[i] = (unsigned char)rng_below(&rng, 256);
    for (size_t i = 0; i < radii; i += 2)
        memcpy(codes + angles + i, one, sizeof one);
    check_angles(&b, codec, codes, "random codes");
    tq_codec_destroy(codec);
    free(rows);
    free(codes);
    free(b.columns);
}

/* ---- sketch ---------------------------------------------------------------------------- */

static double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Signs of a sketch, one flipped in each row, with gain 1 and no codes: the differences to
 * the row with none flipped are orthogonal and of one length. */
static void check_signs(tq_format format, uint32_t dim) {
    tq_codec *codec = codec_make(format, dim, SEED);
    size_t size = tq_codec_row_bytes(codec);
    size_t gains = format == TQ_FORMAT_POLAR_QJL ? dim / 16 * 2 : 2;
    size_t sketch = size - 2 - gains - dim / 8;
    unsigned char *codes = must_alloc(dim + 1, size);
    for (uint32_t i = 0; i <= dim; i++) {
        if (i < dim)
            codes[i * size + sketch + i / 8] = (unsigned char)(1u << i % 8);
        memcpy(codes + (i + 1) * size - 2, one, sizeof one);
    }
    float *rows = codec_rows(codec, codes, dim + 1, dim);
    for (uint32_t i = 0; i < dim * dim; i++)
        rows[i] -= rows[dim * dim + i % dim];
    double length = dot(rows, rows, dim);
    assert_true(length > 0);
    for (uint32_t i = 0; i < dim; i++)
        for (uint32_t j = 0; j <= i; j++)
            AT_MOST(fabs(dot(rows + i * dim, rows + j * dim, dim) / length - (i == j)), 1e-5,
                    "format %u: signs %u and %u", format, i, j);
    tq_codec_destroy(codec);
    free(codes);
    free(rows);
}

static void test_sketch_signs(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM2_QJL};
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        check_signs(formats[i], 64);
        check_signs(formats[i], 160);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_books),
        cmocka_unit_test(test_int8_codes),
        cmocka_unit_test(test_polar_codes),
        cmocka_unit_test(test_sketch_signs),
    };
    return cmocka_run_group_tests_name("codec books", tests, codec_set_up, codec_tear_down);
}
