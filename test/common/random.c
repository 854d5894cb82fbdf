#include "common/random.h"

#include <math.h>

#include "common/memory.h"

uint64_t rng_next(struct rng *r) {
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t rng_below(struct rng *r, uint32_t n) {
    return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

double rng_uniform(struct rng *r) {
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

/* Box and Muller; 1 - u is never 0. */
double rng_gaussian(struct rng *r) {
    double u = 1 - rng_uniform(r), v = rng_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

float *random_rows(struct rng *r, size_t n, double scale) {
    float *rows = must_alloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = (float)(rng_gaussian(r) * scale);
    return rows;
}
