/*
 * Oracle: scalar codes of a rotated row (TurboQuant_mse, int8) and their gains (DRIVE, EDEN).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <assert.h>
#include <math.h>

/* Ties: the smaller magnitude, and the positive one of a pair. */
int orc_nearest(int n, const double *book, double y) {
    int best = n - 1;
    for (int i = n - 2; i >= 0; i--) {
        double distance = fabs(y - book[i]), shortest = fabs(y - book[best]);
        if (distance < shortest || (distance == shortest && fabs(book[i]) < fabs(book[best]))) {
            best = i;
        }
    }
    return best;
}

double orc_gain_value(orc_gain gain, size_t d, const double *y, const double *c, double s1) {
    switch (gain) {
    case ORC_GAIN_S1:
        break;
    case ORC_GAIN_NC:
        return orc_norm(d, y) / orc_norm(d, c);
    case ORC_GAIN_MMSE:
        return orc_dot(d, y, c) / orc_dot(d, c, c);
    case ORC_GAIN_UNBIASED:
        return orc_dot(d, y, y) / orc_dot(d, y, c);
    }
    return s1;
}

/* Codeword in unit-sphere scale. */
static void codeword(const orc_format *f, const orc_row *row, double *c) {
    for (size_t i = 0; i < f->d; i++) {
        c[i] = f->book[row->code[i]] / sqrt((double)f->d);
    }
}

void orc_scalar_encode(const orc_format *f, const double *y, orc_row *row) {
    double c[ORC_MAX_DIM];
    double norm = orc_norm(f->d, y);
    double scale = norm > 0.0 ? sqrt((double)f->d) / norm : 0.0; /* to variance 1 */
    assert(f->book != NULL && f->bits >= 1);
    for (size_t i = 0; i < f->d; i++) {
        row->code[i] = orc_nearest(1 << f->bits, f->book, scale * y[i]);
    }
    codeword(f, row, c);
    double gain = norm > 0.0 ? orc_gain_value(f->gain, f->d, y, c, norm) : 0.0;
    row->gain = orc_round(f->rounding, gain);
}

void orc_scalar_decode(const orc_format *f, const orc_row *row, double *y) {
    codeword(f, row, y);
    for (size_t i = 0; i < f->d; i++) {
        y[i] *= row->gain;
    }
}

void orc_int8_encode(const orc_format *f, const double *y, orc_row *row) {
    double c[ORC_MAX_DIM];
    double largest = 0.0;
    for (size_t i = 0; i < f->d; i++) {
        largest = fmax(largest, fabs(y[i]));
    }
    for (size_t i = 0; i < f->d; i++) {
        c[i] = largest > 0.0 ? rint(127.0 * (y[i] / largest)) : 0.0;
        row->code[i] = (int)c[i];
    }
    double gain = 0.0;
    if (largest > 0.0) {
        gain = orc_gain_value(f->gain, f->d, y, c, largest / 127.0);
    }
    row->gain = orc_round(f->rounding, gain);
}

void orc_int8_decode(const orc_format *f, const orc_row *row, double *y) {
    for (size_t i = 0; i < f->d; i++) {
        y[i] = row->gain * row->code[i];
    }
}
