/* Logits over 4-bit keys against reads of the same keys in 16 and 32 bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "logits.h"

enum { SEED = 1, SOURCE_PAGES = 64, ROW = HEADS * LOGIT_DIM };

/* Pages of a cache, and its decoded keys, both in device memory. */
struct source {
    uint8_t *blobs;
    float *keys; /* [token][kv head][128] */
    size_t blob;
};

static void read_pages(tq_cache *cache, tq_seq seq, struct source *s) {
    TQ(tq_read_page(cache, seq, 0, 0, 0, NULL, 0, &s->blob));
    size_t bytes = SOURCE_PAGES * HEADS * s->blob;
    uint8_t *host = malloc(bytes);
    must(host != NULL, "memory");
    for (uint32_t page = 0; page < SOURCE_PAGES; page++)
        for (uint32_t head = 0; head < HEADS; head++)
            TQ(tq_read_page(cache, seq, 0, page, head, host + (page * HEADS + head) * s->blob,
                            s->blob, &s->blob));
    CUDA(cudaMalloc((void **)&s->blobs, bytes));
    CUDA(cudaMemcpy(s->blobs, host, bytes, cudaMemcpyHostToDevice));
    free(host);
}

static struct source make_source(void) {
    tq_context_config config = {.struct_size = sizeof config, .device = TQ_DEVICE_CUDA};
    tq_cache_config c = {.struct_size = sizeof c,
                         .n_layers = 1,
                         .n_kv_heads = HEADS,
                         .head_dim = LOGIT_DIM,
                         .variant = TQ_VARIANT_4BIT_NC,
                         .max_pages = SOURCE_PAGES + 1,
                         .seed = SEED};
    tq_context *context;
    tq_cache *cache;
    tq_seq seq;
    struct source s = {0};
    const uint32_t tokens = SOURCE_PAGES * LOGIT_TOKENS;
    TQ(tq_context_create(&config, &context));
    TQ(tq_cache_create(context, &c, &cache));
    TQ(tq_seq_create(cache, &seq));
    tq_rows_in k = fresh_rows((size_t)tokens * ROW, 3);
    TQ(tq_append(cache, seq, 0, tokens, &k, &k, stream));
    CUDA(cudaStreamSynchronize(stream));
    read_pages(cache, seq, &s);
    CUDA(cudaMalloc((void **)&s.keys, (size_t)tokens * ROW * sizeof *s.keys));
    tq_rows_out rows = {.data = s.keys, .dtype = TQ_F32};
    TQ(tq_read_rows(cache, seq, 0, 0, tokens, &rows, NULL));
    tq_cache_destroy(cache);
    tq_context_destroy(context);
    return s;
}

/* Relative error of the first sequence's logits, whose keys are the source's. */
static double error_of(const struct logits *l, const struct source *s) {
    const size_t n_q = (size_t)HEADS * l->group, tokens = SOURCE_PAGES * LOGIT_TOKENS;
    const size_t row = (size_t)l->n_pages * LOGIT_TOKENS;
    float *keys = malloc(tokens * ROW * sizeof *keys), *out = malloc(n_q * row * sizeof *out);
    uint16_t *q = malloc(n_q * LOGIT_DIM * sizeof *q);
    double difference = 0, norm = 0;
    must(keys && out && q, "memory");
    CUDA(cudaMemcpy(keys, s->keys, tokens * ROW * sizeof *keys, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(out, l->out, n_q * row * sizeof *out, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(q, l->q, n_q * LOGIT_DIM * sizeof *q, cudaMemcpyDeviceToHost));
    for (size_t h = 0; h < n_q; h++)
        for (size_t t = 0; t < tokens; t++) {
            double dot = 0;
            for (size_t d = 0; d < LOGIT_DIM; d++) {
                uint32_t bits = (uint32_t)q[h * LOGIT_DIM + d] << 16;
                float x;
                memcpy(&x, &bits, sizeof x);
                dot += (double)x * (double)keys[t * ROW + h / l->group * LOGIT_DIM + d];
            }
            dot /= sqrt(LOGIT_DIM);
            double e = (double)out[h * row + t] - dot;
            difference += e * e;
            norm += dot * dot;
        }
    free(keys);
    free(out);
    free(q);
    return sqrt(difference / norm);
}

static void logits_once(void *arg, uint32_t set) {
    (void)set;
    CUDA(logits_run(arg, stream));
}

/* All sequences have the source's pages, in turn. */
static void open_logits(struct logits *l, const struct source *s) {
    size_t bytes = SOURCE_PAGES * HEADS * s->blob;
    size_t times = (size_t)l->n_seqs * l->n_pages / SOURCE_PAGES;
    size_t n_rows = (size_t)l->n_seqs * HEADS * l->group;
    uint8_t *blobs;
    l->blob_bytes = (uint32_t)s->blob;
    CUDA(cudaMalloc((void **)&blobs, times * bytes));
    for (size_t i = 0; i < times; i++)
        CUDA(cudaMemcpy(blobs + i * bytes, s->blobs, bytes, cudaMemcpyDeviceToDevice));
    l->blobs = blobs;
    l->q = copy_data(n_rows * LOGIT_DIM);
    CUDA(cudaMalloc((void **)&l->out, n_rows * l->n_pages * LOGIT_TOKENS * sizeof(float)));
    CUDA(cudaMemset(l->out, 0xff, n_rows * l->n_pages * LOGIT_TOKENS * sizeof(float)));
    CUDA(cudaMalloc(&l->room, logits_room(l)));
    CUDA(logits_prepare(l, stream));
    CUDA(logits_run(l, stream));
    CUDA(cudaStreamSynchronize(stream));
}

static void close_logits(struct logits *l) {
    CUDA(cudaFree((void *)(uintptr_t)l->blobs));
    CUDA(cudaFree((void *)(uintptr_t)l->q));
    CUDA(cudaFree(l->out));
    CUDA(cudaFree(l->room));
}

void run_logits(uint32_t batch, uint32_t tokens, uint32_t group, logits_row_fn *print) {
    struct source s = make_source();
    struct logits l = {.n_seqs = batch,
                       .n_pages = tokens / LOGIT_TOKENS,
                       .n_heads = HEADS,
                       .group = group,
                       .seed = SEED};
    must(l.n_pages % SOURCE_PAGES == 0 && group >= 1 && group <= 8, "shape of logits");
    open_logits(&l, &s);
    struct logits_row r = {.batch = batch, .tokens = tokens, .group = group};
    uint64_t blobs = (uint64_t)batch * l.n_pages * HEADS;
    r.error = error_of(&l, &s);
    must(r.error < 2e-4, "logits within 2e-4");
    r.logit_bytes = 4.0 * batch * HEADS * group * tokens;
    r.key_bytes = (double)blobs * LOGIT_KEY_BYTES;
    r.ms = time_graph(logits_once, &l, 1, 20);
    close_logits(&l);
    r.read_ms = time_read(blobs, LOGIT_KEY_BYTES / 128 * 128, 1, 20);
    r.bf16_ms = time_read(blobs, LOGIT_TOKENS * LOGIT_DIM * 2, 1, 20);
    r.f32_ms = time_read(blobs, LOGIT_TOKENS * LOGIT_DIM * 4, 1, 10);
    print(&r);
    CUDA(cudaFree(s.blobs));
    CUDA(cudaFree(s.keys));
}
