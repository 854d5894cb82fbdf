/* Cycles of the kernels on pages in cache: the cost of the arithmetic, without memory. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "device/device.h"

enum { TOKENS = 64, DIM = 128, ROUNDS = 300, TRIES = 12 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double least(double a, double b) {
    return a < b ? a : b;
}

static void bench_pair(const struct tqi_level *level, tq_format f, uint32_t rows) {
    struct page p;
    make_page(&p, f, f, DIM, TOKENS);
    fill_page(&p, TOKENS);
    size_t query = level->query_bytes(&p.k), state = (level->state_bytes(&p.v) + 63) / 64 * 64;
    char *queries = guard_alloc(rows * query), *states = guard_alloc(rows * state);
    char *scores = guard_alloc(rows * TOKENS * 8), *scratch = guard_alloc(1 << 20);
    struct tqi_sight spans[32];
    float q[DIM];
    for (uint32_t r = 0; r < rows; r++) {
        spans[r] = (struct tqi_sight){0, TOKENS};
        for (uint32_t i = 0; i < DIM; i++)
            q[i] = (float)gaussian();
        level->prepare(&p.k, q, queries + r * query);
        level->state_clear(&p.v, states + r * state);
    }
    struct tqi_tile tile = {.blob = p.blob, .last = TOKENS, .scale = 1};
    double best[3] = {1, 1, 1};
    int rounds = level == tqi_level_ref() ? 3 : ROUNDS;
    for (int try = 0; try < TRIES; try++) {
        double t0 = now();
        for (int i = 0; i < rounds; i++)
            level->score[f].run(&p.k, &tile, queries, rows, TOKENS, scores, scratch);
        double t1 = now();
        for (int i = 0; i < rounds; i++)
            level->softmax(states, state, scores, TOKENS, spans, rows, TOKENS, 0.08);
        double t2 = now();
        for (int i = 0; i < rounds; i++)
            level->accumulate[f].run(&p.v, &tile, scores, rows, TOKENS, states, state, scratch);
        double t3 = now();
        best[0] = least(best[0], (t1 - t0) / rounds);
        best[1] = least(best[1], (t2 - t1) / rounds);
        best[2] = least(best[2], (t3 - t2) / rounds);
    }
    double all = best[0] + best[1] + best[2];
    printf("%-8s %-6s %5u %9.0f %9.0f %9.0f %9.2f\n", level->name, p.k.format->name, rows,
           best[0] * 1e9, best[1] * 1e9, best[2] * 1e9, p.layout.bytes / all * 1e-9);
    guard_free(queries, rows * query);
    guard_free(states, rows * state);
    guard_free(scores, rows * TOKENS * 8);
    guard_free(scratch, 1 << 20);
    free_page(&p);
}

void bench_kernels(void) {
    static const tq_format formats[] = {TQ_FORMAT_LM4,  TQ_FORMAT_LM3, TQ_FORMAT_LM2,
                                        TQ_FORMAT_INT8, TQ_FORMAT_FP8, TQ_FORMAT_BF16,
                                        TQ_FORMAT_F16};
    struct tqi_kernels all;
    tqi_kernels_select(&all, tqi_cpu_features());
    printf("page of %d tokens, dim %d, in cache: ns of a page, and GB/s of its bytes\n", TOKENS,
           DIM);
    printf("level    format  rows     score   softmax      acc.      GB/s\n");
    for (uint32_t l = 0; l < all.n_levels; l++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
            for (uint32_t rows = 1; rows <= 8; rows *= 2)
                if (all.level[l]->score[formats[f]].run && all.level[l]->accumulate[formats[f]].run)
                    bench_pair(all.level[l], formats[f], rows);
}
