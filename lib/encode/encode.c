#include "encode/encode.h"

size_t tqi_encode_scratch(const struct tqi_layer *layer) {
    size_t k = layer->encode_k->encode_scratch(&layer->k);
    size_t v = layer->encode_v->encode_scratch(&layer->v);
    return k > v ? k : v;
}

/* One page of one kv head: no two tasks write the same bytes. */
static void encode_page(const struct tqi_encode_job *job, uint64_t page, uint32_t head,
                        uint32_t worker) {
    const struct tqi_layer *layer = job->layer;
    const struct tqi_page_view *view = &job->view;
    const struct tqi_level *for_k = layer->encode_k, *for_v = layer->encode_v;
    uint32_t k_dim = layer->k.layout.dim, v_dim = layer->v.layout.dim;
    float *x = job->scratch + worker * job->scratch_floats;
    uint8_t *blob = tqi_view_blob(view, page, head);
    uint64_t start = page * view->page_tokens, end = start + view->page_tokens;
    uint64_t first = start > view->length ? start : view->length;
    uint64_t last = view->length + job->n_tokens < end ? view->length + job->n_tokens : end;
    for (uint64_t t = first; t < last; t++) {
        uint64_t row = t - view->length;
        uint32_t slot = (uint32_t)(t - start);
        for_k->load(tqi_row_in(&job->k, row, head), job->k.dtype, k_dim,
                    tqi_layer_mean(layer->k_mean, head, k_dim), x, &job->counts[worker]);
        for_k->encode[layer->k.format->id].run(&layer->k, layer->k_inv_scale[head], x, blob, slot);
        for_v->load(tqi_row_in(&job->v, row, head), job->v.dtype, v_dim,
                    tqi_layer_mean(layer->v_mean, head, v_dim), x, &job->counts[worker]);
        for_v->encode[layer->v.format->id].run(&layer->v, layer->v_inv_scale[head], x, blob, slot);
    }
}

/* Pages whose tasks an executor can count. */
struct run {
    const struct tqi_encode_job *job;
    uint64_t first_page;
};

static void task(void *arg, uint32_t index, uint32_t worker) {
    const struct run *run = arg;
    uint32_t heads = run->job->layer->n_kv_heads;
    encode_page(run->job, run->first_page + index / heads, index % heads, worker);
}

void tqi_encode(const struct tqi_encode_job *job) {
    uint32_t page_tokens = job->view.page_tokens;
    uint32_t heads = job->layer->n_kv_heads;
    uint64_t last = (job->view.length + job->n_tokens + page_tokens - 1) / page_tokens;
    struct run run = {.job = job, .first_page = job->view.length / page_tokens};
    while (run.first_page < last) {
        uint64_t left = last - run.first_page, most = UINT32_MAX / heads;
        uint32_t pages = (uint32_t)(left < most ? left : most);
        tqi_executor_run(job->executor, pages * heads, task, &run);
        run.first_page += pages;
    }
}
