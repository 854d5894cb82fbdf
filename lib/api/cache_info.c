/* What can be asked of a cache. */
#include <stddef.h>
#include <string.h>

#include "api/objects.h"
#include "base/checked.h"

/* Bytes of a fixed pool beyond an empty growing one: pages and the tables about them. */
static tq_status pool_bytes(const struct tqi_pool *pool, uint64_t pages, uint64_t *page_memory,
                            uint64_t *tables) {
    size_t bytes;
    if (!tqi_mul_size(pool->page_bytes, pages, &bytes))
        return tqi_fail(TQ_ERR_OUT_OF_MEMORY,
                        "out of memory: max_pages: the pool's size overflows");
    *page_memory = bytes;
    *tables = pages * 2 * sizeof(uint32_t) + 8 * sizeof(uint8_t *);
    return TQ_OK;
}

/* The same for pages of tokens in 16 bits. */
static tq_status add_kept_pages(const tq_cache *cache, uint64_t max_pages, uint64_t *page_memory,
                                uint64_t *tables) {
    uint64_t pages = tqi_exact_first_pages(cache, max_pages), more = 0;
    if (!pages)
        return TQ_OK;
    TQI_TRY(pool_bytes(&cache->exact_pool, pages, page_memory, &more));
    *tables += more;
    return TQ_OK;
}

/* What the device's state takes for pages that the cache lacks while it is measured. */
static uint64_t entry_bytes(const tq_cache *cache, uint64_t max_pages) {
    const struct tqi_device *device = &cache->ctx->device;
    uint64_t kept = max_pages * (cache->config.page_tokens / TQI_EXACT_TOKENS);
    return max_pages * device->entry_bytes +
           (cache->seqs.exact.pool ? kept * device->kept_bytes : 0);
}

/* Builds the cache without its pages: what is left to count is the pool. */
tq_status tq_cache_estimate(const tq_context *ctx, const tq_cache_config *config,
                            tq_footprint *out) {
    tq_cache_config c;
    tq_cache *cache;
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(tqi_struct_check_out("footprint", offsetof(tq_footprint, protected_bytes), out));
    TQI_TRY(tqi_resolve_config(ctx, config, &c));
    uint64_t max_pages = c.max_pages, page_memory = 0, tables = 0;
    c.max_pages = 0;
    TQI_TRY(tqi_cache_build((tq_context *)(uintptr_t)ctx, &c, &cache));
    tq_footprint full = {.page_tokens = c.page_tokens, .bytes_per_page = cache->pool.page_bytes};
    full.bytes_per_token = tqi_div_up(full.bytes_per_page, c.page_tokens);
    tq_status status = TQ_OK;
    if (max_pages)
        status = pool_bytes(&cache->pool, max_pages, &page_memory, &tables);
    if (max_pages && status == TQ_OK)
        status = add_kept_pages(cache, max_pages, &full.protected_bytes, &tables);
    int on_host = ctx->device.page_memory == TQ_MEM_HOST;
    page_memory += full.protected_bytes;
    full.host_bytes = cache->heap.host_bytes + tables + (on_host ? page_memory : 0);
    full.device_bytes =
        cache->heap.device_bytes + (on_host ? 0 : page_memory) + entry_bytes(cache, max_pages);
    tq_cache_destroy(cache);
    if (status == TQ_OK)
        tqi_struct_out(out, &full, sizeof full);
    return status;
}

tq_status tq_cache_get_config(const tq_cache *cache, tq_cache_config *out) {
    TQI_CHECK_CACHE(cache);
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(tqi_struct_check_out("cache config", offsetof(tq_cache_config, sink_tokens), out));
    tqi_struct_out(out, &cache->config, sizeof cache->config);
    return TQ_OK;
}

static void count_pages(const struct tqi_pool *pool, tq_cache_stats *s) {
    s->pages_total = pool->n_pages;
    for (uint64_t i = 0; i < pool->n_pages; i++) {
        s->pages_used += pool->references[i] > 0;
        s->pages_shared += pool->references[i] > 1;
    }
}

tq_status tq_cache_get_stats(const tq_cache *cache, tq_cache_stats *out) {
    TQI_CHECK_CACHE(cache);
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(tqi_struct_check_out("cache stats", offsetof(tq_cache_stats, protected_bytes), out));
    tq_cache_stats s = {.n_seqs = cache->seqs.n_alive,
                        .host_bytes = cache->heap.host_bytes,
                        .device_bytes = cache->heap.device_bytes};
    count_pages(&cache->pool, &s);
    if (cache->seqs.exact.pool)
        s.protected_bytes =
            (cache->exact_pool.n_pages - cache->exact_pool.n_free) * cache->exact_pool.page_bytes;
    for (uint32_t i = 0; i < cache->seqs.n_slots; i++)
        if (cache->seqs.slots[i].alive)
            s.tokens += tqi_seq_shortest(&cache->seqs, &cache->seqs.slots[i]);
    struct tqi_nonfinite replaced;
    TQI_TRY(cache->ctx->device.counts(cache->state, &replaced));
    s.nan_values = replaced.nan;
    s.inf_values = replaced.inf;
    tqi_struct_out(out, &s, sizeof s);
    return TQ_OK;
}

const char *tq_cache_kernel_name(const tq_cache *cache, uint32_t layer, tq_op op) {
    if (!cache || layer >= cache->config.n_layers || op < 0 || op >= TQI_OP_LIMIT)
        return NULL;
    return cache->layers[layer].layer.kernel_name[op];
}
