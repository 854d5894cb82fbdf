#include "measure.h"

#include <math.h>
#include <stdlib.h>

static double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

double *from_half(const uint16_t *bits, size_t n) {
    double *out = malloc(n * sizeof *out);
    if (!out)
        abort();
    for (size_t i = 0; i < n; i++)
        out[i] = half_value(bits[i]);
    return out;
}

static double relative(const double *want, const float *got, size_t n) {
    double error = 0, energy = 0;
    for (size_t i = 0; i < n; i++) {
        double d = want[i] - (double)got[i];
        error += d * d;
        energy += want[i] * want[i];
    }
    return sqrt(error / energy);
}

static double max_of(const double *x, uint32_t n) {
    double max = x[0];
    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* Scores to weights in place; returns nothing that a caller needs beyond them. */
static void softmax(double *x, uint32_t n) {
    double max = max_of(x, n), sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - max);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* Sums over the queries of all heads. */
struct sums {
    double error, energy, divergence, logit;
};

static size_t at(uint32_t row, uint32_t head, uint32_t n_heads, uint32_t dim) {
    return ((size_t)row * n_heads + head) * dim;
}

/* Exact and coded scores of one query; the exact ones of f16 keys. */
static void scores(const struct capture *c, uint32_t query, uint32_t head, uint32_t visible,
                   const float *k, double *exact, double *coded) {
    const double *q = c->exact_q + at(query, head, c->n_q_heads, c->head_dim);
    uint32_t kv = head / (c->n_q_heads / c->n_kv_heads);
    double root = sqrt(c->head_dim);
    for (uint32_t t = 0; t < visible; t++) {
        size_t row = at(t, kv, c->n_kv_heads, c->head_dim);
        exact[t] = coded[t] = 0;
        for (uint32_t i = 0; i < c->head_dim; i++) {
            double x = q[i] / root;
            exact[t] += x * c->exact_k[row + i];
            coded[t] += x * (double)k[row + i];
        }
    }
}

static void add_query(const struct capture *c, uint32_t query, uint32_t head, const float *k,
                      const float *out, double *exact, double *coded, struct sums *s) {
    uint32_t visible = c->n_tokens - c->n_queries + query + 1;
    uint32_t kv = head / (c->n_q_heads / c->n_kv_heads);
    scores(c, query, head, visible, k, exact, coded);
    for (uint32_t t = 0; t < visible; t++)
        s->logit = fmax(s->logit, fabs(exact[t] - coded[t]));
    softmax(exact, visible);
    softmax(coded, visible);
    for (uint32_t t = 0; t < visible; t++)
        if (exact[t] > 0)
            s->divergence += exact[t] * log(exact[t] / fmax(coded[t], 1e-300));
    for (uint32_t i = 0; i < c->head_dim; i++) {
        double want = 0, got = (double)out[at(query, head, c->n_q_heads, c->head_dim) + i];
        for (uint32_t t = 0; t < visible; t++)
            want += exact[t] * c->exact_v[at(t, kv, c->n_kv_heads, c->head_dim) + i];
        s->error += (want - got) * (want - got);
        s->energy += want * want;
    }
}

void measure(const struct capture *c, const float *k, const float *v, const float *out,
             struct errors *e) {
    size_t n = (size_t)c->n_tokens * c->n_kv_heads * c->head_dim;
    double *exact = malloc(c->n_tokens * sizeof *exact);
    double *coded = malloc(c->n_tokens * sizeof *coded);
    struct sums s = {0, 0, 0, 0};
    if (!exact || !coded)
        abort();
    for (uint32_t query = 0; query < c->n_queries; query++)
        for (uint32_t head = 0; head < c->n_q_heads; head++)
            add_query(c, query, head, k, out, exact, coded, &s);
    e->key = relative(c->exact_k, k, n);
    e->value = relative(c->exact_v, v, n);
    e->output = sqrt(s.error / s.energy);
    e->divergence = s.divergence / ((double)c->n_queries * c->n_q_heads);
    e->logit = s.logit;
    free(exact);
    free(coded);
}
