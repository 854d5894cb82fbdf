/* Tokens kept in 16 bits beside their codes: which layers have them, their pool, and what
 * append and attend are told of them. */
#include "api/objects.h"
#include "base/checked.h"

static int is_16_bit(tq_format id) {
    return tqi_format_by_id(id)->kind == TQI_KIND_F16BIT;
}

/* A layer in 16 bits needs nothing beside it. */
static int is_wanted(const tq_cache *cache, uint32_t layer) {
    tq_layer_formats f = cache->formats[layer];
    return (cache->config.sink_tokens || cache->config.recent_tokens) &&
           !(is_16_bit(f.k_format) && is_16_bit(f.v_format));
}

uint32_t tqi_exact_is_wanted(const tq_cache *cache) {
    for (uint32_t l = 0; l < cache->config.n_layers; l++)
        if (is_wanted(cache, l))
            return 1;
    return 0;
}

static tq_format half_format(tq_dtype dtype) {
    return dtype == TQ_F16 ? TQ_FORMAT_F16 : TQ_FORMAT_BF16;
}

tq_status tqi_exact_set_types(tq_cache *cache, uint32_t index, tq_dtype k, tq_dtype v) {
    const tq_cache_config *c = &cache->config;
    struct tqi_cache_layer *l = &cache->layers[index];
    struct tqi_layer *exact = &l->exact;
    const struct tqi_device *device = &cache->ctx->device;
    const struct tqi_format *k_format = tqi_format_by_id(half_format(k));
    const struct tqi_format *v_format = tqi_format_by_id(half_format(v));
    if (!is_wanted(cache, index) || (exact->k.format == k_format && exact->v.format == v_format))
        return TQ_OK;
    exact->n_kv_heads = c->n_kv_heads;
    tqi_page_layout_make(&exact->page, k_format, c->head_dim, v_format, c->v_head_dim,
                         TQI_EXACT_TOKENS);
    tqi_rows_init(&exact->k, k_format, &exact->page.k, c->seed, NULL); /* not rotated: no signs */
    tqi_rows_init(&exact->v, v_format, &exact->page.v, c->seed, NULL);
    TQI_TRY(device->select(device, &cache->ctx->kernels, exact, c->n_q_heads / c->n_kv_heads));
    l->layer.exact = exact;
    l->layer.rounds = c->recent_tokens != 0;
    return device->set_exact(cache->state, &l->layer);
}

/* Pages that are there from the start: a window for every sequence and, because an append writes
 * the new window before the old one goes, one more; though a token is kept at most once for every
 * page that holds its codes. */
static uint64_t first_pages(const tq_cache_config *c) {
    uint64_t windows =
        ((uint64_t)c->max_seqs + 1) * tqi_exact_pages(c->sink_tokens, c->recent_tokens);
    uint64_t most = c->max_pages * (c->page_tokens / TQI_EXACT_TOKENS);
    return windows < most ? windows : most;
}

static tq_status init_pool(tq_cache *cache, const size_t *layer_bytes) {
    const struct tqi_device *device = &cache->ctx->device;
    struct tqi_pool_config config = {.n_layers = cache->config.n_layers,
                                     .layer_bytes = layer_bytes,
                                     .chunk_pages = first_pages(&cache->config),
                                     .space = device->page_memory,
                                     .copy = device->copy,
                                     .copy_user = cache->state};
    TQI_TRY(tqi_pool_init(&cache->exact_pool, &cache->heap, &config));
    return tqi_pool_reserve(&cache->exact_pool, config.chunk_pages ? 1 : 0);
}

tq_status tqi_exact_open(tq_cache *cache) {
    const tq_cache_config *c = &cache->config;
    size_t *bytes = tqi_calloc(&cache->heap, c->n_layers, sizeof *bytes), total = 0;
    tq_status status = bytes ? TQ_OK : TQ_ERR_OUT_OF_MEMORY;
    for (uint32_t l = 0; bytes && l < c->n_layers; l++) {
        if (is_wanted(cache, l))
            bytes[l] = (size_t)cache->layers[l].exact.page.bytes * c->n_kv_heads;
        total |= bytes[l];
    }
    if (total)
        status = init_pool(cache, bytes);
    tqi_free(&cache->heap, bytes, c->n_layers, sizeof *bytes, TQ_MEM_HOST);
    if (!total || status != TQ_OK)
        return status;
    struct tqi_exact_rules rules = {.heap = &cache->heap,
                                    .pool = &cache->exact_pool,
                                    .n_layers = c->n_layers,
                                    .sink_tokens = c->sink_tokens,
                                    .recent_tokens = c->recent_tokens};
    cache->seqs.exact = rules;
    return TQ_OK;
}

uint64_t tqi_exact_first_pages(const tq_cache *cache, uint64_t max_pages) {
    tq_cache_config c = cache->config;
    c.max_pages = max_pages;
    return cache->seqs.exact.pool ? first_pages(&c) : 0;
}

struct tqi_page_view tqi_exact_view_of_layer(const tq_cache *cache, uint32_t layer) {
    struct tqi_page_view view = {0};
    const struct tqi_pool *pool = cache->seqs.exact.pool;
    if (!pool || !cache->layers[layer].layer.exact)
        return view;
    view.chunks = pool->chunks;
    view.chunk_pages = pool->chunk_pages;
    view.layer_offset = pool->layer_offset[layer] * (size_t)pool->chunk_pages;
    view.layer_bytes = pool->layer_bytes[layer];
    view.blob_bytes = cache->layers[layer].exact.page.bytes;
    view.page_tokens = TQI_EXACT_TOKENS;
    return view;
}
