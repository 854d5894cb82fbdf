/* Calls whose instructions are counted under callgrind: append and attend of every variant at
 * fixed shapes on the AVX2 kernels. Every case is dumped under its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

#include "tq/tq.h"

enum { TOKENS = 512, APPEND = 128, KV_HEADS = 2, DIM = 128, GROUP_MAX = 4 };

static void must(tq_status status) {
    if (status == TQ_OK)
        return;
    fprintf(stderr, "%s\n", tq_last_error());
    exit(1);
}

/* bf16 of unit scale, a fixed pseudo-random sequence. */
static void make_rows(uint16_t *x, size_t n) {
    uint32_t s = 1;
    for (size_t i = 0; i < n; i++) {
        float sum = -2;
        for (int k = 0; k < 4; k++) {
            s = s * 1664525u + 1013904223u;
            sum += (float)(s >> 8) * 0x1p-24f;
        }
        uint32_t bits;
        memcpy(&bits, &sum, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
}

static uint16_t rows[TOKENS * KV_HEADS * DIM], q[KV_HEADS * GROUP_MAX * DIM],
    out[KV_HEADS * GROUP_MAX * DIM];

static void start(void) {
    CALLGRIND_ZERO_STATS;
    CALLGRIND_TOGGLE_COLLECT;
}

static void stop(const char *variant, const char *what) {
    char name[64];
    CALLGRIND_TOGGLE_COLLECT;
    snprintf(name, sizeof name, "%s %s", variant, what);
    CALLGRIND_DUMP_STATS_AT(name);
}

static void count(tq_context *ctx, const tq_variant_info *v, uint32_t group) {
    tq_cache *cache;
    tq_seq seq, other;
    char what[32];
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = 1,
                         .n_kv_heads = KV_HEADS,
                         .n_q_heads = KV_HEADS * group,
                         .head_dim = DIM,
                         .variant = v->id};
    tq_rows_in in = {.data = rows, .dtype = TQ_BF16}, queries = {.data = q, .dtype = TQ_BF16};
    tq_rows_out to = {.data = out, .dtype = TQ_BF16};
    must(tq_cache_create(ctx, &c, &cache));
    must(tq_seq_create(cache, &seq));
    must(tq_seq_create(cache, &other));
    must(tq_append(cache, seq, 0, TOKENS, &in, &in, NULL));
    if (group == 1) {
        start();
        must(tq_append(cache, other, 0, APPEND, &in, &in, NULL));
        stop(v->name, "append");
    }
    start();
    must(tq_attend(cache, seq, 0, 1, NULL, &queries, &to, NULL, NULL));
    snprintf(what, sizeof what, "attend%u", group);
    stop(v->name, what);
    tq_cache_destroy(cache);
}

int main(void) {
    tq_context *ctx;
    must(tq_context_create(NULL, &ctx));
    if (tq_context_cpu_features(ctx) != TQ_CPU_AVX2) {
        fprintf(stderr, "features are 0x%llx: counts are of AVX2, which valgrind shows\n",
                (unsigned long long)tq_context_cpu_features(ctx));
        return 3;
    }
    make_rows(rows, sizeof rows / sizeof *rows);
    make_rows(q, sizeof q / sizeof *q);
    for (uint32_t i = 0; i < tq_variant_count(); i++) {
        tq_variant_info v = {.struct_size = sizeof v};
        must(tq_variant_get(i, &v));
        count(ctx, &v, 1);
        count(ctx, &v, GROUP_MAX);
    }
    tq_context_destroy(ctx);
    return 0;
}
