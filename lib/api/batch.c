/* The life of a step: plan, then commit or cancel. */
#include "api/batch.h"

#include <string.h>

enum {
    MAX_TOKENS = 1 << 24 /* of a step; rows are counted in 32 bits */
};

tq_status tqi_check_planned(const tq_batch *batch) {
    if (!batch->planned)
        return tqi_fail(TQ_ERR_INVALID_STATE, "batch: no step is planned");
    return TQ_OK;
}

/* ---- create and destroy ---------------------------------------------------------------- */

static tq_status fill(tq_batch *batch) {
    tq_cache *cache = batch->cache;
    batch->seqs = tqi_calloc(&cache->heap, batch->max_seqs, sizeof *batch->seqs);
    batch->rooms = tqi_calloc(&cache->heap, batch->max_seqs, sizeof *batch->rooms);
    batch->layers = tqi_calloc(&cache->heap, cache->config.n_layers, sizeof *batch->layers);
    if (cache->seqs.exact.pool)
        batch->exact = tqi_calloc(&cache->heap, batch->max_seqs,
                                  cache->config.n_layers * sizeof *batch->exact);
    if (!batch->seqs || !batch->rooms || !batch->layers ||
        (cache->seqs.exact.pool && !batch->exact))
        return TQ_ERR_OUT_OF_MEMORY;
    return cache->ctx->device.open_batch(cache->state, batch->max_seqs, batch->max_tokens,
                                         &batch->device);
}

tq_status tq_batch_create(tq_cache *cache, uint32_t max_seqs, uint32_t max_tokens, tq_batch **out) {
    TQI_CHECK_CACHE(cache);
    TQI_REQUIRE(out != NULL, "out: must not be NULL");
    TQI_REQUIRE(max_seqs >= 1 && max_seqs <= cache->config.max_seqs,
                "max_seqs: must be 1 to %u, as many as the cache can have, not %u",
                cache->config.max_seqs, max_seqs);
    TQI_REQUIRE(max_tokens >= 1 && max_tokens <= MAX_TOKENS, "max_tokens: must be 1 to %d, not %u",
                MAX_TOKENS, max_tokens);
    if (!cache->ctx->device.open_batch)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "batches: device %s has no batched steps yet",
                        cache->ctx->device.name);
    tq_batch *batch = tqi_calloc(&cache->heap, 1, sizeof *batch);
    if (!batch)
        return TQ_ERR_OUT_OF_MEMORY;
    batch->cache = cache;
    batch->max_seqs = max_seqs;
    batch->max_tokens = max_tokens;
    tq_status status = fill(batch);
    if (status != TQ_OK) {
        tq_batch_destroy(batch);
        return status;
    }
    *out = batch;
    return TQ_OK;
}

void tq_batch_destroy(tq_batch *batch) {
    if (!batch)
        return;
    tq_cache *cache = batch->cache;
    if (batch->planned)
        (void)tq_batch_cancel(batch); /* can't fail while a step is planned */
    if (batch->device)
        cache->ctx->device.close_batch(batch->device);
    tqi_free(&cache->heap, batch->seqs, batch->max_seqs, sizeof *batch->seqs, TQ_MEM_HOST);
    tqi_free(&cache->heap, batch->rooms, batch->max_seqs, sizeof *batch->rooms, TQ_MEM_HOST);
    tqi_free(&cache->heap, batch->exact, batch->max_seqs,
             cache->config.n_layers * sizeof *batch->exact, TQ_MEM_HOST);
    tqi_free(&cache->heap, batch->layers, cache->config.n_layers, sizeof *batch->layers,
             TQ_MEM_HOST);
    tqi_free(&cache->heap, batch, 1, sizeof *batch, TQ_MEM_HOST);
}

/* ---- plan ------------------------------------------------------------------------------ */

static struct tqi_seq *seq_at(const tq_batch *batch, uint32_t index) {
    return &batch->cache->seqs.slots[batch->rooms[index].slot];
}

/* Sequences [0, n) of the step belong to the batch no longer. */
static void let_go(tq_batch *batch, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        seq_at(batch, i)->step = NULL;
}

/* A sequence that can take part in the step. */
static tq_status check_seq(const tq_batch *batch, tq_seq id, uint32_t index,
                           const struct tqi_seq *seq) {
    const struct tqi_seqs *seqs = &batch->cache->seqs;
    TQI_REQUIRE(seq->step != batch, "seqs[%u]: sequence 0x%llx is named twice", index,
                (unsigned long long)id);
    TQI_TRY(tqi_check_idle(seq, id));
    uint64_t shortest = tqi_seq_shortest(seqs, seq), longest = tqi_seq_longest(seqs, seq);
    if (shortest != longest)
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "seqs[%u]: layers of sequence 0x%llx differ in length (%llu to %llu)",
                        index, (unsigned long long)id, (unsigned long long)shortest,
                        (unsigned long long)longest);
    return TQ_OK;
}

/* Rows of one kind go on. */
static tq_status add_rows(const tq_batch *batch, const char *what, uint32_t n, uint32_t *rows) {
    TQI_REQUIRE(n <= batch->max_tokens - *rows, "%s: more than max_tokens = %u in all", what,
                batch->max_tokens);
    *rows += n;
    return TQ_OK;
}

/* Takes one sequence in; its pages are filled in later. */
static tq_status add_seq(tq_batch *batch, const tq_batch_desc *desc, uint32_t index) {
    tq_seq id = desc->seqs[index];
    struct tqi_seqs *seqs = &batch->cache->seqs;
    struct tqi_seq *seq = tqi_seq_find(seqs, id);
    if (!seq)
        return TQ_ERR_NOT_FOUND;
    TQI_TRY(check_seq(batch, id, index, seq));
    struct tqi_step_seq *s = &batch->seqs[index];
    s->length = seq->lengths[0];
    s->n_append = desc->n_append ? desc->n_append[index] : 1;
    s->n_query = desc->n_query ? desc->n_query[index] : s->n_append;
    s->append_row = batch->step.append_rows;
    s->query_row = batch->step.query_rows;
    TQI_TRY(add_rows(batch, "n_append", s->n_append, &batch->step.append_rows));
    TQI_TRY(add_rows(batch, "n_query", s->n_query, &batch->step.query_rows));
    batch->rooms[index].slot = (uint32_t)(seq - seqs->slots);
    batch->rooms[index].n_tokens = s->n_append;
    seq->step = batch;
    return TQ_OK;
}

static tq_status add_seqs(tq_batch *batch, const tq_batch_desc *desc) {
    struct tqi_step step = {
        .seqs = batch->seqs, .n_seqs = desc->n_seqs, .exact_pool = batch->cache->seqs.exact.pool};
    batch->step = step;
    for (uint32_t i = 0; i < desc->n_seqs; i++) {
        tq_status status = add_seq(batch, desc, i);
        if (status != TQ_OK) {
            let_go(batch, i);
            return status;
        }
    }
    return TQ_OK;
}

/* What the step keeps in 16 bits of a sequence; its tables have room already. */
static void note_exact(tq_batch *batch, uint32_t index) {
    const tq_cache *cache = batch->cache;
    const struct tqi_exact_rules *rules = &cache->seqs.exact;
    struct tqi_step_seq *s = &batch->seqs[index];
    struct tqi_exact_append a = {.length = s->length, .n = s->n_append, .step = 1};
    s->exact = NULL;
    s->n_exact = 0;
    if (!rules->pool)
        return;
    struct tqi_exact_view *views = batch->exact + (size_t)index * cache->config.n_layers;
    for (uint32_t l = 0; l < cache->config.n_layers; l++) {
        views[l] = tqi_exact_view_after(rules, &seq_at(batch, index)->exact, l, a);
        uint64_t n = views[l].sinks + (a.length + a.n - views[l].start);
        s->n_exact = n > s->n_exact ? n : s->n_exact;
    }
    s->exact = views;
    s->keep_until = rules->sink_tokens;
    s->keep_from = tqi_exact_keep_from(rules, a);
}

/* Pages for the step, and the device's part of it. */
static tq_status make_ready(tq_batch *batch, tq_stream stream) {
    tq_cache *cache = batch->cache;
    const struct tqi_device *device = &cache->ctx->device;
    uint32_t n = batch->step.n_seqs, n_chunks = cache->pool.n_chunks;
    device->use_stream(cache->state, stream); /* shared pages are copied on it */
    TQI_TRY(tqi_seqs_take_room(&cache->seqs, batch->rooms, n));
    for (uint32_t i = 0; i < n; i++) {
        batch->seqs[i].pages = seq_at(batch, i)->pages;
        batch->seqs[i].n_pages = seq_at(batch, i)->n_pages;
        note_exact(batch, i);
    }
    tq_status status = device->plan(batch->device, &batch->step, stream);
    if (status != TQ_OK)
        tqi_seqs_return_room(&cache->seqs, batch->rooms, n, n_chunks);
    return status;
}

tq_status tq_batch_plan(tq_batch *batch, const tq_batch_desc *desc, tq_stream stream) {
    TQI_CHECK_BATCH(batch);
    TQI_REQUIRE(desc != NULL, "batch desc: must not be NULL");
    tq_batch_desc d;
    TQI_TRY(tqi_struct_in("batch desc", &d, sizeof d, sizeof d, desc));
    if (batch->planned)
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "batch: a step is planned: commit or cancel it first");
    TQI_REQUIRE(d.n_seqs <= batch->max_seqs, "batch desc: n_seqs is %u, the batch has room for %u",
                d.n_seqs, batch->max_seqs);
    TQI_REQUIRE(d.n_seqs == 0 || d.seqs, "batch desc: seqs must not be NULL");
    TQI_TRY(add_seqs(batch, &d));
    tq_status status = make_ready(batch, stream);
    if (status != TQ_OK) {
        let_go(batch, d.n_seqs);
        return status;
    }
    for (uint32_t l = 0; l < batch->cache->config.n_layers; l++)
        batch->layers[l] &= (uint8_t)~TQI_LAYER_APPENDED;
    batch->planned = 1;
    batch->cache->n_planned++;
    return TQ_OK;
}

/* ---- commit and cancel ----------------------------------------------------------------- */

/* Appends of a replayed graph, which nobody has noted. */
static void note_replayed(const tq_batch *batch, uint32_t index, struct tqi_seq *seq) {
    const struct tqi_seqs *seqs = &batch->cache->seqs;
    const struct tqi_step_seq *s = &batch->seqs[index];
    struct tqi_exact_append kept = {.length = s->length, .n = s->n_append, .step = 1};
    for (uint32_t l = 0; l < seqs->n_layers; l++)
        if (!(batch->layers[l] & TQI_LAYER_APPENDED))
            tqi_exact_appended(&seqs->exact, &seq->exact, l, kept);
}

/* Ends the step with n_keep[i] tokens of sequence i, or n_append or none. */
static void finish(tq_batch *batch, const uint32_t *n_keep, int keep_all) {
    struct tqi_seqs *seqs = &batch->cache->seqs;
    for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
        const struct tqi_step_seq *s = &batch->seqs[i];
        uint32_t keep = n_keep ? n_keep[i] : keep_all ? s->n_append : 0;
        note_replayed(batch, i, seq_at(batch, i));
        tqi_seq_set_length(seqs, seq_at(batch, i), s->length + keep);
    }
    let_go(batch, batch->step.n_seqs);
    batch->planned = 0;
    batch->cache->n_planned--;
}

tq_status tq_batch_commit(tq_batch *batch, const uint32_t *n_keep) {
    TQI_CHECK_BATCH(batch);
    TQI_TRY(tqi_check_planned(batch));
    for (uint32_t i = 0; n_keep && i < batch->step.n_seqs; i++)
        TQI_REQUIRE(n_keep[i] <= batch->seqs[i].n_append, "n_keep[%u]: %u of %u new tokens", i,
                    n_keep[i], batch->seqs[i].n_append);
    for (uint32_t l = 0; batch->step.append_rows && l < batch->cache->config.n_layers; l++)
        if (!batch->layers[l])
            return tqi_fail(TQ_ERR_INVALID_STATE, "batch: layer %u has not been appended to", l);
    finish(batch, n_keep, 1);
    return TQ_OK;
}

tq_status tq_batch_cancel(tq_batch *batch) {
    TQI_CHECK_BATCH(batch);
    TQI_TRY(tqi_check_planned(batch));
    finish(batch, NULL, 0);
    return TQ_OK;
}
