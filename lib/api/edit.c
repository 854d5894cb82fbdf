/* Cutting out of a sequence, sequences in another order, copies in another cache. */
#include "page/edit.h"

#include "api/kept.h"
#include "base/checked.h"

/* ---- remove ------------------------------------------------------------------------------ */

/* Tokens [first, first + n) go; tokens behind them exist in some layer. */
struct cut {
    tq_cache *cache;
    struct tqi_seq *seq;
    uint64_t first, n;
    struct tqi_scratch scratch;
};

/* Moves tokens from `from` on to `to`, as far as `end` reaches, in one layer. */
static tq_status move_up(struct cut *c, uint32_t layer, uint64_t from, uint64_t to, uint64_t end) {
    uint64_t length = c->seq->lengths[layer];
    struct tqi_source source = tqi_source_of_seq(c->cache, c->seq, layer, &c->scratch);
    struct tqi_span span = {.from = from, .to = to, .n = (length < end ? length : end) - from};
    if (length <= from)
        return TQ_OK;
    return tqi_write_tokens(c->cache, c->seq, layer, &source, span, &c->scratch);
}

static tq_status move_up_all(struct cut *c, uint64_t from, uint64_t to, uint64_t end) {
    for (uint32_t l = 0; l < c->cache->config.n_layers; l++)
        TQI_TRY(move_up(c, l, from, to, end));
    return TQ_OK;
}

/* Whole pages' worth: tokens keep their slots, so that one page is put together of two at the
 * most and the others change their place in the table. */
static tq_status cut_pages(struct cut *c) {
    uint64_t tokens = c->cache->config.page_tokens, page = c->first / tokens;
    uint64_t behind = (c->first + c->n) / tokens;
    if (c->first % tokens) {
        TQI_TRY(tqi_seq_own_pages(&c->cache->seqs, c->seq, page, page + 1));
        TQI_TRY(move_up_all(c, c->first + c->n, c->first, (behind + 1) * tokens));
        page++;
        behind++;
    }
    tqi_seq_drop_pages(&c->cache->seqs, c->seq, page, behind);
    return TQ_OK;
}

/* Every token behind the cut goes to another slot. Pages are written in ascending order, each
 * from pages that are not written yet. */
static tq_status cut_tokens(struct cut *c) {
    uint64_t tokens = c->cache->config.page_tokens;
    uint64_t longest = tqi_seq_longest(&c->cache->seqs, c->seq);
    uint64_t end = tqi_div_up(longest - c->n, tokens);
    TQI_TRY(tqi_seq_own_pages(&c->cache->seqs, c->seq, c->first / tokens, end));
    TQI_TRY(move_up_all(c, c->first + c->n, c->first, UINT64_MAX));
    tqi_seq_drop_pages(&c->cache->seqs, c->seq, end, c->seq->n_pages);
    return TQ_OK;
}

/* Rows in 16 bits that stay come from pages which are left as they are until all is done. */
static tq_status cut_all(struct cut *c, struct tqi_exact_cut *rows) {
    tq_cache *cache = c->cache;
    const struct tqi_exact_rules *rules = &cache->seqs.exact;
    int whole = c->n % cache->config.page_tokens == 0;
    TQI_TRY(tqi_exact_cut_begin(rules, &c->seq->exact, c->seq->lengths, rows));
    tq_status status = whole ? cut_pages(c) : cut_tokens(c);
    if (status != TQ_OK) {
        tqi_exact_cut_cancel(rules, rows);
        return status;
    }
    status = tqi_kept_cut(cache, c->seq, rows, &c->scratch);
    tqi_exact_cut_end(rules, &c->seq->exact, rows);
    for (uint32_t l = 0; l < cache->config.n_layers; l++)
        c->seq->lengths[l] -= c->n;
    tqi_exact_settle(rules, &c->seq->exact, c->seq->lengths);
    return status;
}

static tq_status cut_out(tq_cache *cache, struct tqi_seq *seq, uint64_t first, uint64_t n) {
    struct cut c = {.cache = cache, .seq = seq, .first = first, .n = n};
    struct tqi_exact_cut rows = {.first = first, .n = n};
    TQI_TRY(tqi_wait_to_edit(cache));
    TQI_TRY(tqi_scratch_open(&c.scratch, cache));
    tq_status status = cut_all(&c, &rows);
    tqi_scratch_close(&c.scratch);
    return status;
}

tq_status tq_seq_remove(tq_cache *cache, tq_seq id, uint64_t first, uint64_t n_tokens) {
    TQI_CHECK_CACHE(cache);
    struct tqi_seq *seq = tqi_seq_find(&cache->seqs, id);
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    TQI_TRY(tqi_check_idle(seq, id));
    TQI_TRY(tqi_seq_check_range(&cache->seqs, seq, first, n_tokens));
    if (n_tokens == 0)
        return TQ_OK;
    if (first + n_tokens == tqi_seq_longest(&cache->seqs, seq))
        return tqi_seqs_truncate(&cache->seqs, seq, first);
    return cut_out(cache, seq, first, n_tokens);
}

/* ---- reorder ----------------------------------------------------------------------------- */

tq_status tq_seq_reorder(tq_cache *cache, uint32_t n_seqs, const tq_seq *seqs,
                         const uint32_t *parents) {
    TQI_CHECK_CACHE(cache);
    if (n_seqs == 0)
        return TQ_OK;
    TQI_REQUIRE(seqs != NULL, "seqs: must not be NULL");
    TQI_REQUIRE(parents != NULL, "parents: must not be NULL");
    return tqi_seqs_reorder(&cache->seqs, n_seqs, seqs, parents);
}
