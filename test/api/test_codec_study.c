/* tq_codec_create_study(): what it refuses, sizes of rows, and rows and dots like any codec. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec.h"
#include "tq/study.h"

enum { DIM = 128, N_ROWS = 5 };

static tq_status make(tq_format format, uint32_t dim, const tq_codec_study *study,
                      tq_codec **codec) {
    tq_codec_config c = {.struct_size = sizeof c, .format = format, .dim = dim, .seed = 3};
    return tq_codec_create_study(codec_context(), &c, study, codec);
}

static tq_codec_study plain(void) {
    tq_codec_study s = {.struct_size = sizeof s};
    return s;
}

#define REFUSED(format, dim, study, word) \
    FAILS(make(format, dim, &(study), &codec), TQ_ERR_INVALID_ARGUMENT, word)

static void test_refused_polar(void **state) {
    tq_codec *codec = NULL;
    tq_codec_study s = plain();
    (void)state;
    s.polar_levels = 7;
    REFUSED(TQ_FORMAT_POLAR, DIM, s, "polar_levels");
    s.polar_levels = 6;
    REFUSED(TQ_FORMAT_POLAR, 96, s, "polar_levels");
    s.polar_levels = 2;
    REFUSED(TQ_FORMAT_LM3_QJL, DIM, s, "polar_levels");
    s.polar_bits[0] = 4;
    REFUSED(TQ_FORMAT_POLAR, DIM, s, "polar_bits"); /* none at level 2 */
    s.polar_bits[1] = 7;
    REFUSED(TQ_FORMAT_POLAR, DIM, s, "polar_bits");
    s.polar_bits[1] = 6;
    s.polar_bits[2] = 1;
    REFUSED(TQ_FORMAT_POLAR, DIM, s, "polar_bits"); /* above the levels */
    s.polar_bits[2] = 0;
    s.polar_bits[0] = 9;
    REFUSED(TQ_FORMAT_POLAR, DIM, s, "polar_bits");
    s.polar_levels = 0;
    REFUSED(TQ_FORMAT_LM2_QJL, DIM, s, "polar_bits");
    assert_null(codec);
}

static void test_refused_sketch(void **state) {
    tq_codec *codec = NULL;
    tq_codec_study s = plain();
    (void)state;
    s.sketch_signs = 64;
    REFUSED(TQ_FORMAT_POLAR, DIM, s, "sketch_signs");
    s.sketch_signs = 4 * DIM + 8;
    REFUSED(TQ_FORMAT_POLAR_QJL, DIM, s, "sketch_signs");
    s.sketch_signs = 12;
    REFUSED(TQ_FORMAT_LM3_QJL, DIM, s, "sketch_signs");
    s.sketch_signs = 0;
    s.reserved = 1;
    REFUSED(TQ_FORMAT_LM3_QJL, DIM, s, "reserved");
    assert_null(codec);
}

static void test_refused_others(void **state) {
    tq_codec_config c = {.struct_size = sizeof c, .format = TQ_FORMAT_POLAR, .dim = DIM};
    tq_codec *codec = NULL;
    tq_codec_study s = plain();
    (void)state;
    FAILS(make(TQ_FORMAT_LM4, DIM, &s, &codec), TQ_ERR_UNSUPPORTED, "lm4");
    FAILS(make(TQ_FORMAT_BF16, DIM, &s, &codec), TQ_ERR_UNSUPPORTED, "bf16");
    REFUSED(TQ_FORMAT_POLAR, 40, s, "dim");
    FAILS(tq_codec_create_study(NULL, &c, &s, &codec), TQ_ERR_INVALID_ARGUMENT, "context");
    FAILS(tq_codec_create_study(codec_context(), NULL, &s, &codec), TQ_ERR_INVALID_ARGUMENT,
          "config");
    FAILS(tq_codec_create_study(codec_context(), &c, NULL, &codec), TQ_ERR_INVALID_ARGUMENT,
          "study");
    FAILS(tq_codec_create_study(codec_context(), &c, &s, NULL), TQ_ERR_INVALID_ARGUMENT, "out");
    s.struct_size = 4;
    REFUSED(TQ_FORMAT_POLAR, DIM, s, "struct_size");
    assert_null(codec);
}

/* Rows and dots agree, bytes do not depend on what was there, sizes are those of the parameters. */
static void check_codec(tq_format format, const tq_codec_study *study, size_t row_bytes,
                        double error) {
    struct rng rng = {11};
    tq_codec *codec = NULL;
    OK(make(format, DIM, study, &codec));
    CHECK(tq_codec_row_bytes(codec) == row_bytes, "rows of %zu bytes, not %zu",
          tq_codec_row_bytes(codec), row_bytes);
    float *rows = random_rows(&rng, N_ROWS * DIM, 3), dots[N_ROWS];
    unsigned char *codes = codec_codes(codec, rows, N_ROWS), *again = must_alloc(N_ROWS, row_bytes);
    float *got = codec_rows(codec, codes, N_ROWS, DIM);
    double exact[N_ROWS * DIM], want[N_ROWS] = {0};
    tq_rows_in in = rows_in(rows);
    memset(again, 0xff, N_ROWS * row_bytes);
    OK(tq_codec_encode(codec, N_ROWS, &in, again));
    CHECK(memcmp(again, codes, N_ROWS * row_bytes) == 0, "format %u: other bytes", format);
    for (size_t i = 0; i < (size_t)N_ROWS * DIM; i++) {
        exact[i] = (double)rows[i];
        want[i / DIM] += (double)rows[i % DIM] * (double)got[i];
    }
    AT_MOST(relative_error(got, exact, (size_t)N_ROWS * DIM), error, "format %u", format);
    OK(tq_codec_dot(codec, &in, N_ROWS, codes, dots));
    AT_MOST(relative_error(dots, want, N_ROWS), 1e-6, "format %u: dots", format);
    tq_codec_destroy(codec);
    free(rows);
    free(codes);
    free(again);
    free(got);
}

static void test_codecs(void **state) {
    tq_codec_study s = plain();
    (void)state;
    check_codec(TQ_FORMAT_POLAR, &s, 62, 0.2); /* the format's own parameters */
    check_codec(TQ_FORMAT_POLAR_QJL, &s, 80, 0.16);
    check_codec(TQ_FORMAT_LM3_QJL, &s, 68, 0.16);
    s.sketch_signs = 3 * DIM;
    check_codec(TQ_FORMAT_LM2_QJL, &s, 34 + 48 + 2, 0.25);
    s.sketch_signs = 8;
    check_codec(TQ_FORMAT_LM3_QJL, &s, 50 + 1 + 2, 1.3); /* far too few */
    s.sketch_signs = 0;
    s.polar_levels = 1; /* 64 radii, 64 angles of 8 bits */
    s.polar_bits[0] = 8;
    check_codec(TQ_FORMAT_POLAR, &s, 128 + 64, 0.01);
    s.polar_levels = 3; /* 16 radii; 64 x 5 + 32 x 3 + 16 x 3 bits */
    s.polar_bits[0] = 5;
    s.polar_bits[1] = s.polar_bits[2] = 3;
    check_codec(TQ_FORMAT_POLAR, &s, 32 + 58, 0.12);
}

/* A row of zeros, and one beyond the range of radii, stay finite. */
static void test_extremes(void **state) {
    float rows[2 * DIM] = {0}, got[2 * DIM];
    tq_codec_study s = plain();
    (void)state;
    for (size_t i = 0; i < DIM; i++)
        rows[DIM + i] = i % 2 ? 3e38f : -3e38f;
    for (tq_format f = TQ_FORMAT_POLAR; f <= TQ_FORMAT_POLAR_QJL; f++) {
        tq_codec *codec = NULL;
        unsigned char codes[2 * 80];
        tq_rows_in in = rows_in(rows);
        tq_rows_out out = rows_out(got);
        OK(make(f, DIM, &s, &codec));
        OK(tq_codec_encode(codec, 2, &in, codes));
        OK(tq_codec_decode(codec, 2, codes, &out));
        for (size_t i = 0; i < DIM; i++) {
            CHECK(got[i] == 0, "zero row: %g", (double)got[i]);
            CHECK(isfinite(got[DIM + i]), "large row: %g", (double)got[DIM + i]);
        }
        tq_codec_destroy(codec);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_polar),  cmocka_unit_test(test_refused_sketch),
        cmocka_unit_test(test_refused_others), cmocka_unit_test(test_codecs),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests_name("codec study", tests, codec_set_up, codec_tear_down);
}
