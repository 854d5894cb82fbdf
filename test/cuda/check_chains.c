/* Kernels that begin before those in front of them have ended: a chain of layers, in which the
 * output of one is the query and the new token of the next, has the same bits when its calls follow
 * each other, or are a graph, as when the stream is waited for behind every call. */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { LAYERS = 6, STEPS = 12 };

struct chain {
    tq_cache_config config;
    tq_context *context;
    tq_cache *cache;
    tq_batch *batch;
    tq_seq *seqs;
    uint32_t *ones, n;
    size_t kv, rows; /* elements of new keys, of queries */
    uint8_t *k, *v, *q, *x[2];
    cudaStream_t stream;
    cudaGraphExec_t graph;
};

/* ---- open and close -------------------------------------------------------------------------
 */

/* Sequences of different lengths; the first ends with a page, the second a token before that. */
static void fill(struct chain *c, uint32_t longest) {
    const tq_cache_config *g = &c->config;
    const size_t row = (size_t)g->n_kv_heads * g->head_dim;
    uint8_t *rows = gpu_rows(TQ_BF16, (size_t)longest * row, g->head_dim);
    tq_rows_in in = {.data = gpu_upload(rows, (size_t)longest * row * 2), .dtype = TQ_BF16};
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t tokens = i < 2 ? longest / 64 * 64 - i : 1 + gpu_random() % longest;
        GPU_OK(tq_seq_create(c->cache, &c->seqs[i]));
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            GPU_OK(tq_append(c->cache, c->seqs[i], layer, tokens, &in, &in, c->stream));
    }
    GPU_CUDA(cudaStreamSynchronize(c->stream));
    gpu_release((void *)(uintptr_t)in.data);
    free(rows);
}

static void open_chain(struct chain *c, tq_cache_config config, uint32_t n, uint32_t longest) {
    tq_context_config on_gpu = {.struct_size = sizeof on_gpu, .device = TQ_DEVICE_CUDA};
    memset(c, 0, sizeof *c);
    config.struct_size = sizeof config;
    config.n_layers = LAYERS;
    config.max_seqs = n;
    config.max_pages = n * ((longest + 2 * STEPS) / 16 + 2);
    c->config = config;
    c->n = n;
    c->kv = (size_t)n * config.n_kv_heads * config.head_dim;
    c->rows = (size_t)n * config.n_q_heads * config.head_dim;
    c->seqs = calloc(n, sizeof *c->seqs);
    c->ones = calloc(n, sizeof *c->ones);
    for (uint32_t i = 0; i < n; i++)
        c->ones[i] = 1;
    GPU_CUDA(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    GPU_OK(tq_context_create(&on_gpu, &c->context));
    GPU_OK(tq_cache_create(c->context, &config, &c->cache));
    GPU_OK(tq_batch_create(c->cache, n, n, &c->batch));
    c->k = gpu_buffer(c->kv * 2);
    c->v = gpu_buffer(c->kv * 2);
    c->q = gpu_buffer(c->rows * 2);
    for (int i = 0; i < 2; i++)
        c->x[i] = gpu_buffer(c->rows * 2);
    fill(c, longest);
}

static void close_chain(struct chain *c) {
    GPU_CUDA(cudaDeviceSynchronize());
    if (c->graph)
        GPU_CUDA(cudaGraphExecDestroy(c->graph));
    tq_batch_destroy(c->batch);
    tq_cache_destroy(c->cache);
    tq_context_destroy(c->context);
    gpu_release(c->k);
    gpu_release(c->v);
    gpu_release(c->q);
    gpu_release(c->x[0]);
    gpu_release(c->x[1]);
    GPU_CUDA(cudaStreamDestroy(c->stream));
    free(c->seqs);
    free(c->ones);
}

/* ---- steps ----------------------------------------------------------------------------------
 */

enum way { FOLLOWING, AS_GRAPH, WAITING };

static void wait_if(const struct chain *c, enum way way) {
    if (way == WAITING)
        GPU_CUDA(cudaStreamSynchronize(c->stream));
}

static void launch(struct chain *c, enum way way) {
    const tq_cache_config *g = &c->config;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        tq_rows_in q = {.data = c->q, .dtype = TQ_BF16};
        tq_rows_in k = {.data = c->k, .dtype = TQ_BF16}, v = {.data = c->v, .dtype = TQ_BF16};
        if (layer) { /* of kv head h: what query head h got */
            q.data = c->x[(layer - 1) % 2];
            k = v = (tq_rows_in){.data = q.data,
                                 .token_stride = (int64_t)g->n_q_heads * g->head_dim,
                                 .head_stride = g->head_dim,
                                 .dtype = TQ_BF16};
        }
        tq_rows_out x = {.data = c->x[layer % 2], .dtype = TQ_BF16};
        GPU_OK(tq_batch_append(c->batch, layer, &k, &v, c->stream));
        wait_if(c, way);
        GPU_OK(tq_batch_attend(c->batch, layer, NULL, &q, &x, NULL, c->stream));
        wait_if(c, way);
    }
}

static void capture(struct chain *c) {
    cudaGraph_t graph;
    GPU_CUDA(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
    launch(c, AS_GRAPH);
    GPU_CUDA(cudaStreamEndCapture(c->stream, &graph));
    GPU_CUDA(cudaGraphInstantiate(&c->graph, graph, 0));
    GPU_CUDA(cudaGraphDestroy(graph));
}

/* Plans the step, runs it and fetches the last layer's output. */
static void run(struct chain *c, enum way way, uint16_t *out) {
    tq_batch_desc desc = {sizeof desc, c->n, c->seqs, c->ones, c->ones};
    GPU_OK(tq_batch_plan(c->batch, &desc, c->stream));
    GPU_CUDA(cudaMemsetAsync(c->x[0], 0xff, c->rows * 2, c->stream));
    GPU_CUDA(cudaMemsetAsync(c->x[1], 0xff, c->rows * 2, c->stream));
    if (way == AS_GRAPH && !c->graph)
        capture(c);
    if (way == AS_GRAPH)
        GPU_CUDA(cudaGraphLaunch(c->graph, c->stream));
    else
        launch(c, way);
    GPU_CUDA(cudaStreamSynchronize(c->stream));
    gpu_download(out, c->x[(LAYERS - 1) % 2], c->rows * 2);
}

static void new_rows(struct chain *c) {
    const uint32_t dim = c->config.head_dim;
    free(gpu_fill_rows(c->k, c->kv, dim));
    free(gpu_fill_rows(c->v, c->kv, dim));
    free(gpu_fill_rows(c->q, c->rows, dim));
}

/* The step without waits first: the places of the new tokens then hold what was there before. */
static void check_chain(tq_cache_config config, uint32_t n, uint32_t longest, const char *name) {
    struct chain c;
    open_chain(&c, config, n, longest);
    uint16_t *got = calloc(c.rows, 2), *want = calloc(c.rows, 2);
    int same = 1, finite = 1;
    for (int i = 0; i < STEPS; i++) {
        new_rows(&c);
        run(&c, i % 2 ? AS_GRAPH : FOLLOWING, got);
        GPU_OK(tq_batch_cancel(c.batch));
        run(&c, WAITING, want);
        GPU_OK(tq_batch_commit(c.batch, NULL));
        same &= memcmp(got, want, c.rows * 2) == 0;
        for (size_t at = 0; at < c.rows; at++)
            finite &= (want[at] & 0x7f80) != 0x7f80;
    }
    gpu_expect(same && finite, "%s: variant %u, %u sequences, group %u, dim %u: %s", name,
               config.variant, n, config.n_q_heads / config.n_kv_heads, config.head_dim,
               same ? "not finite" : "kernels one behind another give other bits");
    close_chain(&c);
    free(got);
    free(want);
}

static tq_cache_config shape(const char *variant, uint32_t kv_heads, uint32_t group, uint32_t dim) {
    tq_cache_config config = {
        .n_kv_heads = kv_heads, .n_q_heads = kv_heads * group, .head_dim = dim, .seed = 3};
    GPU_OK(tq_variant_find(variant, &config.variant));
    return config;
}

void check_chains(void) {
    static const char *const variants[] = {"4bit_nc", "3bit_nc", "k3v4_nc", "k8v4",      "fp8",
                                           "int8",    "bf16",    "polar",   "polar_qjl", "prod4"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const char *name = variants[i];
        check_chain(shape(name, 8, 8, 128), 40, 700, "many rows");
        check_chain(shape(name, 2, 8, 128), 2, 700, "few rows");
        check_chain(shape(name, 2, i % 2 ? 16 : 4, 128), 12, 2500, "long");
        check_chain(shape(name, 4, i % 2 ? 1 : 12, 64), 12, 300, "head dim 64");
    }
    check_chain(shape("4bit_nc", 4, 5, 96), 12, 300, "rows in shared memory");
    check_chain(shape("int8", 4, 4, 256), 12, 300, "head dim 256");
    check_chain(shape("4bit_nc", 4, 4, 80), 12, 300, "generic kernels");
    tq_cache_config kept = shape("4bit_nc", 4, 8, 128);
    kept.sink_tokens = 4;
    kept.recent_tokens = 40;
    check_chain(kept, 12, 300, "tokens in 16 bits");
}
