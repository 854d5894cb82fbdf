#include <string.h>

#include "device/cpu.h"

/* ---- kernels ----------------------------------------------------------------------------- */

/* The names of a step's kernels are those for one query token. */
static void set_names(struct tqi_layer *layer, uint32_t group) {
    const struct tqi_level *step = tqi_level_for(layer->attend, group);
    tq_format k = layer->k.format->id, v = layer->v.format->id;
    layer->kernel_name[TQ_OP_ENCODE_K] = layer->encode_k->encode[k].name;
    layer->kernel_name[TQ_OP_ENCODE_V] = layer->encode_v->encode[v].name;
    layer->kernel_name[TQ_OP_SCORE] = step->score[k].name;
    layer->kernel_name[TQ_OP_ACCUMULATE] = step->accumulate[v].name;
    layer->kernel_name[TQ_OP_PREFILL] = layer->attend->score[k].name;
}

static tq_status select_kernels(const struct tqi_device *device, const struct tqi_kernels *kernels,
                                struct tqi_layer *layer, uint32_t group) {
    const struct tqi_format *k = layer->k.format, *v = layer->v.format;
    (void)device;
    layer->encode_k = tqi_kernels_encode(kernels, k->id);
    layer->encode_v = tqi_kernels_encode(kernels, v->id);
    layer->attend = tqi_kernels_attend(kernels, k->id, v->id);
    if (!layer->encode_k || !layer->encode_v || !layer->attend)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "no CPU kernel for K format %s with V format %s",
                        k->name, v->name);
    set_names(layer, group);
    return TQ_OK;
}

/* ---- state ------------------------------------------------------------------------------- */

static void close_state(void *opened) {
    struct tqi_cpu_state *s = opened;
    if (!s)
        return;
    uint32_t workers = s->executor->n_workers;
    tqi_free(s->heap, s->scratch, workers, s->scratch_floats * sizeof(float), TQ_MEM_HOST);
    tqi_free(s->heap, s->counts, workers, sizeof *s->counts, TQ_MEM_HOST);
    tqi_free(s->heap, s, 1, sizeof *s, TQ_MEM_HOST);
}

static tq_status open_state(const struct tqi_device *device, const struct tqi_device_config *config,
                            void **out) {
    struct tqi_cpu_state *s = tqi_calloc(config->heap, 1, sizeof *s);
    (void)device;
    if (!s)
        return TQ_ERR_OUT_OF_MEMORY;
    s->heap = config->heap;
    s->executor = config->executor;
    s->n_q_heads = config->n_q_heads;
    s->counts = tqi_calloc(s->heap, s->executor->n_workers, sizeof *s->counts);
    if (!s->counts) {
        close_state(s);
        return TQ_ERR_OUT_OF_MEMORY;
    }
    *out = s;
    return TQ_OK;
}

/* The scratch is as large as the neediest layer wants it. */
static tq_status set_layer(void *opened, struct tqi_layer *layer) {
    struct tqi_cpu_state *s = opened;
    size_t floats = tqi_encode_scratch(layer);
    tqi_attend_measure(layer, &s->attend);
    s->page_tokens = layer->page.k.tokens;
    if (floats <= s->scratch_floats)
        return TQ_OK;
    uint32_t workers = s->executor->n_workers;
    float *scratch = tqi_alloc(s->heap, workers, floats * sizeof(float), TQ_MEM_HOST);
    if (!scratch)
        return TQ_ERR_OUT_OF_MEMORY;
    tqi_free(s->heap, s->scratch, workers, s->scratch_floats * sizeof(float), TQ_MEM_HOST);
    s->scratch = scratch;
    s->scratch_floats = floats;
    return TQ_OK;
}

static void unset_layer(void *opened, struct tqi_layer *layer) {
    (void)opened;
    (void)layer;
}

static tq_status counts(void *opened, struct tqi_nonfinite *out) {
    const struct tqi_cpu_state *s = opened;
    memset(out, 0, sizeof *out);
    for (uint32_t w = 0; w < s->executor->n_workers; w++) {
        out->nan += s->counts[w].nan;
        out->inf += s->counts[w].inf;
    }
    return TQ_OK;
}

static tq_status reset(void *opened) {
    struct tqi_cpu_state *s = opened;
    memset(s->counts, 0, s->executor->n_workers * sizeof *s->counts);
    return TQ_OK;
}

/* ---- means ------------------------------------------------------------------------------- */

static void mean_of_head(const struct tqi_means_job *job, uint32_t head, double *sum, float *row) {
    struct tqi_nonfinite ignored = {0, 0};
    memset(sum, 0, job->dim * sizeof *sum);
    for (uint32_t t = 0; t < job->n_tokens; t++) {
        tqi_level_ref()->load(tqi_row_in(job->rows, t, head), job->rows->dtype, job->dim, NULL, row,
                              &ignored);
        for (uint32_t i = 0; i < job->dim; i++)
            sum[i] += (double)row[i];
    }
    for (uint32_t i = 0; i < job->dim; i++)
        job->mean[(size_t)head * job->dim + i] = (float)(sum[i] / job->n_tokens);
}

static tq_status measure_means(void *opened, const struct tqi_means_job *job) {
    struct tqi_cpu_state *s = opened;
    double *sum = tqi_calloc(s->heap, job->dim, sizeof *sum);
    float *row = tqi_calloc(s->heap, job->dim, sizeof *row);
    int ok = sum && row;
    for (uint32_t h = 0; ok && h < job->n_heads; h++)
        mean_of_head(job, h, sum, row);
    tqi_free(s->heap, sum, job->dim, sizeof *sum, TQ_MEM_HOST);
    tqi_free(s->heap, row, job->dim, sizeof *row, TQ_MEM_HOST);
    return ok ? TQ_OK : TQ_ERR_OUT_OF_MEMORY;
}

/* ---- work -------------------------------------------------------------------------------- */

static void use_stream(void *opened, tq_stream stream) {
    (void)opened;
    (void)stream;
}

static void copy(void *opened, void *to, const void *from, size_t bytes) {
    (void)opened;
    memcpy(to, from, bytes);
}

void tqi_cpu_encode(const struct tqi_cpu_state *s, const struct tqi_encode_job *job,
                    const struct tqi_encode_seq *seqs, uint32_t n_seqs, uint32_t n_items) {
    struct tqi_encode_job full = *job;
    full.seqs = seqs;
    full.n_seqs = n_seqs;
    full.n_items = n_items;
    full.executor = s->executor;
    full.scratch = s->scratch;
    full.scratch_floats = s->scratch_floats;
    full.counts = s->counts;
    tqi_encode(&full);
}

static tq_status append(void *opened, const struct tqi_encode_job *job, tq_stream stream) {
    const struct tqi_cpu_state *s = opened;
    struct tqi_encode_seq seq = {.pages = job->view.pages,
                                 .length = job->view.length,
                                 .n_tokens = job->n_tokens,
                                 .exact = job->exact,
                                 .keep_until = job->keep_until,
                                 .keep_from = job->keep_from};
    (void)stream;
    tqi_cpu_encode(s, job, &seq, 1, tqi_encode_number(&seq, 1, job->view.page_tokens));
    return TQ_OK;
}

/* Readers run side by side, so each call has memory of its own. */
static tq_status attend(void *opened, const struct tqi_attend_job *job, tq_stream stream) {
    const struct tqi_cpu_state *s = opened;
    struct tqi_heap heap = tqi_heap_like(s->heap);
    struct tqi_attend_seq seq = {.pages = job->call.view.pages,
                                 .length = job->call.view.length,
                                 .n_queries = job->n_queries,
                                 .exact = job->exact};
    if (job->exact)
        seq.n_exact = job->exact->sinks + (seq.length - job->exact->start);
    struct tqi_attend_sizes sizes = {0, 0};
    struct tqi_attend_job full = *job;
    (void)stream;
    tqi_attend_measure(job->call.layer, &sizes);
    size_t bytes = tqi_attend_memory(&sizes, s->n_q_heads, &seq, 1, s->executor->n_workers);
    full.memory = tqi_alloc(&heap, bytes, 1, TQ_MEM_HOST);
    if (!full.memory)
        return TQ_ERR_OUT_OF_MEMORY;
    full.seqs = &seq;
    full.n_seqs = 1;
    full.executor = s->executor;
    tqi_attend(&full);
    tqi_free(&heap, full.memory, bytes, 1, TQ_MEM_HOST);
    return TQ_OK;
}

static tq_status decode(void *opened, const struct tqi_decode_job *job) {
    const struct tqi_cpu_state *s = opened;
    struct tqi_decode_job full = *job;
    full.heap = s->heap;
    return tqi_decode(&full);
}

static tq_status merge(const struct tqi_device *device, const struct tqi_merge_job *job,
                       tq_stream stream) {
    (void)device;
    (void)stream;
    tqi_merge(job);
    return TQ_OK;
}

static tq_status nothing_to_wait_for(void *opened) {
    (void)opened;
    return TQ_OK;
}

/* Both ways: page memory is host memory. */
static tq_status move_bytes(void *opened, void *to, const void *from, size_t bytes) {
    (void)opened;
    memcpy(to, from, bytes);
    return TQ_OK;
}

void tqi_cpu_device(struct tqi_device *out) {
    static const struct tqi_device device = {
        .name = "cpu",
        .page_memory = TQ_MEM_HOST,
        .can_grow = 1,
        .select = select_kernels,
        .open = open_state,
        .close = close_state,
        .set_layer = set_layer,
        .unset_layer = unset_layer,
        .set_exact = set_layer, /* scratch for both forms */
        .counts = counts,
        .reset = reset,
        .measure_means = measure_means,
        .use_stream = use_stream,
        .copy = copy,
        .append = append,
        .attend = attend,
        .decode = decode,
        .wait = nothing_to_wait_for,
        .read = move_bytes,
        .write = move_bytes,
        .open_batch = tqi_cpu_open_batch,
        .close_batch = tqi_cpu_close_batch,
        .plan = tqi_cpu_plan,
        .batch_append = tqi_cpu_batch_append,
        .batch_attend = tqi_cpu_batch_attend,
        .paged_append = tqi_cpu_paged_append,
        .paged_attend = tqi_cpu_paged_attend,
        .paged_workspace = tqi_cpu_paged_workspace,
        .merge = merge,
    };
    *out = device;
}
