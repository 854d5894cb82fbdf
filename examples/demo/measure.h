/* What the demonstration measures: attention over captured rows in double, and the
 * distance of two results. */
#ifndef EXAMPLES_DEMO_MEASURE_H
#define EXAMPLES_DEMO_MEASURE_H

#include <stddef.h>
#include <stdint.h>

/* One layer of a capture. q belongs to the last n_queries tokens. */
struct capture {
    uint32_t n_tokens, n_queries, n_kv_heads, n_q_heads, head_dim;
    const uint16_t *k, *v, *q;           /* [token][head][dim] f16 */
    double *exact_k, *exact_v, *exact_q; /* the same numbers */
};

/* Errors of one variant, over all heads and queries of a layer. */
struct errors {
    double key, value, output; /* relative L2 */
    double divergence;         /* mean KL of the attention weights, exact || coded, nats */
    double logit;              /* largest absolute error of a score */
};

/* k, v: decoded rows, out: what the library computed; all f32 like the capture. */
void measure(const struct capture *c, const float *k, const float *v, const float *out,
             struct errors *e);
/* n halfs as doubles; the caller frees them. */
double *from_half(const uint16_t *bits, size_t n);

#endif
