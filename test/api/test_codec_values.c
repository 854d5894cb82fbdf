/* What the codec's bytes mean: the same as in a cache, at every dim, in every type. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec.h"

enum { N_ROWS = 6, SEED = 42 };

/* All powers of two, the Kronecker orders and a head_dim that needs padding. */
static const uint32_t dims[] = {32,  48,  64,  80,  96,   112,  128,  144,  160,  192,  224, 256,
                                288, 320, 512, 576, 1024, 1152, 1280, 1792, 2048, 2304, 4096};

typedef void check_fn(const tq_format_info *format, uint32_t dim, const char *name);

static void for_every_format_and_dim(check_fn *check, uint32_t max_dim) {
    char name[64];
    for (uint32_t f = 0; f < tq_format_count(); f++)
        for (size_t d = 0; d < COUNT(dims) && dims[d] <= max_dim; d++) {
            tq_format_info format = format_at(f);
            (void)snprintf(name, sizeof name, "%s, dim %u", format.name, dims[d]);
            check(&format, dims[d], name);
        }
}

/* ---- the same as a cache --------------------------------------------------------------- */

/* Rows as keys, and as values where gains do not come in another type. */
static void like_a_cache(const tq_format_info *format, uint32_t dim, const char *name) {
    int both = !(format->flags & TQ_FORMAT_ROTATED);
    tq_layer_formats pair = {format->id, both ? format->id : TQ_FORMAT_BF16};
    tq_cache_config c = pair_config(&pair, dim, 1, 1);
    struct rig rig = {.ctx = NULL};
    struct rng rng = {dim};
    c.seed = SEED;
    rig_open(&rig, &c);
    tq_seq seq = rig_seq(&rig);
    tq_codec *codec = codec_make(format->id, dim, SEED);
    float *rows = random_rows(&rng, N_ROWS * dim, 3);
    float *k = must_alloc(N_ROWS * dim, sizeof *k), *v = must_alloc(N_ROWS * dim, sizeof *v);
    unsigned char *codes = codec_codes(codec, rows, N_ROWS);
    float *want = codec_rows(codec, codes, N_ROWS, dim);
    rig_append(&rig, seq, 0, N_ROWS, rows, rows);
    rig_read(&rig, seq, 0, 0, N_ROWS, k, v);
    CHECK(memcmp(k, want, N_ROWS * dim * sizeof *k) == 0, "%s: other keys", name);
    CHECK(!both || memcmp(v, want, N_ROWS * dim * sizeof *v) == 0, "%s: other values", name);
    tq_codec_destroy(codec);
    rig_close(&rig);
    free(rows);
    free(k);
    free(v);
    free(codes);
    free(want);
}

static void test_like_a_cache(void **state) {
    (void)state;
    for_every_format_and_dim(like_a_cache, 1024);
}

/* ---- close to the rows ----------------------------------------------------------------- */

/* In the caller's basis, whatever the rotation; the bounds proper are in test/accuracy. */
static void close_to_rows(const tq_format_info *format, uint32_t dim, const char *name) {
    struct rng rng = {dim + 1};
    tq_codec *codec = codec_make(format->id, dim, SEED);
    float *rows = random_rows(&rng, N_ROWS * dim, 5);
    double *exact = must_alloc(N_ROWS * dim, sizeof *exact);
    unsigned char *codes = codec_codes(codec, rows, N_ROWS);
    float *got = codec_rows(codec, codes, N_ROWS, dim);
    for (size_t i = 0; i < N_ROWS * dim; i++)
        exact[i] = (double)rows[i];
    AT_MOST(relative_error(got, exact, N_ROWS * dim), 2 * sqrt(format->mse), "%s", name);
    tq_codec_destroy(codec);
    free(rows);
    free(exact);
    free(codes);
    free(got);
}

static void test_close_to_rows(void **state) {
    (void)state;
    for_every_format_and_dim(close_to_rows, 4096);
}

/* ---- dots ------------------------------------------------------------------------------ */

/* More than two pages of 16, as which kernels take rows. */
enum { DOT_ROWS = 37 };

/* CPU features that a context does without, and its codecs. */
static const uint64_t without[] = {0, TQ_CPU_AMX, TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI, UINT64_MAX};
enum { REFERENCE = 3 };

/* Of the kernels that may run: the reference for long rows and without features. */
static double tolerance_of(const tq_format_info *format, uint32_t dim, size_t level) {
    int in_floats = !(format->flags & TQ_FORMAT_ROTATED) || format->id == TQ_FORMAT_POLAR ||
                    format->id == TQ_FORMAT_POLAR_QJL;
    return dim > 1024 || level == REFERENCE ? 1e-6 : in_floats ? 1e-5 : 2e-4;
}

/* The same bits for a row whatever the rows beside it. */
static void dots_of_parts(const tq_codec *codec, const tq_rows_in *query,
                          const unsigned char *codes, const float *want, const char *name) {
    size_t row_bytes = tq_codec_row_bytes(codec);
    float dots[DOT_ROWS];
    for (size_t n = 1; n <= DOT_ROWS; n += 5)
        for (size_t first = 0; first < DOT_ROWS; first += n) {
            size_t m = DOT_ROWS - first < n ? DOT_ROWS - first : n;
            OK(tq_codec_dot(codec, query, m, codes + first * row_bytes, dots));
            CHECK(memcmp(dots, want + first, m * sizeof *dots) == 0, "%s: %zu rows from %zu on",
                  name, m, first);
        }
}

static void dots_of_type(const tq_codec *codec, const unsigned char *codes, uint32_t dim,
                         tq_dtype dtype, double tolerance, const char *name) {
    struct rng rng = {dim + 2};
    float *random = random_rows(&rng, dim, 2), *rows = codec_rows(codec, codes, DOT_ROWS, dim);
    void *query = convert_rows(random, dim, dtype);
    float *q = widen_rows(query, dim, dtype), dots[DOT_ROWS];
    tq_rows_in in = {.data = query, .dtype = dtype};
    double want[DOT_ROWS] = {0};
    for (size_t i = 0; i < DOT_ROWS; i++)
        for (uint32_t j = 0; j < dim; j++)
            want[i] += (double)q[j] * (double)rows[i * dim + j];
    OK(tq_codec_dot(codec, &in, DOT_ROWS, codes, dots));
    AT_MOST(relative_error(dots, want, DOT_ROWS), tolerance, "%s: dots with %s", name,
            dtype_name(dtype));
    if (dtype == TQ_F32 && dim <= 320)
        dots_of_parts(codec, &in, codes, dots, name);
    free(random);
    free(rows);
    free(query);
    free(q);
}

static void dots(const tq_format_info *format, uint32_t dim, const char *name) {
    struct rng rng = {dim + 3};
    float *rows = random_rows(&rng, (size_t)DOT_ROWS * dim, 5);
    for (size_t level = 0; level < COUNT(without); level++) {
        tq_context_config config = {.struct_size = sizeof config,
                                    .cpu_features_disabled = without[level]};
        tq_codec_config c = {
            .struct_size = sizeof c, .format = format->id, .dim = dim, .seed = SEED};
        tq_context *ctx = NULL;
        tq_codec *codec = NULL;
        OK(tq_context_create(&config, &ctx));
        OK(tq_codec_create(ctx, &c, &codec));
        unsigned char *codes = codec_codes(codec, rows, DOT_ROWS);
        for (size_t t = 0; t < COUNT(all_dtypes); t++)
            dots_of_type(codec, codes, dim, all_dtypes[t], tolerance_of(format, dim, level), name);
        free(codes);
        tq_codec_destroy(codec);
        tq_context_destroy(ctx);
    }
    free(rows);
}

static void test_dots(void **state) {
    (void)state;
    for_every_format_and_dim(dots, 4096);
}

/* ---- types ----------------------------------------------------------------------------- */

/* Rows of a type give the codes of the same numbers in f32. Decoded to a type they are the
 * f32 rows, rounded to nearest: up to the rounding of those. */
static void rows_of_type(const tq_codec *codec, uint32_t dim, tq_dtype dtype, const char *name) {
    struct rng rng = {dim + 4};
    size_t n = N_ROWS * (size_t)dim, size = tq_codec_row_bytes(codec) * N_ROWS;
    float *random = random_rows(&rng, n, 5);
    void *rows = convert_rows(random, n, dtype), *out = must_alloc(n, dtype_size(dtype));
    float *same = widen_rows(rows, n, dtype);
    unsigned char *codes = must_alloc(size, 1), *want = codec_codes(codec, same, N_ROWS);
    tq_rows_in in = {.data = rows, .dtype = dtype};
    tq_rows_out to = {.data = out, .dtype = dtype};
    float *exact = codec_rows(codec, want, N_ROWS, dim);
    OK(tq_codec_encode(codec, N_ROWS, &in, codes));
    CHECK(memcmp(codes, want, size) == 0, "%s: codes of %s", name, dtype_name(dtype));
    OK(tq_codec_decode(codec, N_ROWS, codes, &to));
    for (size_t i = 0; i < n; i++) {
        double x = (double)exact[i], got = value_of((char *)out + i * dtype_size(dtype), dtype);
        AT_MOST(fabs(got - x), half_unit(x, dtype) + half_unit(x, TQ_F32), "%s: %s %zu", name,
                dtype_name(dtype), i);
    }
    free(random);
    free(rows);
    free(out);
    free(same);
    free(codes);
    free(want);
    free(exact);
}

static void types(const tq_format_info *format, uint32_t dim, const char *name) {
    tq_codec *codec = codec_make(format->id, dim, SEED);
    for (size_t t = 0; t < COUNT(all_dtypes); t++)
        rows_of_type(codec, dim, all_dtypes[t], name);
    tq_codec_destroy(codec);
}

static void test_types(void **state) {
    (void)state;
    for_every_format_and_dim(types, 320);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_a_cache),
        cmocka_unit_test(test_close_to_rows),
        cmocka_unit_test(test_dots),
        cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests_name("codec values", tests, codec_set_up, codec_tear_down);
}
