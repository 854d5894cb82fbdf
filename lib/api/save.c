/* Sequences to bytes in host memory. */
#include <string.h>

#include "tq/snapshot.h"

#include "api/kept.h"
#include "base/checked.h"

/* Tokens [first, + n) of a sequence. */
struct range {
    const tq_cache *cache;
    const struct tqi_seq *seq;
    uint64_t first, n;
};

static tq_status check_range(const tq_cache *cache, tq_seq id, uint64_t first, uint64_t n,
                             struct range *out) {
    TQI_CHECK_CACHE(cache);
    const struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    TQI_TRY(tqi_check_idle(seq, id));
    n = tqi_seq_rest(&cache->seqs, seq, first, n);
    TQI_TRY(tqi_seq_check_range(&cache->seqs, seq, first, n));
    struct range range = {.cache = cache, .seq = seq, .first = first, .n = n};
    *out = range;
    return TQ_OK;
}

static tq_status place(const struct range *r, struct tqi_container *c) {
    uint64_t pages = tqi_div_up(r->n, r->cache->config.page_tokens);
    size_t bytes;
    memset(c, 0, sizeof *c);
    if (!tqi_mul_size(r->cache->pool.page_bytes, pages, &bytes))
        return tqi_fail(TQ_ERR_OUT_OF_MEMORY, "out of memory: the snapshot's size overflows");
    c->header = tqi_header_of(r->cache, r->first, r->n);
    c->sections[TQI_SECTION_FORMATS].bytes = (uint64_t)r->cache->config.n_layers * 8;
    c->sections[TQI_SECTION_CONSTANTS].bytes = tqi_constants_bytes(r->cache);
    c->sections[TQI_SECTION_PAGES].bytes = bytes;
    if (tqi_sections_of(&c->header) >= TQI_SECTION_ROWS) {
        TQI_TRY(tqi_kept_bytes(r->cache, r->seq, r->first, r->n, &bytes));
        c->sections[TQI_SECTION_ROWS].bytes = bytes;
    }
    return tqi_container_place(c);
}

static tq_status write_pages(const struct range *r, const struct tqi_scratch *scratch,
                             uint8_t *at) {
    struct tqi_span span = {.from = r->first, .to = 0, .n = r->n};
    uint64_t pages = tqi_div_up(r->n, r->cache->config.page_tokens);
    for (uint32_t l = 0; l < r->cache->config.n_layers; l++) {
        struct tqi_source source = tqi_source_of_seq(r->cache, r->seq, l, scratch);
        for (uint64_t i = 0; i < pages; i++, at += source.page_bytes) {
            if (span.n - i * source.layout->k.tokens < source.layout->k.tokens ||
                span.from % source.layout->k.tokens)
                memset(at, 0, source.page_bytes); /* a page that is not written whole */
            TQI_TRY(tqi_compose_page(&source, span, i, at));
        }
    }
    return TQ_OK;
}

static tq_status write_tokens(const struct range *r, const struct tqi_container *c, uint8_t *buf) {
    struct tqi_scratch scratch;
    TQI_TRY(tqi_scratch_open(&scratch, r->cache));
    tq_status status = write_pages(r, &scratch, buf + c->sections[TQI_SECTION_PAGES].offset);
    if (status == TQ_OK && tqi_sections_of(&c->header) >= TQI_SECTION_ROWS)
        status = tqi_kept_save(r->cache, r->seq, r->first, r->n, &scratch,
                               buf + c->sections[TQI_SECTION_ROWS].offset);
    tqi_scratch_close(&scratch);
    return status;
}

static tq_status write_snapshot(const struct range *r, struct tqi_container *c, uint8_t *buf) {
    const struct tqi_section *constants = &c->sections[TQI_SECTION_CONSTANTS];
    const struct tqi_section *formats = &c->sections[TQI_SECTION_FORMATS];
    TQI_TRY(write_tokens(r, c, buf));
    memset(buf + formats->offset, 0, (size_t)formats->bytes);
    memset(buf + constants->offset, 0, (size_t)constants->bytes);
    for (uint32_t l = 0; l < r->cache->config.n_layers; l++) {
        uint8_t *at = buf + formats->offset + (size_t)l * 8;
        tqi_put_le32(at, r->cache->formats[l].k_format);
        tqi_put_le32(at + 4, r->cache->formats[l].v_format);
    }
    tqi_constants_write(r->cache, buf + constants->offset);
    tqi_container_seal(c, buf);
    return TQ_OK;
}

tq_status tq_seq_save_range(const tq_cache *cache, tq_seq id, uint64_t first, uint64_t n_tokens,
                            void *buf, size_t size, size_t *written) {
    struct range range = {.cache = cache};
    struct tqi_container c;
    TQI_REQUIRE(written != NULL, "written: must not be NULL");
    TQI_TRY(check_range(cache, id, first, n_tokens, &range));
    TQI_TRY(place(&range, &c));
    size_t total = (size_t)c.header.total;
    if (buf && size < total) {
        *written = total;
        return tqi_fail(TQ_ERR_BUFFER_TOO_SMALL, "buf: %zu bytes, the snapshot has %zu", size,
                        total);
    }
    if (buf)
        TQI_TRY(write_snapshot(&range, &c, buf));
    *written = total;
    return TQ_OK;
}

tq_status tq_seq_save(const tq_cache *cache, tq_seq id, void *buf, size_t size, size_t *written) {
    return tq_seq_save_range(cache, id, 0, UINT64_MAX, buf, size, written);
}

tq_status tq_seq_blob_size(const tq_cache *cache, tq_seq id, size_t *out) {
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    return tq_seq_save_range(cache, id, 0, UINT64_MAX, NULL, 0, out);
}
