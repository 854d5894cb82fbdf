/* What a cache configuration may be, and what its zeros mean. */
#include <stddef.h>

#include "api/objects.h"

#include "base/checked.h"

enum {
    MAX_LAYERS = 65536,
    MAX_HEADS = 65536,
    MAX_GROUP = 128,
    MAX_HEAD_DIM = 1024,
    DEFAULT_PAGE_TOKENS = 64,
    DEFAULT_MAX_SEQS = 256,
    MAX_SEQS = 1 << 24,
    MAX_PROTECTED = 1 << 20
};

static tq_status check_shape(tq_cache_config *c) {
    if (c->flags & TQ_CACHE_MLA)
        return tqi_fail(TQ_ERR_UNSUPPORTED,
                        "flags: keys of a latent and a RoPE part (MLA) need two formats in one row "
                        "and values that are read from the codes of keys: no kernel has them. bf16 "
                        "and f16 hold such rows with v_head_dim set to the latent's");
    TQI_REQUIRE(c->flags == 0 && c->reserved == 0, "cache config: flags and reserved must be 0");
    TQI_REQUIRE(c->n_layers >= 1 && c->n_layers <= MAX_LAYERS, "n_layers: %u is not in 1 to %d",
                c->n_layers, MAX_LAYERS);
    TQI_REQUIRE(c->n_kv_heads >= 1 && c->n_kv_heads <= MAX_HEADS,
                "n_kv_heads: %u is not in 1 to %d", c->n_kv_heads, MAX_HEADS);
    c->n_q_heads = c->n_q_heads ? c->n_q_heads : c->n_kv_heads;
    TQI_REQUIRE(c->n_q_heads % c->n_kv_heads == 0, "n_q_heads: %u is no multiple of n_kv_heads %u",
                c->n_q_heads, c->n_kv_heads);
    TQI_REQUIRE(c->n_q_heads / c->n_kv_heads <= MAX_GROUP,
                "n_q_heads: %u query heads share a kv head, at most %d can",
                c->n_q_heads / c->n_kv_heads, MAX_GROUP);
    TQI_REQUIRE(c->head_dim != 0, "head_dim: required");
    c->v_head_dim = c->v_head_dim ? c->v_head_dim : c->head_dim;
    return TQ_OK;
}

static tq_status check_sizes(const tq_context *ctx, tq_cache_config *c) {
    c->page_tokens = c->page_tokens ? c->page_tokens : DEFAULT_PAGE_TOKENS;
    TQI_REQUIRE(c->page_tokens >= 16 && c->page_tokens <= 256 &&
                    (c->page_tokens & (c->page_tokens - 1)) == 0,
                "page_tokens: %u is none of 16, 32, 64, 128, 256", c->page_tokens);
    c->max_seqs = c->max_seqs ? c->max_seqs : DEFAULT_MAX_SEQS;
    TQI_REQUIRE(c->max_seqs <= MAX_SEQS, "max_seqs: %u is more than %d", c->max_seqs, MAX_SEQS);
    TQI_REQUIRE(c->max_pages <= UINT32_MAX, "max_pages: %llu is more than %llu",
                (unsigned long long)c->max_pages, (unsigned long long)UINT32_MAX);
    TQI_REQUIRE(c->sink_tokens <= MAX_PROTECTED && c->recent_tokens <= MAX_PROTECTED,
                "sink_tokens, recent_tokens: %u and %u, at most %d can be kept in 16 bits",
                c->sink_tokens, c->recent_tokens, MAX_PROTECTED);
    c->sink_tokens = (uint32_t)tqi_align_up(c->sink_tokens, TQI_EXACT_TOKENS);
    TQI_REQUIRE(c->max_pages || ctx->device.can_grow,
                "max_pages: required on %s, whose pools can't grow", ctx->device.name);
    return TQ_OK;
}

/* One side of a layer. */
static tq_status check_format(uint32_t layer, const char *side, tq_format id, uint32_t role,
                              uint32_t dim) {
    const struct tqi_format *f = tqi_format_by_id(id);
    if (!f)
        return tqi_fail(TQ_ERR_NOT_FOUND, "layer %u: no %s format with id %u", layer, side, id);
    if (!(f->roles & role))
        return tqi_fail(TQ_ERR_UNSUPPORTED, "layer %u: format %s can't hold %s", layer, f->name,
                        role == TQ_ROLE_K ? "keys" : "values");
    const char *why = tqi_rows_check_dim(f, dim, MAX_HEAD_DIM);
    TQI_REQUIRE(!why, "layer %u: %s of %u, format %s: %s", layer,
                role == TQ_ROLE_K ? "head_dim" : "v_head_dim", dim, f->name, why);
    return TQ_OK;
}

tq_layer_formats tqi_layer_formats(const tq_cache_config *c, uint32_t layer) {
    tq_layer_formats pair = {TQ_FORMAT_BF16, TQ_FORMAT_BF16};
    int boundary = layer < c->boundary_layers || c->n_layers - layer <= c->boundary_layers;
    if (boundary)
        return pair;
    if (c->layer_formats)
        return c->layer_formats[layer];
    const struct tqi_variant *v = tqi_variant_by_id(c->variant);
    pair.k_format = v->k_format;
    pair.v_format = v->v_format;
    return pair;
}

static tq_status check_formats(const tq_cache_config *c) {
    if (c->layer_formats) {
        TQI_REQUIRE(c->variant == 0, "variant: must be 0 when layer_formats is given");
    } else {
        TQI_REQUIRE(c->variant != 0, "variant: required unless layer_formats is given");
        if (!tqi_variant_by_id(c->variant))
            return tqi_fail(TQ_ERR_NOT_FOUND, "no variant with id %u", c->variant);
    }
    for (uint32_t l = 0; l < c->n_layers; l++) {
        tq_layer_formats pair = tqi_layer_formats(c, l);
        TQI_TRY(check_format(l, "K", pair.k_format, TQ_ROLE_K, c->head_dim));
        TQI_TRY(check_format(l, "V", pair.v_format, TQ_ROLE_V, c->v_head_dim));
    }
    return TQ_OK;
}

tq_status tqi_resolve_config(const tq_context *ctx, const tq_cache_config *from,
                             tq_cache_config *to) {
    TQI_REQUIRE(ctx != NULL, "context: must not be NULL");
    TQI_REQUIRE(from != NULL, "cache config: must not be NULL");
    TQI_TRY(tqi_struct_in("cache config", to, sizeof *to, offsetof(tq_cache_config, sink_tokens),
                          from));
    to->struct_size = sizeof *to;
    TQI_TRY(check_shape(to));
    TQI_TRY(check_sizes(ctx, to));
    return check_formats(to);
}
