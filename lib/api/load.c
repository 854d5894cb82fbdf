/* Bytes that nobody vouches for to sequences: everything is checked before anything is taken. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "tq/snapshot.h"

#include "api/kept.h"
#include "base/checked.h"

static const char snapshot[] = "snapshot";

/* ---- checks ------------------------------------------------------------------------------ */

/* Header, table, formats and constants; geometry and formats are those of the cache. */
static tq_status open_for(const tq_cache *cache, const void *buf, size_t size,
                          struct tqi_container *out) {
    TQI_CHECK_CACHE(cache);
    TQI_REQUIRE(buf != NULL, "buf: must not be NULL");
    TQI_TRY(tqi_container_open(buf, size, out));
    TQI_TRY(tqi_match_geometry(cache, &out->header, snapshot));
    TQI_TRY(tqi_container_check(out, TQI_SECTION_FORMATS));
    return tqi_container_check(out, TQI_SECTION_CONSTANTS);
}

typedef tq_status check_fn(const tq_cache *cache, uint32_t layer, const struct tqi_constants *c);

static tq_status match_layers(const tq_cache *cache, const struct tqi_container *c,
                              check_fn *check) {
    struct tqi_layer_reader reader = {.snapshot = c};
    while (reader.layer < cache->config.n_layers) {
        tq_layer_formats pair;
        struct tqi_constants constants;
        uint32_t layer = reader.layer;
        TQI_TRY(tqi_next_layer(&reader, &pair, &constants));
        TQI_TRY(tqi_match_formats(cache, layer, pair, snapshot));
        TQI_TRY(check(cache, layer, &constants));
    }
    return tqi_end_of_layers(&reader);
}

/* The pages are as many bytes as the header's tokens need, and unharmed. */
static tq_status check_pages(const tq_cache *cache, const struct tqi_container *c) {
    uint64_t pages = tqi_div_up(c->header.n_tokens, cache->config.page_tokens);
    uint64_t have = c->sections[TQI_SECTION_PAGES].bytes;
    size_t bytes;
    if (!tqi_mul_size(cache->pool.page_bytes, pages, &bytes) || bytes != have)
        return tqi_fail(TQ_ERR_CORRUPT, "snapshot: %llu tokens do not fit pages of %llu bytes",
                        (unsigned long long)c->header.n_tokens, (unsigned long long)have);
    return tqi_container_check(c, TQI_SECTION_PAGES);
}

/* The rows in 16 bits are those of n_layers layers, and this cache can take them. */
static tq_status check_rows(const tq_cache *cache, const struct tqi_container *c) {
    struct tqi_kept_reader reader = tqi_kept_open(c);
    if (tqi_sections_of(&c->header) < TQI_SECTION_ROWS)
        return TQ_OK;
    TQI_TRY(tqi_container_check(c, TQI_SECTION_ROWS));
    while (reader.layer < cache->config.n_layers) {
        struct tqi_kept kept;
        uint32_t layer = reader.layer;
        TQI_TRY(tqi_kept_next(&reader, &kept));
        TQI_TRY(tqi_kept_match(cache, layer, &kept, snapshot));
    }
    return tqi_container_check_end(c, TQI_SECTION_ROWS, reader.at);
}

static tq_status match_constants(const tq_cache *cache, uint32_t layer,
                                 const struct tqi_constants *c) {
    return tqi_match_constants(cache, layer, c, snapshot);
}

static tq_status open_whole(const tq_cache *cache, const void *buf, size_t size,
                            struct tqi_container *out) {
    TQI_TRY(open_for(cache, buf, size, out));
    TQI_TRY(match_layers(cache, out, match_constants));
    TQI_TRY(check_pages(cache, out));
    return check_rows(cache, out);
}

/* ---- tokens ------------------------------------------------------------------------------ */

static tq_status write_layers(tq_cache *cache, const struct tqi_seq *seq,
                              const struct tqi_container *c, const struct tqi_scratch *scratch) {
    const uint8_t *at = tqi_section_bytes(c, TQI_SECTION_PAGES);
    uint64_t pages = tqi_div_up(c->header.n_tokens, cache->config.page_tokens);
    for (uint32_t l = 0; l < cache->config.n_layers; l++) {
        struct tqi_source source = tqi_source_of_bytes(cache, l, at);
        struct tqi_span span = {.from = 0, .to = seq->lengths[l], .n = c->header.n_tokens};
        TQI_TRY(tqi_write_tokens(cache, seq, l, &source, span, scratch));
        at += pages * source.page_bytes;
    }
    return TQ_OK;
}

/* What is done with the rows in 16 bits of a layer. */
typedef tq_status rows_fn(tq_cache *cache, struct tqi_seq *seq, uint32_t layer,
                          const struct tqi_kept *kept, const struct tqi_scratch *scratch);

static tq_status each_layer(tq_cache *cache, struct tqi_seq *seq, const struct tqi_container *c,
                            const struct tqi_scratch *scratch, rows_fn *run) {
    struct tqi_kept_reader reader = tqi_kept_open(c);
    while (reader.layer < cache->config.n_layers) {
        struct tqi_kept kept;
        uint32_t layer = reader.layer;
        TQI_TRY(tqi_kept_next(&reader, &kept));
        TQI_TRY(run(cache, seq, layer, &kept, scratch));
    }
    return TQ_OK;
}

static tq_status set_type(tq_cache *cache, struct tqi_seq *seq, uint32_t layer,
                          const struct tqi_kept *kept, const struct tqi_scratch *scratch) {
    (void)seq;
    (void)scratch;
    return tqi_kept_set_type(cache, layer, kept);
}

static tq_status join(tq_cache *cache, struct tqi_seq *seq, uint32_t layer,
                      const struct tqi_kept *kept, const struct tqi_scratch *scratch) {
    return tqi_kept_join(cache, seq, layer, kept, scratch);
}

static tq_status joined(tq_cache *cache, struct tqi_seq *seq, uint32_t layer,
                        const struct tqi_kept *kept, const struct tqi_scratch *scratch) {
    (void)scratch;
    tqi_kept_joined(cache, seq, layer, kept);
    return TQ_OK;
}

static tq_status write_tokens(tq_cache *cache, struct tqi_seq *seq, const struct tqi_container *c,
                              const struct tqi_scratch *scratch) {
    TQI_TRY(write_layers(cache, seq, c, scratch));
    TQI_TRY(each_layer(cache, seq, c, scratch, join));
    return each_layer(cache, seq, c, scratch, joined);
}

/* Adds the tokens of a checked snapshot to a sequence whose layers have one length. */
static tq_status append(tq_cache *cache, struct tqi_seq *seq, const struct tqi_container *c) {
    struct tqi_scratch scratch;
    TQI_TRY(each_layer(cache, seq, c, NULL, set_type));
    if (c->header.n_tokens == 0)
        return TQ_OK;
    TQI_TRY(tqi_scratch_open(&scratch, cache));
    tq_status status = tqi_begin_tokens(cache, seq, c->header.n_tokens);
    if (status == TQ_OK) {
        status = write_tokens(cache, seq, c, &scratch);
        tqi_end_tokens(cache, seq, status == TQ_OK ? c->header.n_tokens : 0);
    }
    tqi_scratch_close(&scratch);
    return status;
}

tq_status tq_seq_load(tq_cache *cache, const void *buf, size_t size, tq_seq *out) {
    struct tqi_container c;
    tq_seq id;
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(open_whole(cache, buf, size, &c));
    TQI_TRY(tqi_seqs_create(&cache->seqs, &id));
    struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    tq_status status = append(cache, seq, &c);
    if (status != TQ_OK) {
        tqi_seqs_end(&cache->seqs, seq);
        return status;
    }
    *out = id;
    return TQ_OK;
}

tq_status tq_seq_load_append(tq_cache *cache, tq_seq id, const void *buf, size_t size) {
    struct tqi_container c;
    TQI_CHECK_CACHE(cache);
    struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    TQI_TRY(tqi_check_idle(seq, id));
    TQI_TRY(tqi_seq_check_prefix(&cache->seqs, seq, tqi_seq_longest(&cache->seqs, seq)));
    TQI_TRY(open_whole(cache, buf, size, &c));
    return append(cache, seq, &c);
}

/* ---- what a snapshot says ---------------------------------------------------------------- */

tq_status tq_blob_inspect(const void *buf, size_t size, tq_blob_info *out) {
    struct tqi_snapshot_header h;
    TQI_REQUIRE(buf != NULL, "buf: must not be NULL");
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(tqi_struct_check_out("blob info", offsetof(tq_blob_info, sink_tokens), out));
    TQI_TRY(tqi_container_header(buf, size, &h));
    tq_blob_info info = {.format_version = h.format_version,
                         .n_layers = h.n_layers,
                         .n_kv_heads = h.n_kv_heads,
                         .head_dim = h.head_dim,
                         .v_head_dim = h.v_head_dim,
                         .page_tokens = h.page_tokens,
                         .variant = h.variant,
                         .seed = h.seed,
                         .n_tokens = h.n_tokens,
                         .first_token = h.first_token,
                         .n_bytes = h.total,
                         .sink_tokens = h.sink_tokens,
                         .recent_tokens = h.recent_tokens};
    tqi_struct_out(out, &info, sizeof info);
    return TQ_OK;
}

tq_status tq_blob_formats(const void *buf, size_t size, uint32_t n_layers, tq_layer_formats *out) {
    struct tqi_container c;
    TQI_REQUIRE(buf != NULL, "buf: must not be NULL");
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_TRY(tqi_container_open(buf, size, &c));
    TQI_TRY(tqi_container_check(&c, TQI_SECTION_FORMATS));
    TQI_REQUIRE(n_layers == c.header.n_layers, "n_layers: %u, the snapshot has %u", n_layers,
                c.header.n_layers);
    TQI_TRY(tqi_container_check_end(&c, TQI_SECTION_FORMATS, (uint64_t)n_layers * 8));
    const uint8_t *at = tqi_section_bytes(&c, TQI_SECTION_FORMATS);
    for (uint32_t l = 0; l < n_layers; l++, at += 8) {
        out[l].k_format = tqi_get_le32(at);
        out[l].v_format = tqi_get_le32(at + 4);
    }
    return TQ_OK;
}

/* ---- constants --------------------------------------------------------------------------- */

/* An array of a snapshot as floats, which it is not aligned for; NULL for none. */
static const float *aligned(const uint8_t *from, float **at, size_t n) {
    float *copy = *at;
    if (!from)
        return NULL;
    memcpy(copy, from, n * sizeof(float));
    *at += n;
    return copy;
}

static tq_status check_floats(const char *what, uint32_t layer, const uint8_t *at, size_t n,
                              int positive) {
    for (size_t i = 0; at && i < n; i++) {
        float x;
        memcpy(&x, at + i * sizeof x, sizeof x);
        if (positive ? !isnormal(x) || x < 0 || !isnormal(1 / x) : !isfinite(x))
            return tqi_fail(TQ_ERR_CORRUPT, "snapshot: layer %u: element %zu of a %s is no %s",
                            layer, i, what, what);
    }
    return TQ_OK;
}

/* Constants that the setters take: a layer is not set when a later one can't be. */
static tq_status check_constants(const tq_cache *cache, uint32_t layer,
                                 const struct tqi_constants *c) {
    const tq_cache_config *config = &cache->config;
    const tq_layer_formats *pair = &cache->formats[layer];
    const size_t dims[2] = {config->head_dim, config->v_head_dim};
    const tq_format formats[2] = {pair->k_format, pair->v_format};
    for (int side = 0; side < 2; side++) {
        if (c->scale[side] && tqi_format_by_id(formats[side])->kind != TQI_KIND_FP8)
            return tqi_fail(TQ_ERR_CORRUPT, "snapshot: layer %u: a scale of a format without one",
                            layer);
        TQI_TRY(check_floats("mean", layer, c->mean[side], config->n_kv_heads * dims[side], 0));
        TQI_TRY(check_floats("scale", layer, c->scale[side], config->n_kv_heads, 1));
    }
    return TQ_OK;
}

static tq_status set_layer(tq_cache *cache, uint32_t layer, const struct tqi_constants *c,
                           float *floats) {
    const tq_cache_config *config = &cache->config;
    size_t heads = config->n_kv_heads;
    const float *k_mean = aligned(c->mean[0], &floats, heads * config->head_dim);
    const float *v_mean = aligned(c->mean[1], &floats, heads * config->v_head_dim);
    const float *k_scale = aligned(c->scale[0], &floats, heads);
    const float *v_scale = aligned(c->scale[1], &floats, heads);
    TQI_TRY(tq_cache_set_fp8_scales(cache, layer, k_scale, v_scale));
    return tq_cache_set_means(cache, layer, k_mean, v_mean);
}

static tq_status check_unused(const tq_cache *cache) {
    for (uint32_t l = 0; l < cache->config.n_layers; l++)
        if (cache->layers[l].appended)
            return tqi_fail(TQ_ERR_INVALID_STATE,
                            "layer %u has tokens: means and scales are frozen until reset", l);
    return TQ_OK;
}

tq_status tq_cache_set_constants(tq_cache *cache, const void *buf, size_t size) {
    struct tqi_container c;
    struct tqi_layer_reader reader = {.snapshot = &c};
    TQI_TRY(open_for(cache, buf, size, &c));
    TQI_TRY(match_layers(cache, &c, check_constants));
    TQI_TRY(check_unused(cache));
    const tq_cache_config *config = &cache->config;
    size_t per_head = ((size_t)config->head_dim + config->v_head_dim + 2) * sizeof(float);
    float *floats = tqi_alloc(&cache->heap, config->n_kv_heads, per_head, TQ_MEM_HOST);
    tq_status status = floats ? TQ_OK : TQ_ERR_OUT_OF_MEMORY;
    while (status == TQ_OK && reader.layer < config->n_layers) {
        tq_layer_formats pair;
        struct tqi_constants constants;
        uint32_t layer = reader.layer;
        status = tqi_next_layer(&reader, &pair, &constants);
        if (status == TQ_OK)
            status = set_layer(cache, layer, &constants, floats);
    }
    tqi_free(&cache->heap, floats, config->n_kv_heads, per_head, TQ_MEM_HOST);
    return status;
}
