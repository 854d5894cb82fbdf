/* Random numbers that are the same everywhere and every time. */
#ifndef TEST_COMMON_RANDOM_H
#define TEST_COMMON_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* A stream of numbers from splitmix64 (Steele, Lea, Flood 2014); the state is the seed. */
struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n); /* [0, n); n is small */
double rng_uniform(struct rng *r);             /* [0, 1) */
double rng_gaussian(struct rng *r);

/* n f32 Gaussians times scale; allocated. */
float *random_rows(struct rng *r, size_t n, double scale);

#endif
