/* A model's decode loop in miniature: layers, a prompt, then one token at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tq/tq.h"

enum { LAYERS = 4, KV_HEADS = 2, Q_HEADS = 4, DIM = 128, PROMPT = 70, STEPS = 10 };

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

/* Stands in for a layer's projections. */
static void project(float *rows, int n, int layer, int position) {
    for (int i = 0; i < n; i++)
        rows[i] = sinf((float)(i + 1) * 0.37f + (float)layer + (float)position * 0.11f);
}

static void run_layer(tq_cache *cache, tq_seq seq, int layer, int position, int n_tokens) {
    static float k[PROMPT * KV_HEADS * DIM], v[PROMPT * KV_HEADS * DIM];
    static float q[PROMPT * Q_HEADS * DIM], out[PROMPT * Q_HEADS * DIM];
    project(k, n_tokens * KV_HEADS * DIM, layer, position);
    project(v, n_tokens * KV_HEADS * DIM, layer + 100, position);
    project(q, n_tokens * Q_HEADS * DIM, layer + 200, position);
    tq_rows_in keys = {.data = k}, values = {.data = v}, queries = {.data = q};
    tq_rows_out result = {.data = out};
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    must(tq_append(cache, seq, (uint32_t)layer, (uint32_t)n_tokens, &keys, &values, NULL));
    must(tq_attend(cache, seq, (uint32_t)layer, (uint32_t)n_tokens, &params, &queries, &result,
                   NULL, NULL));
}

int main(void) {
    tq_context *ctx;
    tq_cache *cache;
    tq_seq seq;
    /* 4 bits, but the first and the last layer in 16. */
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = LAYERS,
                              .n_kv_heads = KV_HEADS,
                              .n_q_heads = Q_HEADS,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_4BIT_NC,
                              .boundary_layers = 1};
    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    must(tq_seq_create(cache, &seq));
    for (int step = 0; step <= STEPS; step++) {
        int n_tokens = step == 0 ? PROMPT : 1;
        int position = step == 0 ? 0 : PROMPT + step - 1;
        for (int layer = 0; layer < LAYERS; layer++)
            run_layer(cache, seq, layer, position, n_tokens);
    }
    tq_cache_stats stats = {.struct_size = sizeof stats};
    must(tq_cache_get_stats(cache, &stats));
    printf("%llu tokens in %llu pages, %llu bytes\n", (unsigned long long)stats.tokens,
           (unsigned long long)stats.pages_used, (unsigned long long)stats.host_bytes);
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return stats.tokens == PROMPT + STEPS ? 0 : 1;
}
