/* fp8 keys and values, once on e4m3 itself and once by way of f16. */
#include <stdio.h>
#include <string.h>

#include "gpu.h"

struct shape {
    uint32_t heads, group, dim, tokens;
    tq_dtype q_dtype;
};

static void one_shape(const struct shape *s, int native, const char *name) {
    tq_cache_config config = {.n_kv_heads = s->heads,
                              .n_q_heads = s->heads * s->group,
                              .head_dim = s->dim,
                              .max_pages = s->tokens / 64 + 2};
    struct pair p;
    char what[128];
    if (pair_create(&p, config, TQ_FORMAT_FP8, TQ_FORMAT_FP8)) {
        const char *kernel = tq_cache_kernel_name(p.gpu, 0, TQ_OP_SCORE);
        int is_native = strstr(kernel, "mma8") || strstr(kernel, "wgmma");
        gpu_expect(native < 0 || is_native == native, "%s dim %u: %s runs", name, s->dim, kernel);
        p.q_dtype = s->q_dtype;
        tq_seq seq = pair_seq(&p);
        if (s->tokens)
            pair_append(&p, seq, s->tokens, TQ_BF16, 0);
        for (uint32_t n = 1; n <= 5; n += 2) {
            snprintf(what, sizeof what, "%s, %u heads, group %u dim %u, %u tokens, %u queries",
                     name, s->heads, s->group, s->dim, s->tokens, n);
            pair_check_attend(&p, seq, n, n > 1 ? TQ_ATTEND_CAUSAL : 0, what);
        }
    }
    pair_destroy(&p);
}

/* Unequal scales of heads, means, rows at both ends of what e4m3 holds. */
static void scaled(const char *name) {
    static const float k_scale[] = {0.01f, 3}, v_scale[] = {5, 0.02f};
    static float mean[2 * 128], rows[90 * 2 * 128];
    tq_cache_config config = {.n_kv_heads = 2, .n_q_heads = 16, .head_dim = 128};
    struct pair p;
    for (int i = 0; i < 2 * 128; i++)
        mean[i] = gpu_gauss();
    for (int i = 0; i < 90 * 2 * 128; i++)
        rows[i] = gpu_gauss() *
                  (i / 256 % 3 == 0   ? 400
                   : i / 256 % 3 == 1 ? 1
                                      : 0.004f) *
                  k_scale[i / 128 % 2];
    if (pair_create(&p, config, TQ_FORMAT_FP8, TQ_FORMAT_FP8)) {
        GPU_OK(tq_cache_set_fp8_scales(p.cpu, 0, k_scale, v_scale));
        GPU_OK(tq_cache_set_fp8_scales(p.gpu, 0, k_scale, v_scale));
        GPU_OK(tq_cache_set_means(p.cpu, 0, mean, mean));
        GPU_OK(tq_cache_set_means(p.gpu, 0, mean, mean));
        tq_seq seq = pair_seq(&p);
        pair_append_rows(&p, seq, 90, rows);
        pair_append(&p, seq, 130, TQ_BF16, 0);
        for (uint32_t n = 1; n < 9; n += 7)
            pair_check_attend(&p, seq, n, TQ_ATTEND_CAUSAL, name);
    }
    pair_destroy(&p);
}

/* native: kernels that must run; below 0: any. */
static void shapes(int native, const char *name) {
    static const uint32_t dims[] = {64, 128, 256}, groups[] = {1, 3, 4, 5, 8, 9, 16, 20, 71};
    static const uint32_t lengths[] = {0, 1, 31, 33, 63, 64, 65, 129, 700, 3001};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
            one_shape(&(struct shape){2, groups[g], dims[d], 333, TQ_BF16}, native, name);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            one_shape(&(struct shape){2, 8, dims[d], lengths[l], TQ_BF16}, native, name);
        for (uint32_t group = 4; group <= 16; group *= 2) /* warps share the pages of all heads */
            one_shape(&(struct shape){140, group, dims[d], 150, TQ_BF16}, native, name);
        one_shape(&(struct shape){2, 8, dims[d], 333, TQ_F16}, native, name);
        one_shape(&(struct shape){2, 8, dims[d], 333, TQ_F32}, native, name);
    }
    scaled(name);
    check_repeated(TQ_FORMAT_FP8, TQ_FORMAT_FP8);
    check_batches_of((tq_layer_formats){TQ_FORMAT_FP8, TQ_FORMAT_FP8});
    gpu_worst(name);
}

/* Whether this GPU and build multiply e4m3. */
static int is_native_here(void) {
    struct pair p;
    int yes = 0;
    if (pair_create(&p, (tq_cache_config){.n_kv_heads = 1, .head_dim = 128}, TQ_FORMAT_FP8,
                    TQ_FORMAT_FP8)) {
        const char *kernel = tq_cache_kernel_name(p.gpu, 0, TQ_OP_SCORE);
        yes = strstr(kernel, "mma8") || strstr(kernel, "wgmma");
        printf("fp8 native: %s\n", kernel);
    }
    pair_destroy(&p);
    return yes;
}

void check_fp8(void) {
    gpu_worst("before");
    pair_use_flags(TQ_CONTEXT_FP8_NATIVE);
    if (is_native_here())
        shapes(1, "fp8 native");
    else
        printf("fp8 native: SKIPPED, this GPU or build has no kernel\n");
    pair_use_flags(TQ_CONTEXT_FP8_CONVERTED);
    shapes(0, "fp8 converted");
    pair_use_flags(0);
    shapes(-1, "fp8 as the table has it");
}

/* Few tokens, both schedules, for tools that are slow. */
void check_sanitize_fp8(void) {
    static const struct shape few[] = {{2, 8, 128, 150, TQ_BF16},
                                       {2, 4, 64, 70, TQ_BF16},
                                       {1, 16, 256, 70, TQ_F16},
                                       {140, 8, 128, 65, TQ_BF16}};
    for (uint32_t flags = TQ_CONTEXT_FP8_NATIVE; flags <= TQ_CONTEXT_FP8_CONVERTED; flags++) {
        pair_use_flags(flags);
        for (size_t i = 0; i < sizeof few / sizeof *few; i++)
            one_shape(&few[i], -1, "sanitize");
    }
    pair_use_flags(0);
}
