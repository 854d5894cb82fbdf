/*
 * Oracle: error measures.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <math.h>

void orc_stat_add(orc_stat *s, double value) {
    double before = value - s->mean; /* Welford */
    s->n++;
    s->mean += before / (double)s->n;
    s->squares += before * (value - s->mean);
}

double orc_stat_error(const orc_stat *s) {
    double n = (double)s->n;
    return s->n > 1 ? sqrt(s->squares / (n - 1.0) / n) : (double)INFINITY;
}

static double squared_distance(size_t n, const double *a, const double *b) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return sum;
}

double orc_relative_l2(size_t n, const double *got, const double *want) {
    double error = sqrt(squared_distance(n, got, want));
    return error == 0.0 ? 0.0 : error / orc_norm(n, want);
}

double orc_divergence(size_t n, const double *p, const double *q) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] > 0.0) { /* 0 ln 0 = 0; q = 0 gives infinity */
            sum += p[i] * log(p[i] / q[i]);
        }
    }
    return sum;
}

double orc_max_difference(size_t n, const double *a, const double *b) {
    double worst = 0.0;
    for (size_t i = 0; i < n; i++) {
        double difference = a[i] == b[i] ? 0.0 : fabs(a[i] - b[i]);
        worst = fmax(worst, isnan(difference) ? (double)INFINITY : difference);
    }
    return worst;
}

static void add_distortion(const orc_format *f, const double *x, orc_stat *distortion) {
    double decoded[ORC_MAX_DIM];
    orc_roundtrip(f, x, decoded);
    orc_stat_add(distortion, squared_distance(f->d, decoded, x) / orc_dot(f->d, x, x));
}

void orc_distortion_rows(const orc_format *f, size_t n, const double *rows, orc_stat *distortion) {
    *distortion = (orc_stat){0, 0.0, 0.0};
    for (size_t i = 0; i < n; i++) {
        add_distortion(f, rows + i * f->d, distortion);
    }
}

void orc_distortion(const orc_format *f, size_t n, uint64_t seed, orc_stat *distortion) {
    double x[ORC_MAX_DIM];
    *distortion = (orc_stat){0, 0.0, 0.0};
    for (size_t i = 0; i < n; i++) {
        orc_gaussian_row(f->d, seed, i, x);
        add_distortion(f, x, distortion);
    }
}

void orc_score_error(const orc_format *f, double cosine, size_t n, uint64_t seed, orc_stat *bias,
                     orc_stat *square) {
    double x[ORC_MAX_DIM], q[ORC_MAX_DIM];
    orc_row row;
    *bias = *square = (orc_stat){0, 0.0, 0.0};
    for (size_t i = 0; i < n; i++) {
        orc_gaussian_row(f->d, seed, i, x);
        orc_query_row(f->d, x, cosine, orc_random(seed, i), 0, q);
        orc_encode(f, x, &row);
        double error = (orc_score(f, &row, q) - orc_dot(f->d, q, x)) / orc_norm(f->d, x);
        orc_stat_add(bias, error);
        orc_stat_add(square, (double)f->d * error * error);
    }
}
