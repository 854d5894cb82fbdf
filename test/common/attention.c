#include "common/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

static double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static const float *row_at(const float *rows, uint32_t token, uint32_t head, uint32_t heads,
                           uint32_t dim) {
    return rows + ((size_t)token * heads + head) * dim;
}

uint32_t plain_weights(const struct shape *s, const float *q, const float *k, uint32_t query,
                       uint32_t q_head, double *weights, double *lse) {
    uint32_t after = s->n_queries - 1 - query, visible = s->n_tokens, first = 0;
    double scale = s->scale != 0 ? s->scale : 1 / sqrt(s->k_dim), max = -INFINITY, sum = 0;
    const float *row = row_at(q, query, q_head, s->n_kv_heads * s->group, s->k_dim);
    if (s->causal)
        visible = s->n_tokens > after ? s->n_tokens - after : 0;
    if (s->window && visible > s->window)
        first = visible - s->window;
    memset(weights, 0, first * sizeof *weights);
    for (uint32_t t = first; t < visible; t++) {
        const float *key = row_at(k, t, q_head / s->group, s->n_kv_heads, s->k_dim);
        weights[t] = scale * dot(row, key, s->k_dim);
        if (s->softcap > 0)
            weights[t] = s->softcap * tanh(weights[t] / s->softcap);
        max = weights[t] > max ? weights[t] : max;
    }
    for (uint32_t t = first; t < visible; t++)
        sum += weights[t] = exp(weights[t] - max);
    if (s->sinks)
        sum += exp((double)s->sinks[q_head] - max);
    for (uint32_t t = 0; t < visible; t++)
        weights[t] /= sum;
    *lse = visible ? max + log(sum) : -INFINITY;
    return visible;
}

void plain_attend(const struct shape *s, const float *q, const float *k, const float *v,
                  double *out, double *lse) {
    uint32_t heads = s->n_kv_heads * s->group;
    double *weights = must_alloc(s->n_tokens, sizeof *weights);
    for (size_t row = 0; row < (size_t)s->n_queries * heads; row++) {
        uint32_t head = (uint32_t)(row % heads), query = (uint32_t)(row / heads);
        uint32_t visible = plain_weights(s, q, k, query, head, weights, &lse[row]);
        double *to = out + row * s->v_dim;
        memset(to, 0, s->v_dim * sizeof *to);
        for (uint32_t t = 0; t < visible; t++) {
            const float *value = row_at(v, t, head / s->group, s->n_kv_heads, s->v_dim);
            for (uint32_t i = 0; i < s->v_dim; i++)
                to[i] += weights[t] * (double)value[i];
        }
    }
    free(weights);
}

double relative_error(const float *got, const double *want, size_t n) {
    double error = 0, energy = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        energy += want[i] * want[i];
    }
    return energy > 0 ? sqrt(error / energy) : sqrt(error);
}

double largest_difference(const float *got, const double *want, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        if ((double)got[i] == want[i])
            continue;
        double difference = fabs((double)got[i] - want[i]) / fmax(1, fabs(want[i]));
        worst = difference > worst ? difference : worst;
        worst = isfinite(difference) ? worst : INFINITY;
    }
    return worst;
}

double plain_condition(double weight, double lse, const float *q, const float *k, uint32_t dim) {
    if (!(weight > 0))
        return 0;
    double least = fmax(1, fabs(log(weight) + lse));
    if (weight >= 1e-6)
        return least;
    double size = sqrt(dot(q, q, dim)) * sqrt(dot(k, k, dim)) / sqrt(dim);
    return fmax(least, fmin(size, 1e4));
}
