/* The page of 64 tokens at dim 128 against its formulas, stated again from the measurements
 * that chose them: words of 32 bits in slabs of 512 bytes, [lane 0..31][4 words], lane
 * 4g + t. Slabs of one group of 32 tokens are adjacent. */
#include "unit/unit.h"

#include "unit/rows.h"

enum { TOKENS = 64, DIM = 128, SLAB = 512, BYTES = 1 << 16 };

static uint8_t expected[BYTES], written[BYTES];
static struct unit_rows k, v;

/* A random code of every (token, dim), 8 or 16 bits wide or less. */
static uint32_t code_of(uint32_t token, uint32_t dim, uint32_t bits) {
    uint64_t seed = token * 1000 + dim;
    return (uint32_t)unit_random(&seed) & ((1u << bits) - 1);
}

static void set_bit(size_t section, uint32_t slab, uint32_t g, uint32_t t, uint32_t word,
                    uint32_t bit, uint32_t value) {
    size_t byte = section + (size_t)slab * SLAB + (4 * g + t) * 16 + word * 4 + bit / 8;
    expected[byte] = (uint8_t)(expected[byte] | (value & 1) << bit % 8);
}

/* Where a token and dim are: key words are 8 dims of a token, value words 8 tokens. */
struct at {
    uint32_t r4, g, t, word; /* group of 32 tokens, lane 4g + t, word of the lane */
    uint32_t slab;           /* j of keys, x of values */
    uint32_t n;              /* nibble of the word */
};

static struct at key_at(uint32_t token, uint32_t dim) {
    struct at a = {token / 32, token % 32 / 4,      dim / (DIM / 4),
                   token % 4,  dim % (DIM / 4) / 8, dim % 8};
    return a;
}

static struct at value_at(uint32_t token, uint32_t dim) {
    static const uint32_t order[8] = {0, 1, 4, 5, 2, 3, 6, 7}; /* token of nibble n */
    struct at a = {token / 32, dim / (DIM / 8), token % 32 / 8, dim % 4, dim % (DIM / 8) / 4, 0};
    while (order[a.n] != token % 8)
        a.n++;
    return a;
}

/* ---- the formulas, by width ------------------------------------------------------------- */

/* 4 bits: level in the low bits of the nibble; sign of nibble p < 4 at bit 8p + 7, of nibble
 * 4 + p at bit 8p + 3. */
static void expect4(size_t section, struct at a, uint32_t code) {
    uint32_t slab = a.r4 * (DIM / 32) + a.slab;
    for (uint32_t bit = 0; bit < 3; bit++)
        set_bit(section, slab, a.g, a.t, a.word, 4 * a.n + bit, code >> bit);
    set_bit(section, slab, a.g, a.t, a.word, a.n < 4 ? 8 * a.n + 7 : 8 * (a.n - 4) + 3, code >> 3);
}

/* 3 bits: of four words three are stored; bit 3 of nibble n in word p is bit p of the fourth
 * word's code n. */
static void expect3(size_t section, struct at a, uint32_t code) {
    uint32_t first = 3 * (a.r4 * (DIM / 32 / 4) + a.slab / 4), p = a.slab % 4;
    for (uint32_t bit = 0; bit < 3; bit++)
        if (p < 3)
            set_bit(section, first + p, a.g, a.t, a.word, 4 * a.n + bit, code >> bit);
        else
            set_bit(section, first + bit, a.g, a.t, a.word, 4 * a.n + 3, code >> bit);
}

/* 2 bits: two words in one, the second in the upper bits of the nibbles. */
static void expect2(size_t section, struct at a, uint32_t code) {
    uint32_t slab = a.r4 * (DIM / 32) + a.slab;
    for (uint32_t bit = 0; bit < 2; bit++)
        set_bit(section, slab / 2, a.g, a.t, a.word, 4 * a.n + slab % 2 * 2 + bit, code >> bit);
}

/* 8 and 16 bits: `part` counts codes through the 2 or 4 words that 8 codes take. Keys keep
 * the words of a chunk of dims in adjacent slabs, values those of all dims. */
static void expect_wide(size_t section, struct at a, int value, uint32_t part, uint32_t bits,
                        uint32_t code) {
    uint32_t per_word = 32 / bits, h = part / per_word, slabs = 8 / per_word;
    uint32_t slab =
        value ? (a.r4 * slabs + h) * (DIM / 32) + a.slab : (a.r4 * (DIM / 32) + a.slab) * slabs + h;
    for (uint32_t bit = 0; bit < bits; bit++)
        set_bit(section, slab, a.g, a.t, a.word, part % per_word * bits + bit, code >> bit);
}

/* ---- writing and comparing ---------------------------------------------------------------- */

static void expect(const struct tqi_rows *rows, uint32_t token, uint32_t dim, uint32_t code) {
    /* Tokens of the bytes and halves of a value word. */
    static const uint32_t int8[8] = {0, 1, 4, 5, 2, 3, 6, 7}, fp8[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const struct tqi_layout *l = &rows->layout;
    int value = l->side == TQI_SIDE_V;
    struct at a = value ? value_at(token, dim) : key_at(token, dim);
    uint32_t part = dim % 8;
    if (value) {
        const uint32_t *order = l->bits == 16 ? NULL : l->kind == TQI_KIND_INT8 ? int8 : fp8;
        for (part = 0; (order ? order[part] : part) != token % 8;)
            part++;
    }
    if (l->bits == 4)
        expect4(l->codes, a, code);
    else if (l->bits == 3)
        expect3(l->codes, a, code);
    else if (l->bits == 2)
        expect2(l->codes, a, code);
    else
        expect_wide(l->codes, a, value, part, l->bits, code);
}

static void put(const struct tqi_layout *l, uint32_t token, uint32_t dim, uint32_t code) {
    if (l->bits < 8) {
        tqi_put_code(l, written, token, dim, code);
        return;
    }
    size_t at = tqi_wide_offset(l, token, dim);
    for (uint32_t b = 0; b < l->bits / 8; b++)
        written[at + b] = (uint8_t)(code >> 8 * b);
}

static void check_side(const struct unit_rows *u) {
    memset(expected, 0, sizeof expected);
    memset(written, 0, sizeof written);
    assert_true(u->bytes <= BYTES);
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t dim = 0; dim < DIM; dim++) {
            uint32_t code = code_of(token, dim, u->rows.layout.bits);
            put(&u->rows.layout, token, dim, code);
            expect(&u->rows, token, dim, code);
        }
    for (uint32_t i = 0; i < u->bytes; i++)
        CHECK(written[i] == expected[i], "%s side %u, byte %u: 0x%02x, not 0x%02x",
              u->rows.format->name, u->rows.layout.side, i, written[i], expected[i]);
}

static void check_format(tq_format id) {
    unit_page(&k, id, &v, id, DIM, TOKENS, 1);
    check_side(&k);
    check_side(&v);
}

static void test_4_bits(void **state) {
    (void)state;
    check_format(TQ_FORMAT_LM4);
}

static void test_3_bits(void **state) {
    (void)state;
    check_format(TQ_FORMAT_LM3);
}

static void test_2_bits(void **state) {
    (void)state;
    check_format(TQ_FORMAT_LM2);
}

static void test_8_bits(void **state) {
    (void)state;
    check_format(TQ_FORMAT_INT8);
    check_format(TQ_FORMAT_FP8);
}

static void test_16_bits(void **state) {
    (void)state;
    check_format(TQ_FORMAT_BF16);
    check_format(TQ_FORMAT_F16);
}

/* Sections of the blob: K codes, V codes, K gains, V gains, in token order. */
static void test_blob_order(void **state) {
    (void)state;
    unit_page(&k, TQ_FORMAT_LM4, &v, TQ_FORMAT_LM4, DIM, TOKENS, 1);
    assert_int_equal(k.rows.layout.codes, 0);
    assert_int_equal(v.rows.layout.codes, 4096);
    assert_int_equal(k.rows.layout.gains, 8192);
    assert_int_equal(v.rows.layout.gains, 8320);
    unit_page(&k, TQ_FORMAT_LM3, &v, TQ_FORMAT_LM4, DIM, TOKENS, 1);
    assert_int_equal(v.rows.layout.codes, 3072);
    assert_int_equal(k.rows.layout.gains, 7168);
    assert_int_equal(v.rows.layout.gains, 7296);
}

/* The sketch: 8 signs of a key word are a byte, four words of a lane are a word. */
static void test_sketch_bytes(void **state) {
    (void)state;
    unit_page(&k, TQ_FORMAT_LM3_QJL, &v, TQ_FORMAT_LM4, DIM, TOKENS, 1);
    memset(expected, 0, sizeof expected);
    memset(written, 0, sizeof written);
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t dim = 0; dim < DIM; dim++) {
            struct at a = key_at(token, dim);
            uint32_t sign = code_of(token, dim, 1);
            tqi_put_sketch(&k.rows.layout, written, token, dim, sign);
            set_bit(k.rows.layout.sketch, a.r4, a.g, a.t, a.word, 8 * a.slab + a.n, sign);
        }
    assert_memory_equal(written, expected, k.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_4_bits),       cmocka_unit_test(test_3_bits),
        cmocka_unit_test(test_2_bits),       cmocka_unit_test(test_8_bits),
        cmocka_unit_test(test_16_bits),      cmocka_unit_test(test_blob_order),
        cmocka_unit_test(test_sketch_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
