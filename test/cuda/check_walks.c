/* Thousands of random operations on a cache of the GPU, the same on one of the CPU, and on lists of
 * tokens. Every call says the same on both; what sequences hold is what the lists say, bit for bit;
 * snapshots are the same bytes and are loaded on the other device; copies go from one to the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tq/snapshot.h"
#include "walk.h"

/* ---- operations ------------------------------------------------------------------------ */

static void op_create(struct walk *w) {
    struct list *to = walk_pick(w, 0);
    tq_seq a = 0, b = 0;
    tq_status cpu = tq_seq_create(w->cpu, &a), gpu = tq_seq_create(w->gpu, &b);
    if (to)
        memset(to, 0, sizeof *to);
    (void)walk_agreed_on(w, cpu, gpu, a, b, to);
}

static void op_destroy(struct walk *w) {
    struct list *s = walk_pick(w, 1);
    if (s && walk_agreed(w, tq_seq_destroy(w->cpu, s->id), tq_seq_destroy(w->gpu, s->id)))
        s->id = 0;
}

/* The same number to each layer, as far as pages last: lengths may differ for a while. */
static void op_append(struct walk *w) {
    struct list *s = walk_pick(w, 1);
    uint32_t n = 1 + walk_below(walk_below(3) ? 9 : 90);
    if (!s)
        return;
    for (uint32_t l = 0, longest = s->n[0] > s->n[1] ? s->n[0] : s->n[1]; l < LAYERS; l++) {
        uint32_t end = longest + n < MOST ? longest + n : MOST, *at = s->token[l] + s->n[l];
        for (uint32_t i = 0; i < end - s->n[l]; i++)
            at[i] = walk_below(TOKENS);
        if (walk_append(w, s->id, l, at, end - s->n[l]))
            s->n[l] = end;
    }
}

static void op_fork(struct walk *w) {
    struct list *s = walk_pick(w, 1), *to = walk_pick(w, 0);
    tq_seq a = 0, b = 0;
    if (!s)
        return;
    uint32_t n = walk_below(s->n[0] + 2);
    tq_status cpu = tq_seq_fork(w->cpu, s->id, n, &a), gpu = tq_seq_fork(w->gpu, s->id, n, &b);
    if (to)
        *to = *s, to->id = 0;
    if (walk_agreed_on(w, cpu, gpu, a, b, to))
        to->n[0] = to->n[1] = n;
}

static void op_truncate(struct walk *w) {
    struct list *s = walk_pick(w, 1);
    if (!s)
        return;
    uint32_t n = walk_below(s->n[0] + 2);
    if (walk_agreed(w, tq_seq_truncate(w->cpu, s->id, n), tq_seq_truncate(w->gpu, s->id, n)))
        s->n[0] = s->n[1] = n;
}

static void op_remove(struct walk *w) {
    struct list *s = walk_pick(w, 1);
    uint32_t first, n;
    if (!s)
        return;
    walk_pick_range(w, s, &first, &n);
    if (!walk_agreed(w, tq_seq_remove(w->cpu, s->id, first, n),
                     tq_seq_remove(w->gpu, s->id, first, n)))
        return;
    for (uint32_t l = 0; l < LAYERS; l++) {
        memmove(s->token[l] + first, s->token[l] + first + n,
                (s->n[l] - first - n) * sizeof **s->token);
        s->n[l] -= n;
    }
}

static void op_reorder(struct walk *w) {
    static struct list before[SEQS];
    struct list *seqs[SEQS];
    tq_seq ids[SEQS];
    uint32_t parents[SEQS], n = 0;
    for (uint32_t i = 0; i < SEQS; i++)
        if (w->seqs[i].id && walk_below(3)) {
            seqs[n] = &w->seqs[i];
            before[n] = w->seqs[i];
            ids[n++] = w->seqs[i].id;
        }
    for (uint32_t i = 0; i < n; i++)
        parents[i] = walk_below(n);
    if (!walk_agreed(w, tq_seq_reorder(w->cpu, n, ids, parents),
                     tq_seq_reorder(w->gpu, n, ids, parents)))
        return;
    for (uint32_t i = 0; i < n; i++) {
        *seqs[i] = before[parents[i]];
        seqs[i]->id = ids[i];
    }
}

/* Inside each cache, or each from the other device. */
static void op_copy(struct walk *w) {
    struct list *s = walk_pick(w, 1), *to = walk_pick(w, 0);
    uint32_t first, n, cross = walk_below(3) != 0;
    tq_seq a = 0, b = 0;
    if (!s)
        return;
    walk_pick_range(w, s, &first, &n);
    const tq_cache *for_cpu = cross ? w->gpu : w->cpu, *for_gpu = cross ? w->cpu : w->gpu;
    tq_status gpu = tq_seq_copy(w->gpu, for_gpu, s->id, first, n, &b);
    tq_status cpu = tq_seq_copy(w->cpu, for_cpu, s->id, first, n, &a);
    if (to)
        memset(to, 0, sizeof *to);
    if (walk_agreed_on(w, cpu, gpu, a, b, to))
        walk_add_range(to, s, first, n);
}

struct blob {
    void *bytes;
    size_t size;
};

static int save(struct walk *w, tq_seq id, uint32_t first, uint32_t n, struct blob *cpu,
                struct blob *gpu) {
    size_t a = 0, b = 0;
    tq_status on_cpu = tq_seq_save_range(w->cpu, id, first, n, NULL, 0, &cpu->size);
    tq_status on_gpu = tq_seq_save_range(w->gpu, id, first, n, NULL, 0, &gpu->size);
    if (!walk_agreed(w, on_cpu, on_gpu))
        return 0;
    cpu->bytes = malloc(cpu->size);
    gpu->bytes = malloc(gpu->size);
    GPU_OK(tq_seq_save_range(w->cpu, id, first, n, cpu->bytes, cpu->size, &a));
    GPU_OK(tq_seq_save_range(w->gpu, id, first, n, gpu->bytes, gpu->size, &b));
    gpu_expect(a == b && memcmp(cpu->bytes, gpu->bytes, a) == 0, "%s: snapshots differ", w->what);
    return 1;
}

/* Each device loads what the other one saved: a new sequence, or behind one. */
static void load(struct walk *w, struct list *to, int behind) {
    struct list *s = walk_pick(w, 1);
    struct blob cpu = {NULL, 0}, gpu = cpu;
    uint32_t first, n;
    tq_seq a = 0, b = 0;
    if (!s || (behind && !to))
        return;
    walk_pick_range(w, s, &first, &n);
    if (behind && (to->n[0] > to->n[1] ? to->n[0] : to->n[1]) + n > MOST)
        return;
    if (save(w, s->id, first, n, &cpu, &gpu)) {
        if (behind) {
            if (walk_agreed(w, tq_seq_load_append(w->cpu, to->id, gpu.bytes, gpu.size),
                            tq_seq_load_append(w->gpu, to->id, cpu.bytes, cpu.size)))
                walk_add_range(to, s, first, n);
        } else {
            tq_status on_cpu = tq_seq_load(w->cpu, gpu.bytes, gpu.size, &a);
            tq_status on_gpu = tq_seq_load(w->gpu, cpu.bytes, cpu.size, &b);
            if (to)
                memset(to, 0, sizeof *to);
            if (walk_agreed_on(w, on_cpu, on_gpu, a, b, to))
                walk_add_range(to, s, first, n);
        }
    }
    free(cpu.bytes);
    free(gpu.bytes);
}

static void op_load(struct walk *w) {
    load(w, walk_pick(w, 0), 0);
}

static void op_load_append(struct walk *w) {
    load(w, walk_pick(w, 1), 1);
}

static void op_attend(struct walk *w) {
    struct list *s = walk_pick(w, 1);
    if (s)
        walk_check_attend(w, s, walk_below(LAYERS));
}

/* A step of some sequences; what comes back of it is random, too. */
static void op_step(struct walk *w) {
    struct list *seqs[SEQS];
    tq_seq ids[SEQS];
    uint32_t n_append[SEQS], n_keep[SEQS], tokens[STEP_TOKENS], n = 0, rows = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        struct list *s = &w->seqs[i];
        uint32_t most = STEP_TOKENS / SEQS < MOST - s->n[0] ? STEP_TOKENS / SEQS : MOST - s->n[0];
        if (!s->id || !walk_below(3))
            continue;
        n_append[n] = walk_below(most + 1);
        n_keep[n] = n_append[n] - (walk_below(2) ? walk_below(n_append[n] + 1) : 0);
        ids[n] = s->id;
        seqs[n++] = s;
    }
    tq_batch_desc desc = {sizeof desc, n, ids, n_append, n_append};
    if (!walk_agreed(w, tq_batch_plan(w->cpu_batch, &desc, NULL),
                     tq_batch_plan(w->gpu_batch, &desc, NULL)))
        return;
    for (uint32_t l = 0; l < LAYERS; l++) {
        rows = 0;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t t = 0; t < n_append[i]; t++)
                tokens[rows++] = seqs[i]->token[l][seqs[i]->n[l] + t] = walk_below(TOKENS);
        if (rows == 0)
            continue;
        walk_append_step(w, l, tokens, rows);
        walk_attend_step(w, l, rows);
    }
    for (uint32_t i = 0; i < n; i++)
        seqs[i]->n[0] += n_keep[i], seqs[i]->n[1] += n_keep[i];
    (void)walk_agreed(w, tq_batch_commit(w->cpu_batch, n_keep),
                      tq_batch_commit(w->gpu_batch, n_keep));
}

static void op_reset(struct walk *w) {
    if (walk_below(20))
        return;
    GPU_OK(tq_cache_reset(w->cpu));
    GPU_OK(tq_cache_reset(w->gpu));
    memset(w->seqs, 0, sizeof w->seqs);
}

/* ---- walks ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(struct walk *w);
    uint32_t weight; /* of 100 */
} operations[] = {
    {"append", op_append, 24},    {"attend", op_attend, 9},           {"fork", op_fork, 8},
    {"truncate", op_truncate, 5}, {"create", op_create, 7},           {"destroy", op_destroy, 8},
    {"remove", op_remove, 9},     {"reorder", op_reorder, 5},         {"copy", op_copy, 7},
    {"load", op_load, 5},         {"load behind", op_load_append, 3}, {"reset", op_reset, 1},
    {"step", op_step, 9}};

static void step(struct walk *w, const char *shape) {
    uint32_t dice = walk_below(100), op = 0;
    while (dice >= operations[op].weight)
        dice -= operations[op++].weight;
    (void)snprintf(w->what, sizeof w->what, "walk %s, step %u, %s", shape, w->steps,
                   operations[op].name);
    operations[op].run(w);
    if (++w->steps % 40 == 0)
        walk_check_contents(w);
}

static void walk_of(const tq_layer_formats formats[LAYERS], tq_cache_config config,
                    uint32_t n_steps) {
    static struct walk w;
    char shape[64];
    (void)snprintf(shape, sizeof shape, "K %u V %u dim %u page %u, %u and %u kept",
                   formats[0].k_format, formats[0].v_format, config.head_dim, config.page_tokens,
                   config.sink_tokens, config.recent_tokens);
    (void)snprintf(w.what, sizeof w.what, "walk %s", shape);
    if (walk_open(&w, formats, &config)) {
        while (w.steps < n_steps)
            step(&w, shape);
        walk_check_contents(&w);
        gpu_expect(w.without_pages * 100 >= n_steps && w.refused * 100 >= n_steps,
                   "%s: only %u calls ran out of pages, %u were refused", shape, w.without_pages,
                   w.refused);
        gpu_expect((w.kept > n_steps) == (config.sink_tokens || config.recent_tokens) ||
                       formats[0].k_format == TQ_FORMAT_BF16,
                   "%s: %u tokens were kept", shape, w.kept);
    }
    walk_close(&w);
}

/* Both layers alike. */
static void walk(tq_format k, tq_format v, tq_cache_config config, uint32_t n_steps) {
    const tq_layer_formats formats[LAYERS] = {{k, v}, {k, v}};
    walk_of(formats, config, n_steps);
}

static tq_cache_config pages_of(uint32_t dim, uint32_t page_tokens, uint32_t max_pages) {
    return (tq_cache_config){.head_dim = dim, .page_tokens = page_tokens, .max_pages = max_pages};
}

static tq_cache_config kept_of(uint32_t dim, uint32_t page_tokens, uint32_t max_pages,
                               uint32_t sinks, uint32_t recent) {
    tq_cache_config c = pages_of(dim, page_tokens, max_pages);
    c.sink_tokens = sinks;
    c.recent_tokens = recent;
    return c;
}

void check_walks(void) {
    static const tq_layer_formats boundary[LAYERS] = {{TQ_FORMAT_LM3, TQ_FORMAT_LM4},
                                                      {TQ_FORMAT_BF16, TQ_FORMAT_BF16}};
    walk(TQ_FORMAT_LM4, TQ_FORMAT_LM4, pages_of(128, 64, 7), 6000);
    walk(TQ_FORMAT_LM3, TQ_FORMAT_LM4, pages_of(64, 16, 24), 6000);
    walk(TQ_FORMAT_LM3, TQ_FORMAT_LM3, pages_of(96, 32, 12), 4000);
    walk(TQ_FORMAT_FP8, TQ_FORMAT_LM4, pages_of(128, 16, 24), 3000);
    walk(TQ_FORMAT_INT8, TQ_FORMAT_INT8, pages_of(128, 64, 6), 3000);
    walk(TQ_FORMAT_BF16, TQ_FORMAT_F16, pages_of(80, 32, 12), 3000);
    walk(TQ_FORMAT_LM4, TQ_FORMAT_LM4, kept_of(128, 64, 7, 16, 40), 4000);
    walk(TQ_FORMAT_LM3, TQ_FORMAT_LM4, kept_of(64, 16, 24, 0, 9), 4000);
    walk(TQ_FORMAT_INT8, TQ_FORMAT_LM3, kept_of(96, 32, 12, 32, 0), 3000);
    walk_of(boundary, kept_of(128, 64, 7, 16, 40), 3000);
    walk(TQ_FORMAT_FP8, TQ_FORMAT_FP8, kept_of(128, 64, 7, 16, 70), 3000);
}
