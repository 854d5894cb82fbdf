/*
 * Attention on the codes. A task walks the pages of one sequence: score, softmax, accumulate.
 * It takes as many kv heads as its tile has room for, because the heads of a page lie side by
 * side in memory and a plain stream of addresses is what hardware fetches best. Tiles share
 * the decoding of codes between the query rows of a kv head. The states of the splits are
 * then merged in order.
 */
#include "attend/attend.h"

#include <math.h>
#include <string.h>

#include "attend/plan.h"
#include "base/half.h"

/* A worker's memory. */
struct workspace {
    char *queries, *scores, *scratch;
    double *out;
    double *shift; /* [row] of softcap */
    float *row;
};

static struct workspace workspace_of(const struct tqi_attend_plan *p, uint32_t worker) {
    struct workspace w;
    w.queries = p->workers + worker * p->worker_bytes;
    w.scores = w.queries + TQI_TILE_ROWS * p->query_bytes;
    w.scratch = w.scores + p->scores_bytes;
    w.out = (double *)(void *)(w.scratch + p->scratch_bytes);
    w.shift = w.out + p->job->layer->v.layout.dim;
    w.row = (float *)(void *)(w.shift + TQI_TILE_ROWS);
    return w;
}

static char *state_of(const struct tqi_attend_plan *p, const struct tqi_piece *piece, uint32_t head,
                      uint32_t split, uint32_t row) {
    size_t index = ((size_t)head * piece->n_splits + split) * piece->rows + row;
    return piece->states + index * p->state_bytes;
}

/* Query and head of row r of a kv head; the query counts from the sequence's first. */
static uint32_t query_of(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                         uint32_t r) {
    return piece->first_query + r / p->job->group;
}

static uint32_t q_head_of(const struct tqi_attend_plan *p, uint32_t head, uint32_t r) {
    return head * p->job->group + r % p->job->group;
}

/* Its row in the caller's arrays. */
static int64_t row_of(const struct tqi_attend_plan *p, const struct tqi_piece *piece, uint32_t r) {
    return (int64_t)piece->seq->first_row + query_of(p, piece, r);
}

/* What row r sees of the n tokens from `start` on. */
static struct tqi_sight span_of(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                                uint32_t r, uint64_t start, uint32_t n) {
    struct tqi_range seen = tqi_seen_by(p->job, piece->seq, query_of(p, piece, r));
    uint64_t first = seen.first > start ? seen.first - start : 0;
    uint64_t last = seen.last > start ? seen.last - start : 0;
    return (struct tqi_sight){(uint32_t)(first < n ? first : n), (uint32_t)(last < n ? last : n)};
}

/* Queries are not sanitised: what is not finite must show in the output. */
static void load_query(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                       uint32_t head, uint32_t r, float *out) {
    const tq_rows_in *q = &p->job->q;
    int64_t at =
        row_of(p, piece, r) * q->token_stride + (int64_t)q_head_of(p, head, r) * q->head_stride;
    for (uint32_t i = 0; i < p->job->layer->k.layout.dim; i++) {
        if (q->dtype == TQ_F32) {
            memcpy(&out[i], (const char *)q->data + (at + i) * 4, sizeof out[i]);
            continue;
        }
        uint16_t h;
        memcpy(&h, (const char *)q->data + (at + i) * 2, sizeof h);
        out[i] = q->dtype == TQ_F16 ? tqi_f16_to_float(h) : tqi_bf16_to_float(h);
    }
    /* Kernels know scales of one sign only: the largest score is then the largest logit. */
    for (uint32_t i = 0; p->job->scale < 0 && i < p->job->layer->k.layout.dim; i++)
        out[i] = -out[i];
}

/* The rows of a task: n_rows from first_row on of n_heads kv heads, and its tokens. */
struct task {
    const struct tqi_piece *piece;
    uint32_t head, n_heads, split, first_row, n_rows;
    uint64_t from, to;
};

/* What is read after (page, head): the next head, then the next page. */
static const uint8_t *next_blob(const struct task *t, uint64_t page, uint32_t head) {
    const struct tqi_page_view *view = &t->piece->view;
    if (head + 1 < t->head + t->n_heads)
        return tqi_view_blob(view, page, head + 1);
    if ((page + 1) * view->page_tokens < t->to)
        return tqi_view_blob(view, page + 1, t->head);
    return NULL;
}

/* One page of one head. */
static void attend_page(const struct tqi_attend_plan *p, struct workspace *w, const struct task *t,
                        uint64_t page, uint32_t head) {
    const struct tqi_layer *layer = p->job->layer;
    uint32_t page_tokens = p->job->view.page_tokens;
    struct tqi_sight spans[TQI_TILE_ROWS];
    uint64_t start = page * page_tokens;
    struct tqi_tile tile = {.blob = tqi_view_blob(&t->piece->view, page, head),
                            .next = next_blob(t, page, head)};
    tile.last = (uint32_t)(t->to - start < page_tokens ? t->to - start : page_tokens);
    for (uint32_t r = 0; r < t->n_rows; r++)
        spans[r] = span_of(p, t->piece, t->first_row + r, start, tile.last);
    tile.scale = layer->k_scale[head];
    const char *queries = w->queries + (size_t)(head - t->head) * t->n_rows * p->query_bytes;
    p->level->score[layer->k.format->id].run(&layer->k, &tile, queries, t->n_rows, page_tokens,
                                             w->scores, w->scratch);
    double scale = fabs(p->job->scale);
    if (p->job->softcap > 0) {
        const double *shift = w->shift + (size_t)(head - t->head) * t->n_rows;
        p->level->softcap(w->scores, page_tokens, shift, t->n_rows, tile.last, scale,
                          p->job->softcap);
        scale = 1;
    }
    char *states = state_of(p, t->piece, head, t->split, t->first_row);
    p->level->softmax(states, p->state_bytes, w->scores, page_tokens, spans, t->n_rows, tile.last,
                      scale);
    tile.scale = layer->v_scale[head];
    p->level->accumulate[layer->v.format->id].run(&layer->v, &tile, w->scores, t->n_rows,
                                                  page_tokens, states, p->state_bytes, w->scratch);
}

static uint32_t tile_rows(const struct tqi_piece *piece, uint32_t tile) {
    uint32_t left = piece->rows - tile * TQI_TILE_ROWS;
    return left < TQI_TILE_ROWS ? left : TQI_TILE_ROWS;
}

static struct task task_of(const struct tqi_attend_plan *p, uint32_t index) {
    const struct tqi_piece *piece = tqi_piece_of_task(p, index);
    uint32_t in_piece = index - piece->first_task, left;
    struct task t = {.piece = piece, .split = in_piece % piece->n_splits};
    uint32_t tile = in_piece / piece->n_splits % piece->tiles;
    t.head = in_piece / piece->n_splits / piece->tiles * piece->task_heads;
    left = p->job->layer->n_kv_heads - t.head;
    t.n_heads = left < piece->task_heads ? left : piece->task_heads;
    t.first_row = tile * TQI_TILE_ROWS;
    t.n_rows = tile_rows(piece, tile);
    t.from = (uint64_t)(piece->first_split + t.split) * TQI_SPLIT_TOKENS;
    t.to = t.from + TQI_SPLIT_TOKENS;
    /* Later rows begin and end later: the first and the last bound the tile. */
    uint32_t last_row = t.first_row + t.n_rows - 1;
    uint64_t first = tqi_seen_by(p->job, piece->seq, query_of(p, piece, t.first_row)).first;
    uint64_t last = tqi_seen_by(p->job, piece->seq, query_of(p, piece, last_row)).last;
    t.from = t.from > first ? t.from : first;
    t.to = t.to < last ? t.to : last;
    return t;
}

/* |scale| * q.mean: what centring took from every score of the row. */
static double mean_score(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                         uint32_t head, uint32_t r, float *row) {
    uint32_t dim = p->job->layer->k.layout.dim;
    const float *mean = tqi_layer_mean(p->job->layer->k_mean, head, dim);
    double sum = 0;
    if (!mean)
        return 0;
    load_query(p, piece, head, r, row);
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)row[i] * (double)mean[i];
    return sum * fabs(p->job->scale);
}

static void start_head(const struct tqi_attend_plan *p, struct workspace *w, const struct task *t,
                       uint32_t head) {
    char *queries = w->queries + (size_t)(head - t->head) * t->n_rows * p->query_bytes;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        p->level->state_clear(&p->job->layer->v,
                              state_of(p, t->piece, head, t->split, t->first_row + r));
        if (t->from >= t->to)
            continue;
        if (p->job->softcap > 0)
            w->shift[(head - t->head) * t->n_rows + r] =
                mean_score(p, t->piece, head, t->first_row + r, w->row);
        load_query(p, t->piece, head, t->first_row + r, w->row);
        p->level->prepare(&p->job->layer->k, w->row, queries + r * p->query_bytes);
    }
}

/* The sink's logit joins the sum and takes its share of the weight from the values. */
static void add_sink(double sink, double *out, uint32_t dim, double *lse) {
    double keep = 1 / (1 + exp(sink - *lse));
    for (uint32_t i = 0; i < dim; i++)
        out[i] *= keep;
    *lse = sink > *lse ? sink + log1p(exp(*lse - sink)) : *lse + log1p(exp(sink - *lse));
}

/* Merges the splits of a row and writes it. */
static void finish_row(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                       struct workspace *w, uint32_t head, uint32_t r) {
    const struct tqi_attend_job *job = p->job;
    const struct tqi_rows *v = &job->layer->v;
    char *state = state_of(p, piece, head, 0, r);
    double lse;
    for (uint32_t split = 1; split < piece->n_splits; split++)
        p->level->state_merge(v, state, state_of(p, piece, head, split, r));
    p->level->state_finish(v, state, tqi_layer_mean(job->layer->v_mean, head, v->layout.dim),
                           w->out, &lse, w->scratch);
    uint32_t q_head = q_head_of(p, head, r);
    int64_t row = row_of(p, piece, r);
    if ((job->lse || job->layer->sinks) && job->softcap == 0) /* else it went in before the cap */
        lse += mean_score(p, piece, head, r, w->row);
    if (job->layer->sinks && lse != -INFINITY)
        add_sink((double)job->layer->sinks[q_head], w->out, v->layout.dim, &lse);
    int64_t at = row * job->out.token_stride + (int64_t)q_head * job->out.head_stride;
    int64_t size = job->out.dtype == TQ_F32 ? 4 : 2;
    p->level->store(w->out, v->layout.dim, job->out.dtype, (char *)job->out.data + at * size);
    size_t n_q_heads = (size_t)job->layer->n_kv_heads * job->group;
    if (job->lse)
        job->lse[(size_t)row * n_q_heads + q_head] = (float)lse;
}

/* ---- tasks ------------------------------------------------------------------------------- */

/* Task of (kv heads, tile, split): fills the states of its rows. Where there is but one split
 * the rows are finished as well. */
static void walk(void *arg, uint32_t index, uint32_t worker) {
    const struct tqi_attend_plan *p = arg;
    struct task t = task_of(p, index);
    uint32_t page_tokens = p->job->view.page_tokens;
    struct workspace w = workspace_of(p, worker);
    for (uint32_t h = 0; h < t.n_heads; h++)
        start_head(p, &w, &t, t.head + h);
    for (uint64_t page = t.from / page_tokens; page * page_tokens < t.to; page++)
        for (uint32_t h = 0; h < t.n_heads; h++)
            attend_page(p, &w, &t, page, t.head + h);
    if (t.piece->n_splits > 1)
        return;
    for (uint32_t h = 0; h < t.n_heads; h++)
        for (uint32_t r = 0; r < t.n_rows; r++)
            finish_row(p, t.piece, &w, t.head + h, t.first_row + r);
}

/* Task of (kv head, tile) where there are several splits. */
static void join(void *arg, uint32_t index, uint32_t worker) {
    const struct tqi_attend_plan *p = arg;
    const struct tqi_piece *piece = tqi_piece_of_join(p, index);
    uint32_t in_piece = index - piece->first_join;
    uint32_t tile = in_piece % piece->tiles, head = in_piece / piece->tiles;
    struct workspace w = workspace_of(p, worker);
    for (uint32_t r = 0; r < tile_rows(piece, tile); r++)
        finish_row(p, piece, &w, head, tile * TQI_TILE_ROWS + r);
}

void tqi_attend(const struct tqi_attend_job *job) {
    struct tqi_attend_plan plan;
    tqi_attend_start(&plan, job);
    while (tqi_attend_next_block(&plan)) {
        tqi_executor_run(job->executor, plan.n_tasks, walk, &plan);
        tqi_executor_run(job->executor, plan.n_joins, join, &plan);
    }
}
