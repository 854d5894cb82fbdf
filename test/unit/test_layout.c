/* spec/layout and spec/codes: every code, sign and gain of every format, side, length and
 * page size has bits of its own, inside its section, and no bit of a section is wasted. */
#include "unit/unit.h"

#include "unit/rows.h"

enum { MAX_BYTES = 1 << 21, MAX_CODES = UNIT_MAX_DIM * UNIT_MAX_TOKENS };

static const uint32_t page_sizes[] = {16, 32, 64, 128, 256};
static uint8_t blob[MAX_BYTES];
static uint32_t codes[MAX_CODES];

/* ---- walking all layouts ---------------------------------------------------------------- */

typedef void layout_test(const struct tqi_layout *l, uint32_t bytes);

/* The layouts of one format at one length: the row form and both sides of pages. */
static void walk_format(const struct tqi_format *f, uint32_t dim, layout_test *test) {
    const struct tqi_format *lm4 = tqi_format_by_id(TQ_FORMAT_LM4);
    struct tqi_layout row;
    struct tqi_page_layout page;
    uint32_t bytes = tqi_row_layout_make(&row, f, dim);
    test(&row, bytes);
    for (size_t p = 0; p < COUNT(page_sizes); p++) {
        if (f->roles & TQ_ROLE_K) {
            tqi_page_layout_make(&page, f, dim, lm4, dim, page_sizes[p]);
            test(&page.k, page.bytes);
        }
        if (f->roles & TQ_ROLE_V) {
            tqi_page_layout_make(&page, lm4, dim, f, dim, page_sizes[p]);
            test(&page.v, page.bytes);
        }
    }
}

static void walk(layout_test *test) {
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(unit_dims); d++)
            walk_format(tqi_format_at(i), unit_dims[d], test);
}

/* Position n of a walk through all (token, dim) in an order without a pattern. */
static uint32_t shuffled(const struct tqi_layout *l, uint32_t n) {
    return (uint32_t)((uint64_t)n * 7919 % (l->tokens * l->dim));
}

static uint32_t count_bits(const uint8_t *bytes, size_t n) {
    uint32_t bits = 0;
    uint64_t word;
    size_t i = 0;
    for (; i + sizeof word <= n; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        bits += (uint32_t)__builtin_popcountll(word);
    }
    for (; i < n; i++)
        bits += (uint32_t)__builtin_popcount(bytes[i]);
    return bits;
}

/* All bits set so far lie in [from, from + size), and there are `expected` of them. */
static void check_filled(const char *what, uint32_t bytes, uint32_t from, uint32_t size,
                         uint32_t expected) {
    CHECK(count_bits(blob + from, size) == expected, "%s: %u bits, not %u", what,
          count_bits(blob + from, size), expected);
    CHECK(count_bits(blob, bytes) == expected, "%s: bits outside the section", what);
}

/* ---- sections --------------------------------------------------------------------------- */

struct section {
    uint32_t at, size;
};

/* Sections follow each other, aligned and inside the blob. */
static void check_order(const struct section *s, int n, uint32_t align, uint32_t bytes) {
    uint32_t end = 0;
    for (int i = 0; i < n; i++) {
        if (s[i].size == 0)
            continue;
        CHECK(s[i].at >= end && s[i].at - end < (align ? align : 1), "section %d", i);
        CHECK(!align || s[i].at % align == 0, "section %d is not aligned", i);
        end = s[i].at + s[i].size;
    }
    assert_true(end <= bytes && bytes - end < 128);
}

static void check_sizes(const struct tqi_layout *l, const struct tqi_format *f) {
    uint32_t coded = l->tokens * l->dim_pad, per_16 = l->tokens * (l->dim_pad / 16);
    assert_int_equal(l->dim_pad, (l->dim + 31) / 32 * 32);
    if (f->kind == TQI_KIND_POLAR) /* 46 bits of 16 dims, whole bytes of each level */
        assert_int_equal(l->codes_size, per_16 * 5 + (per_16 + 1) / 2 + (per_16 + 3) / 4);
    else
        assert_int_equal(l->codes_size, coded * f->bits / 8);
    assert_int_equal(l->sketch_size, f->sketch ? coded / 8 : 0);
    assert_int_equal(l->sketch_gains_size, f->sketch ? 2 * l->tokens : 0);
    assert_int_equal(l->gains_size, f->kind == TQI_KIND_POLAR ? 2 * per_16
                                    : f->kind == TQI_KIND_LM || f->kind == TQI_KIND_INT8
                                        ? 2 * l->tokens
                                        : 0);
}

static void check_page(const struct tqi_format *k, const struct tqi_format *v, uint32_t dim,
                       uint32_t tokens) {
    struct tqi_page_layout p;
    tqi_page_layout_make(&p, k, dim, v, dim, tokens);
    const struct section s[] = {{p.k.codes, p.k.codes_size},
                                {p.k.sketch, p.k.sketch_size},
                                {p.v.codes, p.v.codes_size},
                                {p.k.gains, p.k.gains_size},
                                {p.k.sketch_gains, p.k.sketch_gains_size},
                                {p.v.gains, p.v.gains_size}};
    check_sizes(&p.k, k);
    check_sizes(&p.v, v);
    check_order(s, 6, 16, p.bytes);
    assert_int_equal(p.bytes % 128, 0);
    assert_int_equal(p.v.sketch_size, 0);
}

static void test_sections(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (uint32_t j = 0; j < tqi_format_total(); j++) {
            const struct tqi_format *k = tqi_format_at(i), *v = tqi_format_at(j);
            for (size_t d = 0; d < COUNT(unit_dims) && (v->roles & TQ_ROLE_V); d++)
                for (size_t p = 0; p < COUNT(page_sizes); p++)
                    check_page(k, v, unit_dims[d], page_sizes[p]);
        }
}

static void test_row_sections(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; d < COUNT(unit_dims); d++) {
            struct tqi_layout l;
            uint32_t bytes = tqi_row_layout_make(&l, tqi_format_at(i), unit_dims[d]);
            const struct section s[] = {{l.codes, l.codes_size},
                                        {l.sketch, l.sketch_size},
                                        {l.gains, l.gains_size},
                                        {l.sketch_gains, l.sketch_gains_size}};
            check_sizes(&l, tqi_format_at(i));
            check_order(s, 4, 0, bytes);
            assert_int_equal(bytes, s[0].size + s[1].size + s[2].size + s[3].size);
        }
}

/* K and V of different lengths: each side is what it is in a page of its own length. */
static void test_sides_are_independent(void **state) {
    const struct tqi_format *k = tqi_format_by_id(TQ_FORMAT_LM3_QJL);
    const struct tqi_format *v = tqi_format_by_id(TQ_FORMAT_LM4);
    struct tqi_page_layout both, k_only, v_only;
    (void)state;
    tqi_page_layout_make(&both, k, 192, v, 80, 32);
    tqi_page_layout_make(&k_only, k, 192, v, 192, 32);
    tqi_page_layout_make(&v_only, k, 80, v, 80, 32);
    assert_int_equal(both.k.codes_size, k_only.k.codes_size);
    assert_int_equal(both.k.dim_pad, 192);
    assert_int_equal(both.v.codes_size, v_only.v.codes_size);
    assert_int_equal(both.v.dim_pad, 96);
}

/* Bytes of a row at dim 128, from the table of formats. */
static void test_row_bytes(void **state) {
    static const uint32_t expected[][2] = {
        {TQ_FORMAT_BF16, 256},   {TQ_FORMAT_F16, 256},    {TQ_FORMAT_FP8, 128},
        {TQ_FORMAT_INT8, 130},   {TQ_FORMAT_LM4, 66},     {TQ_FORMAT_LM3, 50},
        {TQ_FORMAT_LM2, 34},     {TQ_FORMAT_POLAR, 62},   {TQ_FORMAT_POLAR_QJL, 80},
        {TQ_FORMAT_LM3_QJL, 68}, {TQ_FORMAT_LM2_QJL, 52},
    };
    struct tqi_layout row;
    (void)state;
    assert_int_equal(COUNT(expected), tqi_format_total());
    for (size_t i = 0; i < COUNT(expected); i++) {
        const struct tqi_format *f = tqi_format_by_id(expected[i][0]);
        CHECK(tqi_row_layout_make(&row, f, 128) == expected[i][1], "%s", f->name);
    }
}

/* Blobs of 64 tokens at dim 128, from the measurements that chose the layout. */
static void test_blob_bytes(void **state) {
    static const uint32_t expected[][3] = {
        {TQ_FORMAT_LM4, TQ_FORMAT_LM4, 8448},    {TQ_FORMAT_LM3, TQ_FORMAT_LM3, 6400},
        {TQ_FORMAT_LM3, TQ_FORMAT_LM4, 7424},    {TQ_FORMAT_INT8, TQ_FORMAT_INT8, 16640},
        {TQ_FORMAT_FP8, TQ_FORMAT_FP8, 16384},   {TQ_FORMAT_LM2, TQ_FORMAT_LM2, 4352},
        {TQ_FORMAT_BF16, TQ_FORMAT_BF16, 32768},
    };
    struct tqi_page_layout page;
    (void)state;
    for (size_t i = 0; i < COUNT(expected); i++) {
        tqi_page_layout_make(&page, tqi_format_by_id(expected[i][0]), 128,
                             tqi_format_by_id(expected[i][1]), 128, 64);
        assert_int_equal(page.bytes, expected[i][2]);
    }
}

/* ---- 2, 3 and 4 bits --------------------------------------------------------------------- */

/* N codes read back whatever they are, from exactly N * bits bits: so each has its own. */
static void check_small(const struct tqi_layout *l, uint32_t bytes) {
    uint32_t n = l->tokens * l->dim, mask = (1u << l->bits) - 1;
    uint64_t seed = n + l->bits;
    if (l->kind != TQI_KIND_LM)
        return;
    memset(blob, 0, bytes);
    for (uint32_t i = 0; i < n; i++)
        tqi_put_code(l, blob, i / l->dim, i % l->dim, mask);
    check_filled("codes", bytes, l->codes, l->codes_size, n * l->bits);
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = pass; i < n; i += 1 + pass) {
            /* The second pass writes every other code again: neighbours must stay. */
            uint32_t at = shuffled(l, i);
            codes[at] = (uint32_t)unit_random(&seed) & mask;
            tqi_put_code(l, blob, at / l->dim, at % l->dim, codes[at]);
        }
    for (uint32_t i = 0; i < n; i++)
        CHECK(tqi_get_code(l, blob, i / l->dim, i % l->dim) == codes[i],
              "side %u dim %u tokens %u bits %u: token %u dim %u", l->side, l->dim, l->tokens,
              l->bits, i / l->dim, i % l->dim);
    check_filled("codes", bytes, l->codes, l->codes_size, count_bits(blob, bytes));
}

static void test_small_codes(void **state) {
    (void)state;
    walk(check_small);
}

/* One code at a time: it changes its own number of bits and gives them back. Whether bits of
 * the rest of the blob change too is asked once, for a full blob, above. */
static void check_one_by_one(const struct tqi_layout *l, uint32_t bytes) {
    if (l->kind != TQI_KIND_LM || l->tokens > 32)
        return;
    memset(blob, 0, bytes);
    for (uint32_t i = 0; i < l->tokens * l->dim; i++) {
        uint32_t token = i / l->dim, dim = i % l->dim;
        for (uint32_t bit = 0; bit < l->bits; bit++) {
            tqi_put_code(l, blob, token, dim, 1u << bit);
            CHECK(count_bits(blob + l->codes, l->codes_size) == 1, "token %u dim %u bit %u", token,
                  dim, bit);
        }
        tqi_put_code(l, blob, token, dim, 0);
        CHECK(count_bits(blob + l->codes, l->codes_size) == 0, "token %u dim %u", token, dim);
    }
}

static void test_one_code_at_a_time(void **state) {
    (void)state;
    for (uint32_t i = 0; i < tqi_format_total(); i++)
        for (size_t d = 0; unit_dims[d] <= 112; d++)
            walk_format(tqi_format_at(i), unit_dims[d], check_one_by_one);
}

/* ---- 8 and 16 bits, signs of the sketch, polar codes ------------------------------------- */

static void check_wide(const struct tqi_layout *l, uint32_t bytes) {
    uint32_t width = l->bits / 8;
    if (l->kind == TQI_KIND_LM || l->kind == TQI_KIND_POLAR)
        return;
    memset(blob, 0, bytes);
    for (uint32_t i = 0; i < l->tokens * l->dim; i++) {
        size_t at = tqi_wide_offset(l, i / l->dim, i % l->dim);
        CHECK(at >= l->codes && at + width <= l->codes + l->codes_size && at % width == 0,
              "token %u dim %u at %zu", i / l->dim, i % l->dim, at);
        for (uint32_t b = 0; b < width; b++) {
            CHECK(blob[at + b] == 0, "token %u dim %u shares byte %zu", i / l->dim, i % l->dim, at);
            blob[at + b] = 0xff;
        }
    }
    check_filled("wide codes", bytes, l->codes, l->codes_size, l->tokens * l->dim * l->bits);
}

static void test_wide_codes(void **state) {
    (void)state;
    walk(check_wide);
}

static void check_sketch(const struct tqi_layout *l, uint32_t bytes) {
    uint32_t n = l->tokens * l->dim;
    uint64_t seed = n;
    if (!l->sketch_size)
        return;
    memset(blob, 0, bytes);
    for (uint32_t i = 0; i < n; i++)
        tqi_put_sketch(l, blob, i / l->dim, i % l->dim, 1);
    check_filled("sketch", bytes, l->sketch, l->sketch_size, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = shuffled(l, i);
        codes[at] = (uint32_t)unit_random(&seed) & 1;
        tqi_put_sketch(l, blob, at / l->dim, at % l->dim, codes[at]);
    }
    for (uint32_t i = 0; i < n; i++)
        CHECK(tqi_get_sketch(l, blob, i / l->dim, i % l->dim) == codes[i], "sign %u", i);
}

static void test_sketch_signs(void **state) {
    (void)state;
    walk(check_sketch);
}

static struct tqi_polar_codes polar_of(uint32_t hash) {
    struct tqi_polar_codes c = {hash * 2654435761u, (uint8_t)(hash * 97u),
                                (uint8_t)(hash * 31u % 16u), (uint8_t)(hash * 7u % 4u)};
    return c;
}

static void check_polar(const struct tqi_layout *l, uint32_t bytes) {
    uint32_t blocks = l->dim_pad / TQI_POLAR_BLOCK, n = l->tokens * blocks;
    const struct tqi_polar_codes full = {0xffffffffu, 0xff, 0xf, 0x3};
    if (l->kind != TQI_KIND_POLAR)
        return;
    memset(blob, 0, bytes);
    memset(codes, 0, n * sizeof *codes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t element = tqi_polar_element(l, i / blocks, i % blocks);
        CHECK(element < n && codes[element]++ == 0, "element %u of %u", element, n);
        tqi_put_polar(l, blob, i / blocks, i % blocks, full);
    }
    check_filled("polar codes", bytes, l->codes, l->codes_size, n * 46);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)((uint64_t)i * 7919 % n);
        tqi_put_polar(l, blob, at / blocks, at % blocks, polar_of(at));
    }
    for (uint32_t i = 0; i < n; i++) {
        struct tqi_polar_codes c = tqi_get_polar(l, blob, i / blocks, i % blocks), e = polar_of(i);
        CHECK(c.level1 == e.level1 && c.level2 == e.level2 && c.level3 == e.level3 &&
                  c.level4 == e.level4,
              "block %u", i);
    }
}

static void test_polar_codes(void **state) {
    (void)state;
    walk(check_polar);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_row_sections),
        cmocka_unit_test(test_sides_are_independent),
        cmocka_unit_test(test_row_bytes),
        cmocka_unit_test(test_blob_bytes),
        cmocka_unit_test(test_small_codes),
        cmocka_unit_test(test_one_code_at_a_time),
        cmocka_unit_test(test_wide_codes),
        cmocka_unit_test(test_sketch_signs),
        cmocka_unit_test(test_polar_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
