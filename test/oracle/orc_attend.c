/*
 * Oracle: attention in double.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

size_t orc_visible_keys(const orc_shape *s, size_t query) {
    if (!s->causal) {
        return s->n_keys;
    }
    size_t hidden = s->n_queries - query - 1;
    return s->n_keys > hidden ? s->n_keys - hidden : 0;
}

size_t orc_first_key(const orc_shape *s, size_t query) {
    size_t visible = orc_visible_keys(s, query);
    return s->window > 0 && s->window < visible ? visible - s->window : 0;
}

/* The kv head of a query head. */
static size_t kv_head(const orc_shape *s, size_t q_head) {
    assert(s->n_kv_heads > 0 && s->n_q_heads % s->n_kv_heads == 0);
    return q_head / (s->n_q_heads / s->n_kv_heads);
}

/* Scores of one query of one head. */
static void score_row(const orc_shape *s, const double *q, const double *k, size_t query,
                      size_t head, double *scores) {
    const double *q_row = q + (query * s->n_q_heads + head) * s->dim_k;
    size_t from = orc_first_key(s, query), to = orc_visible_keys(s, query);
    for (size_t t = 0; t < s->n_keys; t++) {
        const double *k_row = k + (t * s->n_kv_heads + kv_head(s, head)) * s->dim_k;
        if (t < from || t >= to) {
            scores[t] = -(double)INFINITY;
            continue;
        }
        scores[t] = s->scale * orc_dot(s->dim_k, q_row, k_row);
        if (s->softcap > 0.0) {
            scores[t] = s->softcap * tanh(scores[t] / s->softcap);
        }
    }
}

void orc_scores(const orc_shape *s, const double *q, const double *k, double *scores) {
    for (size_t i = 0; i < s->n_queries; i++) {
        for (size_t h = 0; h < s->n_q_heads; h++) {
            score_row(s, q, k, i, h, scores + (i * s->n_q_heads + h) * s->n_keys);
        }
    }
}

double orc_softmax(size_t n, const double *scores, double *weights) {
    double largest = -(double)INFINITY, sum = 0.0;
    for (size_t t = 0; t < n; t++) {
        largest = fmax(largest, scores[t]);
    }
    for (size_t t = 0; t < n; t++) {
        bool hidden = scores[t] == -(double)INFINITY;
        weights[t] = hidden ? 0.0 : exp(scores[t] - largest);
        sum += weights[t];
    }
    if (sum == 0.0) { /* no visible key */
        return -(double)INFINITY;
    }
    for (size_t t = 0; t < n; t++) {
        weights[t] /= sum;
    }
    return largest + log(sum);
}

void orc_attend(const orc_shape *s, const double *q, const double *k, const double *v, double *out,
                double *lse, double *weights) {
    double *row = orc_alloc(s->n_keys + 1, sizeof *row); /* the sink is one key more */
    for (size_t i = 0; i < s->n_queries * s->n_q_heads; i++) {
        size_t head = i % s->n_q_heads;
        double *o = out + i * s->dim_v;
        score_row(s, q, k, i / s->n_q_heads, head, row);
        size_t from = orc_first_key(s, i / s->n_q_heads);
        size_t to = orc_visible_keys(s, i / s->n_q_heads);
        row[s->n_keys] = s->sinks != NULL && from < to ? s->sinks[head] : -(double)INFINITY;
        double log_sum = orc_softmax(s->n_keys + 1, row, row);
        for (size_t j = 0; j < s->dim_v; j++) {
            o[j] = 0.0;
        }
        for (size_t t = from; t < to; t++) {
            const double *v_row = v + (t * s->n_kv_heads + kv_head(s, head)) * s->dim_v;
            for (size_t j = 0; j < s->dim_v; j++) {
                o[j] += row[t] * v_row[j];
            }
        }
        if (lse != NULL) {
            lse[i] = log_sum;
        }
        for (size_t t = 0; t < s->n_keys && weights != NULL; t++) {
            weights[i * s->n_keys + t] = row[t];
        }
    }
    free(row);
}
