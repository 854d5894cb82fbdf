#include "common/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t rng_next(struct rng *r) {
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t rng_below(struct rng *r, uint32_t n) {
    return (uint32_t)((rng_next(r) >> 32) * n >> 32);
}

double rng_uniform(struct rng *r) {
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

double rng_gaussian(struct rng *r) {
    double u = 1 - rng_uniform(r), v = rng_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

void *must_alloc(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size ? size : 1);
    if (!p) {
        fprintf(stderr, "test: out of memory\n");
        abort();
    }
    return p;
}

float *random_rows(struct rng *r, size_t n, double scale) {
    float *rows = must_alloc(n, sizeof *rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = (float)(rng_gaussian(r) * scale);
    return rows;
}

size_t dtype_size(tq_dtype dtype) {
    return dtype == TQ_F32 ? 4 : 2;
}

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double m = exponent == 31 ? (mantissa ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                              : ldexp(mantissa, -24);
    return bits & 0x8000 ? -m : m;
}

double value_of(const void *element, tq_dtype dtype) {
    uint16_t h;
    float f;
    if (dtype == TQ_F32) {
        memcpy(&f, element, sizeof f);
        return (double)f;
    }
    memcpy(&h, element, sizeof h);
    if (dtype == TQ_F16)
        return half(h);
    uint32_t u = (uint32_t)h << 16;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

/* The nearest of all 65536 patterns would do; this rounds the significand instead. */
static uint16_t small_float(double x, int digits, int least_exponent, int shift, double limit) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    int exponent;
    if (a > limit)
        a = limit;
    (void)frexp(a, &exponent);
    exponent = exponent - 1 < least_exponent ? least_exponent : exponent - 1;
    double unit = ldexp(1, exponent - digits), n = nearbyint(a / unit);
    /* n counts units of the binade: adding it to the exponent field carries by itself. */
    uint32_t field = (uint32_t)(exponent - least_exponent) << shift;
    return (uint16_t)(sign | (field + (uint32_t)n));
}

void *convert_rows(const float *rows, size_t n, tq_dtype dtype) {
    char *out = must_alloc(n, dtype_size(dtype));
    for (size_t i = 0; i < n; i++) {
        if (dtype == TQ_F32) {
            memcpy(out + 4 * i, &rows[i], 4);
            continue;
        }
        uint16_t h = dtype == TQ_F16 ? small_float((double)rows[i], 10, -14, 10, 65504)
                                     : small_float((double)rows[i], 7, -126, 7, 0x1.fep127);
        memcpy(out + 2 * i, &h, 2);
    }
    return out;
}

static double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One query row over `visible` keys of kv head `kv`. */
static void attend_row(const struct shape *s, const float *q, const float *k, const float *v,
                       uint32_t kv, uint32_t visible, double *weights, double *out, double *lse) {
    double scale = s->scale != 0 ? s->scale : 1 / sqrt(s->k_dim), max = -INFINITY, sum = 0;
    memset(out, 0, s->v_dim * sizeof *out);
    *lse = -INFINITY;
    for (uint32_t t = 0; t < visible; t++) {
        weights[t] = scale * dot(q, k + ((size_t)t * s->n_kv_heads + kv) * s->k_dim, s->k_dim);
        max = weights[t] > max ? weights[t] : max;
    }
    for (uint32_t t = 0; t < visible; t++)
        sum += weights[t] = exp(weights[t] - max);
    for (uint32_t t = 0; t < visible; t++)
        for (uint32_t i = 0; i < s->v_dim; i++)
            out[i] += weights[t] / sum * (double)v[((size_t)t * s->n_kv_heads + kv) * s->v_dim + i];
    if (visible)
        *lse = max + log(sum);
}

void plain_attend(const struct shape *s, const float *q, const float *k, const float *v,
                  double *out, double *lse) {
    uint32_t heads = s->n_kv_heads * s->group;
    double *weights = must_alloc(s->n_tokens, sizeof *weights);
    for (uint32_t i = 0; i < s->n_queries; i++) {
        uint32_t after = s->n_queries - 1 - i, visible = s->n_tokens;
        if (s->causal)
            visible = s->n_tokens > after ? s->n_tokens - after : 0;
        for (uint32_t h = 0; h < heads; h++) {
            size_t row = (size_t)i * heads + h;
            attend_row(s, q + row * s->k_dim, k, v, h / s->group, visible, weights,
                       out + row * s->v_dim, lse + row);
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
