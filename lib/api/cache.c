#include <math.h>
#include <string.h>

#include "api/objects.h"
#include "base/checked.h"

/* ---- layers ---------------------------------------------------------------------------- */

/* Random signs depend on seed and dim only: one set for keys, one for values of another
 * length. A set holds the rotation and both rounds of the sketch. */
static size_t flips_of(const tq_cache_config *c) {
    size_t k = (size_t)c->head_dim * 3;
    return c->v_head_dim == c->head_dim ? k : k + (size_t)c->v_head_dim * 3;
}

static void init_layer(tq_cache *cache, uint32_t index) {
    const tq_cache_config *c = &cache->config;
    struct tqi_layer *layer = &cache->layers[index].layer;
    const struct tqi_format *k = tqi_format_by_id(cache->formats[index].k_format);
    const struct tqi_format *v = tqi_format_by_id(cache->formats[index].v_format);
    uint32_t *v_flips = cache->flips;
    if (c->v_head_dim != c->head_dim)
        v_flips += (size_t)c->head_dim * 3;
    layer->n_kv_heads = c->n_kv_heads;
    tqi_page_layout_make(&layer->page, k, c->head_dim, v, c->v_head_dim, c->page_tokens);
    tqi_rows_init(&layer->k, k, &layer->page.k, c->seed, cache->flips);
    tqi_rows_init(&layer->v, v, &layer->page.v, c->seed, v_flips);
}

static void point_scales(struct tqi_cache_layer *l) {
    uint32_t heads = l->layer.n_kv_heads;
    l->layer.k_scale = l->scales[0];
    l->layer.v_scale = l->scales[1];
    l->layer.k_inv_scale = l->scales[0] + heads;
    l->layer.v_inv_scale = l->scales[1] + heads;
}

static tq_status default_scales(tq_cache *cache, struct tqi_cache_layer *l) {
    size_t heads = cache->config.n_kv_heads;
    for (int side = 0; side < 2; side++) {
        l->scales[side] = tqi_alloc(&cache->heap, heads * 2, sizeof(float), TQ_MEM_HOST);
        if (!l->scales[side])
            return TQ_ERR_OUT_OF_MEMORY;
        for (size_t i = 0; i < heads * 2; i++)
            l->scales[side][i] = 1;
    }
    point_scales(l);
    return TQ_OK;
}

static tq_status open_device(tq_cache *cache) {
    const tq_cache_config *c = &cache->config;
    struct tqi_device_config config = {.heap = &cache->heap,
                                       .executor = &cache->ctx->executor,
                                       .n_kv_heads = c->n_kv_heads,
                                       .n_q_heads = c->n_q_heads,
                                       .head_dim = c->head_dim,
                                       .v_head_dim = c->v_head_dim,
                                       .max_pages = c->max_pages,
                                       .n_layers = c->n_layers,
                                       .page_tokens = c->page_tokens,
                                       .keeps = tqi_exact_is_wanted(cache)};
    return cache->ctx->device.open(&cache->ctx->device, &config, &cache->state);
}

static tq_status init_layers(tq_cache *cache) {
    const tq_cache_config *c = &cache->config;
    const struct tqi_device *device = &cache->ctx->device;
    cache->layers = tqi_calloc(&cache->heap, c->n_layers, sizeof *cache->layers);
    cache->flips = tqi_calloc(&cache->heap, cache->n_flips, sizeof *cache->flips);
    if (!cache->layers || !cache->flips)
        return TQ_ERR_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        init_layer(cache, l);
        TQI_TRY(default_scales(cache, &cache->layers[l]));
        TQI_TRY(device->select(device, &cache->ctx->kernels, &cache->layers[l].layer,
                               c->n_q_heads / c->n_kv_heads));
        TQI_TRY(tqi_exact_set_types(cache, l, TQ_BF16, TQ_BF16));
        TQI_TRY(device->set_layer(cache->state, &cache->layers[l].layer));
    }
    return TQ_OK;
}

/* ---- pool ------------------------------------------------------------------------------ */

static tq_status layer_page_bytes(const tq_cache_config *c, tq_layer_formats pair, size_t *out) {
    struct tqi_page_layout page;
    tqi_page_layout_make(&page, tqi_format_by_id(pair.k_format), c->head_dim,
                         tqi_format_by_id(pair.v_format), c->v_head_dim, c->page_tokens);
    if (!tqi_mul_size(page.bytes, c->n_kv_heads, out))
        return tqi_fail(TQ_ERR_OUT_OF_MEMORY, "out of memory: a page's size overflows");
    return TQ_OK;
}

static tq_status init_pool(tq_cache *cache) {
    const tq_cache_config *c = &cache->config;
    size_t *bytes = tqi_calloc(&cache->heap, c->n_layers, sizeof *bytes);
    tq_status status = bytes ? TQ_OK : TQ_ERR_OUT_OF_MEMORY;
    for (uint32_t l = 0; status == TQ_OK && l < c->n_layers; l++)
        status = layer_page_bytes(c, cache->formats[l], &bytes[l]);
    struct tqi_pool_config config = {.n_layers = c->n_layers,
                                     .layer_bytes = bytes,
                                     .max_pages = c->max_pages,
                                     .space = cache->ctx->device.page_memory,
                                     .copy = cache->ctx->device.copy,
                                     .copy_user = cache->state};
    if (status == TQ_OK)
        status = tqi_pool_init(&cache->pool, &cache->heap, &config);
    tqi_free(&cache->heap, bytes, c->n_layers, sizeof *bytes, TQ_MEM_HOST);
    return status;
}

/* ---- create and destroy ---------------------------------------------------------------- */

static tq_status fill(tq_cache *cache) {
    tq_cache_config *c = &cache->config;
    cache->formats = tqi_calloc(&cache->heap, c->n_layers, sizeof *cache->formats);
    if (!cache->formats)
        return TQ_ERR_OUT_OF_MEMORY;
    for (uint32_t l = 0; l < c->n_layers; l++)
        cache->formats[l] = tqi_layer_formats(c, l);
    c->layer_formats = cache->formats;
    cache->n_flips = flips_of(c);
    TQI_TRY(open_device(cache));
    TQI_TRY(init_layers(cache));
    TQI_TRY(init_pool(cache));
    tqi_seqs_init(&cache->seqs, &cache->heap, &cache->pool, c->page_tokens, c->max_seqs);
    return tqi_exact_open(cache);
}

tq_status tqi_cache_build(tq_context *ctx, const tq_cache_config *resolved, tq_cache **out) {
    struct tqi_heap heap = tqi_heap_like(&ctx->heap);
    tq_cache *cache = tqi_calloc(&heap, 1, sizeof *cache);
    if (!cache)
        return TQ_ERR_OUT_OF_MEMORY;
    cache->ctx = ctx;
    cache->heap = heap;
    cache->config = *resolved;
    tq_status status = fill(cache);
    if (status != TQ_OK) {
        tq_cache_destroy(cache);
        return status;
    }
    *out = cache;
    return TQ_OK;
}

tq_status tq_cache_create(tq_context *ctx, const tq_cache_config *config, tq_cache **out) {
    tq_cache_config resolved;
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(tqi_resolve_config(ctx, config, &resolved));
    return tqi_cache_build(ctx, &resolved, out);
}

static void free_layer(tq_cache *cache, struct tqi_cache_layer *l) {
    const tq_cache_config *c = &cache->config;
    size_t heads = c->n_kv_heads;
    const size_t dims[2] = {c->head_dim, c->v_head_dim};
    for (int side = 0; side < 2; side++) {
        tqi_free(&cache->heap, l->means[side], heads, dims[side] * sizeof(float), TQ_MEM_HOST);
        tqi_free(&cache->heap, l->scales[side], heads * 2, sizeof(float), TQ_MEM_HOST);
    }
    tqi_free(&cache->heap, l->sinks, c->n_q_heads, sizeof(float), TQ_MEM_HOST);
}

void tq_cache_destroy(tq_cache *cache) {
    if (!cache)
        return;
    const tq_cache_config *c = &cache->config;
    const struct tqi_device *device = &cache->ctx->device;
    for (uint32_t l = 0; cache->layers && l < c->n_layers; l++)
        device->unset_layer(cache->state, &cache->layers[l].layer);
    device->close(cache->state);
    if (cache->seqs.heap)
        tqi_seqs_destroy(&cache->seqs);
    if (cache->pool.heap)
        tqi_pool_destroy(&cache->pool);
    if (cache->exact_pool.heap)
        tqi_pool_destroy(&cache->exact_pool);
    for (uint32_t l = 0; cache->layers && l < c->n_layers; l++)
        free_layer(cache, &cache->layers[l]);
    tqi_free(&cache->heap, cache->layers, c->n_layers, sizeof *cache->layers, TQ_MEM_HOST);
    tqi_free(&cache->heap, cache->flips, cache->n_flips, sizeof *cache->flips, TQ_MEM_HOST);
    tqi_free(&cache->heap, cache->formats, c->n_layers, sizeof *cache->formats, TQ_MEM_HOST);
    struct tqi_heap heap = cache->heap;
    tqi_free(&heap, cache, 1, sizeof *cache, TQ_MEM_HOST);
}

tq_status tq_cache_reset(tq_cache *cache) {
    TQI_CHECK_CACHE(cache);
    if (cache->n_planned)
        return tqi_fail(TQ_ERR_INVALID_STATE, "%u planned batches: commit or cancel them first",
                        cache->n_planned);
    tqi_seqs_reset(&cache->seqs);
    for (uint32_t l = 0; l < cache->config.n_layers; l++)
        cache->layers[l].appended = cache->layers[l].typed = 0;
    return cache->ctx->device.reset(cache->state);
}
