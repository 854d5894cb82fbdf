/* The stages score and accumulate against decoded rows: working on codes is the same as
 * decoding first. */
#include "unit/unit.h"

#include <math.h>
#include <stdio.h>

#include "unit/rows.h"

enum { TOKENS = 32, QUERIES = 3, BYTES = 1 << 16, MAX = 256, STRIDE = 40 };

static const uint32_t dims[] = {32, 80, 96, 128, 256};
static struct unit_rows k, v;
static uint8_t page[BYTES];
static double decoded[TOKENS][MAX];
static const float scale = 0.5f; /* of fp8; others get 1 */

static struct tqi_tile tile_of(const struct tqi_rows *rows, uint32_t first, uint32_t last) {
    struct tqi_tile tile = {.blob = page, .first = first, .last = last, .scale = 1};
    if (rows->layout.kind == TQI_KIND_FP8)
        tile.scale = scale;
    return tile;
}

/* Fills the page and decodes it. */
static void fill(const struct tqi_rows *rows) {
    const struct tqi_level *level = tqi_level_ref();
    float x[4 * MAX + 1024];
    double scratch[2 * MAX + 64];
    struct tqi_tile tile = tile_of(rows, 0, TOKENS);
    for (uint32_t t = 0; t < TOKENS; t++) {
        unit_bell_row(t + 1, rows->layout.dim, x);
        level->encode[rows->format->id].run(rows, 1 / tile.scale, x, page, t);
        level->decode(rows, &tile, t, decoded[t], scratch);
    }
}

static void check_scores(const struct tqi_rows *rows, uint32_t first, uint32_t last) {
    const struct tqi_level *level = tqi_level_ref();
    uint32_t dim = rows->layout.dim;
    float q[QUERIES][MAX];
    double queries[QUERIES * 2 * MAX], scores[QUERIES][STRIDE], scratch[2 * MAX + 64];
    struct tqi_tile tile = tile_of(rows, first, last);
    for (uint32_t r = 0; r < QUERIES; r++) {
        unit_bell_row(r + 77, dim, q[r]);
        level->prepare(rows, q[r], (char *)queries + r * level->query_bytes(rows));
        for (uint32_t t = 0; t < STRIDE; t++)
            scores[r][t] = -123;
    }
    level->score[rows->format->id].run(rows, &tile, queries, QUERIES, STRIDE, scores, scratch);
    for (uint32_t r = 0; r < QUERIES; r++)
        for (uint32_t t = 0; t < STRIDE; t++) {
            double expected = 0, size = 0;
            for (uint32_t i = 0; i < dim && t < last - first; i++) {
                expected += (double)q[r][i] * decoded[first + t][i];
                size += fabs((double)q[r][i] * decoded[first + t][i]);
            }
            if (t >= last - first)
                expected = -123; /* nothing is written there */
            CHECK(fabs(scores[r][t] - expected) <= 1e-13 * size,
                  "%s dim %u row %u token %u: %g, "
                  "not %g",
                  rows->format->name, dim, r, first + t, scores[r][t], expected);
        }
}

static void test_scores(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            unit_page(&k, tqi_format_at(i)->id, &v, TQ_FORMAT_LM4, dims[d], TOKENS, 3);
            assert_true(k.bytes <= BYTES);
            fill(&k.rows);
            check_scores(&k.rows, 0, TOKENS);
            check_scores(&k.rows, 5, 6);
            check_scores(&k.rows, 9, 25);
        }
}

/* Weighted sums in the caller's basis, from any first token; a factor of the state first. */
static void check_sums(const struct tqi_rows *rows, uint32_t first, uint32_t last) {
    const struct tqi_level *level = tqi_level_ref();
    uint32_t dim = rows->layout.dim;
    double weights[QUERIES][STRIDE], memory[QUERIES * (MAX + 8)], scratch[2 * MAX + 64];
    double out[MAX], lse;
    size_t bytes = level->state_bytes(rows);
    struct tqi_tile tile = tile_of(rows, first, last);
    uint64_t seed = first + last;
    for (uint32_t r = 0; r < QUERIES; r++) {
        level->state_clear(rows, (char *)memory + r * bytes);
        for (uint32_t t = 0; t < STRIDE; t++)
            weights[r][t] = t % 4 == r ? 0 : (double)unit_bell(&seed) + 2;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t r = 0; r < QUERIES; r++) {
            struct tqk_state_ref *s = (void *)((char *)memory + r * bytes);
            s->factor = 0.25;
            s->max = 0;
            s->sum = 1;
        }
        level->accumulate[rows->format->id].run(rows, &tile, weights, QUERIES, STRIDE, memory,
                                                bytes, scratch);
    }
    for (uint32_t r = 0; r < QUERIES; r++) {
        level->state_finish(rows, (char *)memory + r * bytes, NULL, out, &lse, scratch);
        for (uint32_t i = 0; i < dim; i++) {
            double expected = 0;
            for (uint32_t t = first; t < last; t++)
                expected += weights[r][t - first] * decoded[t][i];
            expected *= 1.25; /* the first pass counts a quarter */
            CHECK(fabs(out[i] - expected) <= 1e-11, "%s dim %u row %u: %g, not %g",
                  rows->format->name, dim, r, out[i], expected);
        }
    }
}

static void test_sums(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(dims) && (tqi_format_at(i)->roles & TQ_ROLE_V); d++) {
            unit_page(&k, TQ_FORMAT_LM4, &v, tqi_format_at(i)->id, dims[d], TOKENS, 3);
            fill(&v.rows);
            check_sums(&v.rows, 0, TOKENS);
            check_sums(&v.rows, 31, TOKENS);
            check_sums(&v.rows, 3, 20);
        }
}

/* Tokens of probability 0 are not touched: their slots may hold anything, also NaN. */
static void test_zero_weights(void **state) {
    double weights[TOKENS] = {0}, memory[MAX + 8], scratch[2 * MAX + 64], out[MAX], lse;
    (void)state;
    unit_page(&k, TQ_FORMAT_LM4, &v, TQ_FORMAT_BF16, 64, TOKENS, 3);
    fill(&v.rows);
    for (uint32_t t = 1; t < TOKENS; t++)
        for (uint32_t i = 0; i < 64; i++)
            tqi_store16(page + tqi_wide_offset(&v.rows.layout, t, i), 0x7fff);
    struct tqk_state_ref *s = (void *)memory;
    struct tqi_tile tile = tile_of(&v.rows, 0, TOKENS);
    tqk_state_clear_ref(&v.rows, s);
    s->max = 0;
    s->sum = 1;
    weights[0] = 2;
    tqk_accumulate_bf16_ref(&v.rows, &tile, weights, 1, TOKENS, s, sizeof memory, scratch);
    tqk_state_finish_ref(&v.rows, s, NULL, out, &lse, scratch);
    for (uint32_t i = 0; i < 64; i++)
        assert_true(out[i] == 2 * decoded[0][i]);
}

/* Every kernel has a name that says what it is, and every format its kernels. */
static void test_names(void **state) {
    const struct tqi_level *level = tqi_level_ref();
    struct tqi_kernels kernels;
    char name[64];
    (void)state;
    tqi_kernels_select(&kernels, 0);
    assert_int_equal(kernels.n_levels, 1);
    assert_ptr_equal(kernels.level[0], level);
    for (uint32_t i = 0; i < tqi_format_total(); i++) {
        const struct tqi_format *f = tqi_format_at(i);
        (void)snprintf(name, sizeof name, "tqk_encode_%s_ref", f->name);
        assert_string_equal(level->encode[f->id].name, name);
        (void)snprintf(name, sizeof name, "tqk_score_%s_ref", f->name);
        assert_string_equal(level->score[f->id].name, name);
        assert_ptr_equal(tqi_kernels_encode(&kernels, f->id), level);
        int values = (f->roles & TQ_ROLE_V) != 0;
        assert_true((level->accumulate[f->id].run != NULL) == values);
        (void)snprintf(name, sizeof name, "tqk_accumulate_%s_ref", f->name);
        if (values)
            assert_string_equal(level->accumulate[f->id].name, name);
        assert_ptr_equal(tqi_kernels_attend(&kernels, TQ_FORMAT_LM4, f->id), values ? level : NULL);
    }
    /* Numbers in between belong to no format. */
    assert_null(tqi_kernels_encode(&kernels, 8));
    assert_null(tqi_kernels_attend(&kernels, 8, TQ_FORMAT_LM4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_zero_weights),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
