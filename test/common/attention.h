/* Attention over arrays in double precision, written without the library. */
#ifndef TEST_COMMON_ATTENTION_H
#define TEST_COMMON_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

/* Shape of a call: rows are [token][head][dim], adjacent. */
struct shape {
    uint32_t n_tokens, n_queries, n_kv_heads, group, k_dim, v_dim;
    int causal;   /* bottom-right: query i of n sees the first tokens - n + i + 1 */
    double scale; /* 0 = 1 / sqrt(k_dim) */
    double softcap;
    uint32_t window;    /* 0 = all */
    const float *sinks; /* [n_q_heads] or NULL */
};
/* out [n_queries][n_q_heads][v_dim], lse [n_queries][n_q_heads]. A row that sees nothing
 * gets 0 and -infinity. */
void plain_attend(const struct shape *s, const float *q, const float *k, const float *v,
                  double *out, double *lse);
/* Weights of one query head over the tokens up to the last that it sees, which it returns;
 * 0 before its window. */
uint32_t plain_weights(const struct shape *s, const float *q, const float *k, uint32_t query,
                       uint32_t q_head, double *weights, double *lse);

/* ||got - want|| / ||want|| over n numbers; ||got|| when want is zero. */
double relative_error(const float *got, const double *want, size_t n);
/* Largest |got - want| / max(1, |want|); equal infinities differ by 0, NaN gives infinity. */
double largest_difference(const float *got, const double *want, size_t n);

/* What an error of a score may count for, 1 and up: decoded rows are rounded to f32, which moves a
 * score by about its last place and its weight with it. A weight below 1e-6 counts at all only
 * beside huge values, and then its score may be far from the terms that it is the sum of. */
double plain_condition(double weight, double lse, const float *q, const float *k, uint32_t dim);

#endif
