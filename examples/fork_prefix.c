/* Many answers to one prompt: the prompt's pages are shared and counted once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tq/tq.h"

enum { KV_HEADS = 2, DIM = 64, PROMPT = 1000, FORKS = 8 };

static void must(tq_status status) {
    if (status != TQ_OK) {
        fprintf(stderr, "%s: %s\n", tq_status_name(status), tq_last_error());
        exit(1);
    }
}

static uint64_t pages_used(const tq_cache *cache) {
    tq_cache_stats stats = {.struct_size = sizeof stats};
    must(tq_cache_get_stats(cache, &stats));
    return stats.pages_used;
}

int main(void) {
    static float rows[PROMPT * KV_HEADS * DIM];
    tq_context *ctx;
    tq_cache *cache;
    tq_seq prompt, answers[FORKS];
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = KV_HEADS,
                              .head_dim = DIM,
                              .variant = TQ_VARIANT_K3V4_NC};
    tq_rows_in in = {.data = rows};
    for (int i = 0; i < PROMPT * KV_HEADS * DIM; i++)
        rows[i] = sinf((float)i);
    must(tq_context_create(NULL, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    must(tq_seq_create(cache, &prompt));
    must(tq_append(cache, prompt, 0, PROMPT, &in, &in, NULL));
    uint64_t alone = pages_used(cache);
    for (int i = 0; i < FORKS; i++) {
        must(tq_seq_fork(cache, prompt, UINT64_MAX, &answers[i]));
        must(tq_append(cache, answers[i], 0, 1, &in, &in, NULL)); /* copies the partial page */
    }
    uint64_t shared = pages_used(cache);
    printf("prompt: %llu pages; with %d answers: %llu\n", (unsigned long long)alone, FORKS,
           (unsigned long long)shared);
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return shared == alone + FORKS ? 0 : 1;
}
