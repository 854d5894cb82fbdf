/* Two GPUs in one process: the same calls in turn give the same bits on both, whichever is current;
 * sequences go from one to the other by copies and by bytes and are gone on with there. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "tq/snapshot.h"

enum { HEADS = 2, GROUP = 8, DIM = 128, ROW = HEADS * DIM, OUT = HEADS * GROUP * DIM, MOST = 256 };

/* What there is on a GPU. */
struct side {
    int index;
    tq_context *context;
    tq_cache *cache;
    tq_batch *batch;
    cudaStream_t stream;
    void *rows, *queries; /* bf16: [MOST][ROW], [MOST][OUT] */
    float *out;           /* [MOST][OUT] */
    float *got;           /* host */
};

static struct side sides[2];
static char what[96];

static void check_current(int index) {
    int current = -1;
    GPU_CUDA(cudaGetDevice(&current));
    gpu_expect(current == index, "%s: GPU %d is current, it was %d", what, current, index);
}

static int open_side(struct side *s, int index, const tq_cache_config *shape, const void *rows,
                     const void *queries) {
    tq_context_config on = {
        .struct_size = sizeof on, .device = TQ_DEVICE_CUDA, .device_index = index};
    memset(s, 0, sizeof *s);
    s->index = index;
    GPU_OK(tq_context_create(&on, &s->context));
    if (!s->context)
        return 0;
    GPU_OK(tq_cache_create(s->context, shape, &s->cache));
    if (!s->cache)
        return 0;
    GPU_OK(tq_batch_create(s->cache, 8, MOST, &s->batch));
    GPU_CUDA(cudaSetDevice(index));
    GPU_CUDA(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    s->rows = gpu_upload(rows, (size_t)MOST * ROW * 2);
    s->queries = gpu_upload(queries, (size_t)MOST * OUT * 2);
    s->out = gpu_buffer((size_t)MOST * OUT * 4);
    s->got = calloc((size_t)MOST * OUT, 4);
    GPU_CUDA(cudaSetDevice(0));
    return s->batch != NULL;
}

static void close_side(struct side *s) {
    tq_batch_destroy(s->batch);
    tq_cache_destroy(s->cache);
    tq_context_destroy(s->context);
    GPU_CUDA(cudaSetDevice(s->index));
    gpu_release(s->rows);
    gpu_release(s->queries);
    gpu_release(s->out);
    if (s->stream)
        GPU_CUDA(cudaStreamDestroy(s->stream));
    free(s->got);
    GPU_CUDA(cudaSetDevice(0));
}

/* Output rows of both, once both are done: the same bits. */
static void compare_out(uint32_t n, const char *call) {
    for (int g = 0; g < 2; g++) {
        struct side *s = &sides[g];
        GPU_CUDA(cudaSetDevice(g));
        GPU_CUDA(cudaStreamSynchronize(s->stream));
        gpu_download(s->got, s->out, (size_t)n * OUT * 4);
        GPU_CUDA(cudaMemset(s->out, 0xff, (size_t)n * OUT * 4));
        GPU_CUDA(cudaDeviceSynchronize());
    }
    GPU_CUDA(cudaSetDevice(0));
    gpu_expect(memcmp(sides[0].got, sides[1].got, (size_t)n * OUT * 4) == 0,
               "%s: %s gives other bits on the other GPU", what, call);
}

static void append(struct side *s, tq_seq seq, uint32_t first, uint32_t n) {
    tq_rows_in rows = {.data = (char *)s->rows + (size_t)first * ROW * 2, .dtype = TQ_BF16};
    GPU_OK(tq_append(s->cache, seq, 0, n, &rows, &rows, s->stream));
}

static void attend(struct side *s, tq_seq seq, uint32_t n) {
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    tq_rows_in q = {.data = s->queries, .dtype = TQ_BF16};
    tq_rows_out out = {.data = s->out, .dtype = TQ_F32};
    GPU_OK(tq_attend(s->cache, seq, 0, n, &params, &q, &out, NULL, s->stream));
}

/* Calls in turn; the other GPU is current for half of them. */
static void single_calls(tq_seq seqs[2]) {
    for (int g = 0; g < 2; g++)
        GPU_OK(tq_seq_create(sides[g].cache, &seqs[g]));
    for (uint32_t i = 0; i < 6; i++) {
        GPU_CUDA(cudaSetDevice((int)i % 2));
        for (int g = 0; g < 2; g++)
            append(&sides[g], seqs[g], i * 3, i % 3 ? 1 : 90);
        for (int g = 0; g < 2; g++)
            attend(&sides[g], seqs[g], 1 + i);
        check_current((int)i % 2);
        compare_out(1 + i, "a single call");
    }
}

static void step_on(struct side *s, const tq_seq *seqs, uint32_t n, uint32_t tokens) {
    uint32_t counts[8];
    for (uint32_t i = 0; i < n; i++)
        counts[i] = tokens;
    tq_batch_desc desc = {sizeof desc, n, seqs, counts, counts};
    tq_rows_in rows = {.data = s->rows, .dtype = TQ_BF16},
               q = {.data = s->queries, .dtype = TQ_BF16};
    tq_rows_out out = {.data = s->out, .dtype = TQ_F32};
    tq_attend_params params = {.struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL};
    GPU_OK(tq_batch_plan(s->batch, &desc, s->stream));
    GPU_OK(tq_batch_append(s->batch, 0, &rows, &rows, s->stream));
    GPU_OK(tq_batch_attend(s->batch, 0, &params, &q, &out, NULL, s->stream));
}

/* Steps of both GPUs under way at a time. */
static void steps(void) {
    tq_seq seqs[2][4];
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 4; i++) {
            GPU_OK(tq_seq_create(sides[g].cache, &seqs[g][i]));
            append(&sides[g], seqs[g][i], (uint32_t)i, 20 * (uint32_t)i + 1);
        }
    for (uint32_t tokens = 1; tokens < 50; tokens = tokens * 3 + 1) {
        GPU_CUDA(cudaSetDevice((int)tokens % 2));
        for (int g = 0; g < 2; g++)
            step_on(&sides[g], seqs[g], 4, tokens);
        for (int g = 0; g < 2; g++)
            GPU_OK(tq_batch_commit(sides[g].batch, NULL));
        check_current((int)tokens % 2);
        compare_out(4 * tokens, "a step");
    }
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 4; i++)
            GPU_OK(tq_seq_destroy(sides[g].cache, seqs[g][i]));
}

/* A sequence of one GPU copied to the other one, and loaded there, is its twin. */
static void moves(const tq_seq seqs[2]) {
    for (int g = 0; g < 2; g++) {
        struct side *from = &sides[g], *to = &sides[1 - g];
        tq_seq copied = 0, loaded = 0;
        size_t size = 0, written = 0;
        GPU_OK(tq_seq_copy(to->cache, from->cache, seqs[g], 0, UINT64_MAX, &copied));
        GPU_OK(tq_seq_save(from->cache, seqs[g], NULL, 0, &size));
        void *bytes = malloc(size);
        GPU_OK(tq_seq_save(from->cache, seqs[g], bytes, size, &written));
        GPU_OK(tq_seq_load(to->cache, bytes, written, &loaded));
        append(from, seqs[g], 7, 30);
        append(to, copied, 7, 30);
        append(to, loaded, 7, 30);
        attend(from, seqs[g], 4);
        attend(to, copied, 4);
        compare_out(4, "a copy from the other GPU");
        attend(from, seqs[g], 4);
        attend(to, loaded, 4);
        compare_out(4, "what the other GPU saved");
        check_current(0);
        GPU_OK(tq_seq_destroy(to->cache, copied));
        GPU_OK(tq_seq_destroy(to->cache, loaded));
        free(bytes);
    }
}

static void run(tq_variant variant, uint32_t sinks, uint32_t recent) {
    tq_cache_config shape = {.struct_size = sizeof shape,
                             .n_layers = 1,
                             .n_kv_heads = HEADS,
                             .n_q_heads = HEADS * GROUP,
                             .head_dim = DIM,
                             .variant = variant,
                             .sink_tokens = sinks,
                             .recent_tokens = recent,
                             .max_seqs = 16,
                             .max_pages = 80};
    void *rows = gpu_rows(TQ_BF16, (size_t)MOST * ROW, DIM);
    void *queries = gpu_rows(TQ_BF16, (size_t)MOST * OUT, DIM);
    tq_seq seqs[2];
    (void)snprintf(what, sizeof what, "two GPUs, variant %u, %u and %u tokens kept", variant, sinks,
                   recent);
    int both = 1;
    for (int g = 0; g < 2; g++)
        both &= open_side(&sides[g], g, &shape, rows, queries);
    if (both) {
        single_calls(seqs);
        GPU_CUDA(cudaSetDevice(0));
        moves(seqs);
        steps();
        moves(seqs);
    }
    for (int g = 0; g < 2; g++)
        close_side(&sides[g]);
    free(rows);
    free(queries);
}

void check_two(void) {
    int n = 0;
    GPU_CUDA(cudaGetDeviceCount(&n));
    if (n < 2) {
        printf("check_cuda: two: SKIPPED, this machine has one GPU\n");
        return;
    }
    run(TQ_VARIANT_4BIT_NC, 0, 0);
    run(TQ_VARIANT_3BIT_NC, 0, 0);
    run(TQ_VARIANT_FP8, 0, 0);
    run(TQ_VARIANT_4BIT_NC, 16, 40);
    run(TQ_VARIANT_INT8, 0, 100);
}
