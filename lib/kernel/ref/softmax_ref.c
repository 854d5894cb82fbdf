/* Stage softmax: the running maximum and sum of one query row (online softmax,
 * Milakov and Gimelshein 2018), and the join of two states over disjoint tokens. */
#include <math.h>

#include "kernel/ref/ref.h"

size_t tqk_state_bytes_ref(const struct tqi_rows *v) {
    return sizeof(struct tqk_state_ref) + v->layout.dim * sizeof(double);
}

void tqk_state_clear_ref(const struct tqi_rows *v, void *state) {
    struct tqk_state_ref *s = state;
    s->max = -INFINITY;
    s->sum = 0;
    s->factor = 1;
    for (uint32_t i = 0; i < v->layout.dim; i++)
        s->acc[i] = 0;
}

/* exp(from - to) where from may be the minus infinity of an empty state. */
static double rescale(double from, double to) {
    return from == -INFINITY ? 0 : exp(from - to);
}

/* Infinities are not capped to something finite: only the query can make them. */
void tqk_softcap_ref(void *scores, uint32_t score_stride, const double *shift, uint32_t n_rows,
                     uint32_t n_tokens, double scale, double cap) {
    for (uint32_t r = 0; r < n_rows; r++) {
        double *row = (double *)scores + (size_t)r * score_stride;
        for (uint32_t t = 0; t < n_tokens; t++) {
            double x = row[t] * scale + shift[r];
            row[t] = isfinite(x) ? cap * tanh(x / cap) : NAN;
        }
    }
}

static void update(struct tqk_state_ref *s, double *scores, struct tqi_sight span,
                   uint32_t n_tokens, double scale) {
    double max = s->max;
    for (uint32_t t = span.first; t < span.last; t++) {
        scores[t] *= scale;
        /* Codes are finite, so only the query can make a score that is not; the whole row
         * must show it, whichever page it comes from. */
        if (!isfinite(scores[t]))
            max = NAN;
        max = scores[t] > max ? scores[t] : max;
    }
    s->factor = rescale(s->max, max);
    s->sum *= s->factor;
    for (uint32_t t = span.first; t < span.last; t++) {
        scores[t] = exp(scores[t] - max);
        s->sum += scores[t];
    }
    for (uint32_t t = 0; t < span.first; t++)
        scores[t] = 0;
    for (uint32_t t = span.last; t < n_tokens; t++)
        scores[t] = 0;
    s->max = max;
}

void tqk_softmax_ref(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                     const struct tqi_sight *spans, uint32_t n_rows, uint32_t n_tokens,
                     double scale) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_ref *s = (void *)((char *)states + r * state_bytes);
        double *row = (double *)scores + (size_t)r * score_stride;
        if (tqi_sight_empty(spans[r])) { /* nothing to take in: keep max and sum, also when empty */
            s->factor = 1;
            for (uint32_t t = 0; t < n_tokens; t++)
                row[t] = 0;
            continue;
        }
        update(s, row, spans[r], n_tokens, scale);
    }
}

void tqk_state_merge_ref(const struct tqi_rows *v, void *into, const void *from) {
    struct tqk_state_ref *a = into;
    const struct tqk_state_ref *b = from;
    if (b->max == -INFINITY)
        return;
    double max = a->max > b->max || isnan(a->max) ? a->max : b->max;
    double fa = rescale(a->max, max), fb = rescale(b->max, max);
    a->sum = a->sum * fa + b->sum * fb;
    for (uint32_t i = 0; i < v->layout.dim; i++)
        a->acc[i] = a->acc[i] * fa + b->acc[i] * fb;
    a->max = max;
}
