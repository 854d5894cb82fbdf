/* Decode attention and append of every variant at every instruction level.
 *
 *   bench [--json FILE] [--context N] [--dim N] [--heads N] [--variant NAME] [--level NAME]
 *         [--threads N]
 *
 * One query token over `context` tokens in several layers, taken in turn, so that no call
 * finds its codes in a cache. GB/s are of the stored bytes, read once; "% read" compares
 * with a plain read by the same threads in the same run. Times are of the fastest call of
 * many, for both; append counts bytes in and out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static struct options {
    const char *json, *variant, *level;
    uint32_t context, dim, heads, threads;
} opt = {.context = 32768, .dim = 128, .heads = 8, .threads = 2};

enum { WORKING_SET = 192 << 20, PASSES = 6 };

static const struct {
    const char *name;
    uint64_t disabled;
} levels[] = {{"avx512", 0}, {"avx2", TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI}, {"ref", ~UINT64_C(0)}};

static void must(tq_status status) {
    if (status == TQ_OK)
        return;
    fprintf(stderr, "bench: %s\n", tq_last_error());
    exit(1);
}

static double read_speed[65];    /* by threads */
static tq_threadpool *pools[65]; /* by threads */

static const tq_executor *executor_of(uint32_t threads) {
    tq_threadpool_config config = {.struct_size = sizeof config, .n_threads = threads};
    if (!pools[threads])
        must(tq_threadpool_create(&config, &pools[threads]));
    return tq_threadpool_executor(pools[threads]);
}

/* Values like a model's: unit scale, a fixed pseudo-random sequence. */
static void fill(uint16_t *x, size_t n) {
    uint32_t s = 1;
    for (size_t i = 0; i < n; i++) {
        float sum = -2;
        for (int k = 0; k < 4; k++) {
            s = s * 1664525u + 1013904223u;
            sum += (float)(s >> 8) * 0x1p-24f;
        }
        uint32_t bits;
        sum *= 1.7f;
        memcpy(&bits, &sum, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
}

struct setup {
    const tq_executor *executor;
    tq_context *ctx;
    tq_cache *cache;
    tq_seq seq;
    uint32_t layers, threads;
    size_t layer_bytes;
    const char *level, *variant;
};

static void make_context(struct setup *s, uint64_t disabled) {
    tq_context_config config = {.struct_size = sizeof config,
                                .cpu_features_disabled = disabled,
                                .allocator = &huge_pages,
                                .executor = s->executor};
    must(tq_context_create(&config, &s->ctx));
}

static void make_cache(struct setup *s, tq_variant variant, uint32_t group) {
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = opt.heads,
                              .n_q_heads = opt.heads * group,
                              .head_dim = opt.dim,
                              .variant = variant};
    tq_footprint size = {.struct_size = sizeof size};
    must(tq_cache_estimate(s->ctx, &config, &size));
    s->layer_bytes = (size_t)size.bytes_per_page * (opt.context / size.page_tokens);
    s->layers = (uint32_t)(WORKING_SET / s->layer_bytes) + 1;
    config.n_layers = s->layers;
    config.max_pages = opt.context / size.page_tokens;
    must(tq_cache_create(s->ctx, &config, &s->cache));
    must(tq_seq_create(s->cache, &s->seq));
}

/* Fills the layers; returns the seconds of the fastest block. */
static double append_all(struct setup *s, const uint16_t *rows, uint32_t block) {
    double best = 1e9;
    tq_rows_in in = {.data = rows, .dtype = TQ_BF16};
    for (uint32_t l = 0; l < s->layers; l++)
        for (uint32_t t = 0; t < opt.context; t += block) {
            double t0 = now();
            must(tq_append(s->cache, s->seq, l, block, &in, &in, NULL));
            t0 = now() - t0;
            best = t0 < best ? t0 : best;
        }
    return best;
}

/* Seconds of the fastest layer. */
static double attend_pass(struct setup *s, uint32_t layers, uint16_t *q, uint16_t *o) {
    tq_rows_in in = {.data = q, .dtype = TQ_BF16};
    tq_rows_out out = {.data = o, .dtype = TQ_BF16};
    double best = 1e9;
    for (uint32_t l = 0; l < layers; l++) {
        double t = now();
        must(tq_attend(s->cache, s->seq, l, 1, NULL, &in, &out, NULL, NULL));
        t = now() - t;
        best = t < best ? t : best;
    }
    return best;
}

static void bench_setup(struct setup *s, uint32_t group, const uint16_t *rows, int first) {
    uint32_t block = opt.context < 4096 ? opt.context : 4096;
    int slow = strcmp(s->level, "ref") == 0;
    double append = append_all(s, rows, block);
    double in = (double)block * opt.heads * opt.dim * 2 * 2;
    double coded = (double)s->layer_bytes * block / opt.context;
    if (first)
        report("append", s->level, s->variant, group, s->threads, append * 1e3,
               (in + coded) / append * 1e-9, (in + coded) / append * 1e-7 / read_speed[s->threads]);
    size_t n = (size_t)opt.heads * group * opt.dim;
    uint16_t *q = malloc(n * 2), *o = malloc(n * 2);
    fill(q, n);
    double best = 1e9;
    for (int i = 0; i < (slow ? 1 : PASSES); i++) {
        double t = attend_pass(s, slow ? 1 : s->layers, q, o);
        best = t < best ? t : best;
    }
    report("decode", s->level, s->variant, group, s->threads, best * 1e3,
           (double)s->layer_bytes / best * 1e-9,
           (double)s->layer_bytes / best * 1e-7 / read_speed[s->threads]);
    free(q);
    free(o);
}

static void bench_variant(size_t level, uint32_t index, const uint16_t *rows) {
    tq_variant_info info = {.struct_size = sizeof info};
    must(tq_variant_get(index, &info));
    if (opt.variant && strcmp(opt.variant, info.name) != 0)
        return;
    for (uint32_t threads = 1; threads <= opt.threads; threads *= 2)
        for (uint32_t group = 1; group <= 8; group *= 2) {
            struct setup s = {.threads = threads,
                              .executor = executor_of(threads),
                              .level = levels[level].name,
                              .variant = info.name};
            make_context(&s, levels[level].disabled);
            make_cache(&s, info.id, group);
            bench_setup(&s, group, rows, group == 1);
            tq_cache_destroy(s.cache);
            tq_context_destroy(s.ctx);
        }
}

static void parse(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        uint32_t n = (uint32_t)strtoul(value, NULL, 10);
        if (strcmp(name, "--json") == 0)
            opt.json = value;
        else if (strcmp(name, "--variant") == 0)
            opt.variant = value;
        else if (strcmp(name, "--level") == 0)
            opt.level = value;
        else if (strcmp(name, "--context") == 0)
            opt.context = n;
        else if (strcmp(name, "--dim") == 0)
            opt.dim = n;
        else if (strcmp(name, "--heads") == 0)
            opt.heads = n;
        else if (strcmp(name, "--threads") == 0 && n >= 1 && n <= 64)
            opt.threads = n;
    }
}

int main(int argc, char **argv) {
    parse(argc, argv);
    size_t n = (size_t)4096 * opt.heads * opt.dim;
    uint16_t *rows = malloc(n * 2);
    fill(rows, n);
    report_open(opt.json);
    for (uint32_t t = 1; t <= opt.threads; t *= 2) {
        read_speed[t] = plain_read(executor_of(t), WORKING_SET);
        report("read", "-", "-", 0, t, WORKING_SET / read_speed[t] * 1e-6, read_speed[t], 100);
    }
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        for (uint32_t v = 0; v < tq_variant_count(); v++)
            if (opt.level ? strcmp(opt.level, levels[l].name) == 0 : strcmp(levels[l].name, "ref"))
                bench_variant(l, v, rows);
    report_close();
    for (uint32_t t = 1; t <= opt.threads; t++)
        tq_threadpool_destroy(pools[t]);
    free(rows);
    return 0;
}
