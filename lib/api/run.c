#include <math.h>
#include <stddef.h>
#include <string.h>

#include "api/objects.h"
#include "base/checked.h"
#include "page/move.h"

struct tqi_page_view tqi_view_of_layer(const tq_cache *cache, uint32_t layer) {
    const struct tqi_pool *pool = &cache->pool;
    struct tqi_page_view view = {.chunks = pool->chunks,
                                 .chunk_pages = pool->chunk_pages,
                                 .layer_offset =
                                     pool->layer_offset[layer] * (size_t)pool->chunk_pages,
                                 .layer_bytes = pool->layer_bytes[layer],
                                 .blob_bytes = cache->layers[layer].layer.page.bytes,
                                 .page_tokens = cache->config.page_tokens};
    return view;
}

struct tqi_page_view tqi_view_of(const tq_cache *cache, const struct tqi_seq *seq, uint32_t layer) {
    struct tqi_page_view view = tqi_view_of_layer(cache, layer);
    view.pages = seq->pages;
    view.length = seq->lengths[layer];
    return view;
}

/* ---- append ---------------------------------------------------------------------------- */

static tq_status append(tq_cache *cache, struct tqi_seq *seq, uint32_t layer, uint32_t n_tokens,
                        const tq_rows_in *k, const tq_rows_in *v, tq_stream stream) {
    const struct tqi_device *device = &cache->ctx->device;
    const struct tqi_exact_rules *rules = &cache->seqs.exact;
    struct tqi_exact_append kept = {.length = seq->lengths[layer], .n = n_tokens};
    struct tqi_exact_view exact;
    device->use_stream(cache->state, stream); /* shared pages are copied on it */
    if (!cache->layers[layer].typed)
        TQI_TRY(tqi_exact_set_types(cache, layer, k->dtype, v->dtype));
    TQI_TRY(tqi_seq_make_room(&cache->seqs, seq, layer, n_tokens));
    struct tqi_encode_job job = {.layer = &cache->layers[layer].layer,
                                 .view = tqi_view_of(cache, seq, layer),
                                 .exact_view = tqi_exact_view_of_layer(cache, layer),
                                 .n_tokens = n_tokens,
                                 .k = *k,
                                 .v = *v};
    if (rules->pool) {
        exact = tqi_exact_view_of(rules, &seq->exact, layer);
        job.exact = &exact;
        job.keep_until = rules->sink_tokens;
        job.keep_from = tqi_exact_keep_from(rules, kept);
    }
    TQI_TRY(device->append(cache->state, &job, stream));
    seq->lengths[layer] += n_tokens;
    tqi_exact_appended(rules, &seq->exact, layer, kept);
    tqi_exact_settle(rules, &seq->exact, seq->lengths);
    cache->layers[layer].appended = cache->layers[layer].typed = 1;
    return TQ_OK;
}

tq_status tq_append(tq_cache *cache, tq_seq id, uint32_t layer, uint32_t n_tokens,
                    const tq_rows_in *k, const tq_rows_in *v, tq_stream stream) {
    TQI_CHECK_CACHE(cache);
    TQI_CHECK_LAYER(cache, layer);
    const tq_cache_config *c = &cache->config;
    struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    tq_rows_in k_rows, v_rows;
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    TQI_TRY(tqi_check_idle(seq, id));
    if (n_tokens == 0)
        return TQ_OK;
    TQI_TRY(tqi_check_rows_in("k", k, c->n_kv_heads, c->head_dim, &k_rows));
    TQI_TRY(tqi_check_rows_in("v", v, c->n_kv_heads, c->v_head_dim, &v_rows));
    return append(cache, seq, layer, n_tokens, &k_rows, &v_rows, stream);
}

/* ---- attend ---------------------------------------------------------------------------- */

tq_status tqi_check_params(const tq_attend_params *from, tq_attend_params *to) {
    memset(to, 0, sizeof *to);
    if (from)
        TQI_TRY(tqi_struct_in("attend params", to, sizeof *to,
                              offsetof(tq_attend_params, logit_softcap), from));
    const uint32_t known = TQ_ATTEND_CAUSAL | TQ_ATTEND_BATCH_INVARIANT | TQ_ATTEND_ALIBI;
    TQI_REQUIRE((to->flags & ~known) == 0, "attend params: unknown flags 0x%x", to->flags);
    if (to->flags & TQ_ATTEND_ALIBI)
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "attend params: no kernel adds the position bias of ALiBi to scores");
    TQI_REQUIRE(to->reserved == 0, "attend params: reserved must be 0");
    TQI_REQUIRE(isfinite(to->scale), "attend params: scale is not finite");
    TQI_REQUIRE(isfinite(to->logit_softcap) && to->logit_softcap >= 0,
                "attend params: logit_softcap is negative or not finite");
    return TQ_OK;
}

tq_status tqi_open_call(const tq_cache *cache, uint32_t layer, const tq_attend_params *params,
                        const tq_rows_in *q, const tq_rows_out *out, float *lse,
                        struct tqi_attend_call *call) {
    const tq_cache_config *c = &cache->config;
    *call = (struct tqi_attend_call){.layer = &cache->layers[layer].layer,
                                     .view = tqi_view_of_layer(cache, layer),
                                     .exact_view = tqi_exact_view_of_layer(cache, layer),
                                     .group = c->n_q_heads / c->n_kv_heads,
                                     .causal = params->flags & TQ_ATTEND_CAUSAL,
                                     .invariant = params->flags & TQ_ATTEND_BATCH_INVARIANT,
                                     .window = params->window,
                                     .scale = params->scale != 0 ? (double)params->scale
                                                                 : 1 / sqrt(c->head_dim),
                                     .softcap = (double)params->logit_softcap,
                                     .lse = lse};
    TQI_TRY(tqi_check_rows_in("q", q, c->n_q_heads, c->head_dim, &call->q));
    return tqi_check_rows_out("out", out, c->n_q_heads, c->v_head_dim, &call->out);
}

tq_status tq_attend(const tq_cache *cache, tq_seq id, uint32_t layer, uint32_t n_queries,
                    const tq_attend_params *params, const tq_rows_in *q, const tq_rows_out *out,
                    float *lse, tq_stream stream) {
    TQI_CHECK_CACHE(cache);
    TQI_CHECK_LAYER(cache, layer);
    const struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    struct tqi_attend_job job = {.n_queries = n_queries};
    struct tqi_exact_view exact;
    tq_attend_params p;
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    TQI_TRY(tqi_check_params(params, &p));
    if (n_queries == 0)
        return TQ_OK;
    TQI_TRY(tqi_open_call(cache, layer, &p, q, out, lse, &job.call));
    job.call.view = tqi_view_of(cache, seq, layer);
    if (cache->seqs.exact.pool && job.call.layer->exact) {
        exact = tqi_exact_view_of(&cache->seqs.exact, &seq->exact, layer);
        job.exact = &exact;
    }
    return cache->ctx->device.attend(cache->state, &job, stream);
}

/* ---- inspection ------------------------------------------------------------------------ */

tq_status tq_read_rows(const tq_cache *cache, tq_seq id, uint32_t layer, uint64_t first,
                       uint32_t n_tokens, const tq_rows_out *k, const tq_rows_out *v) {
    TQI_CHECK_CACHE(cache);
    TQI_CHECK_LAYER(cache, layer);
    const tq_cache_config *c = &cache->config;
    const struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    struct tqi_exact_view exact;
    tq_rows_out k_rows, v_rows;
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    uint64_t length = seq->lengths[layer];
    TQI_REQUIRE(first <= length && n_tokens <= length - first,
                "tokens %llu to %llu: the sequence has %llu in layer %u", (unsigned long long)first,
                (unsigned long long)first + n_tokens, (unsigned long long)length, layer);
    if (k)
        TQI_TRY(tqi_check_rows_out("k", k, c->n_kv_heads, c->head_dim, &k_rows));
    if (v)
        TQI_TRY(tqi_check_rows_out("v", v, c->n_kv_heads, c->v_head_dim, &v_rows));
    struct tqi_decode_job job = {.layer = &cache->layers[layer].layer,
                                 .view = tqi_view_of(cache, seq, layer),
                                 .exact_view = tqi_exact_view_of_layer(cache, layer),
                                 .first = first,
                                 .n_tokens = n_tokens,
                                 .k = k ? &k_rows : NULL,
                                 .v = v ? &v_rows : NULL};
    if (cache->seqs.exact.pool && job.layer->exact) {
        exact = tqi_exact_view_of(&cache->seqs.exact, &seq->exact, layer);
        job.exact = &exact;
    }
    return cache->ctx->device.decode(cache->state, &job);
}

/* Tokens that exist, in place; zeros elsewhere. */
static tq_status read_clean(const tq_cache *cache, uint32_t layer, const struct tqi_page_view *view,
                            uint64_t page, uint32_t kv_head, uint8_t *buf) {
    const struct tqi_device *device = &cache->ctx->device;
    const uint8_t *blob = tqi_view_blob(view, page, kv_head);
    struct tqi_heap heap = tqi_heap_like(&cache->heap);
    uint64_t left = view->length - page * view->page_tokens;
    uint8_t *copy = NULL;
    tq_status status = TQ_OK;
    if (device->page_memory != TQ_MEM_HOST) {
        copy = tqi_alloc(&heap, 1, view->blob_bytes, TQ_MEM_HOST);
        if (!copy)
            return TQ_ERR_OUT_OF_MEMORY;
        status = device->read(cache->state, copy, blob, view->blob_bytes);
        blob = copy;
    }
    if (status == TQ_OK) {
        memset(buf, 0, view->blob_bytes);
        tqi_blob_move(&cache->layers[layer].layer.page, buf, 0, blob, 0,
                      left < view->page_tokens ? (uint32_t)left : view->page_tokens);
    }
    tqi_free(&heap, copy, 1, view->blob_bytes, TQ_MEM_HOST);
    return status;
}

tq_status tq_read_page(const tq_cache *cache, tq_seq id, uint32_t layer, uint64_t page,
                       uint32_t kv_head, void *buf, size_t size, size_t *written) {
    TQI_CHECK_CACHE(cache);
    TQI_CHECK_LAYER(cache, layer);
    TQI_REQUIRE(written != NULL, "written: must not be NULL");
    TQI_REQUIRE(kv_head < cache->config.n_kv_heads, "kv_head: %u, the cache has %u", kv_head,
                cache->config.n_kv_heads);
    const struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    struct tqi_page_view view = tqi_view_of(cache, seq, layer);
    uint64_t n_pages = tqi_div_up(view.length, view.page_tokens);
    TQI_REQUIRE(page < n_pages, "page: %llu, the sequence has %llu in layer %u",
                (unsigned long long)page, (unsigned long long)n_pages, layer);
    *written = view.blob_bytes;
    if (!buf)
        return TQ_OK;
    if (size < view.blob_bytes)
        return tqi_fail(TQ_ERR_BUFFER_TOO_SMALL, "buf: %zu bytes, the page has %zu", size,
                        view.blob_bytes);
    return read_clean(cache, layer, &view, page, kv_head, buf);
}
