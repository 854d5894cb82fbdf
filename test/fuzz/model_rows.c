/* The rows of the model: what is appended, and what a cache of reference kernels makes of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/model.h"

size_t model_k_row(const struct model *m) {
    return (size_t)m->c.n_kv_heads * m->c.head_dim;
}

size_t model_v_row(const struct model *m) {
    return (size_t)m->c.n_kv_heads * m->c.v_head_dim;
}

/* Roughly normal numbers; row 0 is zero, the last one larger. */
static float *make_rows(size_t row, uint32_t state) {
    float *x = fuzz_alloc(N_ROWS * row * sizeof *x);
    for (size_t i = row; i < N_ROWS * row; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) / 8388608.0f - 1;
        }
        x[i] = i / row == N_ROWS - 1 ? 4 * sum : sum;
    }
    return x;
}

/* The rows as a layer of a cache gives them back. */
static void learn(const struct model *m, tq_cache *cache, uint32_t layer, float *k_from,
                  float *v_from, float **k_to, float **v_to) {
    tq_rows_in k = {.data = k_from}, v = {.data = v_from};
    tq_seq seq = 0;
    *k_to = fuzz_alloc(N_ROWS * model_k_row(m) * sizeof(float));
    *v_to = fuzz_alloc(N_ROWS * model_v_row(m) * sizeof(float));
    tq_rows_out k_out = {.data = *k_to}, v_out = {.data = *v_to};
    MUST(tq_seq_create(cache, &seq) == TQ_OK);
    MUST(tq_append(cache, seq, layer, N_ROWS, &k, &v, NULL) == TQ_OK);
    MUST(tq_read_rows(cache, seq, layer, 0, N_ROWS, &k_out, &v_out) == TQ_OK);
    MUST(tq_seq_destroy(cache, seq) == TQ_OK);
}

static int is_16_bit(tq_format f) {
    return f == TQ_FORMAT_BF16 || f == TQ_FORMAT_F16;
}

/* Codes are made of rows in 16 bits where there is a window, and rows are kept beside codes only.
 */
static void learn_layer(struct model *m, tq_cache *plain, tq_cache *kept,
                        const tq_layer_formats *pair, uint32_t layer) {
    int rounds = m->c.recent_tokens && !(is_16_bit(pair->k_format) && is_16_bit(pair->v_format));
    learn(m, kept, layer, m->k, m->v, &m->k_half[layer], &m->v_half[layer]);
    learn(m, plain, layer, rounds ? m->k_half[layer] : m->k, rounds ? m->v_half[layer] : m->v,
          &m->k_read[layer], &m->v_read[layer]);
}

static tq_cache *open_reference(tq_context *ctx, const tq_cache_config *config, uint32_t sinks,
                                const float *means) {
    tq_cache_config c = *config;
    tq_cache *cache = NULL;
    c.max_pages = 1; /* enough, and small */
    c.recent_tokens = 0;
    c.sink_tokens = sinks;
    MUST(tq_cache_create(ctx, &c, &cache) == TQ_OK);
    for (uint32_t l = 0; means && l < c.n_layers; l++)
        MUST(tq_cache_set_means(cache, l, means, means) == TQ_OK);
    return cache;
}

struct model *model_make(const tq_cache_config *config, const float *means) {
    struct model *m = fuzz_alloc(sizeof *m);
    tq_context *ctx = NULL;
    m->c.struct_size = sizeof m->c;
    tq_context_config reference = {.struct_size = sizeof reference,
                                   .cpu_features_disabled = UINT64_MAX};
    MUST(tq_context_create(&reference, &ctx) == TQ_OK);
    tq_cache *plain = open_reference(ctx, config, 0, means);
    tq_cache *kept = open_reference(ctx, config, N_ROWS, means);
    MUST(tq_cache_get_config(plain, &m->c) == TQ_OK);
    const tq_layer_formats *pairs = m->c.layer_formats; /* that cache's memory */
    m->c.max_pages = config->max_pages;
    m->c.sink_tokens = (config->sink_tokens + 15) / 16 * 16;
    m->c.recent_tokens = config->recent_tokens;
    m->k = make_rows(model_k_row(m), 1);
    m->v = make_rows(model_v_row(m), 2);
    m->k[NAN_ROW * model_k_row(m) + 3] = NAN;
    for (uint32_t l = 0; l < m->c.n_layers; l++)
        learn_layer(m, plain, kept, &pairs[l], l);
    m->c.layer_formats = NULL;
    tq_cache_destroy(plain);
    tq_cache_destroy(kept);
    tq_context_destroy(ctx);
    return m;
}

void model_free(struct model *m) {
    for (uint32_t l = 0; l < MAX_LAYERS; l++) {
        free(m->k_read[l]);
        free(m->v_read[l]);
        free(m->k_half[l]);
        free(m->v_half[l]);
    }
    free(m->k);
    free(m->v);
    free(m);
}

const float *model_k_of(const struct model *m, const struct model_seq *s, uint32_t layer,
                        uint32_t token) {
    const float *rows = s->exact[layer][token] ? m->k_half[layer] : m->k_read[layer];
    return rows + s->tokens[layer][token] * model_k_row(m);
}

const float *model_v_of(const struct model *m, const struct model_seq *s, uint32_t layer,
                        uint32_t token) {
    const float *rows = s->exact[layer][token] ? m->v_half[layer] : m->v_read[layer];
    return rows + s->tokens[layer][token] * model_v_row(m);
}
