/* What a layer is told: means and scales, before its first token and frozen then; sinks. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "api/objects.h"

static tq_status check_fresh(const tq_cache *cache, uint32_t layer) {
    TQI_CHECK_CACHE(cache);
    TQI_CHECK_LAYER(cache, layer);
    if (cache->layers[layer].appended)
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "layer %u has tokens: means and scales are frozen until reset", layer);
    return TQ_OK;
}

static tq_status check_finite(const char *name, const float *values, size_t n) {
    for (size_t i = 0; values && i < n; i++)
        TQI_REQUIRE(isfinite(values[i]), "%s: element %zu is not finite", name, i);
    return TQ_OK;
}

/* A copy in the cache's memory; NULL for NULL. */
static tq_status copy_mean(tq_cache *cache, const float *mean, uint32_t dim, float **out) {
    *out = NULL;
    if (!mean)
        return TQ_OK;
    size_t heads = cache->config.n_kv_heads, row = dim * sizeof(float);
    *out = tqi_alloc(&cache->heap, heads, row, TQ_MEM_HOST);
    if (!*out)
        return TQ_ERR_OUT_OF_MEMORY;
    memcpy(*out, mean, heads * row);
    return TQ_OK;
}

static void free_mean(tq_cache *cache, float *mean, uint32_t dim) {
    tqi_free(&cache->heap, mean, cache->config.n_kv_heads, dim * sizeof(float), TQ_MEM_HOST);
}

/* Takes over both means. */
static tq_status install(tq_cache *cache, uint32_t layer, float *k, float *v) {
    struct tqi_cache_layer *l = &cache->layers[layer];
    free_mean(cache, l->means[0], cache->config.head_dim);
    free_mean(cache, l->means[1], cache->config.v_head_dim);
    l->means[0] = k;
    l->means[1] = v;
    l->layer.k_mean = k;
    l->layer.v_mean = v;
    return cache->ctx->device.set_layer(cache->state, &l->layer);
}

tq_status tq_cache_set_means(tq_cache *cache, uint32_t layer, const float *k_mean,
                             const float *v_mean) {
    float *k, *v;
    TQI_TRY(check_fresh(cache, layer));
    size_t heads = cache->config.n_kv_heads;
    TQI_TRY(check_finite("k_mean", k_mean, heads * cache->config.head_dim));
    TQI_TRY(check_finite("v_mean", v_mean, heads * cache->config.v_head_dim));
    TQI_TRY(copy_mean(cache, k_mean, cache->config.head_dim, &k));
    tq_status status = copy_mean(cache, v_mean, cache->config.v_head_dim, &v);
    if (status != TQ_OK) {
        free_mean(cache, k, cache->config.head_dim);
        return status;
    }
    return install(cache, layer, k, v);
}

/* Channel means of one side: [heads][dim]. */
static tq_status measure(tq_cache *cache, const tq_rows_in *rows, uint32_t n_tokens, uint32_t dim,
                         float **out) {
    uint32_t heads = cache->config.n_kv_heads;
    struct tqi_means_job job = {.rows = rows, .n_tokens = n_tokens, .n_heads = heads, .dim = dim};
    job.mean = tqi_calloc(&cache->heap, heads, dim * sizeof(float));
    if (!job.mean)
        return TQ_ERR_OUT_OF_MEMORY;
    tq_status status = cache->ctx->device.measure_means(cache->state, &job);
    if (status != TQ_OK) {
        free_mean(cache, job.mean, dim);
        return status;
    }
    *out = job.mean;
    return TQ_OK;
}

tq_status tq_cache_fit_means(tq_cache *cache, uint32_t layer, uint32_t n_tokens,
                             const tq_rows_in *k, const tq_rows_in *v) {
    TQI_TRY(check_fresh(cache, layer));
    const tq_cache_config *c = &cache->config;
    tq_rows_in k_rows, v_rows;
    float *k_mean = NULL, *v_mean = NULL;
    TQI_REQUIRE(n_tokens >= 1, "n_tokens: at least 1 is needed for a mean");
    if (k)
        TQI_TRY(tqi_check_rows_in("k", k, c->n_kv_heads, c->head_dim, &k_rows));
    if (v)
        TQI_TRY(tqi_check_rows_in("v", v, c->n_kv_heads, c->v_head_dim, &v_rows));
    if (k)
        TQI_TRY(measure(cache, &k_rows, n_tokens, c->head_dim, &k_mean));
    if (v) {
        tq_status status = measure(cache, &v_rows, n_tokens, c->v_head_dim, &v_mean);
        if (status != TQ_OK) {
            free_mean(cache, k_mean, c->head_dim);
            return status;
        }
    }
    return install(cache, layer, k_mean, v_mean);
}

static tq_status check_scales(const char *name, const struct tqi_rows *rows, const float *scales,
                              uint32_t n) {
    if (!scales)
        return TQ_OK;
    TQI_REQUIRE(rows->format->kind == TQI_KIND_FP8, "%s: format %s has no scale", name,
                rows->format->name);
    for (uint32_t i = 0; i < n; i++)
        TQI_REQUIRE(isnormal(scales[i]) && scales[i] > 0 && isnormal(1 / scales[i]),
                    "%s: element %u is not a positive normal number", name, i);
    return TQ_OK;
}

static void store_scales(float *to, const float *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        to[i] = from ? from[i] : 1;
        to[n + i] = 1 / to[i];
    }
}

tq_status tq_cache_set_fp8_scales(tq_cache *cache, uint32_t layer, const float *k_scale,
                                  const float *v_scale) {
    TQI_TRY(check_fresh(cache, layer));
    struct tqi_cache_layer *l = &cache->layers[layer];
    uint32_t heads = cache->config.n_kv_heads;
    TQI_TRY(check_scales("k_scale", &l->layer.k, k_scale, heads));
    TQI_TRY(check_scales("v_scale", &l->layer.v, v_scale, heads));
    store_scales(l->scales[0], k_scale, heads);
    store_scales(l->scales[1], v_scale, heads);
    return cache->ctx->device.set_layer(cache->state, &l->layer);
}

/* Sinks are no part of the codes: they may change at any time. */
tq_status tq_cache_set_sink_logits(tq_cache *cache, uint32_t layer, const float *logits) {
    TQI_CHECK_CACHE(cache);
    TQI_CHECK_LAYER(cache, layer);
    struct tqi_cache_layer *l = &cache->layers[layer];
    uint32_t n = cache->config.n_q_heads;
    for (uint32_t i = 0; logits && i < n; i++)
        TQI_REQUIRE(!isnan(logits[i]) && logits[i] != INFINITY,
                    "logits: element %u is neither finite nor -infinity", i);
    if (logits && !l->sinks)
        l->sinks = tqi_alloc(&cache->heap, n, sizeof(float), TQ_MEM_HOST);
    if (logits && !l->sinks)
        return TQ_ERR_OUT_OF_MEMORY;
    if (logits)
        memcpy(l->sinks, logits, n * sizeof(float));
    l->layer.sinks = logits ? l->sinks : NULL;
    return cache->ctx->device.set_layer(cache->state, &l->layer);
}
