/* The softmax stage and the states: tiles and splits against plain softmax in double. */
#include "unit/unit.h"

#include <math.h>

#include "unit/rows.h"

enum { DIM = 32, PAGE = 16, TOKENS = 200, ROWS = 3, MAX_STATE = 4096 };

static struct unit_rows k, v;
static double values[TOKENS][DIM]; /* small integers: exact in f16 */
static double scores[ROWS][TOKENS];
static uint8_t pages[(TOKENS + PAGE - 1) / PAGE][1 << 13];

static const struct tqi_sight all[ROWS] = {{0, TOKENS}, {0, TOKENS}, {0, TOKENS}};

static void fill(uint64_t seed, double spread) {
    float row[DIM + 1024];
    unit_page(&k, TQ_FORMAT_F16, &v, TQ_FORMAT_F16, DIM, PAGE, 1);
    assert_true(v.bytes <= sizeof pages[0]);
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t i = 0; i < DIM; i++) {
            values[t][i] = (double)unit_below(&seed, 64) - 32;
            row[i] = (float)values[t][i];
        }
        tqk_encode_f16_ref(&v.rows, 1, row, pages[t / PAGE], t % PAGE);
    }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t t = 0; t < TOKENS; t++)
            scores[r][t] = (double)unit_bell(&seed) * spread;
}

/* ---- plain ------------------------------------------------------------------------------- */

/* Softmax over the tokens of a span. */
static void plain(uint32_t r, struct tqi_sight seen, double scale, double *out, double *lse) {
    double max = -INFINITY, sum = 0;
    for (uint32_t t = seen.first; t < seen.last; t++)
        max = fmax(max, scores[r][t] * scale);
    memset(out, 0, DIM * sizeof *out);
    for (uint32_t t = seen.first; t < seen.last; t++) {
        double p = exp(scores[r][t] * scale - max);
        sum += p;
        for (uint32_t i = 0; i < DIM; i++)
            out[i] += p * values[t][i];
    }
    for (uint32_t i = 0; i < DIM && !tqi_sight_empty(seen); i++)
        out[i] /= sum;
    *lse = tqi_sight_empty(seen) ? -INFINITY : max + log(sum);
}

/* ---- by tiles ------------------------------------------------------------------------------ */

struct states {
    size_t bytes;
    double memory[ROWS * MAX_STATE / sizeof(double)];
};

static void *state_of(struct states *s, uint32_t r) {
    return (char *)s->memory + r * s->bytes;
}

static void clear(struct states *s) {
    s->bytes = tqk_state_bytes_ref(&v.rows);
    assert_true(s->bytes <= MAX_STATE);
    for (uint32_t r = 0; r < ROWS; r++)
        tqk_state_clear_ref(&v.rows, state_of(s, r));
}

/* The part of [from, to) that is in a span, counted from `from`. */
static struct tqi_sight part_of(struct tqi_sight seen, uint32_t from, uint32_t to) {
    uint32_t first = seen.first < from ? from : seen.first < to ? seen.first : to;
    uint32_t last = seen.last < from ? from : seen.last < to ? seen.last : to;
    return (struct tqi_sight){first - from, last - from};
}

/* Takes in tokens [from, to) of one page; row r sees seen[r] of all tokens. */
static void take_tile(struct states *s, uint32_t from, uint32_t to, const struct tqi_sight *seen,
                      double scale) {
    double tile_scores[ROWS][PAGE], scratch[2 * DIM + 64];
    struct tqi_sight here[ROWS];
    struct tqi_tile tile = {.blob = pages[from / PAGE], .scale = 1};
    tile.first = from % PAGE;
    tile.last = tile.first + to - from;
    for (uint32_t r = 0; r < ROWS; r++) {
        here[r] = part_of(seen[r], from, to);
        for (uint32_t t = from; t < to; t++)
            tile_scores[r][t - from] = scores[r][t];
    }
    tqk_softmax_ref(s->memory, s->bytes, tile_scores, PAGE, here, ROWS, to - from, scale);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t t = 0; t < to - from; t++)
            assert_true(tile_scores[r][t] == 0 || (t >= here[r].first && t < here[r].last));
    tqk_accumulate_f16_ref(&v.rows, &tile, tile_scores, ROWS, PAGE, s->memory, s->bytes, scratch);
}

/* Tokens [from, to) in tiles of random sizes that do not cross pages. */
static void take(struct states *s, uint32_t from, uint32_t to, const struct tqi_sight *seen,
                 double scale, uint64_t *seed) {
    while (from < to) {
        uint32_t end = from + 1 + unit_below(seed, PAGE);
        uint32_t page_end = (from / PAGE + 1) * PAGE;
        end = end < page_end ? end : page_end;
        end = end < to ? end : to;
        take_tile(s, from, end, seen, scale);
        from = end;
    }
}

static void check_row(struct states *s, uint32_t r, struct tqi_sight seen, double scale) {
    double out[DIM], expected[DIM], lse, expected_lse, scratch[64];
    tqk_state_finish_ref(&v.rows, state_of(s, r), NULL, out, &lse, scratch);
    plain(r, seen, scale, expected, &expected_lse);
    CHECK(lse == expected_lse || fabs(lse - expected_lse) < 1e-12, "lse %g, not %g", lse,
          expected_lse);
    for (uint32_t i = 0; i < DIM; i++)
        CHECK(fabs(out[i] - expected[i]) < 1e-12, "row %u dim %u: %.17g, not %.17g", r, i, out[i],
              expected[i]);
}

static void test_tiles(void **state) {
    struct states s;
    uint64_t seed = 1;
    (void)state;
    for (int pass = 0; pass < 40; pass++) {
        uint32_t start = unit_below(&seed, TOKENS);
        struct tqi_sight seen[ROWS] = {{0, TOKENS}, {0, unit_below(&seed, TOKENS)}, {0, pass & 1}};
        if (pass % 5 == 4) { /* as with a window */
            seen[0].first = start;
            seen[1] = (struct tqi_sight){start, start + unit_below(&seed, TOKENS - start)};
        }
        double scale = pass % 4 == 3 ? -0.5 : 0.125;
        fill(seed, pass % 3 == 2 ? 500 : 20);
        clear(&s);
        take(&s, 0, TOKENS, seen, scale, &seed);
        for (uint32_t r = 0; r < ROWS; r++)
            check_row(&s, r, seen[r], scale);
    }
}

/* Scores far outside of exp()'s range: only differences count. */
static void test_large_scores(void **state) {
    struct states s;
    uint64_t seed = 2;
    (void)state;
    for (int shift = -1; shift <= 1; shift++) {
        fill(3, 10);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t t = 0; t < TOKENS; t++)
                scores[r][t] += shift * 1e5 * (r + 1);
        clear(&s);
        take(&s, 0, TOKENS, all, 1, &seed);
        for (uint32_t r = 0; r < ROWS; r++) {
            double out[DIM], expected[DIM], lse, expected_lse, scratch[64];
            tqk_state_finish_ref(&v.rows, state_of(&s, r), NULL, out, &lse, scratch);
            plain(r, all[r], 1, expected, &expected_lse);
            assert_true(fabs(lse - expected_lse) < 1e-9);
            for (uint32_t i = 0; i < DIM; i++)
                assert_true(fabs(out[i] - expected[i]) < 1e-9);
        }
    }
}

/* ---- softcap ------------------------------------------------------------------------------- */

static void test_softcap(void **state) {
    static const double caps[] = {1e-3, 0.5, 30, 1e9};
    uint64_t seed = 3;
    (void)state;
    for (size_t c = 0; c < COUNT(caps); c++)
        for (double scale = -0.5; scale < 2; scale += 0.75) {
            double capped[ROWS][PAGE], shift[ROWS] = {0, 2 * unit_bell(&seed), -300};
            fill(seed, 20);
            for (uint32_t r = 0; r < ROWS; r++)
                memcpy(capped[r], scores[r], sizeof capped[r]);
            tqk_softcap_ref(capped, PAGE, shift, ROWS, PAGE - 1, scale, caps[c]);
            for (uint32_t r = 0; r < ROWS; r++) {
                for (uint32_t t = 0; t < PAGE - 1; t++) {
                    double want = caps[c] * tanh((scale * scores[r][t] + shift[r]) / caps[c]);
                    CHECK(capped[r][t] == want, "%g, not %g", capped[r][t], want);
                }
                assert_true(capped[r][PAGE - 1] == scores[r][PAGE - 1]);
            }
        }
}

/* What is not finite would become the cap: it must show instead. */
static void test_softcap_not_finite(void **state) {
    const double bad[] = {-INFINITY, INFINITY, NAN}, none[1] = {0};
    (void)state;
    for (uint32_t b = 0; b < 3; b++) {
        double row[2] = {1, bad[b]}, one[1] = {1};
        tqk_softcap_ref(row, 2, none, 1, 2, 1, 10);
        assert_true(isnan(row[1]) && row[0] < 1);
        tqk_softcap_ref(one, 1, &bad[b], 1, 1, 1, 10);
        assert_true(isnan(one[0]));
    }
}

/* ---- splits ---------------------------------------------------------------------------------- */

static void test_splits_in_order(void **state) {
    uint64_t seed = 4;
    (void)state;
    for (int pass = 0; pass < 40; pass++) {
        const struct tqi_sight seen[ROWS] = {
            {unit_below(&seed, 100), TOKENS}, {0, unit_below(&seed, TOKENS)}, {0, 19}};
        struct states whole, part;
        uint32_t from = 0;
        fill(seed, 30);
        clear(&whole);
        while (from < TOKENS) {
            uint32_t to = from + unit_below(&seed, 90); /* empty splits too */
            to = to < TOKENS ? to : TOKENS;
            clear(&part);
            take(&part, from, to, seen, 0.25, &seed);
            for (uint32_t r = 0; r < ROWS; r++)
                tqk_state_merge_ref(&v.rows, state_of(&whole, r), state_of(&part, r));
            from = to;
        }
        for (uint32_t r = 0; r < ROWS; r++)
            check_row(&whole, r, seen[r], 0.25);
    }
}

/* Sum, maximum and accumulator, without the factor, which is only for the next tile. */
static int same_state(const struct tqk_state_ref *a, const struct tqk_state_ref *b) {
    return a->max == b->max && a->sum == b->sum && !memcmp(a->acc, b->acc, DIM * sizeof *a->acc);
}

/* An empty state on either side changes no bit. */
static void test_empty_is_neutral(void **state) {
    const struct tqi_sight seen[ROWS] = {{0, TOKENS}, {3, 7}, {0, 1}};
    struct states full, copy, empty;
    uint64_t seed = 5;
    (void)state;
    fill(6, 30);
    clear(&full);
    take(&full, 0, TOKENS, seen, 1, &seed);
    memcpy(&copy, &full, sizeof full);
    for (uint32_t r = 0; r < ROWS; r++) {
        clear(&empty);
        tqk_state_merge_ref(&v.rows, state_of(&copy, r), state_of(&empty, r));
        assert_true(same_state(state_of(&copy, r), state_of(&full, r)));
        tqk_state_merge_ref(&v.rows, state_of(&empty, r), state_of(&full, r));
        assert_true(same_state(state_of(&empty, r), state_of(&full, r)));
    }
}

static void test_empty(void **state) {
    const struct tqi_sight nothing[ROWS] = {{0, 0}, {TOKENS, TOKENS}, {9, 9}};
    const float mean[DIM] = {1, 2, 3};
    struct states a, b;
    double out[DIM], lse, scratch[64];
    uint64_t seed = 6;
    (void)state;
    fill(7, 30);
    clear(&a);
    clear(&b);
    take(&a, 0, TOKENS, nothing, 1, &seed); /* tokens, but none is seen */
    for (uint32_t r = 0; r < ROWS; r++) {
        tqk_state_merge_ref(&v.rows, state_of(&a, r), state_of(&b, r));
        out[0] = NAN;
        /* The mean is not added either. */
        tqk_state_finish_ref(&v.rows, state_of(&a, r), mean, out, &lse, scratch);
        assert_true(lse == -INFINITY);
        for (uint32_t i = 0; i < DIM; i++)
            assert_true(out[i] == 0);
    }
}

static void test_mean_is_added(void **state) {
    struct states s;
    float mean[DIM];
    double with[DIM], without[DIM], lse, scratch[64];
    uint64_t seed = 7;
    (void)state;
    fill(8, 30);
    for (uint32_t i = 0; i < DIM; i++)
        mean[i] = (float)i / 4;
    clear(&s);
    take(&s, 0, TOKENS, all, 1, &seed);
    tqk_state_finish_ref(&v.rows, state_of(&s, 0), mean, with, &lse, scratch);
    tqk_state_finish_ref(&v.rows, state_of(&s, 0), NULL, without, &lse, scratch);
    for (uint32_t i = 0; i < DIM; i++)
        assert_true(with[i] == without[i] + (double)mean[i]);
}

/* ---- NaN ------------------------------------------------------------------------------------- */

/* A NaN score spoils its row, wherever it stands, and no other row. */
static void test_nan(void **state) {
    static const uint32_t places[] = {0, 1, 15, 16, 100, TOKENS - 1};
    (void)state;
    for (size_t p = 0; p < COUNT(places); p++)
        for (int splits = 1; splits <= 2; splits++) {
            struct states s, second;
            double out[DIM], lse, scratch[64];
            uint64_t seed = p;
            fill(9, 30);
            scores[1][places[p]] = NAN;
            clear(&s);
            clear(&second);
            take(&s, 0, TOKENS / (uint32_t)splits, all, 1, &seed);
            take(&second, TOKENS / (uint32_t)splits, TOKENS, all, 1, &seed);
            for (uint32_t r = 0; r < ROWS; r++)
                tqk_state_merge_ref(&v.rows, state_of(&s, r), state_of(&second, r));
            check_row(&s, 0, all[0], 1);
            check_row(&s, 2, all[2], 1);
            tqk_state_finish_ref(&v.rows, state_of(&s, 1), NULL, out, &lse, scratch);
            assert_true(isnan(lse));
            for (uint32_t i = 0; i < DIM; i++)
                assert_true(isnan(out[i]));
        }
}

/* Beyond what a row sees a NaN does nothing. */
static void test_nan_unseen(void **state) {
    const struct tqi_sight seen[ROWS] = {{20, 50}, {20, 50}, {20, 50}};
    struct states s;
    uint64_t seed = 10;
    (void)state;
    fill(11, 30);
    for (uint32_t t = 0; t < TOKENS; t++)
        scores[0][t] = t < 20 || t >= 50 ? NAN : scores[0][t];
    clear(&s);
    take(&s, 0, TOKENS, seen, 1, &seed);
    check_row(&s, 0, seen[0], 1);
}

/* Codes are finite: a score that is not tells of a query that is not, and spoils its row
 * wherever it stands, and no other row. */
static void test_not_finite(void **state) {
    const double bad[] = {-INFINITY, INFINITY, NAN};
    (void)state;
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t t = 0; t < TOKENS; t += TOKENS - 1) {
            struct states s;
            uint64_t seed = 12;
            fill(13, 30);
            scores[2][t] = bad[b];
            clear(&s);
            take_tile(&s, 0, PAGE, all, 1);
            take(&s, PAGE, TOKENS, all, 1, &seed);
            const struct tqk_state_ref *spoiled = state_of(&s, 2);
            assert_true(isnan(spoiled->max));
            check_row(&s, 1, all[1], 1);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_softcap_not_finite),
        cmocka_unit_test(test_splits_in_order),
        cmocka_unit_test(test_empty_is_neutral),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_mean_is_added),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_nan_unseen),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
