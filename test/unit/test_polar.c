/* The polar stage against angles: PolarQuant's transform of one block with atan2. */
#include "unit/unit.h"

#include <math.h>

#include "unit/rows.h"

enum { BLOCK = TQI_POLAR_BLOCK, LEVELS = TQI_POLAR_LEVELS };

/* A code near a boundary may go either way: the stage works in binary32. */
static const double slack = 1e-6;

static double angle_of(const float *cosine, const float *sine, int i) {
    return atan2((double)sine[i], (double)cosine[i]);
}

/* Code of a first-quadrant angle, by comparing angles; *margin: distance to a boundary. */
static uint32_t code_of(const struct tqi_polar_book *b, double angle, double *margin) {
    uint32_t code = 0;
    *margin = INFINITY;
    for (int i = 0; i < TQI_POLAR_CODES - 1; i++) {
        double bound = angle_of(b->bound_cosine, b->bound_sine, i);
        code += angle > bound;
        *margin = fmin(*margin, fabs(angle - bound));
    }
    return code;
}

/* Code of node j of a level, its lowest bits first. */
static uint32_t node_code(struct tqi_polar_codes c, int level, int j) {
    return level == 0   ? c.level1 >> 4 * j & 15u
           : level == 1 ? (uint32_t)c.level2 >> 2 * j & 3u
           : level == 2 ? (uint32_t)c.level3 >> 2 * j & 3u
                        : c.level4;
}

/* The transform with angles; radii[l] holds the radii that enter level l. Returns how many
 * nodes were left out for being next to a boundary. */
static int check_forward(const struct tqi_polar_book *book, const float *u,
                         struct tqi_polar_codes codes, float radius) {
    double r[LEVELS + 1][BLOCK], margin;
    int skipped = 0;
    for (int i = 0; i < BLOCK; i++)
        r[0][i] = fabs((double)u[i]);
    for (int l = 0; l < LEVELS; l++)
        for (int j = 0; j < BLOCK >> (l + 1); j++) {
            double a = r[l][2 * j], b = r[l][2 * j + 1];
            uint32_t expected = code_of(&book[l], atan2(b, a), &margin);
            uint32_t found = node_code(codes, l, j);
            r[l + 1][j] = hypot(a, b);
            skipped += margin <= slack;
            CHECK((found & 3) == expected || margin <= slack, "level %d node %d: %u, not %u", l + 1,
                  j, found & 3, expected);
            if (l == 0) {
                assert_int_equal(found >> 2 & 1, signbit(u[2 * j]) != 0);
                assert_int_equal(found >> 3, signbit(u[2 * j + 1]) != 0);
            }
        }
    CHECK(fabs((double)radius - r[LEVELS][0]) <= 1e-6 * r[LEVELS][0], "radius %g, not %g",
          (double)radius, r[LEVELS][0]);
    assert_true((codes.level2 >> 8) == 0 && (codes.level3 >> 4) == 0 && (codes.level4 >> 2) == 0);
    return skipped;
}

static void make_books(struct tqi_polar_book *book) {
    tqi_polar_books_make(book);
}

static void test_forward(void **state) {
    struct tqi_polar_book book[LEVELS];
    float u[BLOCK], radius;
    uint64_t seed = 1;
    int skipped = 0;
    (void)state;
    make_books(book);
    for (int n = 0; n < 40000; n++) {
        float scale = ldexpf(1, (int)unit_below(&seed, 80) - 40);
        for (int i = 0; i < BLOCK; i++)
            u[i] = unit_bell(&seed) * scale;
        struct tqi_polar_codes codes = tqk_polar_forward_ref(book, u, &radius);
        skipped += check_forward(book, u, codes, radius);
    }
    assert_true(skipped < 200); /* of 600000 nodes: the check does check */
}

/* Decoding as it is defined: radius times cosine, radius times sine, top level first. */
static void decode(const struct tqi_polar_book *book, struct tqi_polar_codes codes, double radius,
                   double *x) {
    double r[LEVELS + 1][BLOCK];
    r[LEVELS][0] = radius;
    for (int l = LEVELS; l-- > 0;)
        for (int j = 0; j < BLOCK >> (l + 1); j++) {
            uint32_t code = node_code(codes, l, j);
            double a = r[l + 1][j] * (double)book[l].cosine[code & 3];
            double b = r[l + 1][j] * (double)book[l].sine[code & 3];
            r[l][2 * j] = code & 4 ? -a : a;
            r[l][2 * j + 1] = code & 8 ? -b : b;
        }
    memcpy(x, r[0], sizeof r[0]);
}

static struct tqi_polar_codes random_codes(uint64_t *seed) {
    uint64_t bits = unit_random(seed);
    struct tqi_polar_codes codes = {(uint32_t)bits, (uint8_t)(bits >> 32),
                                    (uint8_t)(bits >> 40 & 15), (uint8_t)(bits >> 48 & 3)};
    return codes;
}

static void test_inverse(void **state) {
    struct tqi_polar_book book[LEVELS];
    float u[BLOCK];
    double x[BLOCK];
    uint64_t seed = 2;
    (void)state;
    make_books(book);
    for (int n = 0; n < 20000; n++) {
        struct tqi_polar_codes codes = random_codes(&seed);
        float radius = 1 + (float)unit_below(&seed, 1000);
        tqk_polar_inverse_ref(book, codes, radius, u);
        decode(book, codes, (double)radius, x);
        for (int i = 0; i < BLOCK; i++)
            CHECK(fabs((double)u[i] - x[i]) <= 1e-6 * (double)radius, "%d: %g, not %g", i,
                  (double)u[i], x[i]);
    }
}

/* Every set of codes is its own image: the decoded directions lie inside their cells. */
static void test_forward_of_inverse(void **state) {
    struct tqi_polar_book book[LEVELS];
    float u[BLOCK], radius;
    uint64_t seed = 3;
    (void)state;
    make_books(book);
    for (int n = 0; n < 50000; n++) {
        struct tqi_polar_codes codes = random_codes(&seed);
        tqk_polar_inverse_ref(book, codes, 7, u);
        struct tqi_polar_codes again = tqk_polar_forward_ref(book, u, &radius);
        assert_int_equal(again.level1, codes.level1);
        assert_int_equal(again.level2, codes.level2);
        assert_int_equal(again.level3, codes.level3);
        assert_int_equal(again.level4, codes.level4);
        /* Lengths of directions are within 0.2 % of 1 at each of four levels. */
        assert_true(fabsf(radius / 7 - 1) < 0.0081f);
    }
}

/* Largest angle between a direction and the ends of its cell. */
static double widest(const struct tqi_polar_book *b, uint32_t code) {
    double centre = angle_of(b->cosine, b->sine, (int)code);
    double low = code ? angle_of(b->bound_cosine, b->bound_sine, (int)code - 1) : 0;
    double high = code < TQI_POLAR_CODES - 1 ? angle_of(b->bound_cosine, b->bound_sine, (int)code)
                                             : acos(-1) / 2;
    return fmax(centre - low, high - centre);
}

/* Angle at each node of the decoded block against the original's. */
static void test_inverse_of_forward(void **state) {
    struct tqi_polar_book book[LEVELS];
    float u[BLOCK], decoded[BLOCK], radius;
    uint64_t seed = 4;
    double error = 0, energy = 0;
    (void)state;
    make_books(book);
    for (int n = 0; n < 20000; n++) {
        for (int i = 0; i < BLOCK; i++)
            u[i] = unit_bell(&seed);
        struct tqi_polar_codes codes = tqk_polar_forward_ref(book, u, &radius);
        tqk_polar_inverse_ref(book, codes, radius, decoded);
        double a[BLOCK], b[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            a[i] = fabs((double)u[i]);
            b[i] = fabs((double)decoded[i]);
            error += pow((double)u[i] - (double)decoded[i], 2);
            energy += a[i] * a[i];
            assert_true(decoded[i] == 0 || signbit(decoded[i]) == signbit(u[i]));
        }
        for (int l = 0; l < LEVELS; l++)
            for (int j = 0; j < BLOCK >> (l + 1); j++) {
                double limit = widest(&book[l], node_code(codes, l, j) & 3) + 0.004;
                double angle = atan2(a[2 * j + 1], a[2 * j]) - atan2(b[2 * j + 1], b[2 * j]);
                CHECK(fabs(angle) <= limit, "level %d: %g of %g", l + 1, angle, limit);
                a[j] = hypot(a[2 * j], a[2 * j + 1]);
                b[j] = hypot(b[2 * j], b[2 * j + 1]);
            }
    }
    /* The paper's distortion of Gaussian blocks, 0.0321; these are nearly Gaussian. */
    CHECK(fabs(error / energy - 0.0321) < 0.001, "distortion %g", error / energy);
}

/* Zero blocks and blocks with a single number. */
static void test_degenerate_blocks(void **state) {
    struct tqi_polar_book book[LEVELS];
    float u[BLOCK] = {0}, decoded[BLOCK], radius;
    (void)state;
    make_books(book);
    struct tqi_polar_codes codes = tqk_polar_forward_ref(book, u, &radius);
    assert_true(radius == 0 && codes.level1 == 0 && codes.level2 == 0);
    assert_true(codes.level3 == 0 && codes.level4 == 0);
    tqk_polar_inverse_ref(book, codes, 0, decoded);
    for (int i = 0; i < BLOCK; i++)
        assert_true(decoded[i] == 0);
    for (int i = 0; i < BLOCK; i++)
        u[i] = -0.0f; /* zeros have a sign, which is coded */
    assert_int_equal(tqk_polar_forward_ref(book, u, &radius).level1, 0xcccccccc);
    for (int i = 0; i < BLOCK; i++) {
        memset(u, 0, sizeof u);
        u[i] = i & 1 ? -3.0f : 3.0f;
        codes = tqk_polar_forward_ref(book, u, &radius);
        assert_true(radius == 3);
        /* The angle is 0 or pi/2 all the way up: first or last code by the bits of i. */
        for (int l = 0, j = i; l < LEVELS; l++, j /= 2)
            assert_int_equal(node_code(codes, l, j / 2) & 3, j & 1 ? 3 : 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_inverse),
        cmocka_unit_test(test_forward_of_inverse),
        cmocka_unit_test(test_inverse_of_forward),
        cmocka_unit_test(test_degenerate_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
