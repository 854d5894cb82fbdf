/* Rows that a Hadamard matrix alone treats badly, or that have all their energy in a few
 * channels, at 2, 3 and 4 bits. The random signs in front of the matrix bring the noise
 * near that of Gaussian rows, or below: a few outliers make rotated rows of few values,
 * which the gain fits better (design notes 3.3). */
#include "accuracy/accuracy.h"
#include "accuracy/model.h"

enum { SEEDS = 256, ROWS = 16, MAX_D = 128 };

/* Writes row number n of some kind. */
typedef void fill_row(size_t d, uint64_t n, float *row);

static void one_hot(size_t d, uint64_t n, float *row) {
    memset(row, 0, d * sizeof *row);
    row[orc_random(1, n) % d] = n % 2 ? 3.0f : -3.0f;
}

static void constant(size_t d, uint64_t n, float *row) {
    for (size_t i = 0; i < d; i++)
        row[i] = (float)(1 + 0.2 * orc_gaussian(2, n * d + i));
}

static void outliers(size_t d, uint64_t n, float *row) {
    for (size_t i = 0; i < d; i++)
        row[i] = (float)orc_gaussian(3, n * d + i);
    for (size_t i = 0; i < 3; i++)
        row[(7 + 29 * i) % d] += 40 + (float)i;
}

static void gaussian(size_t d, uint64_t n, float *row) {
    for (size_t i = 0; i < d; i++)
        row[i] = (float)orc_gaussian(4, n * d + i);
}

struct result {
    orc_stat distortion; /* means over the rows of a seed: rows that are alike share their luck */
    double worst;
};

static double row_distortion(size_t d, const float *row, const float *decoded) {
    double x[MAX_D] = {0}, y[MAX_D] = {0};
    for (size_t i = 0; i < d; i++) {
        x[i] = (double)row[i];
        y[i] = (double)decoded[i];
    }
    return acc_distortion(d, x, y);
}

static void add_rows(struct result *r, size_t d, const float *rows, const float *decoded) {
    double sum = 0;
    for (size_t n = 0; n < ROWS; n++) {
        double distortion = row_distortion(d, rows + n * d, decoded + n * d);
        sum += distortion;
        r->worst = fmax(r->worst, distortion);
    }
    orc_stat_add(&r->distortion, sum / ROWS);
}

/* Many rows under many signs. */
static struct result measure(tq_format format, size_t d, fill_row *fill) {
    struct result r = {{0, 0, 0}, 0};
    float *rows = acc_floats(ROWS * d);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        for (size_t n = 0; n < ROWS; n++)
            fill(d, seed * ROWS + n, rows + n * d);
        float *decoded = acc_roundtrip(format, d, seed, ROWS, rows);
        add_rows(&r, d, rows, decoded);
        free(decoded);
    }
    free(rows);
    return r;
}

/* The same without signs, by the oracle. */
static double without_signs(int bits, size_t d, fill_row *fill) {
    double sum = 0, x[MAX_D] = {0}, y[MAX_D] = {0}, book[16];
    double *h = orc_alloc(d * d, sizeof *h);
    float row[MAX_D];
    for (size_t i = 0; i < d * d; i++)
        h[i] = orc_hadamard_entry(d, i / d, i % d) / sqrt((double)d);
    acc_book(book, bits);
    orc_format f = {.kind = ORC_ROW_SCALAR,
                    .d = d,
                    .bits = bits,
                    .book = book,
                    .rotation = h,
                    .gain = ORC_GAIN_NC};
    for (uint64_t n = 0; n < ROWS; n++) {
        fill(d, n, row);
        for (size_t i = 0; i < d; i++)
            x[i] = (double)row[i];
        orc_roundtrip(&f, x, y);
        sum += acc_distortion(d, x, y) / ROWS;
    }
    free(h);
    return sum;
}

static const tq_format formats[] = {TQ_FORMAT_LM2, TQ_FORMAT_LM3, TQ_FORMAT_LM4};

/* Mean and worst D against those of as many Gaussian rows. */
static void check_rows(const char *what, size_t d, fill_row *fill, double factor) {
    for (int i = 0; i < 3; i++) {
        const char *name = acc_format_name(formats[i]);
        struct result base = measure(formats[i], d, gaussian), r = measure(formats[i], d, fill);
        double error = orc_stat_error(&r.distortion) + orc_stat_error(&base.distortion);
        print_message("  %-8s %s d=%-3zu D %.5f +- %.5f, worst %.4f; Gaussian %.5f, worst %.4f; "
                      "without signs %.4f\n",
                      what, name, d, r.distortion.mean, orc_stat_error(&r.distortion), r.worst,
                      base.distortion.mean, base.worst, without_signs(i + 2, d, fill));
        AT_MOST(r.distortion.mean, factor * base.distortion.mean + 3 * error, "%s, %s, d=%zu: D",
                what, name, d);
        AT_MOST(r.worst, 1.5 * base.worst, "%s, %s, d=%zu: worst D", what, name, d);
    }
}

/* Rotated, all coordinates have the same magnitude: only the gain is rounded. */
static void test_one_hot(void **state) {
    check_rows("one-hot", *(const size_t *)*state, one_hot, 1e-4);
}

static void test_constant(void **state) {
    check_rows("constant", *(const size_t *)*state, constant, 1.05);
}

/* Rotated, coordinates take four magnitudes, whatever the book likes. */
static void test_outliers(void **state) {
    check_rows("outliers", *(const size_t *)*state, outliers, 1.4);
}

/* The constant rows are a case worth testing: without signs D is 0.568 at 3 bits. */
static void test_without_signs(void **state) {
    (void)state;
    double d3 = without_signs(3, 128, constant);
    AT_MOST(fabs(d3 - 0.568), 0.02, "D of constant rows by a plain Hadamard matrix");
}

int main(void) {
    static size_t dims[] = {64, 96, 128};
    const struct CMUnitTest tests[] = {
        {"test_one_hot_64", test_one_hot, NULL, NULL, &dims[0]},
        {"test_one_hot_96", test_one_hot, NULL, NULL, &dims[1]},
        {"test_one_hot_128", test_one_hot, NULL, NULL, &dims[2]},
        {"test_constant_64", test_constant, NULL, NULL, &dims[0]},
        {"test_constant_96", test_constant, NULL, NULL, &dims[1]},
        {"test_constant_128", test_constant, NULL, NULL, &dims[2]},
        {"test_outliers_64", test_outliers, NULL, NULL, &dims[0]},
        {"test_outliers_96", test_outliers, NULL, NULL, &dims[1]},
        {"test_outliers_128", test_outliers, NULL, NULL, &dims[2]},
        cmocka_unit_test(test_without_signs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
