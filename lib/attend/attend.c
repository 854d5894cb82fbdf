/*
 * Attention of one sequence and layer. Work is cut into tasks of (kv heads, tile of query
 * rows, split of tokens); a task walks its pages: score, softmax, accumulate. It takes as
 * many kv heads as its tile has room for, because the heads of a page lie side by side in
 * memory and a plain stream of addresses is what hardware fetches best. The states
 * of the splits are then merged in order. Tiles share the decoding of codes between the
 * query rows of a kv head. Splits lie at fixed tokens, so that results depend neither on
 * the number of workers nor on what else is in the call.
 */
#include "attend/attend.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"

enum {
    TILE_ROWS = 32,        /* query rows that a task scores together */
    SPLIT_TOKENS = 2048,   /* multiple of the largest page */
    STATES_BYTES = 1 << 25 /* queries are taken in blocks whose states fit in about this */
};

/* Sizes of one call and the memory of its workers. */
struct plan {
    const struct tqi_attend_job *job;
    const struct tqi_level *level;
    uint32_t first_query, n_queries;  /* the block at hand */
    uint32_t rows, tiles;             /* query rows of a kv head in the block; tiles of them */
    uint32_t first_split, n_splits;   /* those that some query sees */
    uint32_t task_heads, head_blocks; /* kv heads of a task; tasks over the heads */
    size_t query_bytes, state_bytes, scores_bytes, scratch_bytes, worker_bytes;
    char *states;  /* [kv head][split][row] */
    char *workers; /* [worker] */
};

/* A worker's memory. */
struct workspace {
    char *queries, *scores, *scratch;
    double *out;
    double *shift; /* [row] of softcap */
    float *row;
};

static struct workspace workspace_of(const struct plan *p, uint32_t worker) {
    struct workspace w;
    w.queries = p->workers + worker * p->worker_bytes;
    w.scores = w.queries + TILE_ROWS * p->query_bytes;
    w.scratch = w.scores + p->scores_bytes;
    w.out = (double *)(void *)(w.scratch + p->scratch_bytes);
    w.shift = w.out + p->job->layer->v.layout.dim;
    w.row = (float *)(void *)(w.shift + TILE_ROWS);
    return w;
}

static char *state_of(const struct plan *p, uint32_t head, uint32_t split, uint32_t row) {
    return p->states + (((size_t)head * p->n_splits + split) * p->rows + row) * p->state_bytes;
}

/* Query token and head of row r of a kv head. */
static uint32_t query_of(const struct plan *p, uint32_t r) {
    return p->first_query + r / p->job->group;
}

static uint32_t q_head_of(const struct plan *p, uint32_t head, uint32_t r) {
    return head * p->job->group + r % p->job->group;
}

/* Tokens [first, last). */
struct range {
    uint64_t first, last;
};

/* Tokens that a query sees. */
static struct range seen_by(const struct tqi_attend_job *job, uint32_t query) {
    uint64_t after = job->causal ? job->n_queries - 1 - query : 0; /* queries behind this one */
    struct range seen = {0, job->view.length > after ? job->view.length - after : 0};
    if (job->window && seen.last > job->window)
        seen.first = seen.last - job->window;
    return seen;
}

/* What row r sees of the n tokens from `start` on. */
static struct tqi_sight span_of(const struct plan *p, uint32_t r, uint64_t start, uint32_t n) {
    struct range seen = seen_by(p->job, query_of(p, r));
    uint64_t first = seen.first > start ? seen.first - start : 0;
    uint64_t last = seen.last > start ? seen.last - start : 0;
    return (struct tqi_sight){(uint32_t)(first < n ? first : n), (uint32_t)(last < n ? last : n)};
}

/* Queries are not sanitised: what is not finite must show in the output. */
static void load_query(const struct plan *p, uint32_t head, uint32_t r, float *out) {
    const tq_rows_in *q = &p->job->q;
    int64_t at =
        (int64_t)query_of(p, r) * q->token_stride + (int64_t)q_head_of(p, head, r) * q->head_stride;
    for (uint32_t i = 0; i < p->job->layer->k.layout.dim; i++) {
        if (q->dtype == TQ_F32) {
            memcpy(&out[i], (const char *)q->data + (at + i) * 4, sizeof out[i]);
            continue;
        }
        uint16_t h;
        memcpy(&h, (const char *)q->data + (at + i) * 2, sizeof h);
        out[i] = q->dtype == TQ_F16 ? tqi_f16_to_float(h) : tqi_bf16_to_float(h);
    }
}

/* The rows of a task: n_rows from first_row on of n_heads kv heads, and its tokens. */
struct task {
    uint32_t head, n_heads, split, first_row, n_rows;
    uint64_t from, to;
};

/* What is read after (page, head): the next head, then the next page. */
static const uint8_t *next_blob(const struct plan *p, const struct task *t, uint64_t page,
                                uint32_t head) {
    if (head + 1 < t->head + t->n_heads)
        return tqi_view_blob(&p->job->view, page, head + 1);
    if ((page + 1) * p->job->view.page_tokens < t->to)
        return tqi_view_blob(&p->job->view, page + 1, t->head);
    return NULL;
}

/* One page of one head. */
static void attend_page(const struct plan *p, struct workspace *w, const struct task *t,
                        uint64_t page, uint32_t head) {
    const struct tqi_layer *layer = p->job->layer;
    uint32_t page_tokens = p->job->view.page_tokens;
    struct tqi_sight spans[TILE_ROWS];
    uint64_t start = page * page_tokens;
    struct tqi_tile tile = {.blob = tqi_view_blob(&p->job->view, page, head),
                            .next = next_blob(p, t, page, head)};
    tile.last = (uint32_t)(t->to - start < page_tokens ? t->to - start : page_tokens);
    for (uint32_t r = 0; r < t->n_rows; r++)
        spans[r] = span_of(p, t->first_row + r, start, tile.last);
    tile.scale = layer->k_scale[head];
    const char *queries = w->queries + (size_t)(head - t->head) * t->n_rows * p->query_bytes;
    p->level->score[layer->k.format->id].run(&layer->k, &tile, queries, t->n_rows, page_tokens,
                                             w->scores, w->scratch);
    double scale = p->job->scale;
    if (p->job->softcap > 0) {
        const double *shift = w->shift + (size_t)(head - t->head) * t->n_rows;
        p->level->softcap(w->scores, page_tokens, shift, t->n_rows, tile.last, scale,
                          p->job->softcap);
        scale = 1;
    }
    char *states = state_of(p, head, t->split, t->first_row);
    p->level->softmax(states, p->state_bytes, w->scores, page_tokens, spans, t->n_rows, tile.last,
                      scale);
    tile.scale = layer->v_scale[head];
    p->level->accumulate[layer->v.format->id].run(&layer->v, &tile, w->scores, t->n_rows,
                                                  page_tokens, states, p->state_bytes, w->scratch);
}

static uint32_t tile_rows(const struct plan *p, uint32_t tile) {
    uint32_t left = p->rows - tile * TILE_ROWS;
    return left < TILE_ROWS ? left : TILE_ROWS;
}

static struct task task_of(const struct plan *p, uint32_t index) {
    struct task t = {.split = index % p->n_splits};
    uint32_t tile = index / p->n_splits % p->tiles, left;
    t.head = index / p->n_splits / p->tiles * p->task_heads;
    left = p->job->layer->n_kv_heads - t.head;
    t.n_heads = left < p->task_heads ? left : p->task_heads;
    t.first_row = tile * TILE_ROWS;
    t.n_rows = tile_rows(p, tile);
    t.from = (uint64_t)(p->first_split + t.split) * SPLIT_TOKENS;
    t.to = t.from + SPLIT_TOKENS;
    /* Later rows begin and end later: the first and the last bound the tile. */
    uint64_t first = seen_by(p->job, query_of(p, t.first_row)).first;
    uint64_t last = seen_by(p->job, query_of(p, t.first_row + t.n_rows - 1)).last;
    t.from = t.from > first ? t.from : first;
    t.to = t.to < last ? t.to : last;
    return t;
}

/* scale * q.mean: what centring took from every score of the row. */
static double mean_score(const struct plan *p, uint32_t head, uint32_t r, float *row) {
    uint32_t dim = p->job->layer->k.layout.dim;
    const float *mean = tqi_layer_mean(p->job->layer->k_mean, head, dim);
    double sum = 0;
    if (!mean)
        return 0;
    load_query(p, head, r, row);
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)row[i] * (double)mean[i];
    return sum * p->job->scale;
}

static void start_head(const struct plan *p, struct workspace *w, const struct task *t,
                       uint32_t head) {
    char *queries = w->queries + (size_t)(head - t->head) * t->n_rows * p->query_bytes;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        p->level->state_clear(&p->job->layer->v, state_of(p, head, t->split, t->first_row + r));
        if (t->from >= t->to)
            continue;
        if (p->job->softcap > 0)
            w->shift[(head - t->head) * t->n_rows + r] =
                mean_score(p, head, t->first_row + r, w->row);
        load_query(p, head, t->first_row + r, w->row);
        p->level->prepare(&p->job->layer->k, w->row, queries + r * p->query_bytes);
    }
}

/* Task of (kv heads, tile, split): fills the states of its rows. */
static void attend_split(void *arg, uint32_t index, uint32_t worker) {
    const struct plan *p = arg;
    struct task t = task_of(p, index);
    uint32_t page_tokens = p->job->view.page_tokens;
    struct workspace w = workspace_of(p, worker);
    for (uint32_t h = 0; h < t.n_heads; h++)
        start_head(p, &w, &t, t.head + h);
    for (uint64_t page = t.from / page_tokens; page * page_tokens < t.to; page++)
        for (uint32_t h = 0; h < t.n_heads; h++)
            attend_page(p, &w, &t, page, t.head + h);
}

/* The sink's logit joins the sum and takes its share of the weight from the values. */
static void add_sink(double sink, double *out, uint32_t dim, double *lse) {
    double keep = 1 / (1 + exp(sink - *lse));
    for (uint32_t i = 0; i < dim; i++)
        out[i] *= keep;
    *lse = sink > *lse ? sink + log1p(exp(*lse - sink)) : *lse + log1p(exp(sink - *lse));
}

static void finish_row(const struct plan *p, struct workspace *w, uint32_t head, uint32_t r) {
    const struct tqi_attend_job *job = p->job;
    const struct tqi_rows *v = &job->layer->v;
    char *state = state_of(p, head, 0, r);
    double lse;
    for (uint32_t split = 1; split < p->n_splits; split++)
        p->level->state_merge(v, state, state_of(p, head, split, r));
    p->level->state_finish(v, state, tqi_layer_mean(job->layer->v_mean, head, v->layout.dim),
                           w->out, &lse, w->scratch);
    uint32_t query = query_of(p, r), q_head = q_head_of(p, head, r);
    if ((job->lse || job->layer->sinks) && job->softcap == 0) /* else it went in before the cap */
        lse += mean_score(p, head, r, w->row);
    if (job->layer->sinks && lse != -INFINITY)
        add_sink((double)job->layer->sinks[q_head], w->out, v->layout.dim, &lse);
    int64_t at = (int64_t)query * job->out.token_stride + (int64_t)q_head * job->out.head_stride;
    int64_t size = job->out.dtype == TQ_F32 ? 4 : 2;
    p->level->store(w->out, v->layout.dim, job->out.dtype, (char *)job->out.data + at * size);
    if (!job->lse)
        return;
    size_t n_q_heads = (size_t)job->layer->n_kv_heads * job->group;
    job->lse[query * n_q_heads + q_head] = (float)lse;
}

/* Task of (kv head, tile): merges the splits of its rows and writes them. */
static void finish_tile(void *arg, uint32_t index, uint32_t worker) {
    const struct plan *p = arg;
    uint32_t tile = index % p->tiles, head = index / p->tiles, n_rows = tile_rows(p, tile);
    struct workspace w = workspace_of(p, worker);
    for (uint32_t r = 0; r < n_rows; r++)
        finish_row(p, &w, head, tile * TILE_ROWS + r);
}

/* Heads of a task: as many as the tile has room for while all workers find enough tasks. */
static void set_heads(struct plan *p) {
    uint32_t heads = p->job->layer->n_kv_heads, n = 1;
    uint64_t per_block = (uint64_t)p->tiles * p->n_splits;
    uint64_t wanted =
        p->job->executor->n_workers > 1 ? 4 * (uint64_t)p->job->executor->n_workers : 1;
    while (2 * n <= heads && 2 * n * p->rows <= TILE_ROWS &&
           per_block * ((heads + 2 * n - 1) / (2 * n)) >= wanted)
        n *= 2;
    p->task_heads = n;
    p->head_blocks = (heads + n - 1) / n;
}

/* The row count of a block of queries, and its tasks. */
static void set_block(struct plan *p, uint32_t first_query, uint32_t n_queries) {
    p->first_query = first_query;
    p->n_queries = n_queries;
    p->rows = n_queries * p->job->group;
    p->tiles = (p->rows + TILE_ROWS - 1) / TILE_ROWS;
    set_heads(p);
}

static void run_block(struct plan *p) {
    uint32_t heads = p->job->layer->n_kv_heads;
    tqi_executor_run(p->job->executor, p->head_blocks * p->tiles * p->n_splits, attend_split, p);
    tqi_executor_run(p->job->executor, heads * p->tiles, finish_tile, p);
}

static void measure(struct plan *p, const struct tqi_attend_job *job) {
    const struct tqi_layer *layer = job->layer;
    size_t k_scratch, v_scratch;
    memset(p, 0, sizeof *p);
    p->job = job;
    p->level = layer->attend;
    /* The first query begins first. */
    p->first_split = (uint32_t)(seen_by(job, 0).first / SPLIT_TOKENS);
    p->n_splits = (uint32_t)tqi_div_up(job->view.length, SPLIT_TOKENS) - p->first_split;
    p->n_splits = p->n_splits ? p->n_splits : 1;
    p->query_bytes = p->level->query_bytes(&layer->k);
    p->state_bytes = tqi_align_up(p->level->state_bytes(&layer->v), TQI_ALIGNMENT);
    p->scores_bytes = tqi_align_up((size_t)TILE_ROWS * job->view.page_tokens * p->level->score_size,
                                   TQI_ALIGNMENT);
    k_scratch = p->level->scratch_bytes(&layer->k);
    v_scratch = p->level->scratch_bytes(&layer->v);
    p->scratch_bytes = tqi_align_up(k_scratch > v_scratch ? k_scratch : v_scratch, TQI_ALIGNMENT);
    p->worker_bytes = tqi_align_up(TILE_ROWS * p->query_bytes + p->scores_bytes + p->scratch_bytes +
                                       (layer->v.layout.dim + TILE_ROWS) * sizeof(double) +
                                       layer->k.layout.dim * sizeof(float),
                                   TQI_ALIGNMENT);
}

/* Queries of a block: as many as keep the states small, at least one. */
static uint32_t block_queries(const struct plan *p) {
    size_t per_query =
        (size_t)p->job->layer->n_kv_heads * p->job->group * p->n_splits * p->state_bytes;
    size_t n = STATES_BYTES / per_query;
    n = n ? n : 1;
    return n < p->job->n_queries ? (uint32_t)n : p->job->n_queries;
}

tq_status tqi_attend(const struct tqi_attend_job *job) {
    struct plan plan;
    struct tqi_heap heap = tqi_heap_like(job->heap);
    uint32_t n_workers = job->executor->n_workers;
    tq_status status = TQ_ERR_OUT_OF_MEMORY;
    measure(&plan, job);
    uint32_t block = block_queries(&plan);
    size_t n_states = (size_t)block * job->group * job->layer->n_kv_heads * plan.n_splits;
    plan.states = tqi_alloc(&heap, n_states, plan.state_bytes, TQ_MEM_HOST);
    plan.workers = tqi_alloc(&heap, n_workers, plan.worker_bytes, TQ_MEM_HOST);
    if (plan.states && plan.workers) {
        for (uint32_t first = 0; first < job->n_queries; first += block) {
            uint32_t left = job->n_queries - first;
            set_block(&plan, first, left < block ? left : block);
            run_block(&plan);
        }
        status = TQ_OK;
    }
    tqi_free(&heap, plan.states, n_states, plan.state_bytes, TQ_MEM_HOST);
    tqi_free(&heap, plan.workers, n_workers, plan.worker_bytes, TQ_MEM_HOST);
    return status;
}
