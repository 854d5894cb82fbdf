/* Cycles of the kernels on pages in cache: the cost of the arithmetic, without memory. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Values of formats that only keys have are lm4. */
static tq_format values_of(tq_format f) {
    return tqi_format_by_id(f)->roles & TQ_ROLE_V ? f : TQ_FORMAT_LM4;
}

/* Scores are scaled so far down that all probabilities are 1 however often softmax runs over
 * them: numbers near the end of the range would cost extra. */
static void bench_pair(const struct tqi_level *level, tq_format f, uint32_t rows) {
    struct page p;
    tq_format v = values_of(f);
    make_page(&p, f, v, DIM, TOKENS);
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
    tqi_level_enter(level, rows);
    for (int try = 0; try < TRIES; try++) {
        double t0 = now();
        for (int i = 0; i < rounds; i++)
            level->score[f].run(&p.k, &tile, queries, rows, TOKENS, scores, scratch);
        double t1 = now();
        for (int i = 0; i < rounds; i++)
            level->softmax(states, state, scores, TOKENS, spans, rows, TOKENS, 1e-12);
        double t2 = now();
        for (int i = 0; i < rounds; i++)
            level->accumulate[v].run(&p.v, &tile, scores, rows, TOKENS, states, state, scratch);
        double t3 = now();
        best[0] = least(best[0], (t1 - t0) / rounds);
        best[1] = least(best[1], (t2 - t1) / rounds);
        best[2] = least(best[2], (t3 - t2) / rounds);
    }
    tqi_level_leave(level);
    double all = best[0] + best[1] + best[2];
    printf("%-8s %-9s %5u %9.0f %9.0f %9.0f %9.2f\n", level->name, p.k.format->name, rows,
           best[0] * 1e9, best[1] * 1e9, best[2] * 1e9, p.layout.bytes / all * 1e-9);
    guard_free(queries, rows * query);
    guard_free(states, rows * state);
    guard_free(scores, rows * TOKENS * 8);
    guard_free(scratch, 1 << 20);
    free_page(&p);
}

/* ns to code one row into a page, token after token. */
static double bench_encode(const struct tqi_level *level, const struct tqi_rows *rows,
                           uint8_t *blob) {
    size_t room = (level->encode_scratch(rows) * sizeof(float) + 63) / 64 * 64;
    float *x = guard_alloc(room), row[DIM];
    double best = 1;
    int rounds = level == tqi_level_ref() ? 1 : 30;
    for (uint32_t i = 0; i < DIM; i++)
        row[i] = (float)gaussian();
    for (int try = 0; try < TRIES; try++) {
        double start = now();
        for (int i = 0; i < rounds; i++)
            for (uint32_t t = 0; t < TOKENS; t++) {
                memcpy(x, row, sizeof row);
                level->encode[rows->format->id].run(rows, 1, x, blob, t);
            }
        best = least(best, (now() - start) / (rounds * TOKENS));
    }
    guard_free(x, room);
    return best * 1e9;
}

static void bench_encoders(const struct tqi_level *level, tq_format f) {
    struct page p;
    tq_format v = values_of(f);
    make_page(&p, f, v, DIM, TOKENS);
    printf("%-8s %-9s %9.0f", level->name, p.k.format->name, bench_encode(level, &p.k, p.blob));
    if (v == f)
        printf(" %9.0f", bench_encode(level, &p.v, p.blob));
    printf("\n");
    free_page(&p);
}

/* Whether those of a level (NULL = all) with a text in their names are wanted. */
static bool wanted(const struct tqi_level *level, tq_format f, const char *only, const char *text) {
    return (!only || strcmp(level->name, only) == 0) && strstr(tqi_format_by_id(f)->name, text);
}

void bench_kernels(const char *only, const char *text) {
    static const tq_format formats[] = {TQ_FORMAT_LM4,     TQ_FORMAT_LM3,    TQ_FORMAT_LM2,
                                        TQ_FORMAT_INT8,    TQ_FORMAT_FP8,    TQ_FORMAT_BF16,
                                        TQ_FORMAT_F16,     TQ_FORMAT_POLAR,  TQ_FORMAT_POLAR_QJL,
                                        TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM2_QJL};
    const size_t n_formats = sizeof formats / sizeof *formats;
    struct tqi_kernels all;
    tqi_kernels_select(&all, tqi_cpu_features(UINT64_MAX));
    printf("ns to code a row of dim %d into a page of %d tokens, in cache\n", DIM, TOKENS);
    printf("level    format          key     value\n");
    for (uint32_t l = 0; l < all.n_levels; l++)
        for (size_t f = 0; f < n_formats; f++)
            if (all.level[l]->encode[formats[f]].run &&
                wanted(all.level[l], formats[f], only, text))
                bench_encoders(all.level[l], formats[f]);
    printf("page of %d tokens, dim %d, in cache: ns of a page, and GB/s of its bytes\n", TOKENS,
           DIM);
    printf("level    format     rows     score   softmax      acc.      GB/s\n");
    for (uint32_t l = 0; l < all.n_levels; l++)
        for (size_t f = 0; f < n_formats; f++)
            for (uint32_t rows = 1; rows <= 8; rows *= 2)
                if (all.level[l]->score[formats[f]].run &&
                    all.level[l]->accumulate[values_of(formats[f])].run &&
                    wanted(all.level[l], formats[f], only, text))
                    bench_pair(all.level[l], formats[f], rows);
}
