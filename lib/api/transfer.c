#include "api/transfer.h"

#include <string.h>

#include "base/checked.h"
#include "page/edit.h"
#include "page/move.h"

static int in_host_memory(const tq_cache *cache) {
    return cache->ctx->device.page_memory == TQ_MEM_HOST;
}

/* ---- scratch ----------------------------------------------------------------------------- */

static size_t widest_page(const struct tqi_pool *pool) {
    size_t bytes = 0;
    for (uint32_t l = 0; l < pool->n_layers; l++)
        bytes = pool->layer_bytes[l] > bytes ? pool->layer_bytes[l] : bytes;
    return bytes;
}

tq_status tqi_scratch_open(struct tqi_scratch *s, const tq_cache *cache) {
    const struct tqi_pool *kept = cache->seqs.exact.pool;
    memset(s, 0, sizeof *s);
    s->heap = tqi_heap_like(&cache->heap);
    s->page_bytes = widest_page(&cache->pool);
    s->n_pages = in_host_memory(cache) ? 1 : 3;
    s->pages = tqi_alloc(&s->heap, s->n_pages, s->page_bytes, TQ_MEM_HOST);
    if (kept) {
        s->rows_bytes = widest_page(kept);
        s->rows = tqi_alloc(&s->heap, 2, s->rows_bytes, TQ_MEM_HOST);
    }
    if (s->pages && (s->rows || !kept))
        return TQ_OK;
    tqi_scratch_close(s);
    return TQ_ERR_OUT_OF_MEMORY;
}

void tqi_scratch_close(struct tqi_scratch *s) {
    tqi_free(&s->heap, s->pages, s->n_pages, s->page_bytes, TQ_MEM_HOST);
    tqi_free(&s->heap, s->rows, 2, s->rows_bytes, TQ_MEM_HOST);
    s->pages = s->rows = NULL;
}

/* ---- sources ----------------------------------------------------------------------------- */

static struct tqi_source source_of(const tq_cache *cache, uint32_t layer) {
    struct tqi_source s = {.layout = &cache->layers[layer].layer.page,
                           .n_heads = cache->config.n_kv_heads,
                           .page_bytes = cache->pool.layer_bytes[layer],
                           .cache = cache};
    return s;
}

struct tqi_source tqi_source_of_bytes(const tq_cache *cache, uint32_t layer, const uint8_t *bytes) {
    struct tqi_source s = source_of(cache, layer);
    s.bytes = bytes;
    return s;
}

struct tqi_source tqi_source_of_seq(const tq_cache *cache, const struct tqi_seq *seq,
                                    uint32_t layer, const struct tqi_scratch *scratch) {
    struct tqi_source s = source_of(cache, layer);
    s.view = tqi_view_of(cache, seq, layer);
    if (!in_host_memory(cache))
        s.staging = scratch->pages + scratch->page_bytes;
    return s;
}

/* A page of the source in host memory, all heads; valid until the next but one. */
static tq_status fetch(struct tqi_source *s, uint64_t index, const uint8_t **out) {
    if (s->bytes) {
        *out = s->bytes + index * s->page_bytes;
        return TQ_OK;
    }
    const uint8_t *page = tqi_view_blob(&s->view, index, 0);
    if (s->staging) {
        uint8_t *copy = s->staging + index % 2 * s->page_bytes;
        if (s->staged[index % 2] != index + 1) {
            s->staged[index % 2] = 0;
            TQI_TRY(s->cache->ctx->device.read(s->cache->state, copy, page, s->page_bytes));
            s->staged[index % 2] = index + 1;
        }
        page = copy;
    }
    *out = page;
    return TQ_OK;
}

/* ---- pages ------------------------------------------------------------------------------- */

static uint64_t lesser(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Zeros between the sections of a blob, which are anything in memory. */
static void clear_gaps(const struct tqi_page_layout *page, uint8_t *blob) {
    const struct tqi_layout *k = &page->k, *v = &page->v;
    const uint32_t sections[][2] = {{k->codes, k->codes_size},
                                    {k->sketch, k->sketch_size},
                                    {v->codes, v->codes_size},
                                    {k->gains, k->gains_size},
                                    {k->sketch_gains, k->sketch_gains_size},
                                    {v->gains, v->gains_size}};
    uint32_t end = 0;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (!sections[i][1])
            continue; /* the format lacks it */
        memset(blob + end, 0, sections[i][0] - end);
        end = sections[i][0] + sections[i][1];
    }
    memset(blob + end, 0, page->bytes - end);
}

/* Whether page `index` of the target is a page of the source as it stands, and which. */
static int is_whole(const struct tqi_source *s, struct tqi_span span, uint64_t index,
                    uint64_t *from) {
    uint64_t tokens = s->layout->k.tokens, i = index - span.to / tokens;
    *from = span.from / tokens + i;
    return span.from % tokens == 0 && span.to % tokens == 0 && i < span.n / tokens;
}

/* Straight to where it is wanted. */
static tq_status read_page(const struct tqi_source *s, uint64_t index, uint8_t *to) {
    const uint8_t *page = tqi_view_blob(&s->view, index, 0);
    TQI_TRY(s->cache->ctx->device.read(s->cache->state, to, page, s->page_bytes));
    for (uint32_t h = 0; h < s->n_heads; h++)
        clear_gaps(s->layout, to + (size_t)h * s->layout->bytes);
    return TQ_OK;
}

tq_status tqi_compose_page(struct tqi_source *s, struct tqi_span span, uint64_t index,
                           uint8_t *page) {
    uint32_t tokens = s->layout->k.tokens;
    uint64_t at = index * tokens > span.to ? index * tokens : span.to;
    uint64_t end = lesser((index + 1) * tokens, span.to + span.n), whole;
    if (!s->bytes && is_whole(s, span, index, &whole))
        return read_page(s, whole, page);
    while (at < end) {
        uint64_t from = span.from + (at - span.to);
        uint32_t n = (uint32_t)lesser(end - at, tokens - from % tokens);
        const uint8_t *source;
        TQI_TRY(fetch(s, from / tokens, &source));
        for (uint32_t h = 0; h < s->n_heads; h++) {
            size_t blob = (size_t)h * s->layout->bytes;
            tqi_blob_move(s->layout, page + blob, (uint32_t)(at % tokens), source + blob,
                          (uint32_t)(from % tokens), n);
        }
        at += n;
    }
    return TQ_OK;
}

/* A page of the source that is the target's page as it stands, NULL when there is none. Bytes are
 * taken whole: their last page ends in zeros. */
static tq_status ready_page(struct tqi_source *s, struct tqi_span span, uint64_t index,
                            const uint8_t **out) {
    uint64_t tokens = s->layout->k.tokens, from;
    int whole = is_whole(s, span, index, &from);
    *out = NULL;
    if (whole || (s->bytes && !span.from && span.to % tokens == 0))
        return fetch(s, from, out);
    return TQ_OK;
}

static tq_status make_page(struct tqi_source *source, struct tqi_source *before,
                           struct tqi_span span, uint64_t index, uint8_t *page) {
    uint64_t start = index * source->layout->k.tokens;
    struct tqi_span kept = {.from = start, .to = start};
    kept.n = span.to > start ? span.to - start : 0;
    memset(page, 0, source->page_bytes);
    TQI_TRY(tqi_compose_page(source, span, index, page));
    if (kept.n) { /* the first page only: staging is the source's again afterwards */
        TQI_TRY(tqi_compose_page(before, kept, index, page));
        source->staged[0] = source->staged[1] = 0;
    }
    return TQ_OK;
}

tq_status tqi_write_tokens(tq_cache *cache, const struct tqi_seq *seq, uint32_t layer,
                           struct tqi_source *source, struct tqi_span span,
                           const struct tqi_scratch *scratch) {
    const struct tqi_device *device = &cache->ctx->device;
    struct tqi_page_view view = tqi_view_of(cache, seq, layer);
    uint64_t tokens = view.page_tokens;
    struct tqi_source before = tqi_source_of_seq(cache, seq, layer, scratch);
    for (uint64_t i = span.to / tokens; i * tokens < span.to + span.n; i++) {
        const uint8_t *page;
        TQI_TRY(ready_page(source, span, i, &page));
        if (!page) {
            TQI_TRY(make_page(source, &before, span, i, scratch->pages));
            page = scratch->pages;
        }
        TQI_TRY(device->write(cache->state, tqi_view_blob(&view, i, 0), page, source->page_bytes));
    }
    return TQ_OK;
}

tq_status tqi_wait_to_edit(const tq_cache *cache) {
    const struct tqi_device *device = &cache->ctx->device;
    TQI_TRY(device->wait(cache->state));
    device->use_stream(cache->state, NULL);
    return TQ_OK;
}

/* ---- length ------------------------------------------------------------------------------ */

tq_status tqi_begin_tokens(tq_cache *cache, struct tqi_seq *seq, uint64_t n) {
    TQI_TRY(tqi_wait_to_edit(cache));
    return tqi_seq_make_room(&cache->seqs, seq, 0, n);
}

void tqi_end_tokens(tq_cache *cache, struct tqi_seq *seq, uint64_t n) {
    for (uint32_t l = 0; l < cache->config.n_layers; l++) {
        seq->lengths[l] += n;
        cache->layers[l].appended |= n > 0;
    }
    uint64_t pages = tqi_div_up(seq->lengths[0], cache->config.page_tokens);
    tqi_seq_drop_pages(&cache->seqs, seq, pages, seq->n_pages);
    tqi_exact_settle(&cache->seqs.exact, &seq->exact, seq->lengths);
}
