/* Sequences that leave one device and go on on the other; cutting and reordering of pages in
 * device memory. The CPU cache of the pair does the same with the reference code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "tq/snapshot.h"

struct blob {
    void *bytes;
    size_t size;
};

static struct blob save(const tq_cache *cache, tq_seq seq, uint64_t first, uint64_t n) {
    struct blob b = {NULL, 0};
    size_t written = 0;
    GPU_OK(tq_seq_save_range(cache, seq, first, n, NULL, 0, &b.size));
    b.bytes = malloc(b.size);
    if (b.bytes)
        GPU_OK(tq_seq_save_range(cache, seq, first, n, b.bytes, b.size, &written));
    gpu_expect(written == b.size, "%zu bytes written of %zu", written, b.size);
    return b;
}

static void drop(tq_cache *cpu, tq_cache *gpu, tq_seq seq) {
    GPU_OK(tq_seq_destroy(cpu, seq));
    GPU_OK(tq_seq_destroy(gpu, seq));
}

/* Saves on both, compares the bytes, loads each on the other device and goes on. */
static void exchange(struct pair *p, tq_seq seq, uint64_t first, uint64_t n, const char *what) {
    struct blob a = save(p->cpu, seq, first, n), b = save(p->gpu, seq, first, n);
    tq_seq on_cpu = 0, on_gpu = 0;
    gpu_expect(a.size == b.size && memcmp(a.bytes, b.bytes, a.size) == 0,
               "%s: snapshots of tokens %llu + %llu differ", what, (unsigned long long)first,
               (unsigned long long)n);
    GPU_OK(tq_seq_load(p->cpu, b.bytes, b.size, &on_cpu));
    GPU_OK(tq_seq_load(p->gpu, a.bytes, a.size, &on_gpu));
    gpu_expect(on_cpu == on_gpu, "%s: ids differ", what);
    GPU_OK(tq_seq_load_append(p->cpu, on_cpu, b.bytes, b.size));
    GPU_OK(tq_seq_load_append(p->gpu, on_gpu, a.bytes, a.size));
    pair_append(p, on_gpu, 11, TQ_BF16, 0);
    pair_check_pages(p, on_gpu, what);
    pair_check_attend(p, on_gpu, 2, TQ_ATTEND_CAUSAL, what);
    drop(p->cpu, p->gpu, on_gpu);
    free(a.bytes);
    free(b.bytes);
}

/* Straight from one device to the other, both ways. */
static void copy(struct pair *p, tq_seq seq, uint64_t first, uint64_t n, const char *what) {
    tq_seq on_cpu = 0, on_gpu = 0;
    GPU_OK(tq_seq_copy(p->cpu, p->gpu, seq, first, n, &on_cpu));
    GPU_OK(tq_seq_copy(p->gpu, p->cpu, seq, first, n, &on_gpu));
    gpu_expect(on_cpu == on_gpu, "%s: ids differ", what);
    pair_append(p, on_gpu, 5, TQ_F16, 0);
    pair_check_pages(p, on_gpu, what);
    drop(p->cpu, p->gpu, on_gpu);
}

static void cut(struct pair *p, tq_seq seq, uint64_t first, uint64_t n, const char *what) {
    tq_seq a = 0, b = 0;
    GPU_OK(tq_seq_fork(p->cpu, seq, UINT64_MAX, &a));
    GPU_OK(tq_seq_fork(p->gpu, seq, UINT64_MAX, &b));
    GPU_OK(tq_seq_remove(p->cpu, a, first, n));
    GPU_OK(tq_seq_remove(p->gpu, b, first, n));
    pair_append(p, b, 3, TQ_BF16, 0);
    pair_check_pages(p, b, what);
    pair_check_attend(p, b, 1, 0, what);
    pair_check_pages(p, seq, "what was cut beside it");
    drop(p->cpu, p->gpu, b);
}

static void reorder(struct pair *p, tq_seq seq, const char *what) {
    static const uint32_t parents[3] = {2, 0, 0};
    tq_seq seqs[3] = {seq, pair_seq(p), pair_seq(p)};
    pair_append(p, seqs[1], 9, TQ_BF16, 0);
    pair_append(p, seqs[2], 70, TQ_BF16, 0);
    GPU_OK(tq_seq_reorder(p->cpu, 3, seqs, parents));
    GPU_OK(tq_seq_reorder(p->gpu, 3, seqs, parents));
    for (int i = 0; i < 3; i++) {
        pair_append(p, seqs[i], 2, TQ_BF16, 0); /* copies what is shared */
        pair_check_pages(p, seqs[i], what);
        pair_check_attend(p, seqs[i], 1, 0, what);
    }
}

static tq_seq feed(tq_cache *cache, const tq_rows_in *k, const tq_rows_in *v, uint32_t n) {
    tq_seq seq = 0;
    GPU_OK(tq_seq_create(cache, &seq));
    GPU_OK(tq_append(cache, seq, 0, n, k, v, NULL));
    return seq;
}

/* From a CPU cache with sinks and a window in 16 bits, by bytes and by a copy: a cache without
 * takes the codes, which are those of the same rows in bf16. */
static void from_kept_rows(struct pair *p, const char *what) {
    enum { N = 150 };
    tq_cache_config c = p->config;
    size_t k_n = (size_t)N * c.n_kv_heads * c.head_dim,
           v_n = (size_t)N * c.n_kv_heads * c.v_head_dim;
    tq_rows_in k = {.data = gpu_rows(TQ_BF16, k_n, c.head_dim), .dtype = TQ_BF16};
    tq_rows_in v = {.data = gpu_rows(TQ_BF16, v_n, c.v_head_dim), .dtype = TQ_BF16};
    tq_cache *kept = NULL;
    tq_seq loaded = 0, copied = 0, coded = feed(p->cpu, &k, &v, N);
    tq_seq second = feed(p->cpu, &k, &v, 0); /* ids of both caches stay the same */
    c.layer_formats = &p->formats;
    c.sink_tokens = 16;
    c.recent_tokens = 40;
    GPU_OK(tq_cache_create(p->cpu_context, &c, &kept));
    struct blob codes = save(p->cpu, coded, 0, N);
    GPU_OK(tq_cache_set_constants(kept, codes.bytes, codes.size));
    tq_seq exact = feed(kept, &k, &v, N);
    struct blob rows = save(kept, exact, 0, N);
    GPU_OK(tq_seq_load(p->gpu, rows.bytes, rows.size, &loaded));
    GPU_OK(tq_seq_copy(p->gpu, kept, exact, 0, N, &copied));
    struct blob a = save(p->gpu, loaded, 0, N), b = save(p->gpu, copied, 0, N);
    gpu_expect(rows.size > codes.size || p->formats.k_format == TQ_FORMAT_BF16, "%s: no rows",
               what);
    gpu_expect(a.size == codes.size && memcmp(a.bytes, codes.bytes, a.size) == 0,
               "%s: loaded from rows in 16 bits", what);
    gpu_expect(b.size == codes.size && memcmp(b.bytes, codes.bytes, b.size) == 0,
               "%s: copied from rows in 16 bits", what);
    GPU_OK(tq_seq_destroy(p->cpu, coded));
    GPU_OK(tq_seq_destroy(p->cpu, second));
    GPU_OK(tq_seq_destroy(p->gpu, loaded));
    GPU_OK(tq_seq_destroy(p->gpu, copied));
    tq_cache_destroy(kept);
    free((void *)(uintptr_t)k.data);
    free((void *)(uintptr_t)v.data);
    free(codes.bytes);
    free(rows.bytes);
    free(a.bytes);
    free(b.bytes);
}

static void set_means(struct pair *p) {
    size_t n = (size_t)p->config.n_kv_heads * p->config.head_dim;
    float *mean = malloc(n * sizeof *mean);
    for (size_t i = 0; mean && i < n; i++)
        mean[i] = gpu_gauss();
    if (mean) {
        GPU_OK(tq_cache_set_means(p->cpu, 0, mean, mean));
        GPU_OK(tq_cache_set_means(p->gpu, 0, mean, mean));
    }
    free(mean);
}

static void run(tq_format k, tq_format v, uint32_t dim, uint32_t page_tokens) {
    tq_cache_config config = {.n_kv_heads = 2,
                              .n_q_heads = 8,
                              .head_dim = dim,
                              .page_tokens = page_tokens,
                              .max_pages = 160};
    static const uint64_t ranges[][2] = {{0, 200}, {0, 64}, {64, 100}, {5, 77}, {17, 16}, {3, 0}};
    struct pair p;
    char what[64];
    (void)snprintf(what, sizeof what, "snapshots, K %u V %u dim %u page %u", k, v, dim,
                   page_tokens);
    if (pair_create(&p, config, k, v)) {
        set_means(&p);
        from_kept_rows(&p, what);
        tq_seq seq = pair_seq(&p);
        pair_append(&p, seq, 200, TQ_BF16, 0);
        for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
            exchange(&p, seq, ranges[i][0], ranges[i][1], what);
            copy(&p, seq, ranges[i][0], ranges[i][1], what);
        }
        cut(&p, seq, 64, 64, what);
        cut(&p, seq, 40, 64, what);
        cut(&p, seq, 13, 29, what);
        cut(&p, seq, 0, 199, what);
        reorder(&p, seq, what);
    }
    pair_destroy(&p);
}

void check_snapshots(void) {
    run(TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 64);
    run(TQ_FORMAT_LM3, TQ_FORMAT_LM3, 128, 64);
    run(TQ_FORMAT_LM3, TQ_FORMAT_LM4, 64, 32);
    run(TQ_FORMAT_LM3, TQ_FORMAT_LM2, 96, 16);
    run(TQ_FORMAT_INT8, TQ_FORMAT_INT8, 128, 64);
    run(TQ_FORMAT_FP8, TQ_FORMAT_LM4, 128, 128);
    run(TQ_FORMAT_BF16, TQ_FORMAT_BF16, 128, 64);
    run(TQ_FORMAT_F16, TQ_FORMAT_FP8, 80, 32);
    run(TQ_FORMAT_POLAR, TQ_FORMAT_POLAR, 96, 16);
    run(TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 128, 64);
    run(TQ_FORMAT_LM3_QJL, TQ_FORMAT_LM4, 64, 64);
    run(TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3, 112, 32);
}
