/* The pack stage: 16-bit gains, and one token's codes back as numbers. */
#include "unit/unit.h"

#include <float.h>
#include <math.h>

#include "base/half.h"
#include "unit/rows.h"

enum { DIM = 96, TOKENS = 32, BYTES = 1 << 15 };

static struct unit_rows k, v;
static uint8_t blob[BYTES];

static float stored(const struct tqi_layout *l, float gain) {
    uint8_t at[3] = {0, 0, 0x5a};
    tqk_put_gain_ref(l, at, gain);
    assert_int_equal(at[2], 0x5a);
    return tqk_get_gain_ref(l, at);
}

/* Keys and rows in fp16 clamped at 65504, values in bf16 clamped at its largest value. */
static void test_gains(void **state) {
    uint64_t seed = 1;
    struct unit_rows row;
    (void)state;
    unit_page(&k, TQ_FORMAT_LM4, &v, TQ_FORMAT_LM4, DIM, TOKENS, 1);
    unit_row_form(&row, TQ_FORMAT_LM4, DIM, 1);
    for (int i = 0; i < 100000; i++) {
        float gain = fabsf(unit_wild(&seed));
        if (i & 1)
            gain = fabsf(unit_bell(&seed)) * (float)unit_below(&seed, 40000);
        float half = gain >= 65504 ? 65504 : tqi_f16_to_float(tqi_float_to_f16(gain));
        float bf16 = gain >= 0x1.fep127f ? 0x1.fep127f : tqi_bf16_to_float(tqi_float_to_bf16(gain));
        CHECK(stored(&k.rows.layout, gain) == half, "gain %g", (double)gain);
        CHECK(stored(&row.rows.layout, gain) == half, "gain %g", (double)gain);
        CHECK(stored(&v.rows.layout, gain) == bf16, "gain %g", (double)gain);
    }
    assert_true(stored(&k.rows.layout, 0) == 0 && stored(&v.rows.layout, 0) == 0);
    assert_true(stored(&k.rows.layout, INFINITY) == 65504);
    assert_true(stored(&v.rows.layout, INFINITY) == 0x1.fep127f);
    assert_true(stored(&k.rows.layout, 65519) == 65504);
}

/* Fills every code of one token at random and returns what it stands for in `expected`. */
static double put_token(const struct tqi_rows *rows, uint32_t token, float gain, double *expected) {
    const struct tqi_layout *l = &rows->layout;
    uint64_t seed = token;
    for (uint32_t i = 0; i < DIM; i++) {
        uint32_t random = (uint32_t)unit_random(&seed);
        size_t at = tqi_wide_offset(l, token, i);
        if (l->kind == TQI_KIND_LM) {
            uint32_t code = random & ((1u << l->bits) - 1);
            tqi_put_code(l, blob, token, i, code);
            expected[i] = rows->book.code_v2[code];
        } else if (l->kind == TQI_KIND_INT8) {
            blob[at] = (uint8_t)random;
            expected[i] = (int8_t)random;
        } else if (l->kind == TQI_KIND_FP8) {
            blob[at] = (uint8_t)(random & 0xf7); /* no NaN */
            expected[i] = (double)tqi_e4m3_to_float(blob[at]);
        } else {
            uint16_t half = (uint16_t)(random & 0xbfff); /* no infinity */
            tqi_store16(blob + at, half);
            expected[i] = (double)(rows->format->id == TQ_FORMAT_BF16 ? tqi_bf16_to_float(half)
                                                                      : tqi_f16_to_float(half));
        }
    }
    if (!l->gains_size)
        return l->kind == TQI_KIND_FP8 ? 0.25 : 1;
    tqk_put_gain_ref(l, blob + l->gains + (size_t)token * 2, gain);
    return (double)gain * rows->unit;
}

static void check_unpack(const struct tqi_rows *rows) {
    double expected[TOKENS][DIM], factors[TOKENS], values[DIM], factor;
    struct tqi_tile tile = {.blob = blob, .last = TOKENS, .scale = 0.25f};
    memset(blob, 0, sizeof blob);
    for (uint32_t t = 0; t < TOKENS; t++)
        factors[t] = put_token(rows, t, (float)(t + 1) / 4, expected[t]);
    for (uint32_t t = 0; t < TOKENS; t++) {
        tqk_unpack_ref(rows, &tile, t, values, &factor);
        CHECK(factor == factors[t], "%s token %u", rows->format->name, t);
        for (uint32_t i = 0; i < DIM; i++)
            CHECK(values[i] == expected[t][i], "%s token %u dim %u", rows->format->name, t, i);
    }
}

static void test_unpack(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++) {
        const struct tqi_format *f = tqi_format_at(i);
        if (f->kind == TQI_KIND_POLAR)
            continue;
        unit_page(&k, f->id, &v, f->roles & TQ_ROLE_V ? f->id : TQ_FORMAT_LM4, DIM, TOKENS, 1);
        check_unpack(&k.rows);
        if (f->roles & TQ_ROLE_V)
            check_unpack(&v.rows);
    }
}

/* A polar token: a radius of each block of its own. */
static void test_unpack_polar(void **state) {
    double values[DIM], factor;
    float u[TQI_POLAR_BLOCK];
    (void)state;
    unit_page(&k, TQ_FORMAT_POLAR, &v, TQ_FORMAT_POLAR, DIM, TOKENS, 1);
    const struct unit_rows *sides[2] = {&k, &v};
    for (int s = 0; s < 2; s++) {
        const struct tqi_layout *l = &sides[s]->rows.layout;
        struct tqi_tile tile = {.blob = blob, .last = TOKENS, .scale = 1};
        memset(blob, 0, sizeof blob);
        for (uint32_t n = 0; n < TOKENS * DIM / 16; n++) {
            uint32_t token = n / (DIM / 16), block = n % (DIM / 16);
            struct tqi_polar_codes c = {n * 2654435761u, (uint8_t)n, (uint8_t)(n & 15),
                                        (uint8_t)(n & 3)};
            tqi_put_polar(l, blob, token, block, c);
            tqk_put_gain_ref(l, blob + l->gains + tqi_polar_element(l, token, block) * 2,
                             (float)(n + 1));
        }
        for (uint32_t n = 0; n < TOKENS * DIM / 16; n++) {
            struct tqi_polar_codes c = {n * 2654435761u, (uint8_t)n, (uint8_t)(n & 15),
                                        (uint8_t)(n & 3)};
            tqk_unpack_ref(&sides[s]->rows, &tile, n / (DIM / 16), values, &factor);
            tqk_polar_inverse_ref(sides[s]->rows.polar, c, (float)(n + 1), u);
            assert_true(factor == 1);
            for (uint32_t i = 0; i < TQI_POLAR_BLOCK; i++)
                assert_true(values[n % (DIM / 16) * 16 + i] == (double)u[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gains),
        cmocka_unit_test(test_unpack),
        cmocka_unit_test(test_unpack_polar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
