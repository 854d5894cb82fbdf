/* Attention against the CPU's reference kernels over the same pages. */
#include <stdio.h>

#include "gpu.h"

static const struct {
    tq_format k, v;
} variants[] = {{TQ_FORMAT_BF16, TQ_FORMAT_BF16},   {TQ_FORMAT_F16, TQ_FORMAT_F16},
                {TQ_FORMAT_FP8, TQ_FORMAT_FP8},     {TQ_FORMAT_INT8, TQ_FORMAT_INT8},
                {TQ_FORMAT_FP8, TQ_FORMAT_LM4},     {TQ_FORMAT_LM4, TQ_FORMAT_LM4},
                {TQ_FORMAT_LM3, TQ_FORMAT_LM4},     {TQ_FORMAT_LM3, TQ_FORMAT_LM3},
                {TQ_FORMAT_LM3, TQ_FORMAT_LM2},     {TQ_FORMAT_LM2, TQ_FORMAT_LM2},
                {TQ_FORMAT_POLAR, TQ_FORMAT_LM4},   {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4},
                {TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4}, {TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3},
                {TQ_FORMAT_LM4, TQ_FORMAT_POLAR}};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

struct shape {
    uint32_t group, dim, v_dim, page_tokens, tokens;
};

static void one_shape(int variant, struct shape s) {
    tq_cache_config config = {.n_kv_heads = 2,
                              .n_q_heads = 2 * s.group,
                              .head_dim = s.dim,
                              .v_head_dim = s.v_dim,
                              .page_tokens = s.page_tokens,
                              .max_pages = s.tokens / (s.page_tokens ? s.page_tokens : 64) + 2};
    struct pair p;
    char what[128];
    if (pair_create(&p, config, variants[variant].k, variants[variant].v)) {
        tq_seq seq = pair_seq(&p);
        if (s.tokens)
            pair_append(&p, seq, s.tokens, TQ_BF16, 0);
        for (uint32_t n = 1; n <= 5; n += 2) {
            snprintf(what, sizeof what,
                     "K %u V %u, group %u dim %u/%u page %u, %u tokens, %u queries",
                     variants[variant].k, variants[variant].v, s.group, s.dim, s.v_dim,
                     s.page_tokens, s.tokens, n);
            pair_check_attend(&p, seq, n, n > 1 ? TQ_ATTEND_CAUSAL : 0, what);
        }
    }
    pair_destroy(&p);
}

/* More items than multiprocessors: warps or warpgroups share the pages of all heads evenly. */
static void many_heads(uint32_t kv_heads, uint32_t group, uint32_t tokens) {
    tq_cache_config config = {
        .n_kv_heads = kv_heads, .n_q_heads = kv_heads * group, .head_dim = 128};
    struct pair p;
    char what[64];
    for (int v = 3; v < 8; v++) {
        if (pair_create(&p, config, variants[v].k, variants[v].v)) {
            tq_seq seq = pair_seq(&p);
            pair_append(&p, seq, tokens, TQ_BF16, 0);
            snprintf(what, sizeof what, "K %u V %u, %u kv heads, group %u", variants[v].k,
                     variants[v].v, kv_heads, group);
            pair_check_attend(&p, seq, 1, 0, what);
        }
        pair_destroy(&p);
    }
}

/* Means, scales, unequal lengths of a call and the cache. */
static void centred(int variant) {
    tq_cache_config config = {.n_kv_heads = 2, .n_q_heads = 8, .head_dim = 128};
    struct pair p;
    float mean[256];
    for (int i = 0; i < 256; i++)
        mean[i] = gpu_gauss();
    if (pair_create(&p, config, variants[variant].k, variants[variant].v)) {
        GPU_OK(tq_cache_set_means(p.cpu, 0, mean, mean));
        GPU_OK(tq_cache_set_means(p.gpu, 0, mean, mean));
        tq_seq seq = pair_seq(&p);
        pair_check_attend(&p, seq, 2, TQ_ATTEND_CAUSAL, "empty, with means");
        for (uint32_t n = 1; n < 6; n++) {
            pair_append(&p, seq, n * 7, TQ_F32, 0);
            pair_check_attend(&p, seq, 8, TQ_ATTEND_CAUSAL, "causal, with means");
            pair_check_attend(&p, seq, 8, 0, "not causal, with means");
        }
    }
    pair_destroy(&p);
}

/* Fast and generic kernels over few tokens, both schedules of the fast one. */
void check_sanitize(void) {
    for (int v = 0; v < N_VARIANTS; v++)
        one_shape(v, (struct shape){v % 2 ? 3 : 8, 128, 128, 64, 150});
    one_shape(5, (struct shape){12, 128, 128, 64, 70});
    one_shape(5, (struct shape){4, 64, 64, 64, 70});
    one_shape(5, (struct shape){4, 96, 96, 16, 70});
    for (int v = 5; v < 8; v++) /* two pages at a time */
        one_shape(v, (struct shape){16, 128, 128, 64, 150});
    many_heads(300, 2, 150);
    many_heads(140, 16, 150);
}

void check_attention(void) {
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 71};
    static const uint32_t dims[] = {32, 64, 80, 96, 112, 160, 192, 224, 256, 320, 512, 576};
    static const uint32_t lengths[] = {0, 1, 31, 32, 33, 63, 64, 65, 77, 128, 500, 2048, 3001};
    static const uint32_t pages[] = {16, 32, 128, 256};
    static const uint32_t fast_dims[] = {64, 96, 192, 256};
    for (int v = 0; v < N_VARIANTS; v++) {
        if (!gpu_has((uint32_t)v))
            continue;
        for (uint32_t i = 0; i < 8; i++)
            one_shape(v,
                      (struct shape){i % 2 ? 3 : 8, fast_dims[i / 2], fast_dims[i / 2], 64, 333});
        for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
            one_shape(v, (struct shape){groups[i], 128, 128, 64, 300});
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            one_shape(v, (struct shape){4, dims[i], dims[i], 64, 200});
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (uint32_t group = 8; group <= 16; group *= 2)
                one_shape(v, (struct shape){group, 128, 128, 64, lengths[i]});
        for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
            one_shape(v, (struct shape){4, 128, 128, pages[i], 700});
        one_shape(v, (struct shape){4, 192, 128, 64, 200});
        one_shape(v, (struct shape){4, 64, 128, 64, 200});
        centred(v);
    }
    if (gpu_has(0))
        many_heads(300, 2, 150);
    if (gpu_has(1))
        many_heads(140, 16, 150);
    if (gpu_has(2))
        many_heads(140, 11, 700);
}
