/*
 * Oracle: vectors and matrices, the textbook loops.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

void *orc_alloc(size_t n, size_t size) {
    void *p = calloc(n > 0 ? n : 1, size);
    if (p == NULL) {
        abort();
    }
    return p;
}

double orc_dot(size_t n, const double *a, const double *b) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

double orc_norm(size_t n, const double *a) {
    return sqrt(orc_dot(n, a, a));
}

void orc_apply(size_t rows, size_t cols, const double *m, const double *x, double *y) {
    for (size_t i = 0; i < rows; i++) {
        y[i] = orc_dot(cols, m + i * cols, x);
    }
}

void orc_apply_transposed(size_t rows, size_t cols, const double *m, const double *x, double *y) {
    for (size_t j = 0; j < cols; j++) {
        y[j] = 0.0;
    }
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            y[j] += m[i * cols + j] * x[i];
        }
    }
}

double *orc_product(size_t rows, size_t inner, size_t cols, const double *a, const double *b) {
    double *c = orc_alloc(rows * cols, sizeof *c);
    for (size_t i = 0; i < rows; i++) {
        /* Row i of A B is row i of A times B. */
        orc_apply_transposed(inner, cols, b, a + i * inner, c + i * cols);
    }
    return c;
}

double orc_orthogonality_error(size_t rows, size_t cols, const double *m) {
    double worst = 0.0;
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j <= i; j++) {
            double want = i == j ? 1.0 : 0.0;
            double error = fabs(orc_dot(cols, m + i * cols, m + j * cols) - want);
            worst = fmax(worst, error);
        }
    }
    return worst;
}
