/*
 * Oracle: Lloyd-Max codebooks of symmetric densities, by Lloyd's iteration (Max 1960).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <assert.h>
#include <math.h>

#define MAX_HALF 32      /* positive entries of a book of 6 bits */
#define MAX_ROUNDS 20000 /* 6 bits need about 12000 */

/* A density symmetric about 0. Its constant factor does not matter. */
typedef struct {
    double (*value)(double u, double parameter);
    double parameter;
    double end; /* negligible, or zero, from here on */
} density;

typedef struct {
    double mass, first, second; /* integrals of f, u f, u^2 f */
} moments;

static double gaussian(double u, double unused) {
    (void)unused;
    return exp(-0.5 * u * u);
}

/* TurboQuant Lemma 1, of u = sqrt(d) x. */
static double sphere(double u, double d) {
    double x2 = u * u / d;
    return x2 < 1.0 ? pow(1.0 - x2, 0.5 * (d - 3.0)) : 0.0;
}

/* PolarQuant: sin^n(2 psi) with psi = pi/4 + u, n = 2^(level - 1) - 1. */
static double angle(double u, double n) {
    return pow(fmax(cos(2.0 * u), 0.0), n);
}

/* Simpson's rule. */
static moments integrate(const density *f, double a, double b, int steps) {
    moments m = {0.0, 0.0, 0.0};
    double h = (b - a) / steps;
    for (int i = 0; i <= steps; i++) {
        double u = a + h * i;
        double weight = i == 0 || i == steps ? 1.0 : i % 2 == 1 ? 4.0 : 2.0;
        double value = weight * h / 3.0 * f->value(u, f->parameter);
        m.mass += value;
        m.first += value * u;
        m.second += value * u * u;
    }
    return m;
}

/* Moments of cell i of the positive half: its borders are midpoints. */
static moments cell(const density *f, int half, const double *c, int i) {
    double low = i == 0 ? 0.0 : 0.5 * (c[i - 1] + c[i]);
    double high = i == half - 1 ? f->end : 0.5 * (c[i] + c[i + 1]);
    return integrate(f, low, high, i == half - 1 ? 1024 : 64);
}

static double squared_error(const density *f, int half, const double *c) {
    double error = 0.0, mass = 0.0;
    for (int i = 0; i < half; i++) {
        moments m = cell(f, half, c, i);
        error += m.second - 2.0 * c[i] * m.first + c[i] * c[i] * m.mass;
        mass += m.mass;
    }
    return error / mass;
}

/* Replaces every entry by the mean of its cell until none moves. `spread` is
 * about three standard deviations. Returns the mean squared error. */
static double lloyd(const density *f, double spread, int bits, double centre, double *book) {
    double c[MAX_HALF], next[MAX_HALF];
    int half = 1 << (bits - 1);
    assert(bits >= 1 && half <= MAX_HALF);
    for (int i = 0; i < half; i++) {
        c[i] = spread * (i + 0.5) / half;
    }
    double moved = 1.0;
    for (int round = 0; round < MAX_ROUNDS && moved > 1e-13 * spread; round++) {
        moved = 0.0;
        for (int i = 0; i < half; i++) {
            moments m = cell(f, half, c, i);
            next[i] = m.first / m.mass;
            moved = fmax(moved, fabs(next[i] - c[i]));
        }
        for (int i = 0; i < half; i++) {
            c[i] = next[i];
        }
    }
    for (int i = 0; i < half; i++) {
        book[half + i] = centre + c[i];
        book[half - 1 - i] = centre - c[i];
    }
    return squared_error(f, half, c);
}

double orc_lloyd_gaussian(int bits, double *book) {
    density f = {gaussian, 0.0, 12.0};
    return lloyd(&f, 3.0, bits, 0.0, book);
}

double orc_lloyd_sphere(size_t d, int bits, double *book) {
    density f = {sphere, (double)d, fmin(12.0, sqrt((double)d))};
    return lloyd(&f, 3.0, bits, 0.0, book);
}

double orc_lloyd_angle(int level, int bits, double *book) {
    assert(level >= 2);
    density f = {angle, ldexp(1.0, level - 1) - 1.0, ORC_PI / 4.0};
    return lloyd(&f, ORC_PI / 4.0, bits, ORC_PI / 4.0, book);
}
