/* Prefill in chunks: the rows of a chunk see the tokens before them and themselves, and the
 * result does not depend on how the prompt is cut. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/tq.h"

enum { KV_HEADS = 1, Q_HEADS = 4, DIM = 64, TOKENS = 150 };

static float k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM];
static float q[TOKENS * Q_HEADS * DIM];

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

/* Appends and attends chunk by chunk. */
static void prefill(tq_cache *cache, uint32_t chunk, float *out) {
    tq_seq seq;
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    must(tq_seq_create(cache, &seq));
    for (uint32_t first = 0; first < TOKENS; first += chunk) {
        uint32_t n = TOKENS - first < chunk ? TOKENS - first : chunk;
        tq_rows_in keys = {.data = k + first * KV_HEADS * DIM};
        tq_rows_in values = {.data = v + first * KV_HEADS * DIM};
        tq_rows_in queries = {.data = q + first * Q_HEADS * DIM};
        tq_rows_out result = {.data = out + first * Q_HEADS * DIM};
        must(tq_append(cache, seq, 0, n, &keys, &values, NULL));
        must(tq_attend(cache, seq, 0, n, &params, &queries, &result, NULL, NULL));
    }
    must(tq_seq_destroy(cache, seq));
}

int main(void) {
    static float whole[TOKENS * Q_HEADS * DIM], pieces[TOKENS * Q_HEADS * DIM];
    tq_context *ctx;
    tq_cache *cache;
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = KV_HEADS,
                              .n_q_heads = Q_HEADS,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_INT8};
    for (int i = 0; i < TOKENS * DIM; i++) {
        k[i] = sinf((float)i * 1.7f);
        v[i] = cosf((float)i * 0.3f);
    }
    for (int i = 0; i < TOKENS * Q_HEADS * DIM; i++)
        q[i] = sinf((float)i * 0.9f);
    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    prefill(cache, TOKENS, whole);
    prefill(cache, 37, pieces);
    int same = memcmp(whole, pieces, sizeof whole) == 0;
    printf("chunks of 37 tokens give %s bits as one chunk\n", same ? "the same" : "other");
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return same ? 0 : 1;
}
