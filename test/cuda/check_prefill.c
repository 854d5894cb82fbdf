/* Many query rows of a sequence against the CPU's reference kernels: the tiles of the prefill
 * kernels, their borders, and steps that mix them with rows that go the way of decode. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "batches.h"

static const tq_layer_formats variants[] = {
    {TQ_FORMAT_LM4, TQ_FORMAT_LM4},     {TQ_FORMAT_LM3, TQ_FORMAT_LM3},
    {TQ_FORMAT_LM3, TQ_FORMAT_LM4},     {TQ_FORMAT_FP8, TQ_FORMAT_FP8},
    {TQ_FORMAT_INT8, TQ_FORMAT_INT8},   {TQ_FORMAT_FP8, TQ_FORMAT_LM4},
    {TQ_FORMAT_BF16, TQ_FORMAT_BF16},   {TQ_FORMAT_F16, TQ_FORMAT_F16},
    {TQ_FORMAT_LM3, TQ_FORMAT_LM2},     {TQ_FORMAT_LM2, TQ_FORMAT_LM2},
    {TQ_FORMAT_POLAR, TQ_FORMAT_LM4},   {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4},
    {TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4}, {TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3}};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

/* A pair with a sequence of some tokens. */
static int open_pair(struct pair *p, tq_layer_formats f, uint32_t group, uint32_t dim,
                     uint32_t tokens, tq_seq *seq) {
    tq_cache_config config = {
        .n_kv_heads = 2, .n_q_heads = 2 * group, .head_dim = dim, .max_pages = tokens / 64 + 300};
    if (!pair_create(p, config, f.k_format, f.v_format))
        return 0;
    *seq = pair_seq(p);
    if (tokens)
        pair_append(p, *seq, tokens, TQ_BF16, 0);
    return 1;
}

/* Rows that fill tiles exactly, spill into another, end inside a warp's; more queries than tokens;
 * borders of causal rows at every place of a page. */
static void one_shape(tq_layer_formats f, uint32_t group, uint32_t dim, uint32_t tokens) {
    static const uint32_t rows[] = {129, 257, 100, 128, 200, 600};
    const size_t n_rows = tokens == 700 ? sizeof rows / sizeof *rows : 2;
    struct pair p;
    tq_seq seq;
    char what[160];
    if (open_pair(&p, f, group, dim, tokens, &seq)) {
        for (size_t i = 0; i < n_rows; i++) {
            uint32_t n = (rows[i] + group - 1) / group;
            snprintf(what, sizeof what,
                     "prefill, K %u V %u, group %u dim %u, %u tokens, %u queries", f.k_format,
                     f.v_format, group, dim, tokens, n);
            pair_check_attend(&p, seq, n, i % 3 == 1 ? 0 : TQ_ATTEND_CAUSAL, what);
        }
    }
    pair_destroy(&p);
}

/* Means, sink logits, an empty sequence. */
static void constants(tq_layer_formats f, uint32_t dim) {
    struct pair p;
    tq_seq seq;
    float mean[2 * 256], sinks[16];
    for (int i = 0; i < 2 * 256; i++)
        mean[i] = gpu_gauss();
    for (int i = 0; i < 16; i++)
        sinks[i] = 3 * gpu_gauss();
    if (open_pair(&p, f, 8, dim, 0, &seq)) {
        GPU_OK(tq_cache_set_means(p.cpu, 0, mean, mean));
        GPU_OK(tq_cache_set_means(p.gpu, 0, mean, mean));
        pair_check_attend(&p, seq, 20, TQ_ATTEND_CAUSAL, "prefill of an empty sequence");
        pair_append(&p, seq, 333, TQ_F32, 0);
        pair_check_attend(&p, seq, 70, TQ_ATTEND_CAUSAL, "prefill with means");
        GPU_OK(tq_cache_set_sink_logits(p.cpu, 0, sinks));
        GPU_OK(tq_cache_set_sink_logits(p.gpu, 0, sinks));
        pair_check_attend(&p, seq, 70, 0, "prefill with means and sinks");
        tq_attend_params params = {
            .struct_size = sizeof params, .flags = TQ_ATTEND_CAUSAL, .scale = -0.05f};
        pair_check_params(&p, seq, 33, &params, "prefill with a scale below zero");
        params.window = 100;
        pair_check_params(&p, seq, 33, &params, "prefill with a window");
    }
    pair_destroy(&p);
}

/* Windows that end inside a page, at its border, beyond the sequence, of one token; capped scores,
 * which the mean's share joins before the cap. */
static void windows_and_caps(tq_layer_formats f, uint32_t group, uint32_t dim) {
    static const uint32_t windows[] = {0, 1, 64, 100, 333, 5000};
    struct pair p;
    tq_seq seq;
    char what[160];
    float mean[2 * 256];
    for (int i = 0; i < 2 * 256; i++)
        mean[i] = gpu_gauss();
    if (open_pair(&p, f, group, dim, 0, &seq)) {
        GPU_OK(tq_cache_set_means(p.cpu, 0, mean, mean));
        GPU_OK(tq_cache_set_means(p.gpu, 0, mean, mean));
        pair_append(&p, seq, 450, TQ_BF16, 0);
        for (uint32_t i = 0; i < 12; i++) {
            tq_attend_params params = {.struct_size = sizeof params,
                                       .flags = i % 5 == 4 ? 0 : TQ_ATTEND_CAUSAL,
                                       .window = windows[i / 2],
                                       .logit_softcap = i % 2 ? 2.5f : 0};
            uint32_t n = (i % 3 == 2 ? 400 : 129 + 16 * i) / group + 1;
            snprintf(what, sizeof what,
                     "prefill, K %u V %u, group %u dim %u, %u queries, window %u softcap %g",
                     f.k_format, f.v_format, group, dim, n, (unsigned)params.window,
                     (double)params.logit_softcap);
            pair_check_params(&p, seq, n, &params, what);
        }
    }
    pair_destroy(&p);
}

/* Chunks of prompts of several sequences beside decode rows; a graph that meets both. */
static void mixed_steps(tq_layer_formats f, uint32_t dim, int graph) {
    static const uint32_t counts[][6] = {
        {40, 1, 90, 0, 1, 8}, {1, 1, 1, 1, 1, 1}, {0, 0, 200, 0, 0, 0}, {7, 8, 9, 16, 17, 1}};
    struct pair p;
    struct batches b;
    struct step s = {.n = 6};
    tq_seq seq;
    char what[96];
    if (open_pair(&p, f, 8, dim, 1000, &seq) && batches_open(&b, &p, 6, 256)) {
        cudaStream_t stream;
        GPU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        p.stream = stream;
        snprintf(what, sizeof what, "prefill beside decode, K %u V %u dim %u graph %d", f.k_format,
                 f.v_format, dim, graph);
        s.seqs[0] = seq;
        for (uint32_t i = 1; i < 6; i++)
            s.seqs[i] = pair_seq(&p);
        b.flags = TQ_ATTEND_CAUSAL;
        for (int round = 0; round < 8; round++) {
            memcpy(s.n_append, counts[round % 4], sizeof counts[0]);
            memcpy(s.n_query, counts[(round + round / 4) % 4], sizeof counts[0]);
            batches_step(&b, &s, round & 1, graph && round == 0, what);
        }
        batches_close(&b);
        GPU_CUDA(cudaStreamDestroy(stream));
    }
    pair_destroy(&p);
}

/* A tile and a row, ends of windows, caps, parts of a tile; every format and head dim. */
void check_prefill_sanitize(void) {
    static const uint32_t dims[] = {128, 64, 256};
    for (int v = 0; v < N_VARIANTS; v++)
        for (int i = 0; i < (v < 8 ? 3 : 2); i++) {
            struct pair p;
            tq_seq seq;
            tq_attend_params params = {.struct_size = sizeof params,
                                       .flags = TQ_ATTEND_CAUSAL,
                                       .window = i == 1 ? 70 : 0,
                                       .logit_softcap = v % 2 ? 3 : 0};
            if (open_pair(&p, variants[v], 8, dims[i], 150, &seq))
                pair_check_params(&p, seq, 17, &params, "sanitize");
            pair_destroy(&p);
        }
    mixed_steps(variants[0], 128, 0);
}

void check_prefill(void) {
    static const uint32_t groups[] = {1, 3, 5, 16};
    for (int v = 0; v < N_VARIANTS; v++) {
        one_shape(variants[v], 8, 128, 700);
        one_shape(variants[v], 8, 128, 64);
        one_shape(variants[v], groups[v % 4], 128, 333);
        one_shape(variants[v], 4, 64, 300);
        one_shape(variants[v], 4, 256, 300);
        constants(variants[v], v % 2 ? 64 : 128);
        windows_and_caps(variants[v], v % 2 ? 8 : 5, v % 3 == 2 ? 64 : 128);
        mixed_steps(variants[v], 128, v % 2);
    }
    mixed_steps(variants[0], 128, 1);
    one_shape(variants[0], 7, 128, 1500);
    one_shape(variants[0], 8, 128, 10);
}
