#include "encode/decode.h"

#include "base/checked.h"

/* Scratch of one side: the row in double, then the kernel's own. */
static size_t scratch_doubles(const struct tqi_level *level, const struct tqi_rows *rows) {
    return rows->layout.dim + tqi_div_up(level->scratch_bytes(rows), sizeof(double));
}

/* Where a row of one head is: among the codes or in 16 bits. */
struct place {
    const struct tqi_layer *layer;
    const uint8_t *blob;
    uint32_t slot, head;
};

static struct place place_of(const struct tqi_decode_job *job, uint64_t token, uint32_t head) {
    const struct tqi_exact_view *e = job->exact;
    struct place p = {job->layer, NULL, (uint32_t)(token % job->view.page_tokens), head};
    if (!e || (token >= e->sinks && token < e->start)) {
        p.blob = tqi_view_blob(&job->view, token / job->view.page_tokens, head);
        return p;
    }
    uint32_t page = tqi_exact_page(e, token / TQI_EXACT_TOKENS);
    p.layer = job->layer->exact;
    p.blob = tqi_view_page(&job->exact_view, page) + head * job->exact_view.blob_bytes;
    p.slot = (uint32_t)(token % TQI_EXACT_TOKENS);
    return p;
}

/* A row of keys or values (is_v) to row `row` of the caller's. */
static void decode_row(const struct place *p, int is_v, uint64_t row, const tq_rows_out *out,
                       double *scratch) {
    const struct tqi_level *level = tqi_level_ref();
    const struct tqi_rows *rows = is_v ? &p->layer->v : &p->layer->k;
    const float *scales = is_v ? p->layer->v_scale : p->layer->k_scale;
    uint32_t dim = rows->layout.dim;
    const float *mean = tqi_layer_mean(is_v ? p->layer->v_mean : p->layer->k_mean, p->head, dim);
    struct tqi_tile tile = {.blob = p->blob, .scale = scales ? scales[p->head] : 1};
    level->decode(rows, &tile, p->slot, scratch, scratch + dim);
    for (uint32_t i = 0; mean && i < dim; i++)
        scratch[i] += (double)mean[i];
    int64_t at = (int64_t)row * out->token_stride + (int64_t)p->head * out->head_stride;
    level->store(scratch, dim, out->dtype, (char *)out->data + at * (out->dtype == TQ_F32 ? 4 : 2));
}

static size_t scratch_of(const struct tqi_layer *layer) {
    size_t k = scratch_doubles(tqi_level_ref(), &layer->k);
    size_t v = scratch_doubles(tqi_level_ref(), &layer->v);
    return k > v ? k : v;
}

tq_status tqi_decode(const struct tqi_decode_job *job) {
    struct tqi_heap heap = tqi_heap_like(job->heap);
    size_t n = scratch_of(job->layer), exact = job->exact ? scratch_of(job->layer->exact) : 0;
    n = n > exact ? n : exact;
    double *scratch = tqi_alloc(&heap, n, sizeof *scratch, TQ_MEM_HOST);
    if (!scratch)
        return TQ_ERR_OUT_OF_MEMORY;
    for (uint64_t t = 0; t < job->n_tokens; t++)
        for (uint32_t h = 0; h < job->layer->n_kv_heads; h++) {
            struct place p = place_of(job, job->first + t, h);
            if (job->k)
                decode_row(&p, 0, t, job->k, scratch);
            if (job->v)
                decode_row(&p, 1, t, job->v, scratch);
        }
    tqi_free(&heap, scratch, n, sizeof *scratch, TQ_MEM_HOST);
    return TQ_OK;
}
