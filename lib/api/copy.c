/* Sequences from one cache to another, which may be on another device. */
#include "tq/snapshot.h"

#include "api/kept.h"

static const char what[] = "from";

static tq_status match_caches(const tq_cache *to, const tq_cache *from) {
    struct tqi_snapshot_header h = tqi_header_of(from, 0, 0);
    TQI_TRY(tqi_match_geometry(to, &h, what));
    for (uint32_t l = 0; l < to->config.n_layers; l++) {
        struct tqi_constants constants = tqi_constants_of(from, l);
        TQI_TRY(tqi_match_formats(to, l, from->formats[l], what));
        TQI_TRY(tqi_match_constants(to, l, &constants, what));
    }
    return TQ_OK;
}

/* Tokens of a sequence that come behind those of another. */
struct tokens {
    const tq_cache *from;
    const struct tqi_seq *seq;
    uint64_t first, n;
};

static struct tqi_kept kept_in(const struct tokens *t, uint32_t layer) {
    return tqi_kept_of_seq(t->from, t->seq, layer, t->first, t->n);
}

static tq_status match_rows(const tq_cache *to, const struct tokens *t) {
    for (uint32_t l = 0; l < to->config.n_layers; l++) {
        struct tqi_kept kept = kept_in(t, l);
        TQI_TRY(tqi_kept_match(to, l, &kept, what));
    }
    return TQ_OK;
}

static tq_status set_types(tq_cache *to, const struct tokens *t) {
    for (uint32_t l = 0; l < to->config.n_layers; l++) {
        struct tqi_kept kept = kept_in(t, l);
        TQI_TRY(tqi_kept_set_type(to, l, &kept));
    }
    return TQ_OK;
}

/* Memory for one call and both caches, of which each may be the one with device memory. */
static tq_status copy_layers(tq_cache *to, const struct tqi_seq *target, const struct tokens *t) {
    struct tqi_span span = {.from = t->first, .to = 0, .n = t->n};
    struct tqi_scratch read, write;
    TQI_TRY(tqi_scratch_open(&read, t->from));
    tq_status status = tqi_scratch_open(&write, to);
    for (uint32_t l = 0; status == TQ_OK && l < to->config.n_layers; l++) {
        struct tqi_source source = tqi_source_of_seq(t->from, t->seq, l, &read);
        struct tqi_kept kept = kept_in(t, l);
        status = tqi_write_tokens(to, target, l, &source, span, &write);
        if (status == TQ_OK)
            status = tqi_kept_join(to, target, l, &kept, &write);
    }
    tqi_scratch_close(&write);
    tqi_scratch_close(&read);
    return status;
}

static tq_status fill(tq_cache *to, struct tqi_seq *target, const struct tokens *t) {
    TQI_TRY(set_types(to, t));
    if (t->n == 0)
        return TQ_OK;
    TQI_TRY(tqi_begin_tokens(to, target, t->n));
    tq_status status = copy_layers(to, target, t);
    for (uint32_t l = 0; status == TQ_OK && l < to->config.n_layers; l++) {
        struct tqi_kept kept = kept_in(t, l);
        tqi_kept_joined(to, target, l, &kept);
    }
    tqi_end_tokens(to, target, status == TQ_OK ? t->n : 0);
    return status;
}

tq_status tq_seq_copy(tq_cache *to, const tq_cache *from, tq_seq src, uint64_t first,
                      uint64_t n_tokens, tq_seq *out) {
    tq_seq id;
    TQI_CHECK_CACHE(to);
    TQI_REQUIRE(from != NULL, "from: must not be NULL");
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    const struct tqi_seq *seq = tqi_seq_find(&from->seqs, src);
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    TQI_TRY(tqi_check_idle(seq, src));
    n_tokens = tqi_seq_rest(&from->seqs, seq, first, n_tokens);
    TQI_TRY(tqi_seq_check_range(&from->seqs, seq, first, n_tokens));
    struct tokens tokens = {.from = from, .seq = seq, .first = first, .n = n_tokens};
    TQI_TRY(match_caches(to, from));
    TQI_TRY(match_rows(to, &tokens));
    TQI_TRY(tqi_seqs_create(&to->seqs, &id));
    struct tqi_seq *target = tqi_seq_find(&to->seqs, id);
    tokens.seq = tqi_seq_find(&from->seqs, src); /* creating may have moved it */
    tq_status status = fill(to, target, &tokens);
    if (status != TQ_OK) {
        tqi_seqs_end(&to->seqs, target);
        return status;
    }
    *out = id;
    return TQ_OK;
}
