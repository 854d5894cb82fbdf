/* Moving tokens between blobs, and codes eight at a time, against the placement of single
 * codes: every format, dims that fill groups and that do not, every page size. */
#include "unit/unit.h"

#include "page/move.h"
#include "spec/codes.h"

enum { BYTES = 1 << 17 };

static uint8_t from[BYTES], to[BYTES], expected[BYTES];
static uint64_t seed = 1;

static void randomize(uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)unit_random(&seed);
}

/* ---- words ------------------------------------------------------------------------------- */

static uint32_t word_of_codes(const struct tqi_layout *l, uint32_t token, uint32_t dim) {
    uint32_t word = 0;
    for (uint32_t n = 0; n < 8; n++)
        word |= tqi_get_code(l, to, token, dim + n) << 4 * n;
    return word;
}

static void check_word(const struct tqi_layout *l, uint32_t token, uint32_t dim) {
    struct tqi_place p = tqi_place_k(l, token, dim);
    uint32_t before = word_of_codes(l, token, dim), limit = ((1u << l->bits) - 1) * 0x11111111u;
    uint32_t codes = (uint32_t)unit_random(&seed) & limit, mask = 0;
    assert_int_equal(tqi_get_word(l, to, p.word, p.lane), before);
    for (uint32_t n = 0; n < 8; n++)
        mask |= unit_below(&seed, 2) * 0xfu << 4 * n;
    memcpy(expected, to, BYTES);
    for (uint32_t n = 0; n < 8; n++)
        if (mask >> 4 * n & 1)
            tqi_put_code(l, expected, token, dim + n, codes >> 4 * n & 0xf);
    tqi_put_word(l, to, p.word, p.lane, codes, mask);
    CHECK(memcmp(to, expected, BYTES) == 0, "%u bits, dim %u of %u", l->bits, dim, l->dim);
}

static void test_words(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_LM4, TQ_FORMAT_LM3, TQ_FORMAT_LM2};
    static const uint32_t dims[] = {32, 64, 96, 128, 160, 224};
    (void)state;
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t d = 0; d < COUNT(dims); d++)
            for (uint32_t tokens = 16; tokens <= 64; tokens *= 4) {
                struct tqi_page_layout page;
                const struct tqi_format *format = tqi_format_by_id(formats[f]);
                tqi_page_layout_make(&page, format, dims[d], format, dims[d], tokens);
                randomize(to, page.bytes);
                for (uint32_t dim = 0; dim < dims[d]; dim += 8)
                    check_word(&page.k, unit_below(&seed, tokens), dim);
            }
}

/* ---- moves ------------------------------------------------------------------------------- */

static void expect_code(const struct tqi_layout *l, uint32_t to_token, uint32_t from_token,
                        uint32_t dim) {
    if (l->bits < 8)
        tqi_put_code(l, expected, to_token, dim, tqi_get_code(l, from, from_token, dim));
    else
        memcpy(expected + tqi_wide_offset(l, to_token, dim),
               from + tqi_wide_offset(l, from_token, dim), l->bits / 8);
    if (l->sketch_size)
        tqi_put_sketch(l, expected, to_token, dim, tqi_get_sketch(l, from, from_token, dim));
}

static void expect_side(const struct tqi_layout *l, uint32_t to_token, uint32_t from_token) {
    int polar = l->kind == TQI_KIND_POLAR;
    for (uint32_t dim = 0; dim < l->dim_pad && !polar; dim++)
        expect_code(l, to_token, from_token, dim);
    for (uint32_t block = 0; polar && block < l->dim_pad / 16; block++) {
        tqi_put_polar(l, expected, to_token, block, tqi_get_polar(l, from, from_token, block));
        memcpy(expected + l->gains + (size_t)tqi_polar_element(l, to_token, block) * 2,
               from + l->gains + (size_t)tqi_polar_element(l, from_token, block) * 2, 2);
    }
    for (uint32_t dim = 0; polar && l->sketch_size && dim < l->dim_pad; dim++)
        tqi_put_sketch(l, expected, to_token, dim, tqi_get_sketch(l, from, from_token, dim));
    if (!polar && l->gains_size)
        memcpy(expected + l->gains + to_token * 2, from + l->gains + from_token * 2, 2);
    if (l->sketch_gains_size)
        memcpy(expected + l->sketch_gains + to_token * 2, from + l->sketch_gains + from_token * 2,
               2);
}

static void check_move(const struct tqi_page_layout *page, const char *what, uint32_t to_token,
                       uint32_t from_token, uint32_t n) {
    randomize(from, page->bytes);
    randomize(to, page->bytes);
    memcpy(expected, to, page->bytes);
    for (uint32_t i = 0; i < n; i++) {
        expect_side(&page->k, to_token + i, from_token + i);
        expect_side(&page->v, to_token + i, from_token + i);
    }
    tqi_blob_move(page, to, to_token, from, from_token, n);
    CHECK(memcmp(to, expected, page->bytes) == 0, "%s, dims %u and %u, %u tokens from %u to %u",
          what, page->k.dim, page->v.dim, n, from_token, to_token);
}

static void check_moves(const struct tqi_page_layout *page, const char *what) {
    uint32_t tokens = page->k.tokens;
    check_move(page, what, 0, 0, tokens);
    check_move(page, what, 0, 1, tokens - 1);
    check_move(page, what, tokens - 1, 0, 1);
    check_move(page, what, 3, 3, 0);
    check_move(page, what, 8, 0, 8);
    for (int i = 0; i < 12; i++) {
        uint32_t a = unit_below(&seed, tokens), b = unit_below(&seed, tokens);
        uint32_t most = tokens - (a > b ? a : b);
        check_move(page, what, a, b, 1 + unit_below(&seed, most));
    }
}

static const struct tqi_format *value_format(const struct tqi_format *key) {
    return key->roles & TQ_ROLE_V ? key : tqi_format_by_id(TQ_FORMAT_LM3);
}

static void test_moves(void **state) {
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 160, 192, 256};
    (void)state;
    for (uint32_t f = 0; f < tqi_format_total(); f++)
        for (size_t d = 0; d < COUNT(dims); d++)
            for (uint32_t tokens = 16; tokens <= 128; tokens *= 2) {
                const struct tqi_format *k = tqi_format_at(f), *v = value_format(k);
                struct tqi_page_layout page;
                tqi_page_layout_make(&page, k, dims[d], v, dims[(d + 3) % COUNT(dims)], tokens);
                assert_true(page.bytes <= BYTES);
                check_moves(&page, k->name);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
