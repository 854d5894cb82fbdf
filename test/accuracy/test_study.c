/* Codecs of a study (tq/study.h) against the oracle: any polar levels and bits, any number of
 * signs; and what more of them are worth. */
#include <math.h>
#include <stdlib.h>

#include "accuracy.h"
#include "model.h"
#include "tq/study.h"

enum { SEED = 9, ROWS = 300, QUERIES = 8, MAX_D = 256 };

static tq_codec *study_codec(tq_format format, uint32_t d, const tq_codec_study *study) {
    tq_codec_config c = {.struct_size = sizeof c, .format = format, .dim = d, .seed = SEED};
    tq_codec *codec = NULL;
    OK(tq_codec_create_study(acc_context(), &c, study, &codec));
    return codec;
}

/* Distortion of rows and error of inner products, library and oracle. */
struct errors {
    double mse, dot; /* dot: RMS times sqrt(d), unit rows and queries */
};

/* Rows through both; they must agree row by row. */
static struct errors compare(const tq_codec *codec, const orc_format *f, const char *name) {
    size_t d = f->d;
    float *rows = acc_gaussian(ROWS, d, 3), *queries = acc_gaussian(QUERIES, d, 4);
    float *decoded = acc_floats(ROWS * d), *dots = acc_floats(ROWS);
    uint8_t *codes = acc_encode(codec, ROWS, rows);
    tq_rows_out out = {.data = decoded};
    double error = 0, size = 0, square = 0;
    orc_stat mse = {0, 0, 0};
    OK(tq_codec_decode(codec, ROWS, codes, &out));
    for (size_t r = 0; r < ROWS; r++) {
        double x[MAX_D] = {0}, want[MAX_D] = {0}, off = 0, norm = 0;
        for (size_t i = 0; i < d; i++)
            x[i] = (double)rows[r * d + i];
        orc_roundtrip(f, x, want);
        for (size_t i = 0; i < d; i++) {
            double got = (double)decoded[r * d + i];
            error += (got - want[i]) * (got - want[i]);
            size += want[i] * want[i];
            off += (got - x[i]) * (got - x[i]);
            norm += x[i] * x[i];
        }
        orc_stat_add(&mse, off / norm);
    }
    AT_MOST(sqrt(error / size), 1e-4, "%s: rows of the oracle", name);
    for (size_t q = 0; q < QUERIES; q++) {
        tq_rows_in in = acc_in(queries + q * d);
        OK(tq_codec_dot(codec, &in, ROWS, codes, dots));
        for (size_t r = 0; r < ROWS; r++) {
            double want = 0, exact = 0, q2 = 0, x2 = 0;
            for (size_t i = 0; i < d; i++) {
                double a = (double)queries[q * d + i], x = (double)rows[r * d + i];
                want += a * (double)decoded[r * d + i];
                exact += a * x;
                q2 += a * a;
                x2 += x * x;
            }
            AT_MOST(fabs((double)dots[r] - want), 1e-5 * sqrt(q2 * x2), "%s: dots", name);
            square += ((double)dots[r] - exact) * ((double)dots[r] - exact) / (q2 * x2);
        }
    }
    free(rows);
    free(queries);
    free(decoded);
    free(dots);
    free(codes);
    return (struct errors){mse.mean, sqrt(square / (ROWS * QUERIES) * (double)d)};
}

/* ---- polar ----------------------------------------------------------------------------- */

static double run_polar(uint32_t d, uint32_t levels, const uint32_t *bits) {
    tq_codec_study study = {.struct_size = sizeof study, .polar_levels = levels};
    int of_oracle[ORC_POLAR_MAX_LEVELS] = {0};
    orc_polar_book *book = calloc(1, sizeof *book);
    double *rotation = orc_rotation_hadamard(d, SEED, 0);
    char name[64];
    for (uint32_t l = 0; l < levels; l++) {
        study.polar_bits[l] = bits[l];
        of_oracle[l] = (int)bits[l];
    }
    orc_polar_book_split(book, (int)levels, of_oracle);
    orc_format f = {
        .kind = ORC_ROW_POLAR, .d = d, .rotation = rotation, .polar = book, .rounding = ORC_F16};
    tq_codec *codec = study_codec(TQ_FORMAT_POLAR, d, &study);
    (void)snprintf(name, sizeof name, "polar %u/%u/%u/%u/%u, dim %u", bits[0], bits[1], bits[2],
                   bits[3], bits[4], d);
    struct errors e = compare(codec, &f, name);
    print_message("  %-28s %.3f bits, mse %.5f, dot error %.4f\n", name,
                  8.0 * (double)tq_codec_row_bytes(codec) / d, e.mse, e.dot);
    tq_codec_destroy(codec);
    free(rotation);
    free(book);
    return e.mse;
}

static void test_polar_splits(void **state) {
    static const uint32_t plain[] = {4, 2, 2, 2, 0, 0}, first[] = {5, 2, 2, 2, 0, 0},
                          second[] = {4, 3, 2, 2, 0, 0}, one[] = {4, 0, 0, 0, 0, 0},
                          five[] = {4, 3, 3, 2, 2, 0}, six[] = {3, 3, 2, 2, 2, 2},
                          fine[] = {7, 6, 5, 5, 0, 0}, coarse[] = {1, 1, 1, 1, 0, 0};
    (void)state;
    double usual = run_polar(128, 4, plain);
    AT_MOST(fabs(usual - 0.0321), 0.0008, "the paper's split");
    CHECK(run_polar(128, 4, first) < usual, "a bit for level 1");
    CHECK(run_polar(128, 4, second) < usual, "a bit for level 2");
    CHECK(run_polar(64, 1, one) < usual, "a radius for each pair");
    CHECK(run_polar(64, 5, five) < usual, "five levels");
    CHECK(run_polar(256, 6, six) > run_polar(256, 4, fine), "fine angles");
    CHECK(run_polar(32, 4, coarse) > 0.1, "coarse angles");
}

/* ---- sketches -------------------------------------------------------------------------- */

/* `signs` rows of independent projections, two signed rounds each. */
static double *projection_of(size_t d, size_t signs) {
    double *all = orc_alloc(signs * d, sizeof *all);
    for (size_t part = 0; part * d < signs; part++) {
        double *first = orc_rotation_hadamard(d, SEED, 1 + 2 * part);
        double *second = orc_rotation_hadamard(d, SEED, 2 + 2 * part);
        double *both = orc_product(d, d, d, second, first);
        for (size_t i = 0; i < d * d && part * d * d + i < signs * d; i++)
            all[part * d * d + i] = both[i];
        free(first);
        free(second);
        free(both);
    }
    return all;
}

static double run_sketch(tq_format format, size_t d, uint32_t signs) {
    struct acc_model model;
    tq_codec_study study = {.struct_size = sizeof study, .sketch_signs = signs};
    char name[64];
    acc_model_make(&model, format, ACC_K, ACC_POLAR_FLOAT, d, SEED);
    double *projection = projection_of(d, signs);
    orc_format f = model.orc;
    f.projection = projection;
    f.n_signs = signs;
    tq_codec *codec = study_codec(format, (uint32_t)d, &study);
    (void)snprintf(name, sizeof name, "%s, %u signs, dim %zu", acc_format_name(format), signs, d);
    struct errors e = compare(codec, &f, name);
    print_message("  %-28s %.3f bits, mse %.5f, dot error %.4f\n", name,
                  8.0 * (double)tq_codec_row_bytes(codec) / (double)d, e.mse, e.dot);
    tq_codec_destroy(codec);
    acc_model_free(&model);
    free(projection);
    return e.dot;
}

/* More signs, less error: a quarter of them costs, four times as many help. */
static void test_sketch_sizes(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM2_QJL};
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        double few = run_sketch(formats[i], 128, 32), usual = run_sketch(formats[i], 128, 128);
        double odd = run_sketch(formats[i], 64, 88), many = run_sketch(formats[i], 128, 512);
        CHECK(few > 1.5 * usual && usual > 1.5 * many, "dot error %g, %g, %g", few, usual, many);
        CHECK(odd > 0, "rows of 64 dims");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_polar_splits),
        cmocka_unit_test(test_sketch_sizes),
    };
    return cmocka_run_group_tests_name("study", tests, NULL, NULL);
}
