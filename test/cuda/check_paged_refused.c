/* What a checked call over pages of an engine refuses. */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

struct asked {
    struct engine *e;
    tq_rows_in in;
    tq_rows_out out;
};

static tq_status append(const struct asked *a, uint32_t flags, uint32_t n, tq_stream stream) {
    tq_paged_pool pool = engine_pool(a->e, 1, flags);
    return tq_paged_append(a->e->pair->gpu, 0, &pool, a->e->slots, n, &a->in, &a->in, stream);
}

static tq_status attend(const struct asked *a, uint32_t flags, uint32_t window, tq_stream stream) {
    tq_paged_pool pool = engine_pool(a->e, 1, flags);
    tq_paged_seqs seqs = engine_seqs(a->e, 1, 3, 5);
    tq_attend_params params = {.struct_size = sizeof params, .window = window};
    return tq_paged_attend(a->e->pair->gpu, 0, &pool, &seqs, &params, &a->in, &a->out, NULL,
                           a->e->work, a->e->work_size, stream);
}

static void poke32(int32_t *at, int32_t value) {
    gpu_write(at, &value, sizeof value);
}

static void poke64(int64_t *at, int64_t value) {
    gpu_write(at, &value, sizeof value);
}

static void expect_refused(tq_status status, const char *text) {
    gpu_expect(status == TQ_ERR_INVALID_ARGUMENT && strstr(tq_last_error(), text),
               "checked: %s, \"%s\", not \"%s\"", tq_status_name(status), tq_last_error(), text);
}

static void refused_slots(const struct asked *a) {
    struct engine *e = a->e;
    int64_t good = e->host_slots[10], beyond = (int64_t)e->n_pages * 64;
    GPU_OK(append(a, TQ_PAGED_CHECKED, 60, NULL));
    poke64(e->slots + 10, beyond);
    expect_refused(append(a, TQ_PAGED_CHECKED, 60, NULL), "slots[10]: ");
    GPU_OK(append(a, 0, 60, NULL)); /* not checked: the token is left out */
    poke64(e->slots + 10, e->host_slots[50]);
    expect_refused(append(a, TQ_PAGED_CHECKED, 60, NULL), "slots[50]: ");
    GPU_OK(append(a, TQ_PAGED_CHECKED, 50, NULL));
    poke64(e->slots + 10, -1);
    poke64(e->slots + 11, INT64_MIN);
    GPU_OK(append(a, TQ_PAGED_CHECKED, 60, NULL));
    poke64(e->slots + 10, good);
    poke64(e->slots + 11, e->host_slots[11]);
}

static void refused_seqs(const struct asked *a) {
    struct engine *e = a->e;
    int32_t *length = e->lengths + 2, *page = e->table + e->table_stride;
    const int32_t was[] = {e->host_lengths[2], e->host_table[e->table_stride]};
    GPU_OK(attend(a, TQ_PAGED_CHECKED, 0, NULL));
    poke32(length, -1);
    expect_refused(attend(a, TQ_PAGED_CHECKED, 0, NULL), "seq_lens[2]: -1");
    poke32(length, (int32_t)(e->table_stride * 64 + 1));
    expect_refused(attend(a, TQ_PAGED_CHECKED, 0, NULL), "seq_lens[2]: ");
    poke32(length, was[0]);
    poke32(page, -7);
    expect_refused(attend(a, TQ_PAGED_CHECKED, 0, NULL), "page 0 of sequence 1 is -7");
    poke32(page, (int32_t)e->n_pages);
    expect_refused(attend(a, TQ_PAGED_CHECKED, 0, NULL), "page 0 of sequence 1 is ");
    GPU_OK(attend(a, TQ_PAGED_CHECKED, 30, NULL)); /* no row sees it */
    poke32(page, was[1]);
    poke32(e->starts, 1);
    expect_refused(attend(a, TQ_PAGED_CHECKED, 0, NULL), "query_starts[0]: ");
    poke32(e->starts, 0);
    poke32(e->starts + 2, 6);
    expect_refused(attend(a, TQ_PAGED_CHECKED, 0, NULL), "query_starts[2]: 6 after 1, of 5 rows");
    poke32(e->starts + 2, e->host_starts[2]);
    GPU_OK(attend(a, TQ_PAGED_CHECKED, 0, NULL));
}

/* A checked call in a capture is refused, and the capture goes on. */
static void refused_capture(const struct asked *a) {
    cudaStream_t stream;
    cudaGraph_t graph;
    GPU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GPU_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    tq_status statuses[] = {append(a, TQ_PAGED_CHECKED, 60, stream),
                            attend(a, TQ_PAGED_CHECKED, 0, stream)};
    GPU_CUDA(cudaStreamEndCapture(stream, &graph));
    for (int i = 0; i < 2; i++)
        gpu_expect(statuses[i] == TQ_ERR_INVALID_STATE, "a checked call was captured: %s",
                   tq_status_name(statuses[i]));
    GPU_CUDA(cudaGraphDestroy(graph));
    GPU_CUDA(cudaStreamDestroy(stream));
}

void check_paged_refused(void) {
    tq_cache_config config = {.n_kv_heads = 2, .n_q_heads = 4, .head_dim = 128};
    struct pair p;
    struct engine e;
    if (!pair_create(&p, config, TQ_FORMAT_LM4, TQ_FORMAT_LM4) || !engine_open(&e, &p, 40, 8, 300))
        return;
    struct engine_step s = {.n_seqs = 3, .n_append = {60, 130, 2}, .n_query = {1, 2, 2}};
    s.params.struct_size = sizeof s.params;
    engine_step(&e, &s, 0, 0, "before what is refused");
    struct asked a = {&e, {.data = e.k, .dtype = TQ_BF16}, {.data = e.out, .dtype = TQ_F32}};
    refused_slots(&a);
    refused_seqs(&a);
    refused_capture(&a);
    engine_close(&e);
    pair_destroy(&p);
}
