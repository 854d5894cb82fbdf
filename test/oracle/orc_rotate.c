/*
 * Oracle: rotations (TurboQuant Alg. 1, PolarQuant preconditioning) and projections (QJL).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

static bool is_power_of_two(size_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

/* Sylvester: H[i][j] = (-1)^(number of common one bits). */
static int sylvester(size_t i, size_t j) {
    int sign = 1;
    for (size_t common = i & j; common > 0; common /= 2) {
        if (common % 2 == 1) {
            sign = -sign;
        }
    }
    return sign;
}

/* Quadratic character of a modulo the prime q. */
static int chi(size_t a, size_t q) {
    if (a % q == 0) {
        return 0;
    }
    for (size_t x = 1; x < q; x++) {
        if (x * x % q == a % q) {
            return 1;
        }
    }
    return -1;
}

/* [[0, 1 ... 1], [border ..., Q]] with Q[i][j] = chi(i - j). */
static int bordered(size_t q, int border, size_t i, size_t j) {
    if (i == 0) {
        return j == 0 ? 0 : 1;
    }
    return j == 0 ? border : chi(i + q - j, q);
}

/* Paley I, q = 3 mod 4, order q + 1: I + S. */
static int paley1(size_t q, size_t i, size_t j) {
    return (i == j ? 1 : 0) + bordered(q, -1, i, j);
}

/* Paley II, q = 1 mod 4, order 2(q + 1): C (x) [[1,1],[1,-1]] + I (x) [[1,-1],[-1,-1]]. */
static int paley2(size_t q, size_t i, size_t j) {
    static const int of_c[2][2] = {{1, 1}, {1, -1}};
    static const int of_identity[2][2] = {{1, -1}, {-1, -1}};
    size_t a = i / 2, b = j / 2;
    int entry = bordered(q, 1, a, b) * of_c[i % 2][j % 2];
    return a == b ? entry + of_identity[i % 2][j % 2] : entry;
}

static int small_hadamard(size_t m, size_t i, size_t j) {
    switch (m) {
    case 1:
        return 1;
    case 12:
        return paley1(11, i, j);
    case 20:
        return paley1(19, i, j);
    case 28:
        return paley2(13, i, j);
    default: /* 36 */
        return paley2(17, i, j);
    }
}

int orc_hadamard_entry(size_t d, size_t i, size_t j) {
    static const size_t orders[] = {1, 12, 20, 28, 36};
    for (size_t o = 0; o < sizeof orders / sizeof orders[0]; o++) {
        size_t m = orders[o];
        if (d % m == 0 && is_power_of_two(d / m)) {
            size_t p = d / m; /* H_m (x) H_p: index = a p + b */
            return small_hadamard(m, i / p, j / p) * sylvester(i % p, j % p);
        }
    }
    return 0;
}

double *orc_rotation_hadamard(size_t d, uint64_t seed, uint64_t stream) {
    if (d == 0 || orc_hadamard_entry(d, 0, 0) == 0) {
        return NULL;
    }
    double *m = orc_alloc(d * d, sizeof *m);
    for (size_t j = 0; j < d; j++) {
        double column = orc_sign(seed, stream, j) / sqrt((double)d);
        for (size_t i = 0; i < d; i++) {
            m[i * d + j] = column * orc_hadamard_entry(d, i, j);
        }
    }
    return m;
}

static void remove_part_along(size_t d, const double *unit, double *v) {
    double part = orc_dot(d, unit, v);
    for (size_t i = 0; i < d; i++) {
        v[i] -= part * unit[i];
    }
}

double *orc_rotation_haar(size_t d, uint64_t seed) {
    double *m = orc_projection_gaussian(d, d, seed);
    for (size_t i = 0; i < d; i++) {
        double *row = m + i * d;
        for (int pass = 0; pass < 2; pass++) { /* twice is enough (Kahan, Parlett) */
            for (size_t j = 0; j < i; j++) {
                remove_part_along(d, m + j * d, row);
            }
        }
        double norm = orc_norm(d, row);
        for (size_t j = 0; j < d; j++) {
            row[j] /= norm;
        }
    }
    return m;
}

double *orc_projection_gaussian(size_t rows, size_t d, uint64_t seed) {
    double *m = orc_alloc(rows * d, sizeof *m);
    for (size_t i = 0; i < rows; i++) {
        orc_gaussian_row(d, seed, i, m + i * d);
    }
    return m;
}

double *orc_projection_hadamard(size_t d, uint64_t seed) {
    double *first = orc_rotation_hadamard(d, seed, 1);
    double *second = orc_rotation_hadamard(d, seed, 2);
    double *both = NULL;
    if (first != NULL && second != NULL) {
        both = orc_product(d, d, d, second, first);
    }
    free(first);
    free(second);
    return both;
}
