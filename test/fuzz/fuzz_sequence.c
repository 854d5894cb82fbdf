/* A small cache under a stream of calls, beside a model of plain arrays. Every result is
 * compared: statuses, lengths, counters, decoded rows bit by bit, attention in double. The
 * allocator refuses now and then; then nothing may have changed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/run.h"

const char fuzz_name[] = "sequence";

enum { HEAP_LIMIT = 1 << 26, MAX_STEPS = 64, MAX_QUERIES = 3, MAX_VALUES = 2 * 96 };
/* Relative to the whole output; kernels above the reference may round more. */
#define REF_TOLERANCE 1e-5
#define SIMD_TOLERANCE 1e-3

/* ---- life ------------------------------------------------------------------------------ */

static void create(struct run *r) {
    tq_seq id = 0;
    if (!run_did(r, tq_seq_create(r->cache, &id), run_room_for_seq(r))) {
        MUST(id == 0);
        return;
    }
    run_check_new_id(r, id);
    model_create(model_free_slot(r->m), id);
}

static void fork_seq(struct run *r) {
    struct model_seq *from = run_any_seq(r);
    uint32_t n = take_below(&r->in, MAX_TOKENS + 4);
    uint64_t asked = n > MAX_TOKENS ? UINT64_MAX : n;
    uint64_t meant = n > MAX_TOKENS ? model_longest(r->m, from) : n;
    tq_status want = model_prefix(r->m, from, meant);
    tq_seq id = 0;
    want = want == TQ_OK ? run_room_for_seq(r) : want;
    if (!run_did(r, tq_seq_fork(r->cache, from->id, asked, &id), want)) {
        MUST(id == 0);
        return;
    }
    run_check_new_id(r, id);
    model_fork(r->m, from, model_free_slot(r->m), id, (uint32_t)meant);
}

static void truncate_seq(struct run *r) {
    struct model_seq *s = run_any_seq(r);
    uint32_t n = take_below(&r->in, MAX_TOKENS + 1);
    if (run_did(r, tq_seq_truncate(r->cache, s->id, n), model_prefix(r->m, s, n)))
        model_truncate(r->m, s, n);
}

static void destroy(struct run *r) {
    struct model_seq *s = run_any_seq(r);
    if (run_did(r, tq_seq_destroy(r->cache, s->id), s->alive ? TQ_OK : TQ_ERR_NOT_FOUND))
        model_destroy(r->m, s);
}

static void reset(struct run *r) {
    if (take8(&r->in) % 4 == 0 && run_did(r, tq_cache_reset(r->cache), TQ_OK))
        model_reset(r->m);
}

/* ---- append ---------------------------------------------------------------------------- */

/* Rows of the tokens, one after the other, in a block of their own. */
static float *gather(const float *rows, size_t row, const uint8_t *tokens, uint32_t n) {
    float *x = fuzz_alloc(n * row * sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        memcpy(x + i * row, rows + tokens[i] * row, row * sizeof *x);
    return x;
}

static tq_status append_verdict(const struct run *r, const struct model_seq *s, uint32_t layer,
                                uint32_t n) {
    if (!s->alive)
        return TQ_ERR_NOT_FOUND;
    return model_has_room_for(r->m, s, layer, n) ? TQ_OK : TQ_ERR_OUT_OF_PAGES;
}

static uint64_t pages_held(const struct run *r) {
    tq_cache_stats stats = {.struct_size = sizeof stats};
    MUST(tq_cache_get_stats(r->cache, &stats) == TQ_OK);
    return stats.pages_total;
}

static void append(struct run *r) {
    struct model_seq *s = run_any_seq(r);
    uint32_t layer = take_below(&r->in, r->m->c.n_layers), n = take_below(&r->in, 40);
    uint8_t tokens[MAX_TOKENS], from = take8(&r->in);
    n = n > MAX_TOKENS - s->lengths[layer] ? MAX_TOKENS - s->lengths[layer] : n;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint8_t)(from + i * (from >> 4)) % N_ROWS;
    float *k = gather(r->m->k, model_k_row(r->m), tokens, n);
    float *v = gather(r->m->v, model_v_row(r->m), tokens, n);
    tq_rows_in k_rows = {.data = k}, v_rows = {.data = v};
    tq_status want = append_verdict(r, s, layer, n);
    uint64_t held = pages_held(r);
    if (run_did(r, tq_append(r->cache, s->id, layer, n, &k_rows, &v_rows, NULL), want))
        model_append(r->m, s, layer, tokens, n);
    else
        MUST(pages_held(r) == held);
    free(k);
    free(v);
}

/* ---- read ------------------------------------------------------------------------------ */

typedef const float *row_fn(const struct model *, const struct model_seq *, uint32_t, uint32_t);

static void check_rows(const struct run *r, const struct model_seq *s, uint32_t layer,
                       uint32_t first, uint32_t n, const float *got, size_t row, row_fn *want) {
    for (uint32_t i = 0; i < n; i++)
        MUST(memcmp(got + i * row, want(r->m, s, layer, first + i), row * sizeof *got) == 0);
}

static void read_range(struct run *r, const struct model_seq *s, uint32_t layer, uint32_t first,
                       uint32_t n) {
    size_t k_row = model_k_row(r->m), v_row = model_v_row(r->m);
    float *k = fuzz_alloc(n * k_row * sizeof *k), *v = fuzz_alloc(n * v_row * sizeof *v);
    tq_rows_out k_rows = {.data = k}, v_rows = {.data = v};
    tq_status want = first + n > s->lengths[layer] ? TQ_ERR_INVALID_ARGUMENT : TQ_OK;
    want = s->alive ? want : TQ_ERR_NOT_FOUND;
    if (run_did(r, tq_read_rows(r->cache, s->id, layer, first, n, &k_rows, &v_rows), want)) {
        check_rows(r, s, layer, first, n, k, k_row, model_k_of);
        check_rows(r, s, layer, first, n, v, v_row, model_v_of);
    }
    free(k);
    free(v);
}

static void read_rows(struct run *r) {
    const struct model_seq *s = run_any_seq(r);
    uint32_t layer = take_below(&r->in, r->m->c.n_layers);
    uint32_t first = take_below(&r->in, MAX_TOKENS), n = take_below(&r->in, MAX_TOKENS);
    read_range(r, s, layer, first, n);
}

static void read_all(struct run *r) {
    for (int i = 0; i < MAX_SEQS; i++)
        for (uint32_t l = 0; r->m->seqs[i].alive && l < r->m->c.n_layers; l++)
            read_range(r, &r->m->seqs[i], l, 0, r->m->seqs[i].lengths[l]);
}

static void read_page(struct run *r) {
    const struct model_seq *s = run_any_seq(r);
    uint32_t layer = take_below(&r->in, r->m->c.n_layers), page = take_below(&r->in, SEQ_PAGES);
    uint32_t head = take_below(&r->in, r->m->c.n_kv_heads), P = r->m->c.page_tokens;
    size_t size = 0, again = 0;
    tq_status want = page * P < s->lengths[layer] ? TQ_OK : TQ_ERR_INVALID_ARGUMENT;
    want = s->alive ? want : TQ_ERR_NOT_FOUND;
    if (!run_did(r, tq_read_page(r->cache, s->id, layer, page, head, NULL, 0, &size), want))
        return;
    uint8_t *bytes = fuzz_alloc(size);
    MUST(size > 0);
    tq_status small = tq_read_page(r->cache, s->id, layer, page, head, bytes, size - 1, &again);
    MUST(small == TQ_ERR_BUFFER_TOO_SMALL && again == size);
    MUST(tq_read_page(r->cache, s->id, layer, page, head, bytes, size, &again) == TQ_OK);
    free(bytes);
}

/* ---- attend ---------------------------------------------------------------------------- */

static void fill_queries(struct run *r, float *q, size_t n) {
    uint32_t state = take8(&r->in);
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        q[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
}

static void attend(struct run *r) {
    const struct model_seq *s = run_any_seq(r);
    const tq_cache_config *c = &r->m->c;
    uint32_t layer = take_below(&r->in, c->n_layers), n = take_below(&r->in, MAX_QUERIES + 1);
    tq_attend_params params = {.struct_size = sizeof params, .flags = take8(&r->in) & 1};
    size_t rows = (size_t)n * c->n_q_heads, values = rows * c->v_head_dim;
    float *q = fuzz_alloc(rows * c->head_dim * sizeof *q);
    float *out = fuzz_alloc(values * sizeof *out), *lse = fuzz_alloc(rows * sizeof *lse);
    double *want = fuzz_alloc(values * sizeof *want);
    tq_rows_in q_rows = {.data = q};
    tq_rows_out out_rows = {.data = out};
    fill_queries(r, q, rows * c->head_dim);
    tq_status status = tq_attend(r->cache, s->id, layer, n, &params, &q_rows, &out_rows, lse, NULL);
    if (run_did(r, status, s->alive ? TQ_OK : TQ_ERR_NOT_FOUND)) {
        model_attend(r->m, s, layer, n, params.flags & TQ_ATTEND_CAUSAL, q, want);
        fuzz_near(out, want, values, r->tolerance);
        for (size_t i = 0; i < rows; i++)
            MUST(s->lengths[layer] ? !isnan(lse[i]) : lse[i] == -INFINITY);
    }
    free(q);
    free(out);
    free(lse);
    free(want);
}

/* ---- run ------------------------------------------------------------------------------- */

static void refuse_soon(struct run *r) {
    r->heap.refuse_at = 1 + take_below(&r->in, 6);
}

static void step(struct run *r) {
    static void (*const calls[])(struct run *) = {
        create,          append,      append,   append,      attend,          fork_seq,
        truncate_seq,    destroy,     reset,    append,      attend,          read_rows,
        read_page,       refuse_soon, create,   fork_seq,    run_remove_some, run_remove_some,
        run_reorder,     run_copy,    run_copy, run_load,    run_load,        run_load_append,
        run_remove_some, append,      attend,   run_reorder, run_copy,        run_load_append,
        run_load_append, read_rows};
    calls[take_below(&r->in, sizeof calls / sizeof *calls)](r);
    model_check(r->m, r->cache, r->heap.live - r->context_bytes);
}

/* Tasks from the last to the first, by three workers that are one thread. */
static void backwards(void *user, uint32_t n, void (*task)(void *, uint32_t, uint32_t), void *arg) {
    (void)user;
    for (uint32_t i = n; i-- > 0;)
        task(arg, i, i % 3);
}

static tq_cache_config read_config(struct input *in) {
    static const uint32_t dims[] = {32, 64, 80, 96};
    tq_cache_config c = {.struct_size = sizeof c, .seed = 5};
    tq_variant_info info = {.struct_size = sizeof info};
    MUST(tq_variant_get(take_below(in, tq_variant_count()), &info) == TQ_OK);
    c.variant = info.id;
    c.n_layers = 1 + take_below(in, MAX_LAYERS);
    c.n_kv_heads = 1 + take_below(in, 2);
    c.n_q_heads = c.n_kv_heads * (1 + take_below(in, 2));
    c.head_dim = dims[take_below(in, 4)];
    c.v_head_dim = dims[take_below(in, 4)];
    c.page_tokens = MIN_PAGE << take_below(in, 2);
    c.max_seqs = 1 + take_below(in, MAX_SEQS);
    c.max_pages = take_below(in, 12);
    c.boundary_layers = take_below(in, 2);
    return c;
}

/* By the upper bits of a byte whose lower bits mean something else. */
static void set_kept(tq_cache_config *c, uint8_t how) {
    static const uint32_t sinks[] = {0, 0, 16, 32}, recent[] = {0, 1, 7, 40};
    c->sink_tokens = sinks[how >> 4 & 3];
    c->recent_tokens = recent[how >> 6];
}

/* The heap must not refuse while the cache is made: fuzz_config does that. */
static void open_cache(struct run *r, tq_context *ctx, const tq_cache_config *c,
                       const float *means) {
    r->context_bytes = r->heap.live;
    MUST(tq_cache_create(ctx, c, &r->cache) == TQ_OK);
    for (uint32_t l = 0; means && l < c->n_layers; l++)
        MUST(tq_cache_set_means(r->cache, l, means, means) == TQ_OK);
    r->m = model_make(c, means);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct run r = {.in = input_of(data, size), .heap = {.limit = HEAP_LIMIT}};
    tq_executor executor = {
        .struct_size = sizeof executor, .n_workers = 3, .parallel_for = backwards};
    tq_cache_config c = read_config(&r.in);
    uint8_t how = take8(&r.in);
    uint64_t disabled = fuzz_features_disabled(how >> 2 & 3);
    set_kept(&c, how);
    float means[MAX_VALUES];
    for (int i = 0; i < MAX_VALUES; i++)
        means[i] = (float)(i % 7) * 0.25f;
    tq_context *ctx = fuzz_context(&r.heap, how & 1 ? &executor : NULL, disabled);
    r.tolerance = tq_context_cpu_features(ctx) ? SIMD_TOLERANCE : REF_TOLERANCE;
    open_cache(&r, ctx, &c, how & 2 ? means : NULL);
    for (int i = 0; i < MAX_STEPS && input_left(&r.in); i++)
        step(&r);
    r.heap.refuse_at = 0;
    read_all(&r);
    tq_cache_destroy(r.cache);
    MUST(r.heap.live == r.context_bytes);
    tq_context_destroy(ctx);
    MUST(r.heap.live == 0 && r.heap.blocks == 0);
    model_free(r.m);
    return 0;
}
