/* Uses the installed library as an engine would; C99 and C++11. */
#include <stdio.h>
#include <string.h>

#include <tq/tq.h>

#define TOKENS 5
#define DIM 64

int main(void) {
    static float k[TOKENS * DIM], v[TOKENS * DIM], q[DIM], out[DIM];
    tq_context *ctx = NULL;
    tq_cache *cache = NULL;
    tq_seq seq = 0;
    tq_cache_config config;
    tq_rows_in keys, values, queries;
    tq_rows_out result;
    int i;
    memset(&config, 0, sizeof config);
    memset(&keys, 0, sizeof keys);
    memset(&result, 0, sizeof result);
    for (i = 0; i < TOKENS * DIM; i++)
        v[i] = 1.0f;
    config.struct_size = sizeof config;
    config.n_layers = 1;
    config.n_kv_heads = 1;
    config.head_dim = DIM;
    config.variant = TQ_VARIANT_BF16;
    values = queries = keys;
    keys.data = k;
    values.data = v;
    queries.data = q;
    result.data = out;
    if (tq_version_number() != TQ_VERSION_NUMBER || tq_abi_version() != TQ_ABI_VERSION) {
        printf("consumer: header and library differ\n");
        return 1;
    }
    if (tq_context_create(NULL, &ctx) || tq_cache_create(ctx, &config, &cache) ||
        tq_seq_create(cache, &seq) || tq_append(cache, seq, 0, TOKENS, &keys, &values, NULL) ||
        tq_attend(cache, seq, 0, 1, NULL, &queries, &result, NULL, NULL)) {
        printf("consumer: %s\n", tq_last_error());
        return 1;
    }
    printf("consumer: %s\n", out[0] == 1.0f && out[DIM - 1] == 1.0f ? "ok" : "wrong result");
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    return 0;
}
