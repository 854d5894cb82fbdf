/*
 * Oracle: PolarQuant (Han et al., arXiv 2502.02617), 4 levels in blocks of 16.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <assert.h>
#include <math.h>

/* Where the angles of level 1, 2, 3, 4 start among the 15 of a block. */
static const int level_start[ORC_POLAR_LEVELS] = {0, 8, 12, 14};

void orc_polar_book_make(orc_polar_book *book) {
    for (int level = 0; level < ORC_POLAR_LEVELS; level++) {
        book->size[level] = level == 0 ? 16 : 4;
        if (level > 0) {
            (void)orc_lloyd_angle(level + 1, 2, book->angle[level]);
        }
        for (int k = 0; k < book->size[level]; k++) {
            if (level == 0) { /* uniform in [0, 2 pi) */
                book->angle[0][k] = (k + 0.5) * 2.0 * ORC_PI / 16.0;
            }
            book->cosine[level][k] = cos(book->angle[level][k]);
            book->sine[level][k] = sin(book->angle[level][k]);
        }
    }
}

double orc_polar_forward(const double *y, double *angles) {
    double r[ORC_POLAR_BLOCK];
    for (int i = 0; i < ORC_POLAR_BLOCK; i++) {
        r[i] = y[i];
    }
    for (int level = 0; level < ORC_POLAR_LEVELS; level++) {
        int pairs = ORC_POLAR_BLOCK >> (level + 1);
        for (int j = 0; j < pairs; j++) {
            double psi = atan2(r[2 * j + 1], r[2 * j]);
            angles[level_start[level] + j] = psi < 0.0 ? psi + 2.0 * ORC_PI : psi;
            r[j] = hypot(r[2 * j], r[2 * j + 1]);
        }
    }
    return r[0];
}

/* Level 1 goes round the circle: the distance is the shorter way. */
static int nearest_angle(const orc_polar_book *book, int level, double psi) {
    int best = 0;
    double shortest = INFINITY;
    for (int k = 0; k < book->size[level]; k++) {
        double distance = fabs(psi - book->angle[level][k]);
        distance = fmin(distance, 2.0 * ORC_PI - distance);
        if (distance < shortest) {
            shortest = distance;
            best = k;
        }
    }
    return best;
}

void orc_polar_encode(const orc_format *f, const double *y, orc_row *row) {
    assert(f->polar != NULL && f->d % ORC_POLAR_BLOCK == 0);
    for (size_t b = 0; b < f->d / ORC_POLAR_BLOCK; b++) {
        double angles[ORC_POLAR_ANGLES];
        int *code = row->code + b * ORC_POLAR_ANGLES;
        double radius = orc_polar_forward(y + b * ORC_POLAR_BLOCK, angles);
        for (int level = 0; level < ORC_POLAR_LEVELS; level++) {
            int first = level_start[level];
            for (int j = first; j < first + (ORC_POLAR_BLOCK >> (level + 1)); j++) {
                code[j] = nearest_angle(f->polar, level, angles[j]);
            }
        }
        row->radius[b] = orc_round(f->rounding, radius);
    }
}

/* One radius splits into two, level by level from the top. */
static void decode_block(const orc_polar_book *book, const int *code, double radius, double *y) {
    double r[ORC_POLAR_BLOCK];
    r[0] = radius;
    for (int level = ORC_POLAR_LEVELS - 1; level >= 0; level--) {
        int pairs = ORC_POLAR_BLOCK >> (level + 1);
        for (int j = pairs - 1; j >= 0; j--) { /* downwards: r[2j] may be r[j] of a later j */
            int k = code[level_start[level] + j];
            double whole = r[j];
            r[2 * j + 1] = whole * book->sine[level][k];
            r[2 * j] = whole * book->cosine[level][k];
        }
    }
    for (int i = 0; i < ORC_POLAR_BLOCK; i++) {
        y[i] = r[i];
    }
}

void orc_polar_decode(const orc_format *f, const orc_row *row, double *y) {
    for (size_t b = 0; b < f->d / ORC_POLAR_BLOCK; b++) {
        decode_block(f->polar, row->code + b * ORC_POLAR_ANGLES, row->radius[b],
                     y + b * ORC_POLAR_BLOCK);
    }
}
