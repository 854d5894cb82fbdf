#include "tq/paged.h"

#include <stddef.h>
#include <string.h>

#include "api/objects.h"

enum { ALIGNMENT = 16 /* of pages */ };

static tq_status check_device(const tq_cache *cache) {
    TQI_CHECK_CACHE(cache);
    if (!cache->ctx->device.paged_attend)
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "paged: device %s has no kernels for pages of the caller yet",
                        cache->ctx->device.name);
    if (cache->config.sink_tokens || cache->config.recent_tokens)
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "paged: the cache keeps sink_tokens or recent_tokens in 16 bits, for which "
                        "pages of the caller have no room");
    return TQ_OK;
}

size_t tq_paged_page_bytes(const tq_cache *cache, uint32_t layer) {
    return cache && layer < cache->config.n_layers ? cache->pool.layer_bytes[layer] : 0;
}

/* ---- pool -------------------------------------------------------------------------------- */

/* Checks a pool and makes a view of it; base is where the view finds the first page. */
static tq_status open_pool(const tq_cache *cache, uint32_t layer, const tq_paged_pool *from,
                           tq_paged_pool *pool, uint8_t **base, struct tqi_page_view *view) {
    size_t bytes = cache->pool.layer_bytes[layer];
    TQI_REQUIRE(from != NULL, "pool: must not be NULL");
    TQI_TRY(tqi_struct_in("pool", pool, sizeof *pool, sizeof *pool, from));
    TQI_REQUIRE((pool->flags & ~TQ_PAGED_CHECKED) == 0, "pool: unknown flags 0x%x", pool->flags);
    TQI_REQUIRE(pool->pages != NULL, "pool: pages must not be NULL");
    TQI_REQUIRE((uintptr_t)pool->pages % ALIGNMENT == 0, "pool: pages must be aligned to %d bytes",
                ALIGNMENT);
    if (pool->page_stride == 0)
        pool->page_stride = (int64_t)bytes;
    TQI_REQUIRE(pool->page_stride >= (int64_t)bytes && pool->page_stride % ALIGNMENT == 0,
                "pool: page_stride must be a multiple of %d and %zu at least, not %lld", ALIGNMENT,
                bytes, (long long)pool->page_stride);
    TQI_REQUIRE(pool->n_pages >= 1 && pool->n_pages <= UINT64_C(1) << 31,
                "pool: n_pages must be 1 to 2^31, not %llu", (unsigned long long)pool->n_pages);
    *base = pool->pages;
    *view = (struct tqi_page_view){.chunks = base,
                                   .chunk_pages = UINT64_MAX,
                                   .layer_bytes = (size_t)pool->page_stride,
                                   .blob_bytes = cache->layers[layer].layer.page.bytes,
                                   .page_tokens = cache->config.page_tokens};
    return TQ_OK;
}

/* ---- append ------------------------------------------------------------------------------ */

tq_status tq_paged_append(tq_cache *cache, uint32_t layer, const tq_paged_pool *pool,
                          const int64_t *slots, uint32_t n_tokens, const tq_rows_in *k,
                          const tq_rows_in *v, tq_stream stream) {
    TQI_TRY(check_device(cache));
    TQI_CHECK_LAYER(cache, layer);
    const tq_cache_config *c = &cache->config;
    tq_paged_pool p;
    uint8_t *base;
    struct tqi_paged_append job = {
        .layer = &cache->layers[layer].layer, .n_tokens = n_tokens, .slots = slots};
    if (n_tokens == 0)
        return TQ_OK;
    TQI_TRY(open_pool(cache, layer, pool, &p, &base, &job.view));
    TQI_REQUIRE(slots != NULL, "slots: must not be NULL");
    job.n_pages = p.n_pages;
    job.checked = p.flags & TQ_PAGED_CHECKED;
    TQI_TRY(tqi_check_rows_in("k", k, c->n_kv_heads, c->head_dim, &job.k));
    TQI_TRY(tqi_check_rows_in("v", v, c->n_kv_heads, c->v_head_dim, &job.v));
    TQI_TRY(cache->ctx->device.paged_append(cache->state, &job, stream));
    cache->layers[layer].appended = 1;
    return TQ_OK;
}

/* ---- attend ------------------------------------------------------------------------------ */

tq_status tq_paged_workspace(const tq_cache *cache, uint32_t max_seqs, uint32_t max_queries,
                             uint32_t max_seq_len, size_t *bytes) {
    TQI_TRY(check_device(cache));
    TQI_REQUIRE(bytes != NULL, "bytes: must not be NULL");
    *bytes = cache->ctx->device.paged_workspace(cache->state, max_seqs, max_queries, max_seq_len);
    return TQ_OK;
}

static tq_status check_seqs(const tq_paged_seqs *from, tq_paged_seqs *s) {
    tq_paged_step step;
    TQI_REQUIRE(from != NULL, "seqs: must not be NULL");
    TQI_TRY(tqi_struct_in("seqs", s, sizeof *s, offsetof(tq_paged_seqs, step), from));
    if (s->step)
        TQI_TRY(tqi_struct_in("step", &step, sizeof step, sizeof step, s->step));
    if (s->n_seqs == 0)
        return TQ_OK;
    TQI_REQUIRE(s->block_table != NULL, "seqs: block_table must not be NULL");
    TQI_REQUIRE(s->seq_lens != NULL, "seqs: seq_lens must not be NULL");
    TQI_REQUIRE(s->query_starts != NULL, "seqs: query_starts must not be NULL");
    return TQ_OK;
}

static tq_status check_workspace(const tq_cache *cache, const tq_paged_seqs *s,
                                 const void *workspace, size_t size) {
    size_t needed;
    TQI_TRY(tq_paged_workspace(cache, s->n_seqs, s->n_queries, s->max_seq_len, &needed));
    TQI_REQUIRE(workspace != NULL && (uintptr_t)workspace % TQI_ALIGNMENT == 0,
                "workspace: must be aligned to %d bytes and not NULL", TQI_ALIGNMENT);
    if (size < needed)
        return tqi_fail(TQ_ERR_BUFFER_TOO_SMALL, "workspace: %zu bytes, %zu are needed", size,
                        needed);
    return TQ_OK;
}

tq_status tq_paged_attend(const tq_cache *cache, uint32_t layer, const tq_paged_pool *pool,
                          const tq_paged_seqs *seqs, const tq_attend_params *params,
                          const tq_rows_in *q, const tq_rows_out *out, float *lse, void *workspace,
                          size_t workspace_size, tq_stream stream) {
    TQI_TRY(check_device(cache));
    TQI_CHECK_LAYER(cache, layer);
    tq_attend_params p;
    tq_paged_seqs s;
    tq_paged_pool own;
    uint8_t *base;
    struct tqi_page_view view;
    struct tqi_paged_attend job = {.workspace = workspace};
    TQI_TRY(tqi_check_params(params, &p));
    TQI_TRY(check_seqs(seqs, &s));
    if (s.n_seqs == 0 || s.n_queries == 0)
        return TQ_OK;
    TQI_TRY(open_pool(cache, layer, pool, &own, &base, &view));
    TQI_TRY(tqi_open_call(cache, layer, &p, q, out, lse, &job.call));
    job.call.view = view;
    TQI_TRY(check_workspace(cache, &s, workspace, workspace_size));
    job.n_pages = own.n_pages;
    job.checked = own.flags & TQ_PAGED_CHECKED;
    job.n_seqs = s.n_seqs;
    job.n_queries = s.n_queries;
    job.max_length = s.max_seq_len;
    job.table = s.block_table;
    job.table_stride = s.table_stride;
    job.lengths = s.seq_lens;
    job.starts = s.query_starts;
    job.planned = s.step ? s.step->planned : NULL;
    return cache->ctx->device.paged_attend(cache->state, &job, stream);
}
