/*
 * Oracle: PolarQuant (Han et al., arXiv 2502.02617), any levels and bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <assert.h>
#include <math.h>

enum { MAX_BLOCK = 1 << ORC_POLAR_MAX_LEVELS };

void orc_polar_book_split(orc_polar_book *book, int levels, const int *bits) {
    assert(levels >= 1 && levels <= ORC_POLAR_MAX_LEVELS);
    book->levels = levels;
    for (int level = 0; level < levels; level++) {
        int size = 1 << bits[level];
        assert(size <= ORC_POLAR_MAX_CODES);
        book->size[level] = size;
        if (level > 0) {
            (void)orc_lloyd_angle(level + 1, bits[level], book->angle[level]);
        }
        for (int k = 0; k < size; k++) {
            if (level == 0) { /* uniform in [0, 2 pi) */
                book->angle[0][k] = (k + 0.5) * 2.0 * ORC_PI / size;
            }
            book->cosine[level][k] = cos(book->angle[level][k]);
            book->sine[level][k] = sin(book->angle[level][k]);
        }
    }
}

void orc_polar_book_make(orc_polar_book *book) {
    static const int bits[ORC_POLAR_LEVELS] = {4, 2, 2, 2};
    orc_polar_book_split(book, ORC_POLAR_LEVELS, bits);
}

double orc_polar_forward_levels(int levels, const double *y, double *angles) {
    double r[MAX_BLOCK];
    int n = 1 << levels;
    for (int i = 0; i < n; i++) {
        r[i] = y[i];
    }
    for (; n > 1; n /= 2) {
        for (int j = 0; j < n / 2; j++) {
            double psi = atan2(r[2 * j + 1], r[2 * j]);
            *angles++ = psi < 0.0 ? psi + 2.0 * ORC_PI : psi;
            r[j] = hypot(r[2 * j], r[2 * j + 1]);
        }
    }
    return r[0];
}

double orc_polar_forward(const double *y, double *angles) {
    return orc_polar_forward_levels(ORC_POLAR_LEVELS, y, angles);
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
    const int block = 1 << f->polar->levels;
    int *code = row->code;
    assert(f->d % (size_t)block == 0);
    for (size_t b = 0; b < f->d / (size_t)block; b++) {
        double angles[MAX_BLOCK];
        const double *angle = angles;
        double radius = orc_polar_forward_levels(f->polar->levels, y + b * (size_t)block, angles);
        for (int level = 0; level < f->polar->levels; level++) {
            for (int j = 0; j < block >> (level + 1); j++) {
                *code++ = nearest_angle(f->polar, level, *angle++);
            }
        }
        row->radius[b] = orc_round(f->rounding, radius);
    }
}

/* One radius splits into two, level by level from the top. `code` ends the codes of the block. */
static void decode_block(const orc_polar_book *book, const int *code, double radius, double *y) {
    y[0] = radius;
    for (int level = book->levels - 1; level >= 0; level--) {
        int pairs = 1 << (book->levels - 1 - level);
        for (int j = pairs - 1; j >= 0; j--) { /* downwards: y[2j] may be y[j] of a later j */
            int k = *--code;
            double whole = y[j];
            y[2 * j + 1] = whole * book->sine[level][k];
            y[2 * j] = whole * book->cosine[level][k];
        }
    }
}

void orc_polar_decode(const orc_format *f, const orc_row *row, double *y) {
    const size_t block = (size_t)1 << f->polar->levels;
    const int *code = row->code;
    for (size_t b = 0; b < f->d / block; b++) {
        code += block - 1;
        decode_block(f->polar, code, row->radius[b], y + b * block);
    }
}
