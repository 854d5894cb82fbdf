/* Distortion of the four polar levels together, by trial: blocks of 16 Gaussian numbers are coded
   and decoded as the format does it (4 bits at level 1, 2 bits at levels 2 to 4, radius kept
   exact), angles found by cross products. */
#include <math.h>

#include "gen.h"

enum { block = 1 << GEN_POLAR_LEVELS, blocks = 1 << 18 };

/* ---- random numbers ---- */

/* The output function of SplitMix64 (Steele, Lea, Flood 2014) applied to a counter. */
static uint64_t random_bits(uint64_t counter) {
    uint64_t z = (counter + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* In (0, 1), never an end of it. */
static double random_unit(uint64_t counter) {
    return ((double)(random_bits(counter) >> 12) + 0.5) / 4503599627370496.0;
}

/* Box-Muller: two Gaussian numbers from two uniform ones. */
static void gaussian_block(uint64_t index, double x[block]) {
    const double two_pi = 6.283185307179586;
    for (int j = 0; j < block; j += 2) {
        const uint64_t counter = index * block + (uint64_t)j;
        const double radius = sqrt(-2.0 * log(random_unit(counter)));
        const double angle = two_pi * random_unit(counter + 1);
        x[j] = radius * cos(angle);
        x[j + 1] = radius * sin(angle);
    }
}

/* ---- the code ---- */

/* How many boundaries the direction (x, y) of the first quadrant has passed. */
static int nearest_direction(const gen_polar_book *book, double x, double y) {
    int passed = 0;
    for (int b = 0; b < GEN_POLAR_BOUNDS; b++) {
        passed += book->bound_cos[b] * y > book->bound_sin[b] * x;
    }
    return passed;
}

/* Codes the directions of the pairs (x[2j], x[2j+1]) and decodes them: decoded[2j], decoded[2j+1]
   are the decoded radius of the pair, parent[j], times the decoded direction. Only level 1 has
   signs. */
static void decode_pairs(const gen_polar_book *book, int pairs, const double *x,
                         const double *parent, double *decoded) {
    for (int j = 0; j < pairs; j++) {
        const double *p = x + 2 * j;
        const int k = nearest_direction(book, fabs(p[0]), fabs(p[1]));
        decoded[2 * j] = copysign(parent[j] * book->step * book->cos[k], p[0]);
        decoded[2 * j + 1] = copysign(parent[j] * book->step * book->sin[k], p[1]);
    }
}

/* Squared error of one block relative to its squared length. */
static double block_error(const gen_polar_book *const books[GEN_POLAR_LEVELS],
                          const double x[block]) {
    /* By level, block >> level numbers each; level 0 is the vector itself. */
    double radii[GEN_POLAR_LEVELS + 1][block];
    double decoded[GEN_POLAR_LEVELS + 1][block];
    for (int j = 0; j < block; j++) {
        radii[0][j] = x[j];
    }
    for (int l = 1; l <= GEN_POLAR_LEVELS; l++) {
        for (int j = 0; j < block >> l; j++) {
            radii[l][j] = hypot(radii[l - 1][2 * j], radii[l - 1][2 * j + 1]);
        }
    }
    /* The stored radius is the top one; those below are products of decoded directions. */
    decoded[GEN_POLAR_LEVELS][0] = radii[GEN_POLAR_LEVELS][0];
    for (int l = GEN_POLAR_LEVELS; l >= 1; l--) {
        decode_pairs(books[l - 1], block >> l, radii[l - 1], decoded[l], decoded[l - 1]);
    }
    double error = 0.0;
    for (int j = 0; j < block; j++) {
        error += (decoded[0][j] - x[j]) * (decoded[0][j] - x[j]);
    }
    return error / (radii[GEN_POLAR_LEVELS][0] * radii[GEN_POLAR_LEVELS][0]);
}

/* The relative error of a block does not depend on its radius (for Gaussian input the angles are
   independent of it), so the mean over blocks of the relative error is E|x - x^|^2 / E|x|^2. */
gen_estimate gen_polar_distortion(const gen_polar_book *const books[GEN_POLAR_LEVELS]) {
    double sum = 0.0;
    double sum_of_squares = 0.0;
    for (uint64_t i = 0; i < blocks; i++) {
        double x[block];
        gaussian_block(i, x);
        const double error = block_error(books, x);
        sum += error;
        sum_of_squares += error * error;
    }
    gen_estimate estimate;
    estimate.mean = sum / blocks;
    estimate.standard_error =
        sqrt((sum_of_squares / blocks - estimate.mean * estimate.mean) / blocks);
    return estimate;
}
