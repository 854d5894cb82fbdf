#include "api/objects.h"

/* The sequence, or leave with the status that its lookup has set. */
#define FIND(cache, id, seq)                                  \
    struct tqi_seq *seq = tqi_seq_find(&(cache)->seqs, (id)); \
    if (!(seq))                                               \
    return TQ_ERR_NOT_FOUND

tq_status tqi_check_idle(const struct tqi_seq *seq, tq_seq id) {
    if (seq->step)
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "sequence 0x%llx is part of a planned batch: commit or cancel that first",
                        (unsigned long long)id);
    return TQ_OK;
}

tq_status tq_seq_create(tq_cache *cache, tq_seq *out) {
    TQI_CHECK_CACHE(cache);
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    return tqi_seqs_create(&cache->seqs, out);
}

tq_status tq_seq_destroy(tq_cache *cache, tq_seq id) {
    TQI_CHECK_CACHE(cache);
    FIND(cache, id, seq);
    TQI_TRY(tqi_check_idle(seq, id));
    tqi_seqs_end(&cache->seqs, seq);
    return TQ_OK;
}

tq_status tq_seq_fork(tq_cache *cache, tq_seq src, uint64_t n_tokens, tq_seq *out) {
    TQI_CHECK_CACHE(cache);
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    FIND(cache, src, seq);
    TQI_TRY(tqi_check_idle(seq, src));
    return tqi_seqs_fork(&cache->seqs, seq, n_tokens, out);
}

tq_status tq_seq_truncate(tq_cache *cache, tq_seq id, uint64_t n_tokens) {
    TQI_CHECK_CACHE(cache);
    FIND(cache, id, seq);
    TQI_TRY(tqi_check_idle(seq, id));
    return tqi_seqs_truncate(&cache->seqs, seq, n_tokens);
}

tq_status tq_seq_length(const tq_cache *cache, tq_seq id, uint32_t layer, uint64_t *out) {
    TQI_CHECK_CACHE(cache);
    TQI_CHECK_LAYER(cache, layer);
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    FIND(cache, id, seq);
    *out = seq->lengths[layer];
    return TQ_OK;
}
