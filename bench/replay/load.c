/* Requests from a seed. */
#include "replay.h"

#include <math.h>
#include <stdlib.h>

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t next_bits(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In (0, 1]. */
static double next_uniform(uint64_t *state) {
    return ((double)(next_bits(state) >> 11) + 1) * 0x1p-53;
}

static double next_normal(uint64_t *state) {
    double radius = sqrt(-2 * log(next_uniform(state)));
    return radius * cos(6.283185307179586 * next_uniform(state));
}

static uint32_t next_length(uint64_t *state, const struct lengths *l) {
    double x = floor(l->median * exp(l->sigma * next_normal(state)));
    return x < 1 ? 1 : x > l->most ? l->most : (uint32_t)x;
}

struct request *make_requests(const struct load *load) {
    struct request *r = calloc(load->n ? load->n : 1, sizeof *r);
    uint64_t state = load->seed;
    double now = 0;
    for (uint32_t i = 0; r && i < load->n; i++) {
        if (load->rate > 0)
            now -= log(next_uniform(&state)) / load->rate;
        r[i].arrival = now;
        r[i].prompt = next_length(&state, &load->prompt);
        r[i].answer = next_length(&state, &load->answer);
    }
    return r;
}
