/* Sliding windows, softcap and attention sinks against the CPU's reference kernels. */
#include <math.h>
#include <stdio.h>

#include "gpu.h"

enum { HEADS = 2, TOKENS = 700 };

static const tq_layer_formats variants[] = {
    {TQ_FORMAT_BF16, TQ_FORMAT_BF16},     {TQ_FORMAT_FP8, TQ_FORMAT_FP8},
    {TQ_FORMAT_INT8, TQ_FORMAT_INT8},     {TQ_FORMAT_FP8, TQ_FORMAT_LM4},
    {TQ_FORMAT_LM4, TQ_FORMAT_LM4},       {TQ_FORMAT_LM3, TQ_FORMAT_LM4},
    {TQ_FORMAT_LM3, TQ_FORMAT_LM3},       {TQ_FORMAT_LM2, TQ_FORMAT_LM2},
    {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4}, {TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3}};

/* Some weak, some strong, one absent. */
static void set_sinks(struct pair *p) {
    float sinks[HEADS * 16];
    for (uint32_t i = 0; i < p->config.n_q_heads; i++)
        sinks[i] = 3 * gpu_gauss();
    sinks[0] = -INFINITY;
    GPU_OK(tq_cache_set_sink_logits(p->cpu, 0, sinks));
    GPU_OK(tq_cache_set_sink_logits(p->gpu, 0, sinks));
}

static void set_means(struct pair *p) {
    float mean[HEADS * 256];
    for (int i = 0; i < HEADS * 256; i++)
        mean[i] = gpu_gauss();
    GPU_OK(tq_cache_set_means(p->cpu, 0, mean, mean));
    GPU_OK(tq_cache_set_means(p->gpu, 0, mean, mean));
}

static void check_calls(struct pair *p, tq_seq seq, const char *name) {
    static const uint32_t windows[] = {0, 1, 31, 64, 65, 200, TOKENS - 1, TOKENS, 5000};
    static const float caps[] = {0, 2, 30};
    static const uint32_t queries[] = {1, 4, 9};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
        for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
            uint32_t n = queries[(w + c) % 3];
            tq_attend_params params = {.struct_size = sizeof params,
                                       .flags = n > 1 ? TQ_ATTEND_CAUSAL : 0,
                                       .logit_softcap = caps[c],
                                       .window = windows[w]};
            char what[160];
            snprintf(what, sizeof what, "%s, %u queries, window %u, softcap %g", name, n,
                     windows[w], (double)caps[c]);
            pair_check_params(p, seq, n, &params, what);
        }
}

static void one_cache(size_t variant, uint32_t dim, uint32_t group, int means) {
    tq_cache_config config = {.n_kv_heads = HEADS,
                              .n_q_heads = HEADS * group,
                              .head_dim = dim,
                              .max_pages = TOKENS / 64 + 2};
    struct pair p;
    char name[96];
    if (pair_create(&p, config, variants[variant].k_format, variants[variant].v_format)) {
        if (means)
            set_means(&p);
        tq_seq seq = pair_seq(&p), empty = pair_seq(&p);
        pair_append(&p, seq, TOKENS, TQ_BF16, 0);
        for (int sinks = 0; sinks < 2; sinks++) {
            snprintf(name, sizeof name, "K %u V %u, dim %u, group %u, means %d, sinks %d",
                     variants[variant].k_format, variants[variant].v_format, dim, group, means,
                     sinks);
            if (sinks)
                set_sinks(&p);
            check_calls(&p, seq, name);
            pair_check_attend(&p, empty, 2, TQ_ATTEND_CAUSAL, name);
        }
        GPU_OK(tq_cache_set_sink_logits(p.cpu, 0, NULL));
        GPU_OK(tq_cache_set_sink_logits(p.gpu, 0, NULL));
        pair_check_attend(&p, seq, 3, TQ_ATTEND_CAUSAL, "sinks taken away");
    }
    pair_destroy(&p);
}

void check_windows(void) {
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        one_cache(v, 128, 8, v % 2);
        one_cache(v, 80, 3, !(v % 2));
        one_cache(v, 256, 1, v % 2);
        one_cache(v, 128, 16, v % 2);
    }
}
