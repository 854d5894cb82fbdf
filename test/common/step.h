/* Batched steps in a test, over f32 arrays: what a step does, its rows and its answers. */
#ifndef TEST_COMMON_STEP_H
#define TEST_COMMON_STEP_H

#include "common/rig.h"

enum { STEP_SEQS = 64 };

struct step_plan {
    uint32_t n;
    tq_seq seqs[STEP_SEQS];
    uint32_t n_append[STEP_SEQS], n_query[STEP_SEQS];
};

tq_batch *batch_open(const struct rig *r, uint32_t max_seqs, uint32_t max_tokens);
tq_status batch_plan(tq_batch *batch, const struct step_plan *p);
/* Rows of all sequences, and of those before sequence i. */
uint32_t step_appends(const struct step_plan *p, uint32_t i);
uint32_t step_queries(const struct step_plan *p, uint32_t i);

/* Asks once for the whole step; a->n_queries are its query rows. */
void batch_ask(const struct rig *r, tq_batch *batch, uint32_t layer, struct asked *a);
void batch_append(tq_batch *batch, uint32_t layer, const float *k, const float *v);
/* The part of an answer that belongs to sequence i; points into it. */
struct asked step_part(const struct rig *r, const struct step_plan *p, const struct asked *a,
                       uint32_t i);
/* A sequence of another cache, asked alone, answers as its part of the step: bit for bit. */
void check_part(const struct rig *r, tq_seq seq, uint32_t layer, const struct asked *part,
                const char *what);

#endif
