/* Sinks and a recent window in 16 bits beside their codes, against the CPU: code bytes, rows and
 * attention of single calls, steps and graphs; forks, cuts, types, parameters, memory. */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batches.h"

enum { HEADS = 2 };

/* A cache to keep tokens in. */
struct shape {
    tq_format k, v;
    uint32_t dim, v_dim, group, page_tokens, sinks, recent;
};

static const struct shape shapes[] = {{TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 0, 8, 64, 16, 40},
                                      {TQ_FORMAT_LM3, TQ_FORMAT_LM3, 128, 0, 4, 64, 0, 130},
                                      {TQ_FORMAT_LM3, TQ_FORMAT_LM4, 64, 0, 1, 32, 32, 0},
                                      {TQ_FORMAT_LM3, TQ_FORMAT_LM2, 96, 0, 7, 16, 16, 1},
                                      {TQ_FORMAT_INT8, TQ_FORMAT_INT8, 256, 0, 8, 64, 4, 64},
                                      {TQ_FORMAT_FP8, TQ_FORMAT_FP8, 128, 0, 8, 64, 16, 40},
                                      {TQ_FORMAT_FP8, TQ_FORMAT_LM4, 128, 0, 16, 128, 64, 17},
                                      {TQ_FORMAT_LM4, TQ_FORMAT_POLAR, 80, 112, 3, 32, 16, 40},
                                      {TQ_FORMAT_BF16, TQ_FORMAT_LM4, 192, 64, 2, 64, 16, 40},
                                      {TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 128, 0, 8, 64, 16, 40},
                                      {TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3, 128, 0, 20, 64, 16, 300},
                                      {TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 0, 16, 64, 16, 100}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static int open_pair(struct pair *p, const struct shape *s, char *what, size_t size) {
    tq_cache_config config = {.n_kv_heads = HEADS,
                              .n_q_heads = HEADS * s->group,
                              .head_dim = s->dim,
                              .v_head_dim = s->v_dim,
                              .page_tokens = s->page_tokens,
                              .sink_tokens = s->sinks,
                              .recent_tokens = s->recent,
                              .max_seqs = 24,
                              .max_pages = 16000 / s->page_tokens};
    (void)snprintf(what, size, "kept, K %u V %u dim %u group %u page %u, %u and %u tokens", s->k,
                   s->v, s->dim, s->group, s->page_tokens, s->sinks, s->recent);
    return pair_create(p, config, s->k, s->v);
}

static void check_all(struct pair *p, tq_seq seq, const char *what) {
    pair_check_pages(p, seq, what);
    pair_check_rows(p, seq, what);
    pair_check_attend(p, seq, 1, 0, what);
    pair_check_attend(p, seq, 3, TQ_ATTEND_CAUSAL, what);
}

static void check_memory(struct pair *p, const char *what) {
    tq_cache_stats a = {.struct_size = sizeof a}, b = a;
    GPU_OK(tq_cache_get_stats(p->cpu, &a));
    GPU_OK(tq_cache_get_stats(p->gpu, &b));
    gpu_expect(a.protected_bytes == b.protected_bytes && a.nan_values == b.nan_values &&
                   a.inf_values == b.inf_values,
               "%s: %llu bytes of kept rows, %llu NaN, %llu infinities, not %llu, %llu, %llu", what,
               (unsigned long long)b.protected_bytes, (unsigned long long)b.nan_values,
               (unsigned long long)b.inf_values, (unsigned long long)a.protected_bytes,
               (unsigned long long)a.nan_values, (unsigned long long)a.inf_values);
}

/* ---- single calls -------------------------------------------------------------------------- */

static tq_seq fork_of(struct pair *p, tq_seq seq, uint64_t n) {
    tq_seq a = 0, b = 0;
    GPU_OK(tq_seq_fork(p->cpu, seq, n, &a));
    GPU_OK(tq_seq_fork(p->gpu, seq, n, &b));
    gpu_expect(a == b, "ids of forks differ");
    return b;
}

static void cut(struct pair *p, tq_seq seq, uint64_t n) {
    GPU_OK(tq_seq_truncate(p->cpu, seq, n));
    GPU_OK(tq_seq_truncate(p->gpu, seq, n));
}

/* Appends of every size and type; later types are rounded to that of the first. */
static void life(const struct shape *s, tq_dtype first) {
    static const uint32_t sizes[] = {1, 14, 2, 40, 1, 1, 64, 300, 3, 129};
    static const tq_dtype types[] = {TQ_BF16, TQ_F16, TQ_F32};
    struct pair p;
    char what[120];
    if (open_pair(&p, s, what, sizeof what)) {
        tq_seq seq = pair_seq(&p);
        check_all(&p, seq, what);
        pair_append(&p, seq, sizes[0], first, 0);
        for (size_t i = 1; i < sizeof sizes / sizeof *sizes; i++) {
            pair_append(&p, seq, sizes[i], i % 4 ? first : types[i / 4 % 3], i % 3 == 2);
            check_all(&p, seq, what);
        }
        check_memory(&p, what);
        tq_seq fork = fork_of(&p, seq, UINT64_MAX), part = fork_of(&p, seq, 201);
        pair_append(&p, fork, 5, first, 0);
        pair_append(&p, seq, 7, first, 0);
        pair_append(&p, part, 33, first, 0);
        check_all(&p, fork, what);
        check_all(&p, seq, what);
        check_all(&p, part, what);
        cut(&p, seq, 550);
        check_all(&p, seq, what);
        pair_append(&p, seq, 2, first, 0);
        check_all(&p, seq, what);
        cut(&p, seq, 9);
        pair_append(&p, seq, 20, first, 0);
        check_all(&p, seq, what);
        check_memory(&p, what);
    }
    pair_destroy(&p);
}

/* Windows of attention, softcap, sink logits, means, scales, row types, in every combination that
 * changes the path. */
static void set_constants(struct pair *p) {
    float mean[HEADS * 256], logits[HEADS * 20];
    for (int i = 0; i < HEADS * 256; i++)
        mean[i] = gpu_gauss();
    for (uint32_t i = 0; i < p->config.n_q_heads; i++)
        logits[i] = 3 * gpu_gauss();
    logits[0] = -INFINITY;
    GPU_OK(tq_cache_set_means(p->cpu, 0, mean, mean));
    GPU_OK(tq_cache_set_means(p->gpu, 0, mean, mean));
    GPU_OK(tq_cache_set_sink_logits(p->cpu, 0, logits));
    GPU_OK(tq_cache_set_sink_logits(p->gpu, 0, logits));
}

static void parameters(const struct shape *s) {
    static const uint32_t windows[] = {0, 1, 20, 41, 65, 200, 399, 400, 5000};
    static const float caps[] = {0, 2, 30}, scales[] = {0, -0.07f, 0.2f};
    static const uint32_t queries[] = {1, 4, 9, 30};
    static const tq_dtype types[] = {TQ_BF16, TQ_F32, TQ_F16};
    struct pair p;
    char name[120], what[200];
    if (open_pair(&p, s, name, sizeof name)) {
        set_constants(&p);
        tq_seq seq = pair_seq(&p);
        pair_check_attend(&p, seq, 2, TQ_ATTEND_CAUSAL, "kept, empty with sinks");
        pair_append(&p, seq, 400, TQ_BF16, 0);
        for (size_t i = 0; i < 27; i++) {
            uint32_t n = queries[i % 4];
            p.q_dtype = types[i / 2 % 3];
            tq_attend_params params = {.struct_size = sizeof params,
                                       .flags = n > 1 ? TQ_ATTEND_CAUSAL : 0,
                                       .scale = scales[i / 3 % 3],
                                       .logit_softcap = caps[i % 3],
                                       .window = windows[i / 3]};
            (void)snprintf(what, sizeof what, "%s: %u queries, window %u, cap %g, scale %g", name,
                           n, params.window, (double)params.logit_softcap, (double)params.scale);
            pair_check_params(&p, seq, n, &params, what);
        }
    }
    pair_destroy(&p);
}

/* More pages than travel as a parameter. */
static void long_window(void) {
    static const struct shape s = {TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 0, 8, 64, 64, 1700};
    struct pair p;
    char what[120];
    if (open_pair(&p, &s, what, sizeof what)) {
        tq_seq seq = pair_seq(&p);
        pair_append(&p, seq, 1000, TQ_BF16, 0);
        check_all(&p, seq, what);
        pair_append(&p, seq, 1500, TQ_BF16, 0);
        check_all(&p, seq, what);
        cut(&p, seq, 1100);
        check_all(&p, seq, what);
    }
    pair_destroy(&p);
}

/* A query that is not finite shows in its own row, and only there. */
static void bad_query(const struct shape *s) {
    struct pair p;
    char what[120];
    if (open_pair(&p, s, what, sizeof what)) {
        const uint32_t rows = p.config.n_q_heads, dim = p.config.head_dim;
        const size_t bytes = (size_t)rows * p.config.v_head_dim * 4;
        float *q = gpu_rows(TQ_F32, (size_t)rows * dim, dim), *out = gpu_buffer(bytes);
        float *got = malloc(bytes);
        tq_seq seq = pair_seq(&p);
        pair_append(&p, seq, 30, TQ_BF16, 0);
        q[1 * dim + 3] = NAN;
        q[(rows - 1) * (size_t)dim] = INFINITY;
        void *q_gpu = gpu_upload(q, (size_t)rows * dim * 4);
        tq_rows_in in = {.data = q_gpu};
        tq_rows_out to = {.data = out};
        GPU_OK(tq_attend(p.gpu, seq, 0, 1, NULL, &in, &to, NULL, NULL));
        gpu_download(got, out, bytes);
        int ok = 1;
        for (size_t i = 0; i < bytes / 4; i++) {
            size_t row = i / p.config.v_head_dim;
            ok &= (isfinite(got[i]) != 0) == (row != 1 && row != rows - 1);
        }
        gpu_expect(ok, "%s: rows of queries that are not finite", what);
        gpu_release(q_gpu);
        gpu_release(out);
        free(q);
        free(got);
    }
    pair_destroy(&p);
}

/* ---- steps --------------------------------------------------------------------------------- */

static const uint32_t lengths[] = {0, 1, 63, 64, 15, 130, 400, 31, 0, 900, 2, 200};

static void steps(const struct shape *s, uint32_t max_tokens) {
    struct pair p;
    struct batches b;
    struct step step;
    char what[120];
    if (open_pair(&p, s, what, sizeof what) && batches_open(&b, &p, 16, max_tokens)) {
        set_constants(&p);
        uint32_t n = max_tokens < 12 ? max_tokens : 12;
        batches_start(&b, &step, n, lengths + 12 - n);
        step_decode(&step);
        batches_step(&b, &step, 0, 0, what);
        b.flags = TQ_ATTEND_CAUSAL;
        for (uint32_t most = 1; most <= 8 && most * n <= max_tokens; most *= 2) {
            step_shuffle(&step, most, most);
            batches_step(&b, &step, most / 2, 0, what); /* rejects half of what came */
        }
        if (max_tokens > 200) {
            step_shuffle(&step, 1, 1);
            step.n_append[0] = step.n_query[0] = 170; /* exact until the step ends */
            batches_step(&b, &step, 0, 0, what);
        }
        b.flags = TQ_ATTEND_BATCH_INVARIANT;
        step_decode(&step);
        batches_step(&b, &step, 0, 0, what);
        batches_check_pages(&b, &step, what);
        for (uint32_t i = 0; i < step.n; i++)
            check_all(&p, step.seqs[i], what);
        check_memory(&p, what);
    }
    batches_close(&b);
    pair_destroy(&p);
}

/* Captured once; replayed while windows move on and the pool of kept rows grows. */
static void replayed(const struct shape *s, uint32_t max_tokens) {
    struct pair p;
    struct batches b;
    struct step step;
    cudaStream_t stream;
    char what[120];
    GPU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (open_pair(&p, s, what, sizeof what) && batches_open(&b, &p, 16, max_tokens)) {
        p.stream = stream;
        uint32_t n = max_tokens < 12 ? max_tokens : 12;
        batches_start(&b, &step, n, lengths + 12 - n);
        step_decode(&step);
        b.flags = TQ_ATTEND_CAUSAL;
        batches_step(&b, &step, 0, 1, what);
        for (int i = 0; i < 24; i++)
            batches_step(&b, &step, i % 5 == 4, 0, what);
        step_shuffle(&step, max_tokens > 64 ? 5 : 1, max_tokens > 64 ? 7 : 1);
        batches_step(&b, &step, 0, 0, what);
        step.n = n / 2;
        batches_step(&b, &step, 1, 0, what);
        step.n = 0;
        batches_step(&b, &step, 0, 0, what);
        step.n = n;
        if (max_tokens > 64)
            step.n_append[3] = step.n_query[3] = 300;
        batches_step(&b, &step, 0, 0, what);
        for (uint32_t i = 0; i < step.n; i++)
            check_all(&p, step.seqs[i], what);
        check_memory(&p, what);
    }
    batches_close(&b);
    pair_destroy(&p);
    GPU_CUDA(cudaStreamDestroy(stream));
}

/* ---- create -------------------------------------------------------------------------------- */

/* What estimate says of it is what the cache takes. */
static void footprint(const struct shape *s) {
    struct pair p;
    char what[120];
    if (open_pair(&p, s, what, sizeof what)) {
        tq_footprint f = {.struct_size = sizeof f};
        tq_cache_stats stats = {.struct_size = sizeof stats};
        tq_cache_config c = p.config;
        tq_cache *cache = NULL;
        c.layer_formats = &p.formats;
        GPU_OK(tq_cache_estimate(p.gpu_context, &c, &f));
        GPU_OK(tq_cache_create(p.gpu_context, &c, &cache));
        GPU_OK(tq_cache_get_stats(cache, &stats));
        gpu_expect(f.device_bytes == stats.device_bytes && f.host_bytes == stats.host_bytes,
                   "%s: estimate %llu + %llu bytes, the cache has %llu + %llu", what,
                   (unsigned long long)f.host_bytes, (unsigned long long)f.device_bytes,
                   (unsigned long long)stats.host_bytes, (unsigned long long)stats.device_bytes);
        tq_cache_destroy(cache);
    }
    pair_destroy(&p);
}

void check_kept(void) {
    static const tq_dtype types[] = {TQ_BF16, TQ_F16, TQ_F32};
    for (int i = 0; i < N_SHAPES; i++) {
        life(&shapes[i], types[i % 3]);
        parameters(&shapes[i]);
        bad_query(&shapes[i]);
        footprint(&shapes[i]);
        steps(&shapes[i], i % 3 ? 400 : 100);
    }
    long_window();
    life(&shapes[0], TQ_F16);
    life(&shapes[0], TQ_F32);
    steps(&shapes[0], 400);
    steps(&shapes[0], 3);
    steps(&shapes[5], 12);
    replayed(&shapes[0], 3);
    replayed(&shapes[0], 12);
    replayed(&shapes[0], 400);
    replayed(&shapes[5], 400);
    replayed(&shapes[7], 400);
    replayed(&shapes[3], 400);
}

void check_kept_sanitize(void) {
    for (int i = 0; i < N_SHAPES; i += 5) {
        bad_query(&shapes[i]);
        steps(&shapes[i], i ? 3 : 48);
    }
}
