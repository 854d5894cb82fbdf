/* Rows that stand in for the projections of a small model. */
#ifndef EXAMPLES_COMMON_TOY_MODEL_H
#define EXAMPLES_COMMON_TOY_MODEL_H

#include <math.h>
#include <stdint.h>

enum { LAYERS = 3, KV_HEADS = 2, Q_HEADS = 8, DIM = 64 };
enum { KV_ROW = KV_HEADS * DIM, Q_ROW = Q_HEADS * DIM };
enum { STEP_TOKENS = 128 /* rows of a step, at most */ };

/* Stands in for a layer's projections of one token of a request. */
static inline void project(float *row, uint32_t n, uint32_t request, uint32_t position,
                           uint32_t layer) {
    for (uint32_t i = 0; i < n; i++)
        row[i] = sinf((float)(i + 1) * 0.37f + (float)(request * 7 + layer * 3) +
                      (float)position * 0.11f);
}

struct rows {
    float k[STEP_TOKENS * KV_ROW], v[STEP_TOKENS * KV_ROW], q[STEP_TOKENS * Q_ROW];
};

/* Tokens of one request from row `row` on. */
static inline void fill(struct rows *r, uint32_t row, uint32_t number, uint32_t first, uint32_t n,
                        uint32_t layer) {
    for (uint32_t i = 0; i < n; i++) {
        project(r->k + (row + i) * KV_ROW, KV_ROW, number, first + i, layer);
        project(r->v + (row + i) * KV_ROW, KV_ROW, number, first + i, layer + 50);
        project(r->q + (row + i) * Q_ROW, Q_ROW, number, first + i, layer + 90);
    }
}

#endif
