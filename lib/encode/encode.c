/*
 * Coding rows into pages. A task takes one page and some kv heads of it, of any sequence of
 * the job, so that no two tasks write the same bytes. It takes as many heads as leave enough
 * tasks for all workers: a step of one token per sequence is many small pieces of work.
 */
#include "encode/encode.h"

#include "base/checked.h"

size_t tqi_encode_scratch(const struct tqi_layer *layer) {
    size_t k = layer->encode_k->encode_scratch(&layer->k);
    size_t v = layer->encode_v->encode_scratch(&layer->v);
    return k > v ? k : v;
}

static uint32_t pages_written(const struct tqi_encode_seq *seq, uint32_t page_tokens) {
    if (!seq->n_tokens)
        return 0;
    return (uint32_t)(tqi_div_up(seq->length + seq->n_tokens, page_tokens) -
                      seq->length / page_tokens);
}

uint32_t tqi_encode_number(struct tqi_encode_seq *seqs, uint32_t n_seqs, uint32_t page_tokens) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        seqs[i].first_item = n;
        n += pages_written(&seqs[i], page_tokens);
    }
    return n;
}

/* The sequence of an item: the last one that begins at or before it. */
static const struct tqi_encode_seq *seq_of(const struct tqi_encode_job *job, uint32_t item) {
    uint32_t low = 0, high = job->n_seqs;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (job->seqs[middle].first_item <= item)
            low = middle;
        else
            high = middle;
    }
    return &job->seqs[low];
}

void tqi_encode_token(const struct tqi_encode_job *job, uint64_t row, uint32_t head, uint8_t *blob,
                      uint32_t token, uint32_t worker) {
    const struct tqi_layer *layer = job->layer;
    const struct tqi_level *for_k = layer->encode_k, *for_v = layer->encode_v;
    uint32_t k_dim = layer->k.layout.dim, v_dim = layer->v.layout.dim;
    float *x = job->scratch + worker * job->scratch_floats;
    for_k->load(tqi_row_in(&job->k, row, head), job->k.dtype, k_dim,
                tqi_layer_mean(layer->k_mean, head, k_dim), x, &job->counts[worker]);
    for_k->encode[layer->k.format->id].run(&layer->k, layer->k_inv_scale[head], x, blob, token);
    for_v->load(tqi_row_in(&job->v, row, head), job->v.dtype, v_dim,
                tqi_layer_mean(layer->v_mean, head, v_dim), x, &job->counts[worker]);
    for_v->encode[layer->v.format->id].run(&layer->v, layer->v_inv_scale[head], x, blob, token);
}

/* One page of one kv head. */
static void encode_page(const struct tqi_encode_job *job, const struct tqi_encode_seq *seq,
                        uint64_t page, uint32_t head, uint32_t worker) {
    uint32_t page_tokens = job->view.page_tokens;
    struct tqi_page_view view = job->view;
    view.pages = seq->pages;
    uint8_t *blob = tqi_view_blob(&view, page, head);
    uint64_t start = page * page_tokens, end = start + page_tokens;
    uint64_t first = start > seq->length ? start : seq->length;
    uint64_t last = seq->length + seq->n_tokens < end ? seq->length + seq->n_tokens : end;
    for (uint64_t t = first; t < last; t++)
        tqi_encode_token(job, seq->first_row + (t - seq->length), head, blob, (uint32_t)(t - start),
                         worker);
}

/* A job and the kv heads of its tasks. */
struct cut {
    const struct tqi_encode_job *job;
    uint32_t task_heads, head_blocks;
};

static void task(void *arg, uint32_t index, uint32_t worker) {
    const struct cut *cut = arg;
    const struct tqi_encode_job *job = cut->job;
    uint32_t item = index / cut->head_blocks;
    uint32_t head = index % cut->head_blocks * cut->task_heads, n = job->layer->n_kv_heads;
    const struct tqi_encode_seq *seq = seq_of(job, item);
    uint64_t page = seq->length / job->view.page_tokens + (item - seq->first_item);
    uint32_t last = n - head < cut->task_heads ? n : head + cut->task_heads;
    for (; head < last; head++)
        encode_page(job, seq, page, head, worker);
}

void tqi_encode(const struct tqi_encode_job *job) {
    uint32_t heads = job->layer->n_kv_heads, workers = job->executor->n_workers, n = heads;
    uint64_t wanted = workers > 1 ? 4 * (uint64_t)workers : 1;
    while (n > 1 && job->n_items * tqi_div_up(heads, n) < wanted)
        n = (n + 1) / 2;
    /* The count fits: heads are cut only while there are few tasks. */
    struct cut cut = {job, n, (uint32_t)tqi_div_up(heads, n)};
    tqi_executor_run(job->executor, job->n_items * cut.head_blocks, task, &cut);
}
