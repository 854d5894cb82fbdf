/*
 * The fast CUDA kernels' reading of a page, emulated: slabs of 16 bytes a lane, byte permutes,
 * and the element order of mma.sync m16n8k32. The operands are compared with single codes of
 * spec/codes, and whole score tiles with dot products of integers. What the GPU runs is
 * cuda/attend/words.cuh and tile.cuh; this proves the layout without one.
 */
#include "unit/unit.h"

#include "spec/codes.h"
#include "unit/rows.h"

enum { TOKENS = 64 };

static const uint32_t dims[] = {64, 96, 128, 192, 256};
static struct unit_rows k_side, v_side;
static uint8_t blob[1 << 16];

/* ---- instructions -----------------------------------------------------------------------------
 */

/* Byte i of the result is the byte of {a, b} that nibble i of s names; bit 3 of the nibble
 * repeats that byte's sign instead. */
static uint32_t prmt(uint32_t a, uint32_t b, uint32_t s) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t n = s >> 4 * i & 15, byte = (uint32_t)(bytes >> 8 * (n & 7)) & 255;
        r |= (n & 8 ? (byte & 128 ? 255u : 0) : byte) << 8 * i;
    }
    return r;
}

static int byte_of(uint32_t word, uint32_t i) {
    return (int8_t)(word >> 8 * i & 255);
}

/* ---- words of a lane ----------------------------------------------------------------------------
 */

/* Word z (0..3) of a lane in a slab of a section. */
static uint32_t slab_word(const struct tqi_layout *l, uint32_t slab, uint32_t lane, uint32_t z) {
    return tqi_load32(blob + l->codes + slab * 512 + lane * 16 + z * 4);
}

/* Selector word `word` of the section: 8 codes in the low bits of nibbles. */
static uint32_t selectors(const struct tqi_layout *l, uint32_t word, uint32_t lane, uint32_t z) {
    if (l->bits == 4)
        return slab_word(l, word, lane, z);
    if (l->bits == 2)
        return slab_word(l, word / 2, lane, z) >> word % 2 * 2 & 0x33333333u;
    uint32_t set = word / 4 * 3, member = word % 4;
    if (member < 3)
        return slab_word(l, set + member, lane, z) & 0x77777777u;
    return (slab_word(l, set, lane, z) >> 3 & 0x11111111u) |
           (slab_word(l, set + 1, lane, z) >> 2 & 0x22222222u) |
           (slab_word(l, set + 2, lane, z) >> 1 & 0x44444444u);
}

/* The book as the kernels hold it: levels of 4-bit codes, values of smaller ones. */
static void byte_table(const struct tqi_book *b, uint32_t table[2]) {
    uint32_t n = b->bits == 4 ? b->levels : 2 * b->levels;
    table[0] = table[1] = 0;
    for (uint32_t i = 0; i < n; i++) {
        int v = b->bits == 4 ? (b->v2[i] - 1) / 2 : b->code_v2[i] / 2;
        table[i / 4] |= (uint32_t)(v & 255) << 8 * (i % 4);
    }
}

static void look_up(const struct tqi_book *b, uint32_t w, uint32_t out[2]) {
    uint32_t table[2];
    byte_table(b, table);
    if (b->bits != 4) {
        out[0] = prmt(table[0], table[1], w);
        out[1] = prmt(table[0], table[1], w >> 16);
        return;
    }
    uint32_t level = w & 0x77777777u, shifted = w << 4;
    out[0] = prmt(table[0], table[1], level) ^ prmt(w, w, 0xba98);
    out[1] = prmt(table[0], table[1], level >> 16) ^ prmt(shifted, shifted, 0xba98);
}

/* ---- pages of random codes ----------------------------------------------------------------------
 */

static void make_page(tq_format k, tq_format v, uint32_t dim, uint64_t seed) {
    uint64_t state = seed;
    unit_page(&k_side, k, &v_side, v, dim, TOKENS, seed);
    memset(blob, 0xff, sizeof blob);
    const struct tqi_layout *sides[2] = {&k_side.rows.layout, &v_side.rows.layout};
    for (int s = 0; s < 2; s++)
        for (uint32_t token = 0; token < TOKENS; token++)
            for (uint32_t d = 0; d < dim; d++)
                tqi_put_code(sides[s], blob, token, d, unit_below(&state, 1u << sides[s]->bits));
}

/* Twice the value of a code, in steps; operands hold whole numbers, 4-bit ones lack a half. */
static int twice(const struct tqi_rows *r, uint32_t token, uint32_t d) {
    return r->book.code_v2[tqi_get_code(&r->layout, blob, token, d)];
}

static int twice_operand(const struct tqi_book *b, int operand) {
    return 2 * operand + (b->bits == 4 ? 1 : 0);
}

/* Whether the fast kernels take whole sets of words; other pages go the generic way. */
static int is_fast(uint32_t bits, uint32_t dim) {
    return bits != 3 || TOKENS / 32 * (dim / 32) % 4 == 0;
}

/* ---- operands
 * ------------------------------------------------------------------------------------ */

static void check_key_words(const struct tqi_rows *r) {
    uint32_t dim = r->layout.dim, columns = dim / 32, out[2];
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t word = 0; word < 2 * columns; word++)
            for (uint32_t z = 0; z < 4; z++) {
                uint32_t token = word / columns * 32 + lane / 4 * 4 + z;
                uint32_t first = dim / 4 * (lane % 4) + word % columns * 8;
                look_up(&r->book, selectors(&r->layout, word, lane, z), out);
                for (uint32_t n = 0; n < 8; n++)
                    CHECK(twice_operand(&r->book, byte_of(out[n / 4], n % 4)) ==
                              twice(r, token, first + n),
                          "%s dim %u lane %u word %u z %u code %u", r->format->name, dim, lane,
                          word, z, n);
            }
}

static void check_value_words(const struct tqi_rows *r) {
    static const uint32_t order[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    uint32_t dim = r->layout.dim, columns = dim / 32, out[2];
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t word = 0; word < 2 * columns; word++)
            for (uint32_t y = 0; y < 4; y++) {
                uint32_t first = word / columns * 32 + lane % 4 * 8;
                uint32_t d = dim / 8 * (lane / 4) + word % columns * 4 + y;
                look_up(&r->book, selectors(&r->layout, word, lane, y), out);
                for (uint32_t n = 0; n < 8; n++)
                    CHECK(twice_operand(&r->book, byte_of(out[n / 4], n % 4)) ==
                              twice(r, first + order[n], d),
                          "%s dim %u lane %u word %u y %u code %u", r->format->name, dim, lane,
                          word, y, n);
            }
}

static void operands_are_the_codes(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_LM4, TQ_FORMAT_LM3, TQ_FORMAT_LM2};
    (void)state;
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t d = 0; d < COUNT(dims); d++) {
            if (!is_fast(tqi_format_by_id(formats[f])->bits, dims[d]))
                continue;
            make_page(formats[f], formats[f], dims[d], 7 + d);
            check_key_words(&k_side.rows);
            check_value_words(&v_side.rows);
        }
}

/* ---- a score tile
 * --------------------------------------------------------------------------------- */

/* c += A B for one lane's row and column: A row `row` is held by lanes 4 (row % 8) + t, their
 * registers row / 8 and row / 8 + 2; B column `column` by lanes 4 column + t. */
static int mma_element(uint32_t a[32][4], uint32_t b[32][2], uint32_t row, uint32_t column) {
    int sum = 0;
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t i = 0; i < 4; i++)
                sum += byte_of(a[row % 8 * 4 + t][row / 8 + 2 * half], i) *
                       byte_of(b[column * 4 + t][half], i);
    return sum;
}

/* Queries as bytes, column by column, in the lanes' dims of chunk j. */
static void query_operand(const int8_t *q, uint32_t dim, uint32_t j, uint32_t b[32][2]) {
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t half = 0; half < 2; half++) {
            b[lane][half] = 0;
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t d = dim / 4 * (lane % 4) + 8 * j + 4 * half + i;
                b[lane][half] |= (uint32_t)(uint8_t)q[lane / 4 * dim + d] << 8 * i;
            }
        }
}

static void key_operand(const struct tqi_rows *r, uint32_t group, uint32_t j, uint32_t pair,
                        uint32_t a[32][4]) {
    uint32_t columns = r->layout.dim / 32, out[2];
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t z = 0; z < 2; z++) {
            look_up(&r->book, selectors(&r->layout, group * columns + j, lane, 2 * pair + z), out);
            a[lane][z] = out[0];
            a[lane][z + 2] = out[1];
        }
}

static void scores_are_dot_products(void **state) {
    uint64_t random = 3;
    (void)state;
    for (size_t d = 0; d < COUNT(dims); d++) {
        uint32_t dim = dims[d], a[32][4], b[32][2];
        int8_t q[8 * 256];
        make_page(TQ_FORMAT_LM4, TQ_FORMAT_LM4, dim, 70 + d);
        for (uint32_t i = 0; i < 8 * dim; i++)
            q[i] = (int8_t)unit_below(&random, 256);
        for (uint32_t group = 0; group < 2; group++)
            for (uint32_t pair = 0; pair < 2; pair++) {
                int c[16][8] = {{0}};
                for (uint32_t j = 0; j < dim / 32; j++) {
                    key_operand(&k_side.rows, group, j, pair, a);
                    query_operand(q, dim, j, b);
                    for (uint32_t row = 0; row < 16; row++)
                        for (uint32_t column = 0; column < 8; column++)
                            c[row][column] += mma_element(a, b, row, column);
                }
                for (uint32_t row = 0; row < 16; row++) {
                    uint32_t token = 32 * group + row % 8 * 4 + 2 * pair + row / 8;
                    for (uint32_t column = 0; column < 8; column++) {
                        int twice_dot = 0, sum = 0;
                        for (uint32_t i = 0; i < dim; i++) {
                            twice_dot += q[column * dim + i] * twice(&k_side.rows, token, i);
                            sum += q[column * dim + i];
                        }
                        CHECK(2 * c[row][column] + sum == twice_dot, "dim %u token %u column %u",
                              dim, token, column);
                    }
                }
            }
    }
}

/* ---- pages of a warpgroup (codes_tile.cuh) ------------------------------------------------------
 */

/* Byte k of a step of the second product: B has what the transposing store of warp w makes of its
 * tokens 4 g + 0..3 (pairs to places g of rows 0..15 and 16..31), A the bytes of a value word. */
static void weights_meet_their_values(void **state) {
    static const uint32_t order[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    (void)state;
    for (uint32_t k = 0; k < 32; k++) {
        uint32_t row = k % 16 / 2, stored = 4 * row + 2 * (k / 16) + k % 2;
        uint32_t lane = k % 16 / 4, read = 8 * lane + order[k / 16 * 4 + k % 4];
        CHECK(stored == read, "byte %u: weight of token %u, value of token %u", k, stored, read);
    }
}

/* Rows g and g + 8 of products m, of the words that a warp decodes: every dim once. */
static void warps_share_the_dims(void **state) {
    (void)state;
    for (uint32_t sets = 0; sets < 2; sets++) {
        uint32_t seen[128] = {0};
        for (uint32_t i = 0; i < 4 * 2 * 16; i++) {
            uint32_t warp = i / 32, m = i / 16 % 2, g = i % 8, upper = i / 8 % 2;
            uint32_t x = sets ? 2 * m + upper : warp, y = sets ? warp : 2 * m + upper;
            seen[16 * g + 4 * x + y]++;
        }
        for (uint32_t d = 0; d < 128; d++)
            CHECK(seen[d] == 1, "dim %u: %u times", d, seen[d]);
    }
}

/* 256 high + low of a turn: two pages of bytes, four of small codes, whose largest magnitude is
 * that of a negative 4-bit code; or of 256 dims with half the sum of the query. */
static void joined_sums_are_whole(void **state) {
    struct tqi_book book;
    const int64_t weight = 256 * 255 + 255, bytes = 2 * TOKENS * 128 * weight;
    const int64_t keys = 256 * 128ll * (256 * 127 + 128) + 256 * 32512ll / 2;
    (void)state;
    CHECK(bytes <= INT32_MAX && keys <= INT32_MAX, "%lld and %lld", (long long)bytes,
          (long long)keys);
    for (uint32_t bits = 3; bits <= 4; bits++) {
        tqi_book_make(&book, bits);
        int64_t codes = 4 * TOKENS * ((book.v2[book.levels - 1] + 1) / 2) * weight;
        CHECK(codes <= INT32_MAX, "%u bits: %lld", bits, (long long)codes);
    }
}

/* Warp w's weights are those of steps w R .. of the second product, R = pages / 2; the values of
 * page p, group r are those of step 2 p + r. Every token once. */
static void steps_of_weights_are_those_of_values(void **state) {
    (void)state;
    for (uint32_t pages = 2; pages <= 4; pages += 2) {
        const uint32_t per_warp = pages / 2;
        uint32_t seen[4 * TOKENS] = {0};
        for (uint32_t i = 0; i < 4 * per_warp * 32; i++) {
            const uint32_t warp = i / 32 / per_warp, r = i / 32 % per_warp, token = i % 32;
            const uint32_t page = per_warp == 1 ? warp / 2 : warp;
            const uint32_t group = per_warp == 1 ? warp % 2 : r;
            CHECK(warp * per_warp + r == 2 * page + group, "%u pages, warp %u", pages, warp);
            seen[page * TOKENS + 32 * group + token]++;
        }
        for (uint32_t t = 0; t < pages * TOKENS; t++)
            CHECK(seen[t] == 1, "%u pages, token %u: %u times", pages, t, seen[t]);
    }
}

/* ---- shortcuts of the arithmetic --------------------------------------------------------------
 */

/* The high half of a selector word goes through a product of halves: it may be neither infinite
 * nor NaN, and positive. Selectors of 4-bit codes are the levels. */
static void selectors_are_finite_halves(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_LM4, TQ_FORMAT_LM3, TQ_FORMAT_LM2};
    (void)state;
    for (size_t f = 0; f < COUNT(formats); f++) {
        uint32_t words = tqi_format_by_id(formats[f])->bits == 2 ? 4 : 8;
        make_page(formats[f], formats[f], 128, 11);
        for (uint32_t lane = 0; lane < 32; lane++)
            for (uint32_t i = 0; i < words * 4; i++) {
                uint32_t w = selectors(&k_side.rows.layout, i / 4, lane, i % 4);
                w = formats[f] == TQ_FORMAT_LM4 ? w & 0x77777777u : w;
                CHECK((w & 0x88888888u) == 0 && (w >> 16 & 0x7c00u) != 0x7c00u, "word %08x", w);
            }
    }
}

static float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Sums that begin at INT_START (tile.cuh) are read as floats: the largest that 256 dims or 64
 * tokens of bytes can make keep the exponent, at either end and beside it. */
static void largest_sums_read_as_floats(void **state) {
    const int32_t start = 0x4b400000, keys = 256 * 127 * 128, values = TOKENS * 128 * 255;
    const int32_t sums[] = {0, 1, -1, 255, -256, keys, -keys, values, -values, 1 << 22, -(1 << 22)};
    (void)state;
    for (size_t i = 0; i < COUNT(sums); i++) {
        float read = float_of_bits((uint32_t)(start + sums[i]));
        CHECK((double)read == 12582912.0 + sums[i], "sum %d reads as %.9g", sums[i], (double)read);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_are_the_codes),
        cmocka_unit_test(scores_are_dot_products),
        cmocka_unit_test(weights_meet_their_values),
        cmocka_unit_test(warps_share_the_dims),
        cmocka_unit_test(joined_sums_are_whole),
        cmocka_unit_test(steps_of_weights_are_those_of_values),
        cmocka_unit_test(selectors_are_finite_halves),
        cmocka_unit_test(largest_sums_read_as_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
