#include "batches.h"

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

uint32_t step_rows(const uint32_t *counts, uint32_t n) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++)
        rows += counts[i];
    return rows;
}

/* ---- open and close ------------------------------------------------------------------------ */

int batches_open(struct batches *b, struct pair *p, uint32_t max_seqs, uint32_t max_tokens) {
    const tq_cache_config *c = &p->config;
    size_t n = max_tokens;
    memset(b, 0, sizeof *b);
    b->pair = p;
    b->max_seqs = max_seqs;
    b->max_tokens = max_tokens;
    GPU_OK(tq_batch_create(p->cpu, max_seqs, max_tokens, &b->cpu));
    GPU_OK(tq_batch_create(p->gpu, max_seqs, max_tokens, &b->gpu));
    b->k = gpu_buffer(n * c->n_kv_heads * c->head_dim * 2);
    b->v = gpu_buffer(n * c->n_kv_heads * c->v_head_dim * 2);
    b->q = gpu_buffer(n * c->n_q_heads * c->head_dim * 2);
    b->out = gpu_buffer(n * c->n_q_heads * c->v_head_dim * 4);
    b->lse = gpu_buffer(n * c->n_q_heads * 4);
    b->host_out = calloc(n * c->n_q_heads * c->v_head_dim, 4);
    b->host_lse = calloc(n * c->n_q_heads, 4);
    return b->cpu && b->gpu;
}

void batches_close(struct batches *b) {
    GPU_CUDA(cudaDeviceSynchronize());
    if (b->graph)
        GPU_CUDA(cudaGraphExecDestroy(b->graph));
    tq_batch_destroy(b->cpu);
    tq_batch_destroy(b->gpu);
    gpu_release(b->k);
    gpu_release(b->v);
    gpu_release(b->q);
    gpu_release(b->out);
    gpu_release(b->lse);
    free(b->host_out);
    free(b->host_lse);
}

/* ---- a step -------------------------------------------------------------------------------- */

static void make_rows(struct batches *b, const struct step *s) {
    const tq_cache_config *c = &b->pair->config;
    size_t new = step_rows(s->n_append, s->n), queries = step_rows(s->n_query, s->n);
    size_t outs = queries * c->n_q_heads;
    b->host_k = gpu_fill_rows(b->k, new * c->n_kv_heads * c->head_dim, c->head_dim);
    b->host_v = gpu_fill_rows(b->v, new * c->n_kv_heads * c->v_head_dim, c->v_head_dim);
    b->host_q = gpu_fill_rows(b->q, outs * c->head_dim, c->head_dim);
    GPU_CUDA(cudaMemset(b->out, 0xff, outs * c->v_head_dim * 4));
    GPU_CUDA(cudaMemset(b->lse, 0xff, outs * 4));
    GPU_CUDA(cudaDeviceSynchronize());
}

static void run(struct batches *b, tq_batch *batch, int on_gpu) {
    tq_attend_params params = {.struct_size = sizeof params, .flags = b->flags};
    tq_rows_in k = {.data = on_gpu ? b->k : b->host_k, .dtype = TQ_BF16};
    tq_rows_in v = {.data = on_gpu ? b->v : b->host_v, .dtype = TQ_BF16};
    tq_rows_in q = {.data = on_gpu ? b->q : b->host_q, .dtype = TQ_BF16};
    tq_rows_out out = {.data = on_gpu ? b->out : b->host_out, .dtype = TQ_F32};
    tq_stream stream = on_gpu ? b->pair->stream : NULL;
    GPU_OK(tq_batch_append(batch, 0, &k, &v, stream));
    GPU_OK(tq_batch_attend(batch, 0, &params, &q, &out, on_gpu ? b->lse : b->host_lse, stream));
}

static void capture_run(struct batches *b) {
    cudaStream_t stream = b->pair->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GPU_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run(b, b->gpu, 1);
    GPU_CUDA(cudaStreamEndCapture(stream, &graph));
    GPU_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    GPU_CUDA(cudaGraphDestroy(graph));
    b->graph = exec;
}

static uint32_t most_of(const uint32_t *counts, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = counts[i] > most ? counts[i] : most;
    return most;
}

static void compare(struct batches *b, const struct step *s, const char *what) {
    const uint32_t rows = step_rows(s->n_query, s->n);
    const double tolerance = pair_tolerance(b->pair, most_of(s->n_query, s->n));
    const tq_cache_config *c = &b->pair->config;
    size_t n_lse = (size_t)rows * c->n_q_heads, n_out = n_lse * c->v_head_dim;
    float *out = malloc(n_out * 4 + 4), *lse = malloc(n_lse * 4 + 4);
    GPU_CUDA(cudaStreamSynchronize(b->pair->stream));
    gpu_download(out, b->out, n_out * 4);
    gpu_download(lse, b->lse, n_lse * 4);
    double out_error = gpu_error(out, b->host_out, n_out);
    double lse_error = gpu_error(lse, b->host_lse, n_lse);
    gpu_expect(out_error <= tolerance && lse_error <= tolerance,
               "%s: attention differs by %.2e, lse by %.2e (at most %.0e)", what, out_error,
               lse_error, tolerance);
    free(out);
    free(lse);
}

static void commit(struct batches *b, const struct step *s, uint32_t drop) {
    uint32_t keep[BATCH_SEQS];
    for (uint32_t i = 0; i < s->n; i++)
        keep[i] = s->n_append[i] > drop ? s->n_append[i] - drop : 0;
    GPU_OK(tq_batch_commit(b->cpu, drop ? keep : NULL));
    GPU_OK(tq_batch_commit(b->gpu, drop ? keep : NULL));
}

void batches_step(struct batches *b, const struct step *s, uint32_t drop, int capture,
                  const char *what) {
    tq_batch_desc desc = {.struct_size = sizeof desc,
                          .n_seqs = s->n,
                          .seqs = s->seqs,
                          .n_append = s->n_append,
                          .n_query = s->n_query};
    GPU_OK(tq_batch_plan(b->cpu, &desc, NULL));
    GPU_OK(tq_batch_plan(b->gpu, &desc, b->pair->stream));
    make_rows(b, s);
    run(b, b->cpu, 0);
    if (capture)
        capture_run(b);
    if (b->graph)
        GPU_CUDA(cudaGraphLaunch(b->graph, b->pair->stream));
    else
        run(b, b->gpu, 1);
    compare(b, s, what);
    commit(b, s, drop);
    free(b->host_k);
    free(b->host_v);
    free(b->host_q);
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* n sequences; the first steps append what makes them ragged, pages interleaved. */
void batches_start(struct batches *b, struct step *s, uint32_t n, const uint32_t *lengths) {
    uint32_t left[BATCH_SEQS];
    s->n = n;
    for (uint32_t i = 0; i < n; i++) {
        s->seqs[i] = pair_seq(b->pair);
        left[i] = lengths[i];
    }
    for (int busy = 1; busy;) {
        uint32_t room = b->max_tokens;
        busy = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t piece = 1 + gpu_random() % 150;
            piece = piece < left[i] ? piece : left[i];
            piece = piece < room ? piece : room;
            s->n_append[i] = piece;
            s->n_query[i] = 0;
            left[i] -= piece;
            room -= piece;
            busy |= left[i] > 0;
        }
        batches_step(b, s, 0, 0, "filling");
    }
}

/* Another order, other counts. */
void step_shuffle(struct step *s, uint32_t max_append, uint32_t max_query) {
    for (uint32_t i = s->n; i > 1; i--) {
        uint32_t j = gpu_random() % i;
        tq_seq t = s->seqs[i - 1];
        s->seqs[i - 1] = s->seqs[j];
        s->seqs[j] = t;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        s->n_append[i] = gpu_random() % (max_append + 1);
        s->n_query[i] = gpu_random() % (max_query + 1);
    }
}

void step_decode(struct step *s) {
    for (uint32_t i = 0; i < s->n; i++)
        s->n_append[i] = s->n_query[i] = 1;
}

void batches_check_pages(struct batches *b, const struct step *s, const char *what) {
    for (uint32_t i = 0; i < s->n; i++)
        pair_check_pages(b->pair, s->seqs[i], what);
}
