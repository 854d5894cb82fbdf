/*
 * Oracle: the QJL sign sketch of a residual (arXiv 2406.03482; TurboQuant Alg. 2).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <assert.h>
#include <math.h>

double orc_mean_abs_coordinate(size_t d) {
    double half = 0.5 * (double)d;
    return exp(lgamma(half) - lgamma(half + 0.5)) / sqrt(ORC_PI);
}

double orc_sketch_constant(orc_sketch kind, size_t n_signs, size_t d) {
    double m = (double)n_signs;
    if (kind == ORC_SKETCH_GAUSSIAN) {
        return sqrt(ORC_PI / 2.0) / m; /* QJL's estimator */
    }
    return 1.0 / (m * orc_mean_abs_coordinate(d));
}

static double constant_of(const orc_format *f) {
    return orc_sketch_constant(f->sketch, f->n_signs, f->d);
}

void orc_sketch_encode(const orc_format *f, const double *residual, orc_row *row) {
    double projected[ORC_MAX_DIM];
    double sum = 0.0;
    assert(f->projection != NULL && f->n_signs >= 1 && f->n_signs <= ORC_MAX_DIM);
    orc_apply(f->n_signs, f->d, f->projection, residual, projected);
    for (size_t i = 0; i < f->n_signs; i++) {
        row->sign[i] = projected[i] < 0.0 ? -1 : 1;
        sum += fabs(projected[i]);
    }
    double gamma = orc_norm(f->d, residual);
    if (f->sketch == ORC_SKETCH_EXACT) {
        gamma = sum > 0.0 ? gamma * gamma / (constant_of(f) * sum) : 0.0;
    }
    row->gamma = orc_round(f->gamma_rounding, gamma);
}

void orc_sketch_decode(const orc_format *f, const orc_row *row, double *x) {
    double sign[ORC_MAX_DIM], sum[ORC_MAX_DIM];
    for (size_t i = 0; i < f->n_signs; i++) {
        sign[i] = row->sign[i];
    }
    orc_apply_transposed(f->n_signs, f->d, f->projection, sign, sum);
    for (size_t i = 0; i < f->d; i++) {
        x[i] += constant_of(f) * row->gamma * sum[i];
    }
}

double orc_sketch_score(const orc_format *f, const orc_row *row, const double *q) {
    double projected[ORC_MAX_DIM];
    double sum = 0.0;
    orc_apply(f->n_signs, f->d, f->projection, q, projected);
    for (size_t i = 0; i < f->n_signs; i++) {
        sum += projected[i] * row->sign[i];
    }
    return constant_of(f) * row->gamma * sum;
}
