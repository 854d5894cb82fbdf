/* The layers of a planned step. */
#include "api/batch.h"

/* ---- append ---------------------------------------------------------------------------- */

static void note_append(tq_batch *batch, uint32_t layer, int captured) {
    tq_cache *cache = batch->cache;
    if (captured) {
        batch->layers[layer] |= TQI_LAYER_CAPTURED; /* it runs when the graph does */
    } else {
        batch->layers[layer] |= TQI_LAYER_APPENDED;
        for (uint32_t i = 0; i < batch->step.n_seqs; i++) {
            struct tqi_seq *seq = &cache->seqs.slots[batch->rooms[i].slot];
            struct tqi_exact_append kept = {seq->lengths[layer], batch->seqs[i].n_append, 1};
            seq->lengths[layer] += batch->seqs[i].n_append;
            tqi_exact_appended(&cache->seqs.exact, &seq->exact, layer, kept);
        }
    }
    cache->layers[layer].appended = cache->layers[layer].typed = 1;
}

tq_status tq_batch_append(tq_batch *batch, uint32_t layer, const tq_rows_in *k, const tq_rows_in *v,
                          tq_stream stream) {
    TQI_CHECK_BATCH(batch);
    tq_cache *cache = batch->cache;
    const tq_cache_config *c = &cache->config;
    const struct tqi_device *device = &cache->ctx->device;
    TQI_CHECK_LAYER(cache, layer);
    TQI_TRY(tqi_check_planned(batch));
    if (batch->layers[layer] & TQI_LAYER_APPENDED)
        return tqi_fail(TQ_ERR_INVALID_STATE, "layer: %u has been appended to in this step", layer);
    int captured = device->capturing && device->capturing(cache->state, stream);
    if (batch->step.append_rows == 0 && !captured)
        return TQ_OK;
    struct tqi_step_append job = {.layer = &cache->layers[layer].layer,
                                  .layer_index = layer,
                                  .view = tqi_view_of_layer(cache, layer),
                                  .exact_view = tqi_exact_view_of_layer(cache, layer)};
    TQI_TRY(tqi_check_rows_in("k", k, c->n_kv_heads, c->head_dim, &job.k));
    TQI_TRY(tqi_check_rows_in("v", v, c->n_kv_heads, c->v_head_dim, &job.v));
    if (!cache->layers[layer].typed)
        TQI_TRY(tqi_exact_set_types(cache, layer, k->dtype, v->dtype));
    TQI_TRY(device->batch_append(batch->device, &job, stream));
    note_append(batch, layer, captured);
    return TQ_OK;
}

/* ---- attend ---------------------------------------------------------------------------- */

tq_status tq_batch_attend(tq_batch *batch, uint32_t layer, const tq_attend_params *params,
                          const tq_rows_in *q, const tq_rows_out *out, float *lse,
                          tq_stream stream) {
    TQI_CHECK_BATCH(batch);
    tq_cache *cache = batch->cache;
    const struct tqi_device *device = &cache->ctx->device;
    struct tqi_step_attend job = {.layer_index = layer};
    tq_attend_params p;
    TQI_CHECK_LAYER(cache, layer);
    TQI_TRY(tqi_check_params(params, &p));
    TQI_TRY(tqi_check_planned(batch));
    int captured = device->capturing && device->capturing(cache->state, stream);
    if (batch->step.append_rows && !batch->layers[layer])
        return tqi_fail(TQ_ERR_INVALID_STATE,
                        "layer: %u must be appended to first: a step attends to its own tokens",
                        layer);
    if (batch->step.query_rows == 0 && !captured)
        return TQ_OK;
    TQI_TRY(tqi_open_call(cache, layer, &p, q, out, lse, &job.call));
    return device->batch_attend(batch->device, &job, stream);
}
