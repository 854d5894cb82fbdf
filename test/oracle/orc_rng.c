/*
 * Oracle: random numbers. Test data from splitmix64, the library's signs from Philox.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <math.h>

/* The output function of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t orc_random(uint64_t seed, uint64_t n) {
    /* The seed is mixed first so that neighbouring seeds start far apart. */
    return mix(mix(seed) + (n + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

double orc_uniform(uint64_t seed, uint64_t n) {
    return ((double)(orc_random(seed, n) >> 11) + 0.5) * 0x1p-53;
}

/* Box-Muller: numbers 2k and 2k + 1 come from uniforms 2k and 2k + 1. */
double orc_gaussian(uint64_t seed, uint64_t n) {
    uint64_t first = n & ~UINT64_C(1);
    double radius = sqrt(-2.0 * log(orc_uniform(seed, first)));
    double angle = 2.0 * ORC_PI * orc_uniform(seed, first + 1);
    return radius * (n == first ? cos(angle) : sin(angle));
}

void orc_gaussian_row(size_t d, uint64_t seed, uint64_t row, double *x) {
    for (size_t i = 0; i < d; i++) {
        x[i] = orc_gaussian(seed, row * d + i);
    }
}

void orc_query_row(size_t d, const double *x, double cosine, uint64_t seed, uint64_t row,
                   double *q) {
    /* A Gaussian row without its part along x, then the two parts at length. */
    double along_x = orc_dot(d, x, x);
    orc_gaussian_row(d, seed, row, q);
    double along = orc_dot(d, q, x) / along_x;
    for (size_t i = 0; i < d; i++) {
        q[i] -= along * x[i];
    }
    double across = sqrt(1.0 - cosine * cosine) / orc_norm(d, q);
    for (size_t i = 0; i < d; i++) {
        q[i] = across * q[i] + cosine * x[i] / sqrt(along_x);
    }
}

static uint32_t high_word(uint32_t a, uint32_t b) {
    return (uint32_t)(((uint64_t)a * b) >> 32);
}

void orc_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    const uint32_t m0 = 0xd2511f53, m1 = 0xcd9e8d57; /* multipliers */
    const uint32_t w0 = 0x9e3779b9, w1 = 0xbb67ae85; /* Weyl steps of the key */
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint32_t n0 = high_word(m1, c2) ^ c1 ^ k0;
        uint32_t n1 = m1 * c2;
        uint32_t n2 = high_word(m0, c0) ^ c3 ^ k1;
        uint32_t n3 = m0 * c0;
        c0 = n0, c1 = n1, c2 = n2, c3 = n3;
        k0 += w0, k1 += w1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

double orc_sign(uint64_t seed, uint64_t stream, uint64_t n) {
    uint64_t block = n / 4;
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                           (uint32_t)(stream >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    orc_philox(counter, key, out);
    return out[n % 4] >> 31 ? -1.0 : 1.0;
}
