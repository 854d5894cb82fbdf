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
    double attention_per_second;  /* of attention of prompts in bf16 */
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
    const struct model *model;
    const struct machine *machine;
};

/* Straight lines between the points, the last one goes on; below the first point its time. */
double time_at(const struct curve *c, double tokens);

/* Reads what the file has of a variant; decodes of one token append as many as they have
 * sequences. Returns 0, -1 when the file cannot be read, -2 when it lacks something. */
int read_times(const char *path, const char *variant, struct times *out);

/* Seconds of a step; arg is a struct times. */
double modelled_step(void *arg, const struct step *step);

/* Pages of a pool in the memory that weights leave. */
uint64_t modelled_pages(const struct times *t, double bytes_per_page);

#endif
