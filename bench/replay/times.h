/*
 * Steps of a model of whom only the cache's kernels have been measured: their times come from a
 * file of bench_cuda, all else from two numbers of the machine.
 */
#ifndef REPLAY_TIMES_H
#define REPLAY_TIMES_H

#include "replay.h"

/* A dense decoder; the benchmark's shape of attention: 8 kv heads, group 8, head dim 128. */
struct model {
    const char *name;
    double parameters;
    uint32_t layers, q_heads, head_dim;
};

struct machine {
    double bytes_per_second;      /* of a copy */
    double operations_per_second; /* of a matrix product in bf16 */
    double memory, kept;          /* bytes; what cache and weights leave alone */
};

enum { MOST_POINTS = 32 };

/* A measured time by the tokens that it was measured at, ascending. */
struct curve {
    double tokens[MOST_POINTS], seconds[MOST_POINTS];
    uint32_t n;
};

/* Of one layer and a variant. */
struct times {
    char variant[16];
    struct curve attend; /* by the tokens of all sequences together, one query each */
    struct curve append; /* by new tokens */
    struct curve pair;   /* of a query token of a chunk and a token that it sees, by context */
    const struct model *model;
    const struct machine *machine;
};

/* Straight lines between the points, the last one goes on; below the first point its time. */
double time_at(const struct curve *c, double tokens);

/* Reads what the files have of a variant. Appends: of prompts, and what they add to steps of a
 * token per sequence. Chunks of prompts: 2048 tokens; those of bf16 are the fastest of the peers'.
 * Returns 0, -1 when a file cannot be read, -2 when something is lacking. */
int read_times(const char *const *paths, int n, const char *variant, struct times *out);

/* Seconds of a step; arg is a struct times. */
double modelled_step(void *arg, const struct step *step);

/* Pages of a pool in the memory that weights leave. */
uint64_t modelled_pages(const struct times *t, double bytes_per_page);

#endif
