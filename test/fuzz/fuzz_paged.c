/* Pages of an engine under a stream of appends and attends, beside a model that is an array: what
 * row every slot of the pool holds. Slots, tables, lengths and rows of queries come from the input,
 * good and bad; bad ones must be refused and change nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "fuzz/model.h"
#include "tq/paged.h"

const char fuzz_name[] = "paged";

enum { HEAP_LIMIT = 1 << 26, MAX_STEPS = 48, MAX_PAGES = 8, MAX_ROWS = 40, EMPTY = 255 };
enum { SEQS = 4, MAX_QUERIES = 3, TABLE = SEQ_PAGES + 2, FILL = 0xfe };
/* Relative to the whole output; kernels above the reference may round more. */
#define REF_TOLERANCE 1e-5
#define SIMD_TOLERANCE 1e-3

struct run {
    struct input in;
    struct fuzz_heap heap;
    tq_cache *cache;
    struct model *m;
    double tolerance;
    uint32_t n_pages;
    size_t page_bytes, gap; /* bytes behind each page that are nobody's */
    uint8_t *pool, *before;
    uint8_t held[MAX_PAGES * 2 * MIN_PAGE]; /* [slot] the row, or EMPTY */
};

static size_t pool_bytes(const struct run *r) {
    return (r->page_bytes + r->gap) * r->n_pages;
}

static uint32_t n_slots(const struct run *r) {
    return r->n_pages * r->m->c.page_tokens;
}

static tq_paged_pool pool_of(const struct run *r, uint32_t flags) {
    return (tq_paged_pool){sizeof(tq_paged_pool), flags, r->pool, (int64_t)(r->page_bytes + r->gap),
                           r->n_pages};
}

/* ---- append -------------------------------------------------------------------------------- */

/* One page in this many gets more than its share, so that sequences become long. */
static int64_t any_slot(struct run *r, uint32_t base, uint32_t i) {
    uint8_t how = take8(&r->in);
    if (how < 10)
        return how < 5 ? -1 : INT64_MIN;
    if (how == 10)
        return n_slots(r);
    if (how == 11)
        return INT64_MAX;
    return how < 60 ? take_below(&r->in, n_slots(r)) : (base + i) % n_slots(r);
}

/* What is not of a page keeps its bytes. */
static void check_gaps(const struct run *r) {
    for (uint32_t p = 0; p < r->n_pages; p++)
        for (size_t i = 0; i < r->gap; i++)
            MUST(r->pool[p * (r->page_bytes + r->gap) + r->page_bytes + i] == FILL);
}

static void hold(struct run *r, const int64_t *slots, const uint8_t *rows, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] < 0)
            continue;
        r->held[slots[i]] = rows[i];
        r->m->nan_values += rows[i] == NAN_ROW;
    }
}

static void append(struct run *r) {
    uint32_t n = take_below(&r->in, MAX_ROWS), base = take_below(&r->in, n_slots(r));
    size_t k_row = model_k_row(r->m), v_row = model_v_row(r->m);
    int64_t *slots = fuzz_alloc(n * sizeof *slots);
    float *k = fuzz_alloc(n * k_row * sizeof *k), *v = fuzz_alloc(n * v_row * sizeof *v);
    uint8_t rows[MAX_ROWS], from = take8(&r->in);
    int bad = 0;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (uint8_t)(from + i * (from >> 4)) % N_ROWS;
        slots[i] = any_slot(r, base, i);
        bad |= slots[i] >= (int64_t)n_slots(r);
        memcpy(k + i * k_row, r->m->k + rows[i] * k_row, k_row * sizeof *k);
        memcpy(v + i * v_row, r->m->v + rows[i] * v_row, v_row * sizeof *v);
    }
    tq_rows_in k_rows = {.data = k}, v_rows = {.data = v};
    tq_paged_pool pool = pool_of(r, take8(&r->in) & TQ_PAGED_CHECKED);
    memcpy(r->before, r->pool, pool_bytes(r));
    tq_status status = tq_paged_append(r->cache, 0, &pool, slots, n, &k_rows, &v_rows, NULL);
    MUST(status == (bad ? TQ_ERR_INVALID_ARGUMENT : TQ_OK));
    if (bad)
        MUST(memcmp(r->before, r->pool, pool_bytes(r)) == 0 && *tq_last_error());
    else
        hold(r, slots, rows, n);
    check_gaps(r);
    free(slots);
    free(k);
    free(v);
}

/* ---- attend -------------------------------------------------------------------------------- */

/* A call and what it should say. */
struct call {
    int32_t *table, *lengths, *starts; /* blocks of their own: nothing beyond is read */
    struct model_seq seqs[SEQS];       /* what the model attends to */
    uint32_t n_seqs, n_rows, max_length;
    int64_t stride;
    int bad;
};

/* Pages of a sequence, and as many of its tokens as are there; ids behind them are anything. */
static void take_seq(struct run *r, struct call *c, uint32_t i) {
    uint32_t tokens = r->m->c.page_tokens, n = 0;
    int32_t *ids = c->table + (int64_t)i * c->stride;
    struct model_seq *s = &c->seqs[i];
    for (uint32_t p = 0; p < (uint32_t)c->stride; p++) {
        uint8_t how = take8(&r->in);
        ids[p] = how < 3 ? (how == 0   ? -1
                            : how == 1 ? INT32_MIN
                                       : (int32_t)r->n_pages)
                         : (int32_t)(how % r->n_pages);
    }
    while (n < MAX_TOKENS && n / tokens < (uint32_t)c->stride && ids[n / tokens] >= 0 &&
           ids[n / tokens] < (int32_t)r->n_pages) {
        uint8_t row = r->held[(uint32_t)ids[n / tokens] * tokens + n % tokens];
        if (row == EMPTY)
            break;
        s->tokens[0][n++] = row;
    }
    s->alive = 1;
    s->lengths[0] = n ? take_below(&r->in, n + 1) : 0;
    c->lengths[i] = (int32_t)s->lengths[0];
    c->max_length = s->lengths[0] > c->max_length ? s->lengths[0] : c->max_length;
}

static void take_call(struct run *r, struct call *c) {
    memset(c, 0, sizeof *c);
    c->n_seqs = take_below(&r->in, SEQS + 1);
    c->stride = 1 + take_below(&r->in, TABLE);
    c->table = fuzz_alloc(c->n_seqs * (size_t)c->stride * sizeof *c->table);
    c->lengths = fuzz_alloc(c->n_seqs * sizeof *c->lengths);
    c->starts = fuzz_alloc((c->n_seqs + 1) * sizeof *c->starts);
    for (uint32_t i = 0; i < c->n_seqs; i++) {
        take_seq(r, c, i);
        c->starts[i + 1] = c->starts[i] + (int32_t)take_below(&r->in, MAX_QUERIES + 1);
    }
    c->n_rows = (uint32_t)c->starts[c->n_seqs] + take_below(&r->in, 2);
}

/* Breaks one thing of a call that has rows and sequences. */
static void spoil(struct run *r, struct call *c) {
    uint32_t i = take_below(&r->in, c->n_seqs), tokens = r->m->c.page_tokens;
    uint32_t rows = (uint32_t)(c->starts[i + 1] - c->starts[i]);
    c->bad = 1;
    switch (take8(&r->in) % 5) {
    case 0:
        c->starts[0] = 1 - 2 * (int32_t)(i & 1);
        break;
    case 1:
        c->starts[i + 1] = (int32_t)c->n_rows + 1;
        break;
    case 2:
        c->lengths[i] = -1 - c->lengths[i];
        break;
    case 3:
        c->lengths[i] = (int32_t)c->max_length + 1;
        break;
    default:
        c->bad = rows > 0 && c->lengths[i] > 0;
        if (c->bad)
            c->table[i * c->stride + (c->lengths[i] - 1) / (int32_t)tokens] =
                i & 1 ? -1 : (int32_t)r->n_pages;
    }
}

/* Rows of all sequences against the model; those of nobody keep their bytes. */
static void check_rows(const struct run *r, const struct call *c, int causal, const float *q,
                       const float *out) {
    size_t q_row = (size_t)r->m->c.n_q_heads * r->m->c.head_dim;
    size_t row = (size_t)r->m->c.n_q_heads * r->m->c.v_head_dim;
    double *want = fuzz_alloc(MAX_QUERIES * row * sizeof *want);
    for (uint32_t i = 0; i < c->n_seqs; i++) {
        uint32_t first = (uint32_t)c->starts[i], n = (uint32_t)c->starts[i + 1] - first;
        model_attend(r->m, &c->seqs[i], 0, n, causal, q + first * q_row, want);
        fuzz_near(out + first * row, want, n * row, r->tolerance);
    }
    for (size_t i = (size_t)c->starts[c->n_seqs] * row; i < c->n_rows * row; i++)
        MUST(out[i] == 7);
    free(want);
}

static void run_call(struct run *r, struct call *c) {
    const tq_cache_config *k = &r->m->c;
    size_t rows = (size_t)c->n_rows * k->n_q_heads, values = rows * k->v_head_dim, size = 0;
    float *q = fuzz_alloc(rows * k->head_dim * sizeof *q), *out = fuzz_alloc(values * sizeof *out);
    float *lse = take8(&r->in) & 1 ? fuzz_alloc(rows * sizeof *lse) : NULL;
    uint32_t state = take8(&r->in);
    for (size_t i = 0; i < rows * k->head_dim; i++) {
        state = state * 1664525u + 1013904223u;
        q[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
    for (size_t i = 0; i < values; i++)
        out[i] = 7;
    MUST(tq_paged_workspace(r->cache, c->n_seqs, c->n_rows, c->max_length, &size) == TQ_OK);
    size_t short_by = take8(&r->in) == 0 && c->n_rows && c->n_seqs;
    void *work = aligned_alloc(64, (size + 63) / 64 * 64);
    tq_attend_params params = {.struct_size = sizeof params, .flags = take8(&r->in) & 1};
    tq_paged_pool pool = pool_of(r, take8(&r->in) & TQ_PAGED_CHECKED);
    tq_paged_seqs seqs = {sizeof seqs, c->n_seqs, c->table,  c->stride,
                          c->lengths,  c->starts, c->n_rows, c->max_length};
    tq_rows_in q_rows = {.data = q};
    tq_rows_out out_rows = {.data = out};
    tq_status want = short_by ? TQ_ERR_BUFFER_TOO_SMALL : c->bad ? TQ_ERR_INVALID_ARGUMENT : TQ_OK;
    MUST(tq_paged_attend(r->cache, 0, &pool, &seqs, &params, &q_rows, &out_rows, lse, work,
                         size - short_by, NULL) == want);
    for (size_t i = 0; want != TQ_OK && i < values; i++)
        MUST(out[i] == 7);
    if (want == TQ_OK && c->n_seqs && c->n_rows)
        check_rows(r, c, params.flags & TQ_ATTEND_CAUSAL, q, out);
    free(q);
    free(out);
    free(lse);
    free(work);
}

static void attend(struct run *r) {
    struct call c;
    take_call(r, &c);
    if (take8(&r->in) % 4 == 0 && c.n_seqs && c.n_rows)
        spoil(r, &c);
    uint32_t calls = r->heap.blocks;
    memcpy(r->before, r->pool, pool_bytes(r));
    run_call(r, &c);
    MUST(r->heap.blocks == calls && memcmp(r->before, r->pool, pool_bytes(r)) == 0);
    free(c.table);
    free(c.lengths);
    free(c.starts);
}

/* ---- run ----------------------------------------------------------------------------------- */

static tq_cache_config read_config(struct input *in) {
    static const uint32_t dims[] = {32, 64, 80, 96};
    tq_cache_config c = {.struct_size = sizeof c, .n_layers = 1, .seed = 5};
    tq_variant_info info = {.struct_size = sizeof info};
    MUST(tq_variant_get(take_below(in, tq_variant_count()), &info) == TQ_OK);
    c.variant = info.id;
    c.n_kv_heads = 1 + take_below(in, 2);
    c.n_q_heads = c.n_kv_heads * (1 + take_below(in, 2));
    c.head_dim = dims[take_below(in, 4)];
    c.v_head_dim = dims[take_below(in, 4)];
    c.page_tokens = MIN_PAGE << take_below(in, 2);
    return c;
}

static void open_run(struct run *r, tq_context *ctx) {
    tq_cache_config c = read_config(&r->in);
    MUST(tq_cache_create(ctx, &c, &r->cache) == TQ_OK);
    r->m = model_make(&c, NULL);
    r->n_pages = 1 + take_below(&r->in, MAX_PAGES);
    r->page_bytes = tq_paged_page_bytes(r->cache, 0);
    r->gap = take_below(&r->in, 4) * 16;
    r->pool = aligned_alloc(16, pool_bytes(r));
    r->before = fuzz_alloc(pool_bytes(r));
    MUST(r->pool != NULL);
    memset(r->pool, FILL, pool_bytes(r));
    memset(r->held, EMPTY, sizeof r->held);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct run r = {.in = input_of(data, size), .heap = {.limit = HEAP_LIMIT}};
    uint8_t how = take8(&r.in);
    tq_context *ctx = fuzz_context(&r.heap, NULL, fuzz_features_disabled(how & 3));
    r.tolerance = tq_context_cpu_features(ctx) ? SIMD_TOLERANCE : REF_TOLERANCE;
    open_run(&r, ctx);
    for (int i = 0; i < MAX_STEPS && input_left(&r.in); i++)
        if (take8(&r.in) & 1)
            append(&r);
        else
            attend(&r);
    tq_cache_stats stats = {.struct_size = sizeof stats};
    MUST(tq_cache_get_stats(r.cache, &stats) == TQ_OK);
    MUST(stats.pages_used == 0); /* nor are NaNs of tokens counted that were not kept */
    MUST(stats.nan_values == r.m->nan_values);
    tq_cache_destroy(r.cache);
    tq_context_destroy(ctx);
    MUST(r.heap.live == 0 && r.heap.blocks == 0);
    model_free(r.m);
    free(r.pool);
    free(r.before);
    return 0;
}
