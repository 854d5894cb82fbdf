/* TQ_CODEC_UNBIASED: other gains, the same codes, exact inner products of rows with themselves, the
 * same bytes at every level. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec.h"

enum { N_ROWS = 8 };

static const tq_format formats[] = {TQ_FORMAT_INT8, TQ_FORMAT_LM4, TQ_FORMAT_LM3, TQ_FORMAT_LM2};
static const uint32_t dims[] = {32, 48, 64, 80, 96, 112, 128, 144, 160, 224, 320, 576, 1024, 4096};

static tq_codec *make(tq_context *ctx, tq_format format, uint32_t dim, uint32_t flags) {
    tq_codec_config c = {
        .struct_size = sizeof c, .format = format, .dim = dim, .flags = flags, .seed = 5};
    tq_codec *codec = NULL;
    OK(tq_codec_create(ctx, &c, &codec));
    return codec;
}

/* Rows of many sizes; the last one is zero. */
static float *rows_of(uint32_t dim) {
    struct rng rng = {dim};
    float *rows = random_rows(&rng, (size_t)N_ROWS * dim, 3);
    for (uint32_t i = 0; i < dim; i++) {
        rows[i] *= 1e-3f;
        rows[dim + i] *= 0x1p-60f; /* outside the plain range; its gain is 0 */
        rows[2 * dim + i] = i == 3 ? 7.0f : 0.0f;
        rows[(N_ROWS - 1) * dim + i] = 0;
    }
    return rows;
}

static double dot(const float *a, const float *b, uint32_t dim) {
    double sum = 0;
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Bytes 0 and 1 of the gain are the row's last (FORMAT.md, row form). */
static int codes_differ(const unsigned char *a, const unsigned char *b, size_t row_bytes) {
    for (size_t r = 0; r < N_ROWS; r++)
        if (memcmp(a + r * row_bytes, b + r * row_bytes, row_bytes - 2) != 0)
            return 1;
    return 0;
}

static void check(tq_format format, uint32_t dim) {
    const char *name = format_of(format).name;
    tq_codec *plain = make(codec_context(), format, dim, 0);
    tq_codec *codec = make(codec_context(), format, dim, TQ_CODEC_UNBIASED);
    float *rows = rows_of(dim);
    unsigned char *was = codec_codes(plain, rows, N_ROWS), *now = codec_codes(codec, rows, N_ROWS);
    float *decoded = codec_rows(codec, now, N_ROWS, dim);
    size_t bytes = tq_codec_row_bytes(codec);
    int changed = 0;
    assert_int_equal(bytes, tq_codec_row_bytes(plain));
    CHECK(!codes_differ(was, now, bytes), "%s, dim %u: codes changed", name, dim);
    for (size_t r = 0; r < N_ROWS; r++) {
        const float *x = rows + r * dim;
        double want = dot(x, x, dim), got = dot(x, decoded + r * dim, dim);
        if (r == 1 || r == N_ROWS - 1)
            CHECK(got == 0, "%s, dim %u: row %zu is not zero", name, dim, r);
        else /* the gain is a half, rounded twice; row 0 may have a subnormal one */
            CHECK(fabs(got / want - 1) < (r ? 0x1p-10 : 0x1p-9), "%s, dim %u, row %zu: %g for %g",
                  name, dim, r, got, want);
        changed |= memcmp(was + r * bytes, now + r * bytes, bytes) != 0;
    }
    CHECK(changed || format == TQ_FORMAT_INT8, "%s, dim %u: no gain changed", name, dim);
    tq_codec_destroy(plain);
    tq_codec_destroy(codec);
    free(rows);
    free(was);
    free(now);
    free(decoded);
}

static void test_gains(void **state) {
    (void)state;
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t d = 0; d < COUNT(dims); d++)
            check(formats[f], dims[d]);
}

/* Levels and the reference write the same bytes. */
static void test_levels(void **state) {
    (void)state;
    static const uint64_t disabled[] = {UINT64_MAX, TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI, 0};
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            unsigned char *first = NULL;
            float *rows = rows_of(dims[d]);
            for (size_t i = 0; i < COUNT(disabled); i++) {
                tq_context_config c = {.struct_size = sizeof c,
                                       .cpu_features_disabled = disabled[i]};
                tq_context *ctx = NULL;
                OK(tq_context_create(&c, &ctx));
                tq_codec *codec = make(ctx, formats[f], dims[d], TQ_CODEC_UNBIASED);
                size_t bytes = tq_codec_row_bytes(codec);
                unsigned char *codes = codec_codes(codec, rows, N_ROWS);
                CHECK(!first || memcmp(first, codes, N_ROWS * bytes) == 0,
                      "%s, dim %u: other bytes", format_of(formats[f]).name, dims[d]);
                if (first)
                    free(codes);
                else
                    first = codes;
                tq_codec_destroy(codec);
                tq_context_destroy(ctx);
            }
            free(first);
            free(rows);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gains), cmocka_unit_test(test_levels)};
    return cmocka_run_group_tests(tests, codec_set_up, codec_tear_down);
}
