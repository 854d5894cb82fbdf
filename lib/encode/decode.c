#include "encode/decode.h"

#include "base/checked.h"

/* Scratch of one side: the row in double, then the kernel's own. */
static size_t scratch_doubles(const struct tqi_level *level, const struct tqi_rows *rows) {
    return rows->layout.dim + tqi_div_up(level->scratch_bytes(rows), sizeof(double));
}

static void decode_row(const struct tqi_decode_job *job, const struct tqi_rows *rows,
                       const float *scales, const float *means, uint64_t token, uint32_t head,
                       const tq_rows_out *out, double *scratch) {
    const struct tqi_level *level = tqi_level_ref();
    uint32_t dim = rows->layout.dim, page_tokens = job->view.page_tokens;
    const float *mean = tqi_layer_mean(means, head, dim);
    struct tqi_tile tile = {.blob = tqi_view_blob(&job->view, token / page_tokens, head),
                            .scale = scales ? scales[head] : 1};
    level->decode(rows, &tile, (uint32_t)(token % page_tokens), scratch, scratch + dim);
    for (uint32_t i = 0; mean && i < dim; i++)
        scratch[i] += (double)mean[i];
    int64_t at =
        (int64_t)(token - job->first) * out->token_stride + (int64_t)head * out->head_stride;
    level->store(scratch, dim, out->dtype, (char *)out->data + at * (out->dtype == TQ_F32 ? 4 : 2));
}

tq_status tqi_decode(const struct tqi_decode_job *job) {
    const struct tqi_layer *layer = job->layer;
    struct tqi_heap heap = tqi_heap_like(job->heap);
    size_t k = scratch_doubles(tqi_level_ref(), &layer->k);
    size_t v = scratch_doubles(tqi_level_ref(), &layer->v), n = k > v ? k : v;
    double *scratch = tqi_alloc(&heap, n, sizeof *scratch, TQ_MEM_HOST);
    if (!scratch)
        return TQ_ERR_OUT_OF_MEMORY;
    for (uint64_t t = job->first; t < job->first + job->n_tokens; t++)
        for (uint32_t h = 0; h < layer->n_kv_heads; h++) {
            if (job->k)
                decode_row(job, &layer->k, layer->k_scale, layer->k_mean, t, h, job->k, scratch);
            if (job->v)
                decode_row(job, &layer->v, layer->v_scale, layer->v_mean, t, h, job->v, scratch);
        }
    tqi_free(&heap, scratch, n, sizeof *scratch, TQ_MEM_HOST);
    return TQ_OK;
}
