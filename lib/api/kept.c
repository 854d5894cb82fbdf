#include "api/kept.h"

#include <string.h>

#include "base/checked.h"
#include "page/move.h"

enum { TOKENS = TQI_EXACT_TOKENS };

static uint64_t lesser(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t greater(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ---- pages ------------------------------------------------------------------------------- */

/* Pages of 16 tokens of one layer: those of a sequence, or bytes in a row. */
struct pages {
    const tq_cache *cache;
    struct tqi_page_view view;
    struct tqi_exact_view exact;
    const uint8_t *bytes;
};

static struct pages pages_of_part(const tq_cache *cache, const struct tqi_exact *part,
                                  uint32_t layer) {
    struct pages p = {.cache = cache,
                      .view = tqi_exact_view_of_layer(cache, layer),
                      .exact = tqi_exact_view_of(&cache->seqs.exact, part, layer)};
    return p;
}

static uint8_t *page_at(const struct pages *p, uint64_t number) {
    return tqi_view_page(&p->view, tqi_exact_page(&p->exact, number));
}

/* Rows [from, from + n) of some pages become rows [to, to + n) of others. */
struct rows {
    const struct tqi_page_layout *layout;
    uint32_t n_heads;
    struct pages from, to;
    uint8_t *to_bytes; /* instead of `to`, or NULL */
    uint8_t *scratch;  /* two pages */
};

static size_t page_bytes(const struct rows *r) {
    return (size_t)r->layout->bytes * r->n_heads;
}

/* A page to read, in host memory. */
static tq_status fetch(const struct rows *r, uint64_t number, const uint8_t **out) {
    const tq_cache *cache = r->from.cache;
    uint8_t *copy = r->scratch + page_bytes(r);
    *out = copy;
    if (!r->from.bytes)
        return cache->ctx->device.read(cache->state, copy, page_at(&r->from, number),
                                       page_bytes(r));
    *out = r->from.bytes + number * page_bytes(r);
    return TQ_OK;
}

/* The rows of one page of the target. */
static tq_status fill_page(const struct rows *r, uint64_t from, uint64_t to, uint64_t n,
                           uint8_t *page) {
    for (uint64_t step; n; n -= step, from += step, to += step) {
        const uint8_t *source;
        step = lesser(n, TOKENS - from % TOKENS);
        TQI_TRY(fetch(r, from / TOKENS, &source));
        for (uint32_t h = 0; h < r->n_heads; h++) {
            size_t blob = (size_t)h * r->layout->bytes;
            tqi_blob_move(r->layout, page + blob, (uint32_t)(to % TOKENS), source + blob,
                          (uint32_t)(from % TOKENS), (uint32_t)step);
        }
    }
    return TQ_OK;
}

static tq_status move_rows(const struct rows *r, uint64_t from, uint64_t to, uint64_t n) {
    const tq_cache *cache = r->to.cache;
    size_t bytes = page_bytes(r);
    for (uint64_t step; n; n -= step, from += step, to += step) {
        step = lesser(n, TOKENS - to % TOKENS);
        if (r->to_bytes) {
            TQI_TRY(fill_page(r, from, to, step, r->to_bytes + to / TOKENS * bytes));
            continue;
        }
        uint8_t *page = page_at(&r->to, to / TOKENS);
        TQI_TRY(cache->ctx->device.read(cache->state, r->scratch, page, bytes));
        TQI_TRY(fill_page(r, from, to, step, r->scratch));
        TQI_TRY(cache->ctx->device.write(cache->state, page, r->scratch, bytes));
    }
    return TQ_OK;
}

/* ---- rows of a sequence ------------------------------------------------------------------ */

static struct tqi_kept none_of(uint64_t n) {
    struct tqi_kept kept = {.n = n};
    return kept;
}

struct tqi_kept tqi_kept_of_seq(const tq_cache *cache, const struct tqi_seq *seq, uint32_t layer,
                                uint64_t first, uint64_t n) {
    const struct tqi_cache_layer *l = &cache->layers[layer];
    struct tqi_kept kept = none_of(n);
    if (!cache->seqs.exact.pool || !l->layer.exact)
        return kept;
    kept.runs = tqi_exact_runs_of(&cache->seqs.exact, &seq->exact, layer, first, n);
    kept.k_format = l->typed ? l->exact.k.format->id : 0;
    kept.v_format = l->typed ? l->exact.v.format->id : 0;
    kept.layout = l->exact.page;
    kept.n_heads = cache->config.n_kv_heads;
    kept.cache = cache;
    kept.part = &seq->exact;
    kept.layer = layer;
    kept.head_at = first;
    kept.tail_at = first + n - kept.runs.tail;
    return kept;
}

static struct rows rows_from(const struct tqi_kept *kept, const struct tqi_scratch *scratch) {
    struct rows r = {.layout = &kept->layout, .n_heads = kept->n_heads, .scratch = scratch->rows};
    if (kept->bytes)
        r.from.bytes = kept->bytes;
    else
        r.from = pages_of_part(kept->cache, kept->part, kept->layer);
    return r;
}

static int has_all(const struct tqi_kept *kept) {
    return kept->runs.head == kept->n;
}

/* Number of rows. */
static uint64_t count(const struct tqi_kept *kept) {
    return has_all(kept) ? kept->n : kept->runs.head + kept->runs.tail;
}

/* ---- to bytes ---------------------------------------------------------------------------- */

/* Of a layer in front of the pages: formats, head, tail. */
enum { ENTRY_BYTES = 24 };

static size_t table_bytes(uint32_t n_layers) {
    return tqi_align_up((size_t)n_layers * ENTRY_BYTES, TQI_CONTAINER_ALIGN);
}

/* Fails when the product overflows. */
static bool rows_bytes(const struct tqi_kept *kept, size_t *out) {
    return tqi_mul_size((size_t)kept->layout.bytes * kept->n_heads,
                        (size_t)tqi_div_up(count(kept), TOKENS), out);
}

tq_status tqi_kept_bytes(const tq_cache *cache, const struct tqi_seq *seq, uint64_t first,
                         uint64_t n, size_t *out) {
    *out = table_bytes(cache->config.n_layers);
    for (uint32_t l = 0; l < cache->config.n_layers; l++) {
        struct tqi_kept kept = tqi_kept_of_seq(cache, seq, l, first, n);
        size_t bytes;
        if (!rows_bytes(&kept, &bytes) || !tqi_add_size(*out, bytes, out))
            return tqi_fail(TQ_ERR_OUT_OF_MEMORY, "out of memory: the snapshot's size overflows");
    }
    return TQ_OK;
}

static tq_status save_layer(const struct tqi_kept *kept, const struct tqi_scratch *scratch,
                            uint8_t *at) {
    struct rows r = rows_from(kept, scratch);
    r.to_bytes = at;
    TQI_TRY(move_rows(&r, kept->head_at, 0, kept->runs.head));
    return has_all(kept) ? TQ_OK : move_rows(&r, kept->tail_at, kept->runs.head, kept->runs.tail);
}

tq_status tqi_kept_save(const tq_cache *cache, const struct tqi_seq *seq, uint64_t first,
                        uint64_t n, const struct tqi_scratch *scratch, uint8_t *section) {
    uint8_t *entry = section, *at = section + table_bytes(cache->config.n_layers);
    memset(section, 0, (size_t)(at - section));
    for (uint32_t l = 0; l < cache->config.n_layers; l++, entry += ENTRY_BYTES) {
        struct tqi_kept kept = tqi_kept_of_seq(cache, seq, l, first, n);
        size_t bytes;
        tqi_put_le32(entry, kept.k_format);
        tqi_put_le32(entry + 4, kept.v_format);
        tqi_put_le64(entry + 8, kept.runs.head);
        tqi_put_le64(entry + 16, kept.runs.tail);
        if (!count(&kept))
            continue;
        (void)rows_bytes(&kept, &bytes); /* tqi_kept_bytes() has summed them up */
        memset(at, 0, bytes);
        TQI_TRY(save_layer(&kept, scratch, at));
        at += bytes;
    }
    return TQ_OK;
}

/* ---- from bytes -------------------------------------------------------------------------- */

struct tqi_kept_reader tqi_kept_open(const struct tqi_container *snapshot) {
    struct tqi_kept_reader r = {.snapshot = snapshot, .at = table_bytes(snapshot->header.n_layers)};
    return r;
}

/* The table is there, with zeros behind its last layer. */
static tq_status check_table(const struct tqi_kept_reader *r, uint32_t layer) {
    uint32_t n_layers = r->snapshot->header.n_layers;
    if (r->at > r->snapshot->sections[TQI_SECTION_ROWS].bytes)
        return tqi_fail(TQ_ERR_CORRUPT, "snapshot: the rows end before layer %u does", layer);
    return layer
               ? TQ_OK
               : tqi_container_check_zeros(r->snapshot, TQI_SECTION_ROWS,
                                           (uint64_t)n_layers * ENTRY_BYTES, table_bytes(n_layers));
}

static int is_half(tq_format id) {
    return id == TQ_FORMAT_BF16 || id == TQ_FORMAT_F16;
}

/* Both formats or none, rows of a format only, and not more than there are tokens. */
static int is_possible(const struct tqi_kept *kept) {
    const struct tqi_exact_runs *runs = &kept->runs;
    if (!kept->k_format && !kept->v_format)
        return !runs->head && !runs->tail;
    if (!is_half(kept->k_format) || !is_half(kept->v_format))
        return 0;
    if (runs->head == kept->n)
        return runs->tail == kept->n;
    return runs->head < kept->n && runs->tail < kept->n - runs->head;
}

tq_status tqi_kept_next(struct tqi_kept_reader *r, struct tqi_kept *out) {
    const struct tqi_snapshot_header *h = &r->snapshot->header;
    const struct tqi_section *s = &r->snapshot->sections[TQI_SECTION_ROWS];
    uint32_t layer = r->layer++;
    size_t bytes;
    *out = none_of(h->n_tokens);
    if (tqi_sections_of(h) < TQI_SECTION_ROWS)
        return TQ_OK;
    const uint8_t *rows = tqi_section_bytes(r->snapshot, TQI_SECTION_ROWS);
    const uint8_t *entry = rows + (size_t)layer * ENTRY_BYTES;
    TQI_TRY(check_table(r, layer));
    out->k_format = tqi_get_le32(entry);
    out->v_format = tqi_get_le32(entry + 4);
    out->runs.head = tqi_get_le64(entry + 8);
    out->runs.tail = tqi_get_le64(entry + 16);
    if (!is_possible(out))
        return tqi_fail(TQ_ERR_CORRUPT,
                        "snapshot: layer %u keeps %llu and %llu rows of %llu tokens in formats "
                        "%u and %u",
                        layer, (unsigned long long)out->runs.head,
                        (unsigned long long)out->runs.tail, (unsigned long long)out->n,
                        out->k_format, out->v_format);
    if (!out->k_format)
        return TQ_OK;
    tqi_page_layout_make(&out->layout, tqi_format_by_id(out->k_format), h->head_dim,
                         tqi_format_by_id(out->v_format), h->v_head_dim, TOKENS);
    out->n_heads = h->n_kv_heads;
    out->tail_at = has_all(out) ? 0 : out->runs.head;
    out->bytes = rows + r->at;
    if (!rows_bytes(out, &bytes) || bytes > s->bytes - r->at)
        return tqi_fail(TQ_ERR_CORRUPT, "snapshot: the rows end before layer %u does", layer);
    r->at += bytes;
    return TQ_OK;
}

/* ---- to a sequence ----------------------------------------------------------------------- */

/* Whether a cache can keep rows of the layer at all. */
static int can_keep(const tq_cache *cache, uint32_t layer) {
    return cache->seqs.exact.pool && cache->layers[layer].layer.exact;
}

tq_status tqi_kept_match(const tq_cache *cache, uint32_t layer, const struct tqi_kept *kept,
                         const char *what) {
    const struct tqi_cache_layer *l = &cache->layers[layer];
    if (!can_keep(cache, layer) || !l->typed || !count(kept))
        return TQ_OK;
    const struct tqi_format *k = l->exact.k.format, *v = l->exact.v.format;
    if (kept->k_format == k->id && kept->v_format == v->id)
        return TQ_OK;
    return tqi_fail(TQ_ERR_MISMATCH,
                    "%s: layer %u: tokens are kept as %s and %s there and as %s and %s in this "
                    "cache",
                    what, layer, tqi_format_by_id(kept->k_format)->name,
                    tqi_format_by_id(kept->v_format)->name, k->name, v->name);
}

static tq_dtype dtype_of(tq_format id) {
    return id == TQ_FORMAT_F16 ? TQ_F16 : TQ_BF16;
}

tq_status tqi_kept_set_type(tq_cache *cache, uint32_t layer, const struct tqi_kept *kept) {
    struct tqi_cache_layer *l = &cache->layers[layer];
    if (!can_keep(cache, layer) || l->typed || !kept->k_format)
        return TQ_OK;
    TQI_TRY(tqi_exact_set_types(cache, layer, dtype_of(kept->k_format), dtype_of(kept->v_format)));
    l->typed = 1;
    return TQ_OK;
}

tq_status tqi_kept_join(tq_cache *cache, const struct tqi_seq *seq, uint32_t layer,
                        const struct tqi_kept *kept, const struct tqi_scratch *scratch) {
    uint64_t length = seq->lengths[layer], end = length + kept->n;
    if (!can_keep(cache, layer) || !count(kept))
        return TQ_OK;
    struct tqi_exact_state after =
        tqi_exact_joined(&cache->seqs.exact, &seq->exact, layer, length, kept->runs, kept->n);
    uint64_t sinks = greater(after.sinks, length), start = greater(after.start, sinks);
    struct rows r = rows_from(kept, scratch);
    r.to = pages_of_part(cache, &seq->exact, layer);
    TQI_TRY(move_rows(&r, kept->head_at, length, sinks - length));
    return move_rows(&r, kept->tail_at + (start - (end - kept->runs.tail)), start, end - start);
}

void tqi_kept_joined(tq_cache *cache, struct tqi_seq *seq, uint32_t layer,
                     const struct tqi_kept *kept) {
    struct tqi_exact *e = &seq->exact;
    if (!cache->seqs.exact.pool)
        return;
    struct tqi_exact_state after =
        tqi_exact_joined(&cache->seqs.exact, e, layer, seq->lengths[layer], kept->runs, kept->n);
    e->sinks[layer] = after.sinks;
    e->starts[layer] = after.start;
}

/* ---- in a sequence ----------------------------------------------------------------------- */

/* The rows of one page that are exact afterwards: tokens [from, to) of it. */
static tq_status cut_run(const struct rows *r, const struct tqi_exact_cut *cut, uint64_t from,
                         uint64_t to) {
    uint64_t border = greater(from, lesser(to, cut->first));
    TQI_TRY(move_rows(r, from, from, border - from));
    return move_rows(r, border + cut->n, border, greater(to, border) - border);
}

static tq_status cut_page(const struct rows *r, const struct tqi_exact_cut *cut,
                          struct tqi_exact_state s, uint64_t length, uint64_t number) {
    uint64_t begin = number * TOKENS, end = lesser(begin + TOKENS, length);
    uint64_t start = greater(s.start, s.sinks);
    if (!tqi_exact_cut_moves(cut, number))
        return TQ_OK;
    TQI_TRY(cut_run(r, cut, begin, greater(begin, lesser(end, s.sinks))));
    return cut_run(r, cut, greater(begin, lesser(start, end)), greater(begin, end));
}

static tq_status cut_layer(const struct rows *r, const struct tqi_exact_cut *cut,
                           struct tqi_exact_state s, uint64_t length, uint64_t n_head) {
    for (uint64_t i = 0; i < n_head && i * TOKENS < length; i++)
        TQI_TRY(cut_page(r, cut, s, length, i));
    for (uint64_t i = 0; i < cut->heir.n_tail; i++)
        TQI_TRY(cut_page(r, cut, s, length, cut->heir.first + i));
    return TQ_OK;
}

tq_status tqi_kept_cut(tq_cache *cache, const struct tqi_seq *seq, struct tqi_exact_cut *cut,
                       const struct tqi_scratch *scratch) {
    const struct tqi_exact_rules *rules = &cache->seqs.exact;
    if (!rules->pool)
        return TQ_OK;
    tqi_exact_cut_take(rules, &seq->exact, cut);
    for (uint32_t l = 0; l < rules->n_layers; l++) {
        if (!can_keep(cache, l))
            continue;
        struct tqi_exact_state after = {cut->heir.sinks[l], cut->heir.starts[l]};
        struct rows r = {.layout = &cache->layers[l].exact.page,
                         .n_heads = cache->config.n_kv_heads,
                         .from = pages_of_part(cache, &seq->exact, l),
                         .to = pages_of_part(cache, &cut->heir, l),
                         .scratch = scratch->rows};
        TQI_TRY(cut_layer(&r, cut, after, seq->lengths[l] - cut->n, rules->sink_tokens / TOKENS));
    }
    return TQ_OK;
}
