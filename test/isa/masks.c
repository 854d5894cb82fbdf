/* Attention of every variant under every mask of Arm's features: what runs by name, the same bits
 * with and without matrix multiplications, the reference's numbers within the tolerance. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/tq.h"

enum { TOKENS = 150, KV_HEADS = 2, Q_HEADS = 10, DIM_MAX = 128, QUERIES = 3, MASKS = 4 };

static const uint64_t masks[MASKS] = {0, TQ_CPU_I8MM, TQ_CPU_I8MM | TQ_CPU_DOTPROD, UINT64_MAX};

struct answer {
    float out[QUERIES * Q_HEADS * DIM_MAX], lse[QUERIES * Q_HEADS];
    uint64_t features;
    char name[64];
};

static void must(tq_status status) {
    if (status == TQ_OK)
        return;
    fprintf(stderr, "%s\n", tq_last_error());
    exit(1);
}

static float *make_rows(size_t n, uint32_t s) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++) {
        x[i] = -2;
        for (int k = 0; k < 4; k++) {
            s = s * 1664525u + 1013904223u;
            x[i] += (float)(s >> 8) * 0x1p-24f;
        }
    }
    return x;
}

static void answer(tq_variant variant, uint32_t dim, uint64_t mask, struct answer *a) {
    tq_context_config plain = {.struct_size = sizeof plain, .cpu_features_disabled = mask};
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = KV_HEADS,
                              .n_q_heads = Q_HEADS,
                              .head_dim = dim,
                              .variant = variant};
    float *k = make_rows((size_t)TOKENS * KV_HEADS * dim, 1);
    float *v = make_rows((size_t)TOKENS * KV_HEADS * dim, 2);
    float *q = make_rows((size_t)QUERIES * Q_HEADS * dim, 3);
    tq_rows_in keys = {.data = k}, values = {.data = v}, queries = {.data = q};
    tq_rows_out out = {.data = a->out};
    tq_context *ctx;
    tq_cache *cache;
    tq_seq seq;
    memset(a, 0, sizeof *a);
    must(tq_context_create(&plain, &ctx));
    must(tq_cache_create(ctx, &config, &cache));
    must(tq_seq_create(cache, &seq));
    must(tq_append(cache, seq, 0, TOKENS, &keys, &values, NULL));
    must(tq_attend(cache, seq, 0, QUERIES, NULL, &queries, &out, a->lse, NULL));
    a->features = tq_context_cpu_features(ctx);
    snprintf(a->name, sizeof a->name, "%s", tq_cache_kernel_name(cache, 0, TQ_OP_SCORE));
    tq_cache_destroy(cache);
    tq_context_destroy(ctx);
    free(k);
    free(v);
    free(q);
}

static double difference(const float *a, const float *b, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(error / size);
}

/* The level by its name: none but the reference without dot products, the others' own with them. */
static int is_named_well(const struct answer *a, int integers) {
    int matrix = strstr(a->name, "_i8mm") != NULL, ref = strstr(a->name, "_ref") != NULL;
    int has_dot = (a->features & TQ_CPU_DOTPROD) != 0,
        has_matrix = (a->features & TQ_CPU_I8MM) != 0;
    return ref == !has_dot && matrix == (has_matrix && integers);
}

static int check(const tq_variant_info *info, uint32_t dim) {
    static struct answer a[MASKS];
    int failed = 0, integers = info->id == TQ_VARIANT_4BIT_NC || info->id == TQ_VARIANT_INT8 ||
                               info->id == TQ_VARIANT_3BIT_NC || info->id == TQ_VARIANT_K3V4_NC;
    int floats =
        info->id == TQ_VARIANT_BF16 || info->id == TQ_VARIANT_F16 || info->id == TQ_VARIANT_FP8;
    size_t n = (size_t)QUERIES * Q_HEADS * dim;
    for (int i = 0; i < MASKS; i++) {
        answer(info->id, dim, masks[i], &a[i]);
        if ((a[i].features & masks[i]) || ((integers || floats) && !is_named_well(&a[i], integers)))
            failed += printf("%s: features 0x%llx, kernel %s\n", info->name,
                             (unsigned long long)a[i].features, a[i].name) > 0;
    }
    for (int i = 0; i + 1 < MASKS; i++) {
        double error = difference(a[i].out, a[MASKS - 1].out, n);
        if (!(error <= (floats ? 1e-5 : 2e-4)))
            failed += printf("%s dim %u, %s: error %g\n", info->name, dim, a[i].name, error) > 0;
    }
    if (memcmp(a[0].out, a[1].out, n * sizeof(float)) ||
        memcmp(a[0].lse, a[1].lse, sizeof a[0].lse))
        failed += printf("%s dim %u: other bits with i8mm\n", info->name, dim) > 0;
    return failed;
}

int main(void) {
    static const uint32_t dims[] = {64, 80, 128};
    int failed = 0;
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_variant_info info = {.struct_size = sizeof info};
        must(tq_variant_get(i, &info));
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            failed += check(&info, dims[d]);
    }
    printf("%u variants, %d failed\n", tq_variant_count(), failed);
    return failed != 0;
}
