/* Context shift: the oldest tokens go and the others get new positions. Keys carry their position
 * (RoPE turned them before they were coded), so that their rows are decoded, turned back by the
 * shift and coded again; values have no position. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tq/tq.h"

enum { DIM = 64, TOKENS = 96, GONE = 24, LEFT = TOKENS - GONE };

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

/* RoPE: dims i and i + DIM/2 are a pair that turns with the position. */
static void turn(float *row, double positions) {
    for (int i = 0; i < DIM / 2; i++) {
        double angle = positions * pow(10000, -2.0 * i / DIM), c = cos(angle), s = sin(angle);
        double x = (double)row[i], y = (double)row[i + DIM / 2];
        row[i] = (float)(x * c - y * s);
        row[i + DIM / 2] = (float)(x * s + y * c);
    }
}

static void make_row(float *row, unsigned token) {
    for (unsigned i = 0; i < DIM; i++)
        row[i] = sinf((float)(token * 7919 + i * 104729));
}

static tq_seq append(tq_cache *cache, uint32_t n, const float *k, const float *v) {
    tq_rows_in keys = {.data = k}, values = {.data = v};
    tq_seq seq;
    must(tq_seq_create(cache, &seq));
    must(tq_append(cache, seq, 0, n, &keys, &values, NULL));
    return seq;
}

/* Takes the first GONE tokens out; the others move GONE positions down. */
static tq_seq shift(tq_cache *cache, tq_seq seq) {
    static float k[LEFT * DIM], v[LEFT * DIM];
    tq_rows_out keys = {.data = k}, values = {.data = v};
    must(tq_read_rows(cache, seq, 0, GONE, LEFT, &keys, &values));
    for (int t = 0; t < LEFT; t++)
        turn(k + t * DIM, -GONE);
    must(tq_seq_destroy(cache, seq));
    return append(cache, LEFT, k, v);
}

/* Distance of the answers for a query at position `position`, relative. */
static double distance(const tq_cache *cache, tq_seq a, tq_seq b, int position) {
    float q[DIM], out[2][DIM];
    tq_rows_in query = {.data = q};
    double difference = 0, norm = 0;
    make_row(q, 1234);
    turn(q, position);
    for (int i = 0; i < 2; i++) {
        tq_rows_out row = {.data = out[i]};
        must(tq_attend(cache, i ? b : a, 0, 1, NULL, &query, &row, NULL, NULL));
    }
    for (int i = 0; i < DIM; i++) {
        difference += pow((double)(out[0][i] - out[1][i]), 2);
        norm += pow((double)out[1][i], 2);
    }
    return sqrt(difference / norm);
}

int main(void) {
    static float k[TOKENS * DIM], v[TOKENS * DIM], right[LEFT * DIM];
    tq_context *ctx;
    tq_cache *cache;
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = 1,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_INT8};
    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    for (int t = 0; t < TOKENS; t++) {
        make_row(k + t * DIM, (unsigned)t);
        make_row(v + t * DIM, (unsigned)t + 5000);
        if (t >= GONE) { /* what a model would compute if the first tokens had never been */
            make_row(right + (t - GONE) * DIM, (unsigned)t);
            turn(right + (t - GONE) * DIM, t - GONE);
        }
        turn(k + t * DIM, t);
    }
    tq_seq exact = append(cache, LEFT, right, v + GONE * DIM);
    tq_seq cut = append(cache, TOKENS, k, v), shifted = append(cache, TOKENS, k, v);
    must(tq_seq_remove(cache, cut, 0, GONE)); /* keeps the old positions */
    shifted = shift(cache, shifted);
    double with = distance(cache, shifted, exact, LEFT), old = distance(cache, cut, exact, LEFT);
    printf("error of the answer: %.4f with new positions, %.4f with the old ones\n", with, old);
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return with < 0.02 && old > 0.1 ? 0 : 1;
}
