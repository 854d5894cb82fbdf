/* Books of polar angles with any number of codes (PolarQuant, arXiv 2502.02617, section 4). */
#include <math.h>

#include "kernel/study.h"

static const double pi = 3.14159265358979323846;

enum { GRID = 4096, ROUNDS = 20000 }; /* 6 bits take some 10000 rounds */

/* Density of the angles of a level, without its constant factor. */
static double density(uint32_t level, double psi) {
    return pow(sin(2 * psi), (double)((1u << (level - 1)) - 1));
}

/* Centres to begin with: quantiles of the cube root of the density, which is where many cells
 * end up (Panter and Dite). */
static void spread(uint32_t level, uint32_t n, double *angle) {
    const double step = pi / 2 / GRID;
    double total = 0, sum = 0;
    uint32_t k = 0;
    for (uint32_t i = 0; i < GRID; i++)
        total += cbrt(density(level, (i + 0.5) * step));
    for (uint32_t i = 0; i < GRID && k < n; i++) {
        sum += cbrt(density(level, (i + 0.5) * step));
        for (; k < n && sum * n >= (k + 0.5) * total; k++)
            angle[k] = (i + 0.5) * step;
    }
    for (; k < n; k++)
        angle[k] = pi / 2;
}

/* Mean of the density over [a, b], by Simpson's rule. */
static double mean_of(uint32_t level, double a, double b, uint32_t intervals) {
    const double step = (b - a) / intervals;
    double mass = 0, first = 0;
    for (uint32_t i = 0; i <= intervals; i++) {
        double psi = a + i * step, w = i == 0 || i == intervals ? 1 : i % 2 ? 4 : 2;
        w *= density(level, psi);
        mass += w;
        first += w * psi;
    }
    return mass > 0 ? first / mass : (a + b) / 2;
}

static void lloyd(uint32_t level, uint32_t n, double *angle) {
    double moved = 1;
    spread(level, n, angle);
    for (uint32_t round = 0; round < ROUNDS && moved > 1e-10; round++) {
        double low = 0;
        moved = 0;
        for (uint32_t k = 0; k < n; k++) {
            double high = k + 1 < n ? (angle[k] + angle[k + 1]) / 2 : pi / 2;
            /* The outermost cells are wide and hold a tail. */
            double next = mean_of(level, low, high, n < 16 || k == 0 || k + 1 == n ? 64 : 8);
            moved = fmax(moved, fabs(next - angle[k]));
            angle[k] = next;
            low = high;
        }
    }
}

void tqi_study_book(struct tqi_study_book *book, uint32_t level, uint32_t bits) {
    double angle[TQI_STUDY_CODES];
    uint32_t n = 1u << bits;
    book->codes = n;
    if (level > 1)
        lloyd(level, n, angle);
    for (uint32_t k = 0; k < n; k++) {
        if (level == 1)
            angle[k] = (k + 0.5) * 2 * pi / n;
        book->cosine[k] = cos(angle[k]);
        book->sine[k] = sin(angle[k]);
    }
    for (uint32_t k = 0; k + 1 < n; k++)
        book->bound[k] = (angle[k] + angle[k + 1]) / 2;
}
