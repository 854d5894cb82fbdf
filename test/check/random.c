#include <math.h>

#include "check.h"

static uint64_t state;

void seed_random(uint64_t seed) {
    state = seed;
}

/* splitmix64 */
uint64_t next_random(void) {
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

double uniform(void) {
    return (double)(next_random() >> 11) * 0x1p-53;
}

double gaussian(void) {
    double u = uniform() + 0x1p-54, v = uniform();
    return sqrt(-2 * log(u)) * cos(6.28318530717958647692 * v);
}
