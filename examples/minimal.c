/* The shortest useful program: one sequence, some tokens, one attention step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tq/tq.h"

enum { TOKENS = 100, KV_HEADS = 2, Q_HEADS = 8, DIM = 64 };

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

int main(void) {
    static float k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM];
    static float q[Q_HEADS * DIM], out[Q_HEADS * DIM], lse[Q_HEADS];
    for (int i = 0; i < TOKENS * KV_HEADS * DIM; i++) {
        k[i] = sinf((float)i);
        v[i] = cosf((float)i);
    }
    for (int i = 0; i < Q_HEADS * DIM; i++)
        q[i] = sinf(0.5f * (float)i);

    tq_context *ctx;
    tq_cache *cache;
    tq_seq seq;
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = KV_HEADS,
                              .n_q_heads = Q_HEADS,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_4BIT_NC};
    tq_rows_in keys = {.data = k}, values = {.data = v}, queries = {.data = q};
    tq_rows_out result = {.data = out};

    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    must(tq_seq_create(cache, &seq));
    must(tq_append(cache, seq, 0, TOKENS, &keys, &values, NULL));
    must(tq_attend(cache, seq, 0, 1, NULL, &queries, &result, lse, NULL));

    printf("out[0] = %.4f, lse[0] = %.4f\n", (double)out[0], (double)lse[0]);
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return 0;
}
