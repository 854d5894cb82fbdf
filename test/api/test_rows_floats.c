/* The formats that store floats, bf16, f16 and fp8, number by number against definitions
 * written here: every 16-bit pattern, the middle between neighbours, saturation, scales. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rig.h"

enum { DIM = 64, N_PATTERNS = 65536, N_CODES = 127 };

/* ---- e4m3 by its definition ------------------------------------------------------------ */

/* Positive codes 0 .. 126: four bits of exponent with bias 7, three of mantissa, no
 * infinity; 127 is NaN. */
static double e4m3_value(uint32_t code) {
    uint32_t exponent = code >> 3, mantissa = code & 7;
    return exponent ? ldexp(8 + mantissa, (int)exponent - 10) : ldexp(mantissa, -9);
}

/* The nearest code, ties to the even one; saturates and keeps the sign of zero. */
static uint32_t e4m3_code(double x) {
    double a = fabs(x);
    uint32_t best = 0;
    for (uint32_t code = 1; code < N_CODES; code++) {
        double old = fabs(a - e4m3_value(best)), new = fabs(a - e4m3_value(code));
        if (new < old || (new == old &&code % 2 == 0))
            best = code;
    }
    return best | (signbit(x) ? 128u : 0u);
}

static double e4m3(double x) {
    uint32_t code = e4m3_code(x);
    return code & 128 ? -e4m3_value(code & 127) : e4m3_value(code);
}

/* What a float that is not finite is replaced by. */
static double replaced(double x, tq_dtype dtype) {
    if (isnan(x))
        return 0;
    return isinf(x) ? copysign(dtype_largest(dtype), x) : x;
}

/* To a 16-bit type, saturating. */
static double rounded(double x, tq_dtype to) {
    uint16_t bits;
    store_value(&bits, to, x);
    return replaced(value_of(&bits, to), to);
}

/* ---- a codec for one number at a time -------------------------------------------------- */

static tq_context *ctx;

static int set_up(void **state) {
    (void)state;
    OK(tq_context_create(NULL, &ctx));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tq_context_destroy(ctx);
    return 0;
}

/* Codes of n elements (a multiple of DIM) and what they decode to; both allocated. */
static uint8_t *code_all(tq_format format, const void *x, size_t n, tq_dtype dtype, float **out) {
    tq_codec_config c = {.struct_size = sizeof c, .format = format, .dim = DIM};
    tq_codec *codec = NULL;
    OK(tq_codec_create(ctx, &c, &codec));
    uint8_t *codes = must_alloc(n / DIM, tq_codec_row_bytes(codec));
    *out = must_alloc(n, sizeof **out);
    tq_rows_in in = {.data = x, .dtype = dtype};
    tq_rows_out to = rows_out(*out);
    OK(tq_codec_encode(codec, n / DIM, &in, codes));
    OK(tq_codec_decode(codec, n / DIM, codes, &to));
    tq_codec_destroy(codec);
    return codes;
}

static double expected(tq_format format, double x, tq_dtype dtype) {
    double finite = replaced(x, dtype);
    return format == TQ_FORMAT_FP8   ? e4m3(finite)
           : format == TQ_FORMAT_F16 ? rounded(finite, TQ_F16)
                                     : rounded(finite, TQ_BF16);
}

/* Every number decodes to what the definition says, the sign of zero included. */
static void check_numbers(tq_format format, const void *x, size_t n, tq_dtype dtype) {
    float *got;
    uint8_t *codes = code_all(format, x, n, dtype, &got);
    for (size_t i = 0; i < n; i++) {
        double number = value_of((const char *)x + i * dtype_size(dtype), dtype);
        double want = expected(format, number, dtype);
        CHECK((double)got[i] == want && !signbit(got[i]) == !signbit(want),
              "%s, %s: %.9g gives %.9g, not %.9g", format_of(format).name, dtype_name(dtype),
              number, (double)got[i], want);
    }
    free(codes);
    free(got);
}

static const tq_format formats[] = {TQ_FORMAT_BF16, TQ_FORMAT_F16, TQ_FORMAT_FP8};

static void test_every_pattern(void **state) {
    uint16_t *bits = must_alloc(N_PATTERNS, sizeof *bits);
    (void)state;
    for (uint32_t i = 0; i < N_PATTERNS; i++)
        bits[i] = (uint16_t)i;
    for (size_t f = 0; f < COUNT(formats); f++) {
        check_numbers(formats[f], bits, N_PATTERNS, TQ_F16);
        check_numbers(formats[f], bits, N_PATTERNS, TQ_BF16);
    }
    free(bits);
}

/* The bytes themselves: section 1.6 of docs/FORMAT.md, four lanes of DIM / 4 dims. */
static void test_fp8_bytes(void **state) {
    uint16_t *bits = must_alloc(N_PATTERNS, sizeof *bits);
    float *out;
    (void)state;
    for (uint32_t i = 0; i < N_PATTERNS; i++)
        bits[i] = (uint16_t)i;
    uint8_t *codes = code_all(TQ_FORMAT_FP8, bits, N_PATTERNS, TQ_F16, &out);
    for (uint32_t i = 0; i < N_PATTERNS; i++) {
        uint32_t dim = i % DIM, lane = dim / (DIM / 4), at = dim % (DIM / 4);
        uint32_t got = codes[i - dim + (at / 4 * 4 + lane) * 4 + at % 4];
        uint32_t want = e4m3_code(replaced(value_of(&bits[i], TQ_F16), TQ_F16));
        CHECK(got == want, "0x%04x gives 0x%02x, not 0x%02x", i, got, want);
    }
    free(bits);
    free(codes);
    free(out);
}

/* ---- f32 ------------------------------------------------------------------------------- */

/* Random bits: every exponent, NaN and infinity too. */
static void test_random_floats(void **state) {
    enum { N = 64 * 2048 };
    struct rng rng = {1};
    uint32_t *bits = must_alloc(N, sizeof *bits);
    (void)state;
    for (size_t i = 0; i < N; i++)
        bits[i] = (uint32_t)(rng_next(&rng) >> 32);
    for (size_t f = 0; f < COUNT(formats); f++)
        check_numbers(formats[f], bits, N, TQ_F32);
    free(bits);
}

/* a, the middle to b, both sides of the middle, and all of them negative. */
static void put_around(float *x, double a, double b) {
    float middle = (float)((a + b) / 2); /* exact: at most 12 bits */
    float positive[4] = {(float)a, middle, nextafterf(middle, 0), nextafterf(middle, FLT_MAX)};
    for (int i = 0; i < 8; i++)
        x[i] = i < 4 ? positive[i] : -positive[i - 4];
}

static void test_fp8_middles(void **state) {
    float x[18 * DIM] = {0}; /* room for 128 times 8 */
    (void)state;
    for (uint32_t code = 0; code < N_CODES; code++) /* behind 448 comes 480, if it existed */
        put_around(x + code * 8, e4m3_value(code), code + 1 < N_CODES ? e4m3_value(code + 1) : 480);
    put_around(x + N_CODES * 8, 448, FLT_MAX);
    check_numbers(TQ_FORMAT_FP8, x, COUNT(x), TQ_F32);
}

static void check_middles(tq_format format, tq_dtype type, uint32_t largest) {
    size_t n = (size_t)(largest + 1) * 8;
    float *x = must_alloc(n + DIM, sizeof *x);
    for (uint32_t code = 0; code < largest; code++) {
        uint16_t bits[2] = {(uint16_t)code, (uint16_t)(code + 1)};
        put_around(x + (size_t)code * 8, value_of(&bits[0], type), value_of(&bits[1], type));
    }
    put_around(x + (size_t)largest * 8, dtype_largest(type), dtype_largest(type));
    check_numbers(format, x, (n + DIM - 1) / DIM * DIM, TQ_F32);
    free(x);
}

static void test_16bit_middles(void **state) {
    (void)state;
    check_middles(TQ_FORMAT_F16, TQ_F16, 0x7bff);
    check_middles(TQ_FORMAT_BF16, TQ_BF16, 0x7f7f);
}

/* ---- scales ---------------------------------------------------------------------------- */

static tq_seq open_fp8(struct rig *r, const float *k_scale, const float *v_scale) {
    tq_cache_config c = plain_config(TQ_VARIANT_FP8, DIM, 2, 2);
    rig_open(r, &c);
    OK(tq_cache_set_fp8_scales(r->cache, 0, k_scale, v_scale));
    return rig_seq(r);
}

/* Rows of two heads that reach from below the least code to beyond the largest. */
static float *scaled_rows(uint32_t n_tokens, const float *scale) {
    struct rng rng = {3};
    size_t n = (size_t)n_tokens * 2 * DIM;
    float *rows = must_alloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        double x = ldexp(rng_gaussian(&rng), (int)rng_below(&rng, 20) - 10);
        rows[i] = (float)(x * (scale ? (double)scale[i / DIM % 2] : 1));
    }
    return rows;
}

/* Whether got is scale times the nearest code of x / scale; near the middle between two
 * codes either will do, because the quotient is rounded. */
static int nearest_code(double got, double x, double scale) {
    double want = e4m3(x / scale), slack = 0x1p-22 * fabs(x / scale);
    double low = e4m3(x / scale - slack), high = e4m3(x / scale + slack);
    return got == (double)(float)(want * scale) || got == (double)(float)(low * scale) ||
           got == (double)(float)(high * scale);
}

static void check_scaled(const float *got, const float *rows, size_t n, const float *scale,
                         const char *what) {
    for (size_t i = 0; i < n; i++) {
        float s = scale ? scale[i / DIM % 2] : 1;
        CHECK(nearest_code((double)got[i], (double)rows[i], (double)s),
              "%s, scale %g: %.9g gives %.9g", what, (double)s, (double)rows[i], (double)got[i]);
    }
}

/* Keys with one pair of scales, values with another one; NULL is 1. */
static void check_scales(const float *k_scale, const float *v_scale) {
    enum { N = 37 };
    struct rig rig = {.ctx = NULL};
    struct rng rng = {5};
    tq_seq seq = open_fp8(&rig, k_scale, v_scale);
    float *k = scaled_rows(N, k_scale), *v = scaled_rows(N, v_scale);
    float *got_k = must_alloc(N * 2 * DIM, sizeof *got_k);
    float *got_v = must_alloc(N * 2 * DIM, sizeof *got_v);
    rig_append(&rig, seq, 0, N, k, v);
    rig_read(&rig, seq, 0, 0, N, got_k, got_v);
    check_scaled(got_k, k, N * 2 * DIM, k_scale, "key");
    check_scaled(got_v, v, N * 2 * DIM, v_scale, "value");
    check_attention(&rig, seq, 0, 3, &rng, "scaled");
    rig_close(&rig);
    free(k);
    free(v);
    free(got_k);
    free(got_v);
}

static void test_scales(void **state) {
    static const float moderate[][2] = {{1, 2}, {0.125f, 3}, {0.1f, 0.7f}, {1e-3f, 1}};
    (void)state;
    for (size_t i = 0; i < COUNT(moderate); i++) {
        check_scales(moderate[i], moderate[COUNT(moderate) - 1 - i]);
        check_scales(moderate[i], NULL);
        check_scales(NULL, moderate[i]);
    }
    check_scales(NULL, NULL);
}

/* Powers of two only shift the exponent: all else is equal, bit for bit. */
static void test_scale_shifts(void **state) {
    enum { N = 20 };
    (void)state;
    for (int shift = -100; shift <= 100; shift += 25) {
        const float scale[2] = {ldexpf(1, shift), ldexpf(1, shift)};
        struct rig rig = {.ctx = NULL};
        tq_seq seq = open_fp8(&rig, scale, scale);
        float *plain = scaled_rows(N, NULL), *rows = scaled_rows(N, scale);
        float *k = must_alloc(N * 2 * DIM, sizeof *k), *v = must_alloc(N * 2 * DIM, sizeof *v);
        rig_append(&rig, seq, 0, N, rows, rows);
        rig_read(&rig, seq, 0, 0, N, k, v);
        for (size_t i = 0; i < N * 2 * DIM; i++) {
            double want = ldexp(e4m3((double)plain[i]), shift);
            CHECK((double)k[i] == want && (double)v[i] == want, "2^%d: %.9g gives %.9g and %.9g",
                  shift, (double)rows[i], (double)k[i], (double)v[i]);
        }
        rig_close(&rig);
        free(plain);
        free(rows);
        free(k);
        free(v);
    }
}

/* Saturates at 448 times the scale. */
static void test_scale_saturates(void **state) {
    static const float k_scale[2] = {0.25f, 3}, v_scale[2] = {1e-3f, 7};
    struct rig rig = {.ctx = NULL};
    float rows[2 * DIM], k[2 * DIM], v[2 * DIM];
    (void)state;
    tq_seq seq = open_fp8(&rig, k_scale, v_scale);
    for (size_t i = 0; i < 2 * DIM; i++)
        rows[i] = (i % 2 ? -1 : 1) * (i % 4 < 2 ? 1e6f : FLT_MAX);
    rig_append(&rig, seq, 0, 1, rows, rows);
    rig_read(&rig, seq, 0, 0, 1, k, v);
    for (size_t i = 0; i < 2 * DIM; i++) {
        assert_float_equal(k[i], (i % 2 ? -448 : 448) * k_scale[i / DIM], 0);
        assert_float_equal(v[i], (i % 2 ? -448 : 448) * v_scale[i / DIM], 0);
    }
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pattern), cmocka_unit_test(test_fp8_bytes),
        cmocka_unit_test(test_random_floats), cmocka_unit_test(test_fp8_middles),
        cmocka_unit_test(test_16bit_middles), cmocka_unit_test(test_scales),
        cmocka_unit_test(test_scale_shifts),  cmocka_unit_test(test_scale_saturates),
    };
    return cmocka_run_group_tests_name("rows as floats", tests, set_up, tear_down);
}
