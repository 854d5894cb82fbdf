/*
 * fp8 pages as operands of the FP8 tensor cores, emulated: words of a page to A of wgmma
 * (m64nNk32, four warps of 16 rows) without a change, planes of queries and probabilities to
 * core matrices of B. What the GPU runs is cuda/attend/e4m3.cuh and group_tile.cuh; the operand
 * of one warp is that of mma.sync m16n8k32, which e4m3_tile.cuh runs.
 */
#include "unit/unit.h"

#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "spec/codes.h"
#include "unit/rows.h"

enum { TOKENS = 64, SLAB = 512, WARPS = 4, MAX_ROWS = 16, MAX_COLUMNS = 48, MAX_DIM = 256 };

static const uint32_t dims[] = {64, 128, 256}, heights[] = {1, 2, 4}; /* rows in fours */
static struct unit_rows k_side, v_side;
static uint8_t blob[TOKENS * MAX_DIM * 2];

static uint32_t query_blocks(uint32_t nt) {
    return nt + (nt + 1) / 2;
}

/* ---- numbers ------------------------------------------------------------------------------------
 */

static const double query_unit[3] = {1, 4, 64}, weight_unit[2] = {1, 16};

/* A query element, the row's largest in [128, 256). */
static void query_planes(float x, uint8_t plane[3]) {
    plane[0] = fabsf(x) < 64 ? 0 : tqi_float_to_e4m3(x);
    x = (x - tqi_e4m3_to_float(plane[0])) * 4;
    plane[1] = tqi_float_to_e4m3(x);
    plane[2] = tqi_float_to_e4m3((x - tqi_e4m3_to_float(plane[1])) * 16);
}

/* A probability, the largest 256. */
static void weight_planes(float x, uint8_t plane[2]) {
    plane[0] = tqi_float_to_e4m3(x);
    plane[1] = tqi_float_to_e4m3((x - tqi_e4m3_to_float(plane[0])) * 16);
}

static double from_planes(const uint8_t *plane, const double *unit, int n) {
    double x = 0;
    for (int i = 0; i < n; i++)
        x += (double)tqi_e4m3_to_float(plane[i]) / unit[i];
    return x;
}

static double as_query(float x) {
    uint8_t plane[3];
    query_planes(x, plane);
    return from_planes(plane, query_unit, 3);
}

static double as_weight(float x) {
    uint8_t plane[2];
    weight_planes(x, plane);
    return from_planes(plane, weight_unit, 2);
}

/* All numbers of so many bits with exponents from `lowest` on, largest magnitude 255. */
static void check_exact(uint32_t bits, int lowest) {
    for (int e = lowest; e < 8; e++)
        for (uint32_t m = 1u << (bits - 1); m < 1u << bits; m++) {
            float x = ldexpf((float)m, e - (int)bits + 1);
            CHECK(as_query(x) == (double)x && as_query(-x) == -(double)x, "%u bits: %a", bits,
                  (double)x);
        }
}

/* A bf16 that is not tiny beside the largest of its row, and an f16 of a quarter of it. */
static void queries_are_exact(void **state) {
    (void)state;
    check_exact(8, -7);
    check_exact(11, 6);
}

static void planes_are_close(void **state) {
    uint64_t random = 5;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        float x = unit_bell(&random) * 64;
        double least = fabs((double)x) / (fabsf(x) < 64 ? 256 : 4096);
        CHECK(fabs(as_query(x) - (double)x) <= least + 0x1p-16, "%a", (double)x);
        x = fabsf(x);
        CHECK(fabs(as_weight(x) - (double)x) <= (double)x / 256 + 0x1p-14, "%a", (double)x);
    }
}

/* ---- pages and their operands
 * --------------------------------------------------------------------
 */

/* Random codes; slots and gaps without one keep their NaN bytes. */
static void make_page(uint32_t dim, uint64_t seed) {
    uint64_t state = seed;
    unit_page(&k_side, TQ_FORMAT_FP8, &v_side, TQ_FORMAT_FP8, dim, TOKENS, seed);
    assert_true(k_side.bytes <= sizeof blob);
    memset(blob, 0xff, sizeof blob);
    const struct tqi_layout *sides[2] = {&k_side.rows.layout, &v_side.rows.layout};
    for (int s = 0; s < 2; s++)
        for (uint32_t token = 0; token < TOKENS; token++)
            for (uint32_t d = 0; d < dim; d++) {
                uint32_t code = unit_below(&state, 127); /* 127 is NaN */
                blob[tqi_wide_offset(sides[s], token, d)] =
                    (uint8_t)(code | unit_below(&state, 2) << 7);
            }
}

static double number(const struct tqi_layout *l, uint32_t token, uint32_t d) {
    return (double)tqi_e4m3_to_float(blob[tqi_wide_offset(l, token, d)]);
}

/* Byte i of registers a[0..3] of a lane; slab word pairs as the kernels load them: word
 * 2 (warp % 2) and the next of the slabs `first` and `second`. */
static uint8_t a_byte(uint32_t base, uint32_t first, uint32_t second, uint32_t warp, uint32_t lane,
                      uint32_t reg, uint32_t i) {
    uint32_t slab = reg < 2 ? first : second;
    return blob[base + slab * SLAB + lane * 16 + (warp % 2 * 2 + reg % 2) * 4 + i];
}

/* Element (row, k) of A (64 x 32): warp row / 16; lane 4 (row % 8) + k % 16 / 4; registers 0 and 1
 * are rows r and r + 8 of k below 16, 2 and 3 those of the others. */
static uint8_t a_element(uint32_t base, uint32_t dim, uint32_t step, int values, uint32_t row,
                         uint32_t k) {
    uint32_t warp = row / 16, lane = row % 8 * 4 + k % 16 / 4, j = dim / 32;
    uint32_t reg = row % 16 / 8 + k / 16 * 2, first, second;
    if (values) { /* step: m * 2 + r */
        first = step % 2 * 2 * j + 2 * (step / 2) + warp / 2;
        second = first + j;
    } else {
        first = (warp / 2 * j + step) * 2;
        second = first + 1;
    }
    return a_byte(base, first, second, warp, lane, reg, k % 4);
}

/* Token of row r of a warp's keys, dim of one of its values. */
static uint32_t token_of(uint32_t row) {
    return 32 * (row / 32) + row % 8 * 4 + 2 * (row / 16 % 2) + row / 8 % 2;
}

static uint32_t dim_of(uint32_t dim, uint32_t m, uint32_t row) {
    return dim / 8 * (row % 8) + 8 * m + 2 * (row / 16) + row / 8 % 2;
}

/* B in shared memory: blocks of 8 columns, core matrices of 8 columns x 16 bytes. */
static uint8_t b_element(const uint8_t *b, uint32_t block_bytes, uint32_t column, uint32_t k) {
    return b[column / 8 * block_bytes + k / 16 * 128 + column % 8 * 16 + k % 16];
}

/* ---- scores
 * --------------------------------------------------------------------------------------
 */

/* prepare_row.cuh: the words of a row's dims, planes to columns. */
static void store_query(uint8_t *b, uint32_t dim, uint32_t nt, uint32_t row, const float *q) {
    uint32_t block_bytes = dim * 8, block = row / 4, column = 2 * (row % 4);
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t t = d / (dim / 4), word = d % (dim / 4) / 4;
        uint8_t plane[3];
        query_planes(q[d], plane);
        uint32_t at = word * 128 + t * 4 + d % 4;
        b[block * block_bytes + at + column * 16] = plane[0];
        b[block * block_bytes + at + (column + 1) * 16] = plane[1];
        b[(nt + block / 2) * block_bytes + at + (column + block % 2) * 16] = plane[2];
    }
}

static double score(const uint8_t *b, uint32_t dim, uint32_t nt, uint32_t row, uint32_t q_row) {
    uint32_t block = q_row / 4, column = 2 * (q_row % 4), block_bytes = dim * 8;
    uint32_t columns[3] = {8 * block + column, 8 * block + column + 1,
                           8 * (nt + block / 2) + column + block % 2};
    double sum = 0;
    for (uint32_t plane = 0; plane < 3; plane++)
        for (uint32_t k = 0; k < dim; k++) {
            uint8_t a = a_element(k_side.rows.layout.codes, dim, k / 32, 0, row, k % 32);
            uint8_t q = b_element(b + k / 32 * 256, block_bytes, columns[plane], k % 32);
            sum += (double)tqi_e4m3_to_float(a) * (double)tqi_e4m3_to_float(q) / query_unit[plane];
        }
    return sum;
}

static void check_scores(uint32_t dim, uint32_t nt) {
    static float q[MAX_ROWS][MAX_DIM];
    static uint8_t b[MAX_COLUMNS * MAX_DIM];
    uint64_t random = dim + nt;
    assert_true(query_blocks(nt) * dim * 8 <= sizeof b);
    memset(b, 0xff, sizeof b);
    for (uint32_t r = 0; r < 4 * nt; r++) {
        for (uint32_t d = 0; d < dim; d++)
            q[r][d] = unit_bell(&random) * 64;
        store_query(b, dim, nt, r, q[r]);
    }
    for (uint32_t row = 0; row < 64; row++)
        for (uint32_t r = 0; r < 4 * nt; r++) {
            double dot = 0, size = 0;
            for (uint32_t d = 0; d < dim; d++) {
                double x = number(&k_side.rows.layout, token_of(row), d) * as_query(q[r][d]);
                dot += x;
                size += fabs(x);
            }
            double is = score(b, dim, nt, row, r);
            CHECK(fabs(is - dot) <= 1e-12 * size, "dim %u, %u rows: token %u row %u: %g, not %g",
                  dim, 4 * nt, token_of(row), r, is, dot);
        }
}

static void scores_are_dot_products(void **state) {
    (void)state;
    for (size_t d = 0; d < COUNT(dims); d++) {
        make_page(dims[d], 40 + d);
        for (size_t h = 0; h < COUNT(heights); h++)
            check_scores(dims[d], heights[h]);
    }
}

/* Every token and dim has one row of A. */
static void rows_cover_the_page(void **state) {
    (void)state;
    for (size_t d = 0; d < COUNT(dims); d++) {
        uint8_t token[TOKENS] = {0}, dim[MAX_DIM] = {0};
        for (uint32_t row = 0; row < 64; row++) {
            token[token_of(row)]++;
            for (uint32_t m = 0; m < dims[d] / 64; m++)
                dim[dim_of(dims[d], m, row)]++;
        }
        for (uint32_t i = 0; i < TOKENS; i++)
            CHECK(token[i] == 1, "token %u has %u rows", i, token[i]);
        for (uint32_t i = 0; i < dims[d]; i++)
            CHECK(dim[i] == 1, "dim %u has %u rows", i, dim[i]);
    }
}

/* ---- values
 * ---------------------------------------------------------------------------------------
 */

/* Byte i of the result is byte n of {a, b}, n the nibble i of s. */
static uint32_t prmt(uint32_t a, uint32_t b, uint32_t s) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (uint32_t i = 0; i < 4; i++)
        r |= (uint32_t)(bytes >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}

/* A lane's two tokens of a row: the first plane of both, the second of both. */
static uint32_t lane_weights(const float *weights, uint32_t warp, uint32_t g) {
    uint8_t plane[2][2];
    for (uint32_t e = 0; e < 2; e++)
        weight_planes(weights[token_of(16 * warp + g + 8 * e)], plane[e]);
    return plane[0][0] | (uint32_t)plane[1][0] << 8 | (uint32_t)plane[0][1] << 16 |
           (uint32_t)plane[1][1] << 24;
}

/* group_tile.cuh: every lane exchanges with the one of g ^ 1 and stores a word. */
static void store_weights(uint8_t *b, uint32_t row, const float *weights) {
    uint32_t nt = row / 4, t = row % 4;
    for (uint32_t warp = 0; warp < WARPS; warp++)
        for (uint32_t g = 0; g < 8; g++) {
            uint32_t own = lane_weights(weights, warp, g),
                     other = lane_weights(weights, warp, g ^ 1);
            uint32_t word = prmt(own, other, g % 2 ? 0x3726 : 0x5140);
            uint8_t *to = b + (nt * 4 + warp) * 128 + (2 * t + g % 2) * 16 + g / 2 * 4;
            for (uint32_t i = 0; i < 4; i++)
                to[i] = (uint8_t)(word >> 8 * i);
        }
}

static double value(const uint8_t *b, uint32_t dim, uint32_t m, uint32_t a_row, uint32_t row) {
    double sum = 0;
    for (uint32_t plane = 0; plane < 2; plane++)
        for (uint32_t k = 0; k < TOKENS; k++) {
            uint8_t a = a_element(v_side.rows.layout.codes, dim, m * 2 + k / 32, 1, a_row, k % 32);
            uint8_t p = b_element(b + k / 32 * 256, TOKENS * 8,
                                  8 * (row / 4) + 2 * (row % 4) + plane, k % 32);
            sum += (double)tqi_e4m3_to_float(a) * (double)tqi_e4m3_to_float(p) / weight_unit[plane];
        }
    return sum;
}

static void check_values(uint32_t dim, uint32_t nt) {
    static float weights[MAX_ROWS][TOKENS];
    static uint8_t b[MAX_ROWS * 2 * TOKENS];
    uint64_t random = 3 * dim + nt;
    memset(b, 0xff, sizeof b);
    for (uint32_t r = 0; r < 4 * nt; r++) {
        for (uint32_t i = 0; i < TOKENS; i++)
            weights[r][i] = fabsf(unit_bell(&random)) * 128;
        store_weights(b, r, weights[r]);
    }
    for (uint32_t m = 0; m < dim / 64; m++)
        for (uint32_t a_row = 0; a_row < 64; a_row++)
            for (uint32_t r = 0; r < 4 * nt; r++) {
                uint32_t d = dim_of(dim, m, a_row);
                double sum = 0, size = 0;
                for (uint32_t i = 0; i < TOKENS; i++) {
                    double x = number(&v_side.rows.layout, i, d) * as_weight(weights[r][i]);
                    sum += x;
                    size += fabs(x);
                }
                double is = value(b, dim, m, a_row, r);
                CHECK(fabs(is - sum) <= 1e-12 * size, "dim %u, %u rows: dim %u row %u: %g, not %g",
                      dim, 4 * nt, d, r, is, sum);
            }
}

static void values_are_weighted_sums(void **state) {
    (void)state;
    for (size_t d = 0; d < COUNT(dims); d++) {
        make_page(dims[d], 60 + d);
        for (size_t h = 0; h < COUNT(heights); h++)
            check_values(dims[d], heights[h]);
    }
}

/* Lanes of a warp store to 32 different banks. */
static void weights_have_no_bank_conflicts(void **state) {
    uint8_t taken[32] = {0};
    (void)state;
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t g = lane / 4, t = lane % 4;
        taken[((2 * t + g % 2) * 16 + g / 2 * 4) / 4 % 32]++;
    }
    for (uint32_t i = 0; i < 32; i++)
        CHECK(taken[i] == 1, "bank %u is taken %u times", i, taken[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_are_exact),
        cmocka_unit_test(planes_are_close),
        cmocka_unit_test(rows_cover_the_page),
        cmocka_unit_test(scores_are_dot_products),
        cmocka_unit_test(values_are_weighted_sums),
        cmocka_unit_test(weights_have_no_bank_conflicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
