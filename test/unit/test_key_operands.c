/*
 * Polar angles and sketch signs as the fast CUDA kernels read them from a page of 64 tokens
 * (cuda/attend/polar.cuh, sketch.cuh), emulated: places in the page, masks, the order of the
 * projected query, and that fixed point stays within its bytes.
 */
#include "unit/unit.h"

#include <math.h>

#include "../../cuda/attend/key_operands.h"
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

/* The largest coordinate of the largest radius is a signed 16-bit integer. */
static void polar_integers_fit(void **state) {
    double largest = TQI_POLAR_UNITS;
    (void)state;
    random_page(TQ_FORMAT_POLAR, 128, 1);
    for (int level = 0; level < TQI_POLAR_LEVELS; level++) {
        double most = 0;
        for (int c = 0; c < TQI_POLAR_CODES; c++) {
            const struct tqi_polar_book *b = &k_side.rows.polar[level];
            most = fmax(most, fmax((double)b->cosine[c], (double)b->sine[c]));
        }
        largest *= most;
    }
    CHECK(largest < 32767 && largest > 30000, "largest integer %.0f", largest);
}

/* Sums of products begin at INT_START and must stay within 2^22 of it (tile.cuh). */
static void sums_stay_in_range(void **state) {
    const int low_bytes = 128 * 255 * 128, signs = 128 * 2 * 128;
    (void)state;
    CHECK(low_bytes < 1 << 22 && signs < 1 << 22, "%d and %d", low_bytes, signs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sketch_bytes_are_signs),
        cmocka_unit_test(polar_words_are_blocks),
        cmocka_unit_test(polar_integers_fit),
        cmocka_unit_test(sums_stay_in_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
