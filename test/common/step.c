#include "common/step.h"

#include <stdlib.h>
#include <string.h>

tq_batch *batch_open(const struct rig *r, uint32_t max_seqs, uint32_t max_tokens) {
    tq_batch *batch = NULL;
    OK(tq_batch_create(r->cache, max_seqs, max_tokens, &batch));
    return batch;
}

tq_status batch_plan(tq_batch *batch, const struct step_plan *p) {
    tq_batch_desc desc = {.struct_size = sizeof desc,
                          .n_seqs = p->n,
                          .seqs = p->seqs,
                          .n_append = p->n_append,
                          .n_query = p->n_query};
    return tq_batch_plan(batch, &desc, NULL);
}

static uint32_t sum(const uint32_t *n, uint32_t count) {
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += n[i];
    return total;
}

uint32_t step_appends(const struct step_plan *p, uint32_t i) {
    return sum(p->n_append, i);
}

uint32_t step_queries(const struct step_plan *p, uint32_t i) {
    return sum(p->n_query, i);
}

void batch_append(tq_batch *batch, uint32_t layer, const float *k, const float *v) {
    tq_rows_in keys = rows_in(k), values = rows_in(v);
    OK(tq_batch_append(batch, layer, &keys, &values, NULL));
}

void batch_ask(const struct rig *r, tq_batch *batch, uint32_t layer, struct asked *a) {
    tq_attend_params params = ask_begin(r, a);
    tq_rows_in q = rows_in(a->q);
    tq_rows_out out = rows_out(a->out);
    OK(tq_batch_attend(batch, layer, &params, &q, &out, a->lse, NULL));
}

struct asked step_part(const struct rig *r, const struct step_plan *p, const struct asked *a,
                       uint32_t i) {
    struct asked part = *a;
    uint32_t first = step_queries(p, i);
    part.n_queries = p->n_query[i];
    part.q += first * rig_q_row(r);
    part.out += first * rig_out_row(r);
    part.lse += (size_t)first * r->c.n_q_heads;
    return part;
}

void check_part(const struct rig *r, tq_seq seq, uint32_t layer, const struct asked *part,
                const char *what) {
    struct asked alone = *part;
    alone.out = must_alloc(part->n_queries * rig_out_row(r), sizeof(float));
    alone.lse = must_alloc((size_t)part->n_queries * r->c.n_q_heads, sizeof(float));
    ask(r, seq, layer, &alone);
    CHECK(same_answer(r, &alone, part), "%s: layer %u", what, layer);
    free(alone.out);
    free(alone.lse);
}
