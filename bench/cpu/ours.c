/* The library's own append and decode attention. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tq/snapshot.h"

/* Variants without vector kernels are slow: fewer tokens tell the same. */
enum { SLOW_CONTEXT = 2048 };

/* Levels from best to reference; a context of each has all features but these. */
static const struct {
    const char *name;
    uint64_t disabled;
} levels[] = {{"best", 0},
              {"avx512", TQ_CPU_AMX},
              {"avxvnni", TQ_CPU_AMX | TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI},
              {"avx2", TQ_CPU_AMX | TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI | TQ_CPU_AVXVNNI},
              {"ref", ~UINT64_C(0)}};

static tq_threadpool *pools[THREADS_LIMIT + 1]; /* by threads */

void must(tq_status status) {
    if (status == TQ_OK)
        return;
    fprintf(stderr, "bench: %s\n", tq_last_error());
    exit(1);
}

const tq_executor *executor_of(uint32_t threads) {
    tq_threadpool_config config = {.struct_size = sizeof config, .n_threads = threads};
    if (!pools[threads])
        must(tq_threadpool_create(&config, &pools[threads]));
    return tq_threadpool_executor(pools[threads]);
}

void ours_close(void) {
    for (uint32_t t = 0; t <= THREADS_LIMIT; t++)
        tq_threadpool_destroy(pools[t]);
}

int is_listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ','))
            return 1;
    return list == NULL;
}

/* A cache of several layers, taken in turn, so that no call finds its codes in a cache. */
struct setup {
    struct shape shape;
    tq_context *ctx;
    tq_cache *cache;
    tq_seq seq;
    uint32_t layers, block;
    size_t layer_bytes; /* of the codes of `context` tokens */
    uint16_t *rows, *q, *out;
};

static void open_cache(struct setup *s, tq_variant variant, uint32_t layers) {
    const struct shape *shape = &s->shape;
    tq_cache_config config = {.struct_size = sizeof config,
                              .n_layers = 1,
                              .n_kv_heads = shape->heads,
                              .n_q_heads = shape->heads * shape->group,
                              .head_dim = shape->dim,
                              .variant = variant};
    tq_footprint size = {.struct_size = sizeof size};
    must(tq_cache_estimate(s->ctx, &config, &size));
    s->layer_bytes = (size_t)size.bytes_per_page * (shape->context / size.page_tokens);
    s->layers = layers ? layers : (uint32_t)(WORKING_SET / s->layer_bytes) + 1;
    config.n_layers = s->layers;
    config.max_pages = shape->context / size.page_tokens;
    must(tq_cache_create(s->ctx, &config, &s->cache));
    must(tq_seq_create(s->cache, &s->seq));
}

static void append_block(void *arg, uint32_t layer) {
    struct setup *s = arg;
    tq_rows_in in = {.data = s->rows, .dtype = TQ_BF16};
    must(tq_append(s->cache, s->seq, layer, s->block, &in, &in, NULL));
}

/* In memory that has been written before. */
static void append_again(void *arg, uint32_t i) {
    struct setup *s = arg;
    (void)i;
    must(tq_seq_truncate(s->cache, s->seq, 0));
    append_block(s, 0);
}

/* Fills the layers: a block is coded, the others are copies. */
static void fill(struct setup *s) {
    size_t size = 0;
    must(tq_seq_truncate(s->cache, s->seq, 0));
    for (uint32_t l = 0; l < s->layers; l++)
        append_block(s, l);
    must(tq_seq_blob_size(s->cache, s->seq, &size));
    void *blob = must_take(size);
    must(tq_seq_save(s->cache, s->seq, blob, size, &size));
    for (uint32_t t = s->block; t < s->shape.context; t += s->block)
        must(tq_seq_load_append(s->cache, s->seq, blob, size));
    give(blob);
}

static void attend(void *arg, uint32_t layer) {
    struct setup *s = arg;
    tq_rows_in q = {.data = s->q, .dtype = TQ_BF16};
    tq_rows_out out = {.data = s->out, .dtype = TQ_BF16};
    tq_attend_params causal = {.struct_size = sizeof causal, .flags = TQ_ATTEND_CAUSAL};
    must(tq_attend(s->cache, s->seq, layer, s->shape.queries, &causal, &q, &out, NULL, NULL));
}

/* The level whose kernels run: the end of their names. AMX has kernels for some formats only. */
static const char *level_of(const struct setup *s) {
    if (s->shape.queries > 1)
        return strrchr(tq_cache_kernel_name(s->cache, 0, TQ_OP_PREFILL), '_') + 1;
    const char *keys = tq_cache_kernel_name(s->cache, 0, TQ_OP_SCORE);
    const char *values = tq_cache_kernel_name(s->cache, 0, TQ_OP_ACCUMULATE);
    return strrchr(strstr(values, "_amx") ? values : keys, '_') + 1;
}

static void measure(struct setup *s, const char *variant, int append) {
    const struct shape *shape = &s->shape;
    size_t q_row = (size_t)shape->queries * shape->heads * shape->group * shape->dim;
    s->block = shape->context < BLOCK ? shape->context : BLOCK;
    double in = (double)s->block * shape->heads * shape->dim * 2 * 2;
    s->rows = make_rows((size_t)s->block * shape->heads * shape->dim);
    s->q = make_rows(q_row);
    s->out = must_take(q_row * 2);
    if (append) /* bytes in and out */
        report("append", level_of(s), variant, shape, fastest(append_again, s, 1),
               in + (double)s->layer_bytes * s->block / shape->context);
    fill(s);
    report(attention_of(shape), level_of(s), variant, shape, fastest(attend, s, s->layers),
           (double)s->layer_bytes);
    give(s->rows);
    give(s->q);
    give(s->out);
}

static void open_context(struct setup *s, size_t level) {
    tq_context_config config = {.struct_size = sizeof config,
                                .cpu_features_disabled = levels[level].disabled,
                                .allocator = &huge_pages,
                                .executor = executor_of(s->shape.threads)};
    must(tq_context_create(&config, &s->ctx));
}

/* What runs at a level. */
static const char *runs(const tq_variant_info *v, size_t level, const struct shape *shape,
                        char name[16]) {
    struct setup s = {.shape = *shape};
    open_context(&s, level);
    open_cache(&s, v->id, 1);
    snprintf(name, 16, "%s", level_of(&s));
    tq_cache_destroy(s.cache);
    tq_context_destroy(s.ctx);
    return name;
}

static void bench_variant(const tq_variant_info *v, size_t level, const struct shape *shape,
                          const char *selected, int append) {
    struct setup s = {.shape = *shape};
    char mine[16], other[16];
    runs(v, level, shape, mine);
    int slow = strcmp(mine, "ref") == 0;
    int again = 0;
    if (level > 0 && (!selected || is_listed(selected, levels[level - 1].name)))
        again = strcmp(mine, runs(v, level - 1, shape, other)) == 0;
    open_context(&s, level);
    if (!again) { /* else it is what the level before has shown */
        if (slow && s.shape.context > SLOW_CONTEXT)
            s.shape.context = SLOW_CONTEXT;
        open_cache(&s, v->id, slow);
        measure(&s, v->name, append);
        tq_cache_destroy(s.cache);
    }
    tq_context_destroy(s.ctx);
}

void bench_ours(const struct selection *selection, const struct shape *shape, int append) {
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        if (selection->levels ? !is_listed(selection->levels, levels[l].name)
                              : strcmp(levels[l].name, "ref") == 0)
            continue;
        for (uint32_t i = 0; i < tq_variant_count(); i++) {
            tq_variant_info info = {.struct_size = sizeof info};
            must(tq_variant_get(i, &info));
            if (is_listed(selection->variants, info.name))
                bench_variant(&info, l, shape, selection->levels, append);
        }
    }
}
