/* Cases of public bug reports (docs/TESTING.md) that the other groups don't have: very long and
 * very many sequences, odd groups, calls on several streams. */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

/* B43: splits of a very long sequence. */
static void long_sequence(tq_format k, tq_format v) {
    enum { TOKENS = 131071, PIECE = 8000 };
    tq_cache_config config = {.n_kv_heads = 1, .n_q_heads = 4, .head_dim = 64, .max_pages = 2049};
    struct pair p;
    if (pair_create(&p, config, k, v)) {
        tq_seq seq = pair_seq(&p);
        for (uint32_t done = 0, n; done < TOKENS; done += n) {
            n = TOKENS - done < PIECE ? TOKENS - done : PIECE;
            pair_append(&p, seq, n, TQ_BF16, 0);
        }
        pair_check_attend(&p, seq, 1, 0, "131071 tokens");
        pair_check_attend(&p, seq, 2, TQ_ATTEND_CAUSAL | TQ_ATTEND_BATCH_INVARIANT,
                          "131071 tokens, fixed parts");
    }
    pair_destroy(&p);
}

/* B45: every query head reads its own kv head: values of a head are one number. */
static void odd_groups(void) {
    static const uint32_t groups[] = {1, 2, 3, 5, 6, 7, 9, 12, 15, 16, 24, 32, 64, 71};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        tq_cache_config config = {
            .n_kv_heads = 3, .n_q_heads = 3 * groups[i], .head_dim = i % 2 ? 128 : 64};
        struct pair p;
        if (pair_create(&p, config, TQ_FORMAT_LM4, i % 3 ? TQ_FORMAT_LM4 : TQ_FORMAT_LM3)) {
            tq_seq seq = pair_seq(&p);
            pair_append(&p, seq, 200, TQ_BF16, 0);
            pair_check_attend(&p, seq, 1, 0, "a group of odd size");
            pair_check_attend(&p, seq, 5, TQ_ATTEND_CAUSAL, "a group of odd size");
        }
        pair_destroy(&p);
    }
}

/* B47: more sequences than a grid dimension counts. They share some pages, so that their rows must
 * repeat to the bit. */
static void many_sequences(void) {
    enum { SEQS = 70000, PAGES = 16, DIM = 64 };
    static int32_t table[SEQS], lengths[SEQS], starts[SEQS + 1];
    tq_cache_config config = {.n_kv_heads = 1, .head_dim = DIM, .max_pages = 1};
    struct pair p;
    struct engine e;
    size_t size = 0, wrong = 0;
    if (!pair_create(&p, config, TQ_FORMAT_LM4, TQ_FORMAT_LM4) ||
        !engine_open(&e, &p, PAGES, 1, 64))
        return;
    struct engine_step s = {.n_seqs = PAGES, .params = {.struct_size = sizeof s.params}};
    for (int i = 0; i < PAGES; i++)
        s.n_append[i] = s.n_query[i] = 1;
    engine_step(&e, &s, 0, 0, "one token for each of some sequences");
    for (int i = 0; i < SEQS; i++) {
        table[i] = e.host_table[i % PAGES];
        lengths[i] = 1;
        starts[i + 1] = i + 1;
    }
    tq_paged_pool pool = engine_pool(&e, 1, TQ_PAGED_CHECKED);
    tq_paged_seqs seqs = {.struct_size = sizeof seqs,
                          .n_seqs = SEQS,
                          .block_table = gpu_upload(table, sizeof table),
                          .table_stride = 1,
                          .seq_lens = gpu_upload(lengths, sizeof lengths),
                          .query_starts = gpu_upload(starts, sizeof starts),
                          .n_queries = SEQS,
                          .max_seq_len = 64};
    void *rows = gpu_rows(TQ_BF16, (size_t)SEQS * DIM, DIM);
    tq_rows_in q = {.data = gpu_upload(rows, (size_t)SEQS * DIM * 2), .dtype = TQ_BF16};
    tq_rows_out out = {.data = gpu_buffer((size_t)SEQS * DIM * 4), .dtype = TQ_F32};
    float *got = malloc((size_t)SEQS * DIM * 4);
    GPU_OK(tq_paged_workspace(p.gpu, SEQS, SEQS, 64, &size));
    void *work = gpu_buffer(size);
    GPU_OK(tq_paged_attend(p.gpu, 0, &pool, &seqs, NULL, &q, &out, NULL, work, size, NULL));
    gpu_download(got, out.data, (size_t)SEQS * DIM * 4);
    for (int i = 0; i < SEQS; i++) /* one token: its value, whatever the query */
        wrong += gpu_error(got + (size_t)i * DIM, e.host_out + i % PAGES * DIM, DIM) > p.tolerance;
    gpu_expect(wrong == 0, "%zu of %d sequences are wrong", wrong, SEQS);
    void *device[] = {(void *)(uintptr_t)seqs.block_table,
                      (void *)(uintptr_t)seqs.seq_lens,
                      (void *)(uintptr_t)seqs.query_starts,
                      (void *)(uintptr_t)q.data,
                      out.data,
                      work};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        gpu_release(device[i]);
    free(rows);
    free(got);
    engine_close(&e);
    pair_destroy(&p);
}

/* B79: appends on one stream, attention on another, ordered by events. */
static void two_streams(void) {
    enum { ROUNDS = 20, TOKENS = 70, HEADS = 2, DIM = 128, ROW = HEADS * DIM };
    tq_cache_config config = {.n_kv_heads = HEADS, .head_dim = DIM};
    struct pair p;
    cudaStream_t streams[2];
    cudaEvent_t event;
    static float host[ROUNDS * ROW], got[ROUNDS * ROW];
    if (!pair_create(&p, config, TQ_FORMAT_LM4, TQ_FORMAT_LM4))
        return;
    GPU_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int i = 0; i < 2; i++)
        GPU_CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    uint16_t *rows = gpu_rows(TQ_BF16, (size_t)ROUNDS * TOKENS * ROW, DIM);
    uint16_t *device = gpu_upload(rows, (size_t)ROUNDS * TOKENS * ROW * 2);
    float *out = gpu_buffer(sizeof got);
    tq_seq seq = pair_seq(&p);
    for (int i = 0; i < ROUNDS; i++) {
        tq_rows_in in = {.data = rows + (size_t)i * TOKENS * ROW, .dtype = TQ_BF16};
        tq_rows_out to = {.data = host + i * ROW, .dtype = TQ_F32};
        GPU_OK(tq_append(p.cpu, seq, 0, TOKENS, &in, &in, NULL));
        GPU_OK(tq_attend(p.cpu, seq, 0, 1, NULL, &in, &to, NULL, NULL));
        in.data = device + (size_t)i * TOKENS * ROW;
        to.data = out + i * ROW;
        GPU_OK(tq_append(p.gpu, seq, 0, TOKENS, &in, &in, streams[0]));
        GPU_CUDA(cudaEventRecord(event, streams[0]));
        GPU_CUDA(cudaStreamWaitEvent(streams[1], event, 0));
        GPU_OK(tq_attend(p.gpu, seq, 0, 1, NULL, &in, &to, NULL, streams[1]));
        GPU_CUDA(cudaEventRecord(event, streams[1]));
        GPU_CUDA(cudaStreamWaitEvent(streams[0], event, 0));
    }
    gpu_download(got, out, sizeof got);
    double error = gpu_error(got, host, ROUNDS * ROW);
    gpu_expect(error <= p.tolerance, "calls on two streams differ by %.2e", error);
    pair_check_pages(&p, seq, "calls on two streams");
    gpu_release(device);
    gpu_release(out);
    free(rows);
    pair_destroy(&p);
    GPU_CUDA(cudaEventDestroy(event));
    for (int i = 0; i < 2; i++)
        GPU_CUDA(cudaStreamDestroy(streams[i]));
}

void check_cases(void) {
    long_sequence(TQ_FORMAT_LM4, TQ_FORMAT_LM4);
    long_sequence(TQ_FORMAT_FP8, TQ_FORMAT_FP8);
    odd_groups();
    many_sequences();
    two_streams();
}
