/*
 * Polar angles and sketch signs as the fast CUDA kernels read them from a page of 64 tokens
 * (cuda/attend/polar.cuh, sketch.cuh), emulated: places in the page, masks, the order of the
 * projected query, and how near pairs of halves come to coordinates.
 */
#include "unit/unit.h"

#include <math.h>

#include "../../cuda/attend/key_operands.h"
#include "base/half.h"
#include "spec/codes.h"
#include "unit/rows.h"

enum { TOKENS = 64 };

static const uint32_t dims[] = {64, 128};
static struct unit_rows k_side, v_side;
static uint8_t blob[1 << 15];

static void random_page(tq_format k, uint32_t dim, uint64_t seed) {
    uint64_t state = seed;
    unit_page(&k_side, k, &v_side, TQ_FORMAT_LM4, dim, TOKENS, seed);
    for (size_t i = 0; i < sizeof blob; i++)
        blob[i] = (uint8_t)unit_below(&state, 256);
}

/* ---- sketch ------------------------------------------------------------------------------------
 */

/* Operand word n of token z of a lane in group r. */
static uint32_t sketch_operand(uint32_t dim, uint32_t lane, uint32_t r, uint32_t z, uint32_t n) {
    uint32_t slab = dim == 64 ? 0 : r;
    uint32_t w =
        tqi_load32(blob + k_side.rows.layout.sketch + slab * 512 + lane * 16 + z * (size_t)4);
    if (dim == 64) {
        uint32_t both = r ? w >> 16 : w & 0xffffu, twice = both | both << 16;
        w = (twice & 0x0000ffffu) | (twice >> 4 & 0x0f0f0000u);
    }
    return w >> (n & 6) & 0x01010101u << n % 2;
}

/* Every byte of a lane's operands belongs to one dim and is 0 or 2^power by its sign. */
static void sketch_bytes_are_signs(void **state) {
    static const tq_format formats[] = {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM2_QJL};
    (void)state;
    for (size_t f = 0; f < COUNT(formats) * COUNT(dims); f++) {
        uint32_t dim = dims[f % 2];
        random_page(formats[f / 2], dim, 31 + f);
        for (uint32_t lane = 0; lane < 32; lane++)
            for (uint32_t slot = 0; slot < 8; slot++) { /* token of the lane */
                uint32_t r = slot / 4, z = slot % 4, token = 32 * r + lane / 4 * 4 + z, seen = 0;
                for (uint32_t d = 0; d < dim; d++) {
                    struct tqi_sketch_place p = tqi_sketch_place_of(dim, d);
                    if (p.t != lane % 4)
                        continue;
                    uint32_t byte = sketch_operand(dim, lane, r, z, p.word) >> 8 * p.byte & 255;
                    uint32_t sign = tqi_get_sketch(&k_side.rows.layout, blob, token, d);
                    CHECK(byte == sign << p.power, "dim %u of %u, token %u: %u", d, dim, token,
                          byte);
                    seen |= 1u << (p.word * 4 + p.byte);
                }
                CHECK(seen == (dim == 128 ? ~0u : 0xffffu), "dim %u lane %u: places %08x", dim,
                      lane, seen);
            }
    }
}

/* ---- polar -------------------------------------------------------------------------------------
 */

/* Lane 4 g + t finds blocks t and 4 + t of its tokens where polar.cuh looks. */
static void polar_words_are_blocks(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(dims); i++) {
        random_page(TQ_FORMAT_POLAR_QJL, dims[i], 5 + i);
        const struct tqi_layout *l = &k_side.rows.layout;
        uint32_t elements = TOKENS * dims[i] / 16;
        const uint8_t *level2 = blob + l->codes + elements * 4, *level3 = level2 + elements;
        const uint8_t *level4 = level3 + elements / 2;
        for (uint32_t n = 0; n < 32 * 2 * dims[i] / 64; n++) {
            uint32_t lane = n % 32, r = n / 32 % 2, quad = n / 64;
            uint32_t e = 4 * TOKENS * quad + 128 * r;
            uint32_t two = tqi_load32(level2 + e + lane * 4);
            uint32_t three = tqi_load16(level3 + e / 2 + lane * 2), four = level4[e / 4 + lane];
            for (uint32_t z = 0; z < 4; z++) {
                uint32_t token = 32 * r + lane / 4 * 4 + z, block = 4 * quad + lane % 4;
                struct tqi_polar_codes c = tqi_get_polar(l, blob, token, block);
                uint32_t one =
                    tqi_load32(blob + l->codes + (2 * quad + r) * 512 + lane * 16 + z * (size_t)4);
                CHECK(one == c.level1 && (two >> 8 * z & 255) == c.level2 &&
                          (three >> 4 * z & 15) == c.level3 && (four >> 2 * z & 3) == c.level4,
                      "dim %u token %u block %u", dims[i], token, block);
                CHECK(tqi_polar_element(l, token, block) == e + lane * 4 + z, "radius of block %u",
                      block);
            }
        }
    }
}

/* What f16x2 instructions do to one of their halves. */
static double to_half(double x) {
    return (double)tqi_f16_to_float(tqi_float_to_f16((float)x));
}

static double fused(double a, double b, double c) {
    double sum = a * b + c; /* exact: 22 and 11 bits that are near each other */
    return to_half(sum);
}

/* The high half with its seven low bits cut off. */
static double cut(double x) {
    return (double)tqi_f16_to_float((uint16_t)(tqi_float_to_f16((float)x) & 0xff80u));
}

struct halves {
    double high, low;
};

static struct halves split(struct halves r, double direction, bool short_high) {
    struct halves c = {.high = to_half(r.high * direction)};
    if (short_high)
        c.high = cut(c.high);
    c.low = fused(r.high, direction, -c.high);
    c.low = fused(r.low, direction, c.low);
    return c;
}

/* cosine and sine number c of a level, as polar.cuh has them */
static double direction_of(int level, uint32_t c, uint32_t odd) {
    static const int cosine[4][4] = {TQI_POLAR1_COS, TQI_POLAR2_COS, TQI_POLAR3_COS,
                                     TQI_POLAR4_COS};
    return cosine[level][odd ? 3 - c : c] / 128.0;
}

/* One coordinate of a block with the given radius, by the path of halves: from level 4 down, two
 * bits of code and whether it is the second child. */
static void check_coordinate(uint16_t radius, uint16_t largest, const uint32_t code[4],
                             uint32_t odd) {
    uint32_t least = TQI_POLAR_LEAST & 0xffffu, exponent = largest > least ? largest : least;
    uint16_t scale;
    double exact = (double)tqi_f16_to_float(radius), power, top;
    exponent &= 0x7c00u;
    scale = (uint16_t)((TQI_POLAR_SCALE & 0xffffu) - exponent);
    power = (double)tqi_f16_to_float(scale);
    top = (double)tqi_f16_to_float(largest) * power;
    CHECK(power * (double)tqi_bits_float((exponent << 13) + TQI_POLAR_UNIT) == 1,
          "largest %04x: its power of two is not taken back", largest);
    CHECK(top < 16384 && (largest < least || top >= 8192), "largest %04x: %g", largest, top);
    struct halves r = {to_half(exact * power), 0};
    CHECK(r.high == exact * power || exact * power < 0x1p-13, "radius %04x of %04x is not exact",
          radius, largest);
    for (int level = 3; level >= 1; level--) {
        double d = direction_of(level, code[level], odd >> level & 1);
        r = split(r, d, level == 1);
        exact *= d;
    }
    double d = direction_of(0, code[0], odd & 1), high = to_half(r.high * d);
    exact *= d * power;
    CHECK(high == r.high * d, "a product of the high half is rounded: %g * %g", r.high, d);
    double x = high + to_half(r.low * d);
    CHECK(fabs(x - exact) <= 0x1p-13 * fabs(exact) + 0x1p-23,
          "largest %04x, radius %04x: %g for %g", largest, radius, x, exact);
}

static void polar_halves_are_coordinates(void **state) {
    uint64_t seed = 77;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        uint16_t largest = (uint16_t)unit_below(&seed, 0x7c00), radius;
        uint32_t code[4], odd = (uint32_t)unit_below(&seed, 16);
        radius = (uint16_t)(i % 2 ? largest : unit_below(&seed, (uint32_t)largest + 1));
        for (int l = 0; l < 4; l++)
            code[l] = (uint32_t)unit_below(&seed, 4);
        check_coordinate(radius, largest, code, odd);
    }
}

/* The integers of polar.cuh and the unit of its scores are those of the books. */
static void polar_directions_are_the_books(void **state) {
    double unit = 1;
    (void)state;
    random_page(TQ_FORMAT_POLAR, 128, 1);
    for (int level = 0; level < TQI_POLAR_LEVELS; level++) {
        const struct tqi_polar_book *b = &k_side.rows.polar[level];
        double step = (double)b->cosine[0] / direction_of(level, 0, 0);
        for (uint32_t c = 0; c < TQI_POLAR_CODES; c++) {
            CHECK(fabs(direction_of(level, c, 0) * step - (double)b->cosine[c]) < 1e-7 &&
                      fabs(direction_of(level, c, 1) * step - (double)b->sine[c]) < 1e-7,
                  "level %d, direction %u", level + 1, c);
        }
        unit *= step;
    }
    CHECK(fabs(unit / TQI_POLAR_STEP - 1) < 1e-6, "unit %.9g, books %.9g", TQI_POLAR_STEP, unit);
}

/* Sums of products begin at INT_START and must stay within 2^22 of it (tile.cuh). */
static void sums_stay_in_range(void **state) {
    const int signs = 128 * 2 * 128;
    (void)state;
    CHECK(signs < 1 << 22, "%d", signs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sketch_bytes_are_signs),
        cmocka_unit_test(polar_words_are_blocks),
        cmocka_unit_test(polar_halves_are_coordinates),
        cmocka_unit_test(polar_directions_are_the_books),
        cmocka_unit_test(sums_stay_in_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
