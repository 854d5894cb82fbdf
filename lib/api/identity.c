#include <string.h>

#include "api/snapshot.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "pages and floats are saved as they are in memory");

enum { FORMATS_BYTES = 8 }; /* of a layer */

/* Bits of a layer's word in the constants section. */
enum { HAS_K_MEAN = 1, HAS_V_MEAN = 2, HAS_K_SCALE = 4, HAS_V_SCALE = 8, HAS_ALL = 15 };

/* ---- of a cache -------------------------------------------------------------------------- */

static int has_scale(tq_format id) {
    return tqi_format_by_id(id)->kind == TQI_KIND_FP8;
}

struct tqi_constants tqi_constants_of(const tq_cache *cache, uint32_t layer) {
    const struct tqi_cache_layer *l = &cache->layers[layer];
    const tq_layer_formats *pair = &cache->formats[layer];
    struct tqi_constants c;
    for (int side = 0; side < 2; side++) {
        c.mean[side] = (const uint8_t *)l->means[side];
        c.scale[side] = (const uint8_t *)l->scales[side];
    }
    if (!has_scale(pair->k_format))
        c.scale[0] = NULL;
    if (!has_scale(pair->v_format))
        c.scale[1] = NULL;
    return c;
}

/* Floats of each array of a layer, in the order in which they are saved. */
struct sizes {
    size_t mean[2], scale;
};

static struct sizes sizes_of(uint32_t n_heads, uint32_t k_dim, uint32_t v_dim) {
    struct sizes s = {
        .mean = {(size_t)n_heads * k_dim * sizeof(float), (size_t)n_heads * v_dim * sizeof(float)},
        .scale = (size_t)n_heads * sizeof(float)};
    return s;
}

static struct sizes cache_sizes(const tq_cache *cache) {
    const tq_cache_config *c = &cache->config;
    return sizes_of(c->n_kv_heads, c->head_dim, c->v_head_dim);
}

size_t tqi_constants_bytes(const tq_cache *cache) {
    struct sizes s = cache_sizes(cache);
    size_t bytes = 0; /* less than the cache holds: no overflow */
    for (uint32_t l = 0; l < cache->config.n_layers; l++) {
        struct tqi_constants c = tqi_constants_of(cache, l);
        bytes += sizeof(uint32_t);
        for (int side = 0; side < 2; side++)
            bytes += (c.mean[side] ? s.mean[side] : 0) + (c.scale[side] ? s.scale : 0);
    }
    return bytes;
}

static uint8_t *put(uint8_t *at, const uint8_t *values, size_t bytes) {
    if (!values)
        return at;
    memcpy(at, values, bytes);
    return at + bytes;
}

void tqi_constants_write(const tq_cache *cache, uint8_t *at) {
    struct sizes s = cache_sizes(cache);
    for (uint32_t l = 0; l < cache->config.n_layers; l++) {
        struct tqi_constants c = tqi_constants_of(cache, l);
        tqi_put_le32(at, (c.mean[0] ? HAS_K_MEAN : 0u) | (c.mean[1] ? HAS_V_MEAN : 0u) |
                             (c.scale[0] ? HAS_K_SCALE : 0u) | (c.scale[1] ? HAS_V_SCALE : 0u));
        at = put(at + sizeof(uint32_t), c.mean[0], s.mean[0]);
        at = put(at, c.mean[1], s.mean[1]);
        at = put(at, c.scale[0], s.scale);
        at = put(at, c.scale[1], s.scale);
    }
}

struct tqi_snapshot_header tqi_header_of(const tq_cache *cache, uint64_t first_token,
                                         uint64_t n_tokens) {
    const tq_cache_config *c = &cache->config;
    struct tqi_snapshot_header h = {.format_version = TQ_FORMAT_VERSION,
                                    .n_layers = c->n_layers,
                                    .n_kv_heads = c->n_kv_heads,
                                    .head_dim = c->head_dim,
                                    .v_head_dim = c->v_head_dim,
                                    .page_tokens = c->page_tokens,
                                    .seed = c->seed,
                                    .n_tokens = n_tokens,
                                    .first_token = first_token,
                                    .sink_tokens = c->sink_tokens,
                                    .recent_tokens = c->recent_tokens};
    for (uint32_t i = 0; i < tqi_variant_total(); i++) {
        const struct tqi_variant *v = tqi_variant_at(i);
        uint32_t layers = 0;
        while (layers < c->n_layers && cache->formats[layers].k_format == v->k_format &&
               cache->formats[layers].v_format == v->v_format)
            layers++;
        if (layers == c->n_layers)
            h.variant = v->id;
    }
    return h;
}

/* ---- of a snapshot ----------------------------------------------------------------------- */

static tq_status too_short(const char *what, uint32_t layer) {
    return tqi_fail(TQ_ERR_CORRUPT, "snapshot: the %s end before layer %u does", what, layer);
}

/* `bytes` bytes of the constants. */
static tq_status take(struct tqi_layer_reader *r, size_t bytes, const uint8_t **out) {
    const struct tqi_section *s = &r->snapshot->sections[TQI_SECTION_CONSTANTS];
    if (bytes > s->bytes - r->at)
        return too_short("constants", r->layer);
    *out = tqi_section_bytes(r->snapshot, TQI_SECTION_CONSTANTS) + r->at;
    r->at += bytes;
    return TQ_OK;
}

tq_status tqi_next_layer(struct tqi_layer_reader *r, tq_layer_formats *pair,
                         struct tqi_constants *out) {
    const struct tqi_snapshot_header *h = &r->snapshot->header;
    const struct tqi_section *formats = &r->snapshot->sections[TQI_SECTION_FORMATS];
    struct sizes s = sizes_of(h->n_kv_heads, h->head_dim, h->v_head_dim);
    const uint8_t *word = NULL;
    if (formats->bytes / FORMATS_BYTES <= r->layer)
        return too_short("formats", r->layer);
    const uint8_t *at =
        tqi_section_bytes(r->snapshot, TQI_SECTION_FORMATS) + (size_t)r->layer * FORMATS_BYTES;
    pair->k_format = tqi_get_le32(at);
    pair->v_format = tqi_get_le32(at + 4);
    memset(out, 0, sizeof *out);
    TQI_TRY(take(r, sizeof(uint32_t), &word));
    uint32_t has = tqi_get_le32(word);
    if (has & ~(uint32_t)HAS_ALL)
        return tqi_fail(TQ_ERR_VERSION, "snapshot: layer %u has constants 0x%x", r->layer, has);
    for (uint32_t side = 0; side < 2; side++)
        if (has & (uint32_t)HAS_K_MEAN << side)
            TQI_TRY(take(r, s.mean[side], &out->mean[side]));
    for (uint32_t side = 0; side < 2; side++)
        if (has & (uint32_t)HAS_K_SCALE << side)
            TQI_TRY(take(r, s.scale, &out->scale[side]));
    r->layer++;
    return TQ_OK;
}

tq_status tqi_end_of_layers(const struct tqi_layer_reader *r) {
    TQI_TRY(tqi_container_check_end(r->snapshot, TQI_SECTION_FORMATS,
                                    (uint64_t)r->layer * FORMATS_BYTES));
    return tqi_container_check_end(r->snapshot, TQI_SECTION_CONSTANTS, r->at);
}

/* ---- comparison -------------------------------------------------------------------------- */

static tq_status match(const char *what, const char *field, uint64_t there, uint64_t here) {
    if (there == here)
        return TQ_OK;
    return tqi_fail(TQ_ERR_MISMATCH, "%s: %s is %llu there and %llu in this cache", what, field,
                    (unsigned long long)there, (unsigned long long)here);
}

tq_status tqi_match_geometry(const tq_cache *cache, const struct tqi_snapshot_header *h,
                             const char *what) {
    const tq_cache_config *c = &cache->config;
    if (h->format_version != TQ_FORMAT_VERSION)
        return tqi_fail(TQ_ERR_VERSION, "%s: pages of format %u, this library has format %d", what,
                        h->format_version, TQ_FORMAT_VERSION);
    TQI_TRY(match(what, "n_layers", h->n_layers, c->n_layers));
    TQI_TRY(match(what, "n_kv_heads", h->n_kv_heads, c->n_kv_heads));
    TQI_TRY(match(what, "head_dim", h->head_dim, c->head_dim));
    TQI_TRY(match(what, "v_head_dim", h->v_head_dim, c->v_head_dim));
    TQI_TRY(match(what, "page_tokens", h->page_tokens, c->page_tokens));
    return match(what, "seed", h->seed, c->seed);
}

static const char *name_of(tq_format id) {
    const struct tqi_format *f = tqi_format_by_id(id);
    return f ? f->name : "unknown";
}

static tq_status match_format(const char *what, uint32_t layer, const char *side, tq_format there,
                              tq_format here) {
    if (there == here)
        return TQ_OK;
    return tqi_fail(TQ_ERR_MISMATCH,
                    "%s: layer %u: %s format is %s (%u) there and %s in this cache", what, layer,
                    side, name_of(there), there, name_of(here));
}

tq_status tqi_match_formats(const tq_cache *cache, uint32_t layer, tq_layer_formats pair,
                            const char *what) {
    const tq_layer_formats *here = &cache->formats[layer];
    TQI_TRY(match_format(what, layer, "K", pair.k_format, here->k_format));
    return match_format(what, layer, "V", pair.v_format, here->v_format);
}

static tq_status match_array(const char *what, uint32_t layer, const char *name,
                             const uint8_t *there, const uint8_t *here, size_t bytes) {
    if (!there && !here)
        return TQ_OK;
    if (!there || !here)
        return tqi_fail(TQ_ERR_MISMATCH, "%s: layer %u: %s is set %s", what, layer, name,
                        there ? "there and not in this cache" : "in this cache and not there");
    for (size_t i = 0; i < bytes; i += sizeof(float))
        if (memcmp(there + i, here + i, sizeof(float)) != 0)
            return tqi_fail(TQ_ERR_MISMATCH, "%s: layer %u: %s differs in element %zu", what, layer,
                            name, i / sizeof(float));
    return TQ_OK;
}

tq_status tqi_match_constants(const tq_cache *cache, uint32_t layer, const struct tqi_constants *c,
                              const char *what) {
    struct tqi_constants here = tqi_constants_of(cache, layer);
    struct sizes s = cache_sizes(cache);
    TQI_TRY(match_array(what, layer, "k_mean", c->mean[0], here.mean[0], s.mean[0]));
    TQI_TRY(match_array(what, layer, "v_mean", c->mean[1], here.mean[1], s.mean[1]));
    TQI_TRY(match_array(what, layer, "k_scale", c->scale[0], here.scale[0], s.scale));
    return match_array(what, layer, "v_scale", c->scale[1], here.scale[1], s.scale);
}
