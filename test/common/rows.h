/* Test data and plain attention, written without the library. */
#ifndef TEST_COMMON_ROWS_H
#define TEST_COMMON_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

/* A stream of numbers from splitmix64; the state is the seed. */
struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n);
double rng_uniform(struct rng *r); /* [0, 1) */
double rng_gaussian(struct rng *r);

/* n f32 Gaussians times scale, allocated; never NULL. */
float *random_rows(struct rng *r, size_t n, double scale);
/* calloc that ends the program when memory is out. */
void *must_alloc(size_t n, size_t size);

/* Conversions written from the definitions of the formats. */
double value_of(const void *element, tq_dtype dtype);
/* f32 rows as another type, nearest even; allocated. */
void *convert_rows(const float *rows, size_t n, tq_dtype dtype);
size_t dtype_size(tq_dtype dtype);

/* Shape of a call: rows are [token][head][dim], adjacent. */
struct shape {
    uint32_t n_tokens, n_queries, n_kv_heads, group, k_dim, v_dim;
    int causal;   /* bottom-right */
    double scale; /* 0 = 1 / sqrt(k_dim) */
};
/* Attention in double: out [n_queries][n_q_heads][v_dim], lse [n_queries][n_q_heads]. */
void plain_attend(const struct shape *s, const float *q, const float *k, const float *v,
                  double *out, double *lse);
/* ||got - want|| / ||want|| over n numbers; ||got|| when want is zero. */
double relative_error(const float *got, const double *want, size_t n);

#endif
