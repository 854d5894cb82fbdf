/* The write path of a row: what holds for every format, whatever its stages do. */
#include "unit/unit.h"

#include <float.h>
#include <math.h>

#include "unit/rows.h"

enum { TOKENS = 64, BYTES = 1 << 17, MAX = 256 };

static const uint32_t dims[] = {32, 64, 80, 96, 112, 128, 160, 192, 256};
static struct unit_rows k, v, row;
static uint8_t page[BYTES], other[BYTES], code[4096];

static tqi_encode_fn *encode_of(const struct tqi_rows *rows) {
    return tqi_level_ref()->encode[rows->format->id].run;
}

/* Encodes a copy of x, with guard floats behind the scratch that the level asks for. */
static void encode(const struct tqi_rows *rows, const float *x, uint8_t *blob, uint32_t token) {
    float scratch[4 * MAX + 1024];
    size_t floats = tqi_level_ref()->encode_scratch(rows);
    assert_true(floats + 1 < COUNT(scratch));
    memcpy(scratch, x, rows->layout.dim * sizeof *x);
    scratch[floats] = 0x1.abcp3f;
    encode_of(rows)(rows, 1, scratch, blob, token);
    assert_true(scratch[floats] == 0x1.abcp3f);
}

static void decode(const struct tqi_rows *rows, const uint8_t *blob, uint32_t token, double *out) {
    double scratch[2 * MAX + 64];
    struct tqi_tile tile = {.blob = blob, .last = rows->layout.tokens, .scale = 1};
    assert_true(tqi_level_ref()->scratch_bytes(rows) <= sizeof scratch);
    tqi_level_ref()->decode(rows, &tile, token, out, scratch);
}

/* K and V of a format, or K alone; returns how many sides there are. */
static int sides_of(const struct tqi_format *f, uint32_t dim, uint64_t seed,
                    const struct tqi_rows *sides[2]) {
    int both = (f->roles & TQ_ROLE_V) != 0;
    unit_page(&k, f->id, &v, both ? f->id : TQ_FORMAT_LM4, dim, TOKENS, seed);
    assert_true(k.bytes <= BYTES);
    sides[0] = &k.rows;
    sides[1] = &v.rows;
    return 1 + both;
}

/* Bits of a page do not depend on the order in which tokens are written, and writing a token
 * again changes nothing: so tokens do not touch each other's bits. */
static void check_order(const struct tqi_rows *rows) {
    float x[MAX];
    memset(page, 0xa5, sizeof page);
    memset(other, 0xa5, sizeof other);
    for (uint32_t t = 0; t < TOKENS; t++) {
        unit_bell_row(t, rows->layout.dim, x);
        encode(rows, x, page, t);
    }
    for (uint32_t n = 0; n < 2 * TOKENS; n++) {
        uint32_t t = n * 37 % TOKENS;
        unit_bell_row(n < TOKENS / 2 ? 1000 : t, rows->layout.dim, x);
        encode(rows, x, other, t);
    }
    assert_memory_equal(page, other, BYTES);
}

static void test_order_of_tokens(void **state) {
    const struct tqi_rows *sides[2];
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            for (int n = sides_of(tqi_format_at(i), dims[d], 1, sides); n-- > 0;)
                check_order(sides[n]);
}

/* A row decodes to the same numbers from a key page and from the row form; from a value page
 * up to the rounding of its bf16 gain. */
static void test_pages_and_rows_agree(void **state) {
    const struct tqi_rows *sides[2];
    float x[MAX];
    double from_row[MAX], from_page[MAX];
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            const struct tqi_format *f = tqi_format_at(i);
            int n = sides_of(f, dims[d], 7, sides);
            unit_row_form(&row, f->id, dims[d], 7);
            for (uint32_t t = 0; t < TOKENS; t += 5) {
                unit_bell_row(t + 50, dims[d], x);
                encode(&row.rows, x, code, 0);
                decode(&row.rows, code, 0, from_row);
                for (int s = 0; s < n; s++) {
                    encode(sides[s], x, page, t);
                    decode(sides[s], page, t, from_page);
                    double tolerance = s == 0 ? 0 : 0.05;
                    for (uint32_t j = 0; j < dims[d]; j++)
                        CHECK(fabs(from_row[j] - from_page[j]) <= tolerance, "%s side %d dim %u",
                              f->name, s, j);
                }
            }
        }
}

static double norm(const double *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Distortion near the format's figure at dim 128; lm and int8 keep the norm of the row. */
static void check_quality(const struct tqi_format *f, const struct tqi_rows *rows) {
    float x[MAX];
    double decoded[MAX], exact[MAX], error = 0, energy = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        unit_bell_row(seed, 128, x);
        encode(rows, x, page, (uint32_t)seed % TOKENS);
        decode(rows, page, (uint32_t)seed % TOKENS, decoded);
        for (uint32_t i = 0; i < 128; i++) {
            exact[i] = (double)x[i];
            error += pow(exact[i] - decoded[i], 2);
            energy += pow(exact[i], 2);
        }
        double gain_error = rows->layout.side == TQI_SIDE_V ? 0x1p-8 : 0x1p-11;
        if ((f->kind == TQI_KIND_LM && !f->sketch) || f->kind == TQI_KIND_INT8)
            CHECK(fabs(norm(decoded, 128) / norm(exact, 128) - 1) < 1.1 * gain_error,
                  "%s: norm %g, not %g", f->name, norm(decoded, 128), norm(exact, 128));
    }
    /* Wide: rows of this test are bell shaped, not Gaussian; test/accuracy is exact. */
    CHECK(error / energy < 1.2 * f->mse && error / energy > 0.8 * f->mse, "%s side %u: %g, not %g",
          f->name, rows->layout.side, error / energy, f->mse);
}

static void test_quality(void **state) {
    const struct tqi_rows *sides[2];
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (int n = sides_of(tqi_format_at(i), 128, 3, sides); n-- > 0;)
            check_quality(tqi_format_at(i), sides[n]);
}

/* A zero row is exactly zero again, whatever the signs of its zeros. */
static void test_zero_rows(void **state) {
    const struct tqi_rows *sides[2];
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(dims); d++)
            for (int n = sides_of(tqi_format_at(i), dims[d], 1, sides); n-- > 0;) {
                float x[MAX] = {0};
                double decoded[MAX];
                memset(page, 0xff, sizeof page);
                for (uint32_t pass = 0; pass < 2; pass++) {
                    for (uint32_t j = 0; j < dims[d]; j += 3)
                        x[j] = pass ? -0.0f : 0.0f;
                    encode(sides[n], x, page, 9);
                    decode(sides[n], page, 9, decoded);
                    for (uint32_t j = 0; j < dims[d]; j++)
                        CHECK(decoded[j] == 0, "%s", tqi_format_at(i)->name);
                }
            }
}

/* Rows of any magnitude come back finite; the relative error is that of ordinary rows while
 * the gain is in the range of its 16 bits. */
static void check_magnitude(const struct tqi_rows *rows, int e) {
    float x[MAX];
    double decoded[MAX], exact[MAX], error = 0;
    uint64_t seed = (uint64_t)(e + 200);
    for (uint32_t i = 0; i < rows->layout.dim; i++) {
        x[i] = ldexpf(unit_bell(&seed), e);
        exact[i] = (double)x[i];
    }
    encode(rows, x, page, 3);
    decode(rows, page, 3, decoded);
    for (uint32_t i = 0; i < rows->layout.dim; i++) {
        CHECK(isfinite(decoded[i]), "%s side %u: 2^%d", rows->format->name, rows->layout.side, e);
        error += pow((decoded[i] - exact[i]) / ldexp(1, e), 2);
    }
    int low = rows->layout.side == TQI_SIDE_V ? -110 : -12;
    int high = rows->layout.side == TQI_SIDE_V ? 118 : 9;
    if (tqi_format_rotates(rows->format) && e >= low && e <= high)
        CHECK(error < 0.2 * pow(norm(exact, rows->layout.dim) / ldexp(1, e), 2),
              "%s side %u: 2^%d, error %g", rows->format->name, rows->layout.side, e, error);
}

static void test_magnitudes(void **state) {
    const struct tqi_rows *sides[2];
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (int n = sides_of(tqi_format_at(i), 96, 2, sides); n-- > 0;)
            for (int e = -149; e <= 125; e++)
                check_magnitude(sides[n], e);
}

/* Encoding writes every bit of its token, those of padding dims as zeros: what was in the
 * page before does not show. */
static void test_padding(void **state) {
    const struct tqi_rows *sides[2];
    float x[MAX];
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (int n = sides_of(tqi_format_at(i), 80, 1, sides); n-- > 0;) {
            const struct tqi_layout *l = &sides[n]->layout;
            memset(page, 0xff, sizeof page);
            memset(other, 0, sizeof other);
            for (uint32_t t = 0; t < TOKENS; t++) {
                unit_bell_row(t, 80, x);
                encode(sides[n], x, page, t);
                encode(sides[n], x, other, t);
            }
            assert_memory_equal(page + l->codes, other + l->codes, l->codes_size);
            assert_memory_equal(page + l->sketch, other + l->sketch, l->sketch_size);
            assert_memory_equal(page + l->gains, other + l->gains, l->gains_size);
            for (uint32_t t = 0; t < TOKENS && l->kind == TQI_KIND_LM; t++)
                for (uint32_t d = 80; d < 96; d++)
                    assert_int_equal(tqi_get_code(l, page, t, d), 0);
        }
}

/* Saturation of the formats without gains. */
static void test_saturation(void **state) {
    static const struct {
        tq_format id;
        float in;
        double out;
    } cases[] = {
        {TQ_FORMAT_FP8, 1000, 448},
        {TQ_FORMAT_FP8, -FLT_MAX, -448},
        {TQ_FORMAT_F16, 65520, 65504},
        {TQ_FORMAT_F16, -FLT_MAX, -65504},
        {TQ_FORMAT_BF16, FLT_MAX, 0x1.fep127},
        {TQ_FORMAT_BF16, -FLT_MAX, -0x1.fep127},
    };
    float x[MAX] = {0};
    double decoded[MAX];
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        unit_row_form(&row, cases[i].id, 64, 1);
        x[40] = cases[i].in;
        encode(&row.rows, x, code, 0);
        decode(&row.rows, code, 0, decoded);
        assert_true(decoded[40] == cases[i].out);
        assert_true(decoded[39] == 0 && decoded[41] == 0);
    }
}

/* The scale of fp8 divides on the way in and multiplies on the way out. */
static void test_fp8_scale(void **state) {
    float x[64];
    double decoded[64], scratch[256];
    (void)state;
    unit_row_form(&row, TQ_FORMAT_FP8, 64, 1);
    double exact[64];
    for (int i = 0; i < 64; i++) {
        exact[i] = (i - 32) * 16.0;
        x[i] = (float)exact[i];
    }
    tqk_encode_fp8_ref(&row.rows, 1 / 32.0f, x, code, 0);
    struct tqi_tile tile = {.blob = code, .last = 1, .scale = 32};
    tqi_level_ref()->decode(&row.rows, &tile, 0, decoded, scratch);
    for (int i = 0; i < 64; i++)
        CHECK(fabs(decoded[i] - exact[i]) <= fabs(exact[i]) / 16, "%d: %g", i, decoded[i]);
}

/* Another seed, another rotation: other codes, the same quality. */
static void test_seed_matters(void **state) {
    float x[MAX];
    uint8_t first[512] = {0}, second[512] = {0};
    (void)state;
    unit_bell_row(5, 128, x);
    for (uint32_t i = 0; i < tqi_format_total(); i++) {
        const struct tqi_format *f = tqi_format_at(i);
        unit_row_form(&row, f->id, 128, 1);
        encode(&row.rows, x, first, 0);
        unit_row_form(&row, f->id, 128, 2);
        encode(&row.rows, x, second, 0);
        assert_int_equal(memcmp(first, second, row.bytes) != 0, tqi_format_rotates(f));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_tokens), cmocka_unit_test(test_pages_and_rows_agree),
        cmocka_unit_test(test_quality),         cmocka_unit_test(test_zero_rows),
        cmocka_unit_test(test_magnitudes),      cmocka_unit_test(test_saturation),
        cmocka_unit_test(test_padding),         cmocka_unit_test(test_fp8_scale),
        cmocka_unit_test(test_seed_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
