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

/* A worker's memory. */
struct workspace {
    struct tqi_held *held; /* whose queries and shifts are here */
    char *queries, *scores, *scratch;
    char *states; /* [kv head of the task][row] */
    double *out, *other;
    double *shift; /* [row] of softcap */
    float *row;
};

static struct workspace workspace_of(const struct tqi_attend_plan *p, uint32_t worker) {
    struct workspace w = {.held = tqi_held_by(p, worker)};
    w.queries = (char *)w.held + TQI_ALIGNMENT;
    w.scores = w.queries + TQI_TILE_ROWS * p->query_bytes;
    w.scratch = w.scores + p->scores_bytes;
    w.states = w.scratch + p->scratch_bytes;
    w.out = (double *)(void *)(w.states + TQI_TILE_ROWS * p->state_bytes);
    w.other = w.out + p->job->call.layer->v.layout.dim;
    w.shift = w.other + p->job->call.layer->v.layout.dim;
    w.row = (float *)(void *)(w.shift + TQI_TILE_ROWS);
    return w;
}

/* Where the states of a split are left for joining. */
static char *state_of(const struct tqi_attend_plan *p, const struct tqi_piece *piece, uint32_t head,
                      uint32_t split, uint32_t row) {
    size_t index = ((size_t)head * piece->n_splits + split) * piece->rows + row;
    return piece->states + index * p->state_bytes;
}

/* Query and head of row r of a kv head; the query counts from the sequence's first. */
static uint32_t query_of(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                         uint32_t r) {
    return piece->first_query + r / p->job->call.group;
}

static uint32_t q_head_of(const struct tqi_attend_plan *p, uint32_t head, uint32_t r) {
    return head * p->job->call.group + r % p->job->call.group;
}

/* Its row in the caller's arrays. */
static int64_t row_of(const struct tqi_attend_plan *p, const struct tqi_piece *piece, uint32_t r) {
    return (int64_t)piece->seq->first_row + query_of(p, piece, r);
}

/* Queries are not sanitised: what is not finite must show in the output. */
static void load_query(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                       uint32_t head, uint32_t r, float *out) {
    const tq_rows_in *q = &p->job->call.q;
    const struct tqi_layer *layer = p->job->call.layer;
    int64_t at =
        row_of(p, piece, r) * q->token_stride + (int64_t)q_head_of(p, head, r) * q->head_stride;
    int64_t size = q->dtype == TQ_F32 ? 4 : 2;
    layer->attend->widen((const char *)q->data + at * size, q->dtype, layer->k.layout.dim, out);
    /* Kernels know scales of one sign only: the largest score is then the largest logit. */
    for (uint32_t i = 0; p->job->call.scale < 0 && i < layer->k.layout.dim; i++)
        out[i] = -out[i];
}

/* The rows of a task: n_rows from first_row on of n_heads kv heads, and its tokens. */
struct task {
    const struct tqi_piece *piece;
    const struct tqi_part *part;
    const struct tqi_level *level; /* for its number of rows */
    size_t query_bytes;            /* of a prepared row */
    uint32_t head, n_heads, split, first_row, n_rows;
    uint64_t from, to;
};

/* What row r sees of the n tokens from `start` on. */
static struct tqi_sight span_of(const struct tqi_attend_plan *p, const struct task *t, uint32_t r,
                                uint64_t start, uint32_t n) {
    struct tqi_range seen = tqi_seen_by(p->job, t->piece->seq, query_of(p, t->piece, r));
    seen.first = seen.first > t->from ? seen.first : t->from;
    uint64_t first = seen.first > start ? seen.first - start : 0;
    uint64_t last = seen.last > start ? seen.last - start : 0;
    return (struct tqi_sight){(uint32_t)(first < n ? first : n), (uint32_t)(last < n ? last : n)};
}

/* A page, as all kv heads of a task see it. */
struct page {
    const uint8_t *blobs, *next[2]; /* of all kv heads; of the task's next pages, or NULL */
    uint32_t first, last;           /* tokens */
    struct tqi_sight spans[TQI_TILE_ROWS];
};

static void look_at_page(const struct tqi_attend_plan *p, const struct task *t, uint64_t number,
                         struct page *page) {
    const struct tqi_page_view *view = &t->part->view;
    uint64_t start = t->part->base + number * view->page_tokens, end = start + view->page_tokens;
    page->blobs = tqi_view_blob(view, number, 0);
    page->next[0] = end < t->to ? tqi_view_blob(view, number + 1, 0) : NULL;
    page->next[1] = end + view->page_tokens < t->to ? tqi_view_blob(view, number + 2, 0) : NULL;
    page->first = (uint32_t)(t->part->written > start ? t->part->written - start : 0);
    page->last = (uint32_t)((t->to < end ? t->to : end) - start);
    for (uint32_t r = 0; r < t->n_rows; r++)
        page->spans[r] =
            span_of(p, t, t->first_row + r, start + page->first, page->last - page->first);
}

/* What is read `steps` (1 or 2) heads after a head: others of the page, then the next page. */
static const uint8_t *blob_after(const struct task *t, const struct page *page, uint32_t head,
                                 uint32_t steps) {
    uint32_t index = head - t->head + steps, pages = index / t->n_heads;
    const uint8_t *blobs = pages ? page->next[pages - 1] : page->blobs;
    return blobs ? blobs + (t->head + index % t->n_heads) * t->part->view.blob_bytes : NULL;
}

/* One page of one head. */
static void attend_page(const struct tqi_attend_plan *p, struct workspace *w, const struct task *t,
                        const struct page *page, uint32_t head) {
    const struct tqi_layer *layer = t->part->layer;
    const struct tqi_level *level = t->level;
    uint32_t page_tokens = t->part->view.page_tokens, n = page->last - page->first;
    const int alike = layer->k.format == layer->v.format &&
                      layer->k.layout.codes_size == layer->v.layout.codes_size;
    struct tqi_tile tile = {.blob = page->blobs + head * t->part->view.blob_bytes,
                            .first = page->first,
                            .last = page->last,
                            .scale = layer->k_scale ? layer->k_scale[head] : 1,
                            .next = blob_after(t, page, head, 1),
                            .after = alike ? blob_after(t, page, head, 2) : NULL};
    const char *queries = w->queries + (size_t)(head - t->head) * t->n_rows * t->query_bytes;
    level->score[layer->k.format->id].run(&layer->k, &tile, queries, t->n_rows, page_tokens,
                                          w->scores, w->scratch);
    double scale = fabs(p->job->call.scale);
    if (p->job->call.softcap > 0) {
        const double *shift = w->shift + (size_t)(head - t->head) * t->n_rows;
        level->softcap(w->scores, page_tokens, shift, t->n_rows, n, scale, p->job->call.softcap);
        scale = 1;
    }
    char *states = w->states + (size_t)(head - t->head) * t->n_rows * p->state_bytes;
    level->softmax(states, p->state_bytes, w->scores, page_tokens, page->spans, t->n_rows, n,
                   scale);
    tile.scale = layer->v_scale ? layer->v_scale[head] : 1;
    level->accumulate[layer->v.format->id].run(&layer->v, &tile, w->scores, t->n_rows, page_tokens,
                                               states, p->state_bytes, w->scratch);
}

static uint32_t tile_rows(const struct tqi_piece *piece, uint32_t tile) {
    uint32_t left = piece->rows - tile * TQI_TILE_ROWS;
    return left < TQI_TILE_ROWS ? left : TQI_TILE_ROWS;
}

static const struct tqi_part *part_of(const struct tqi_piece *piece, uint32_t split) {
    const struct tqi_part *part = &piece->parts[piece->n_parts - 1];
    while (split < part->at)
        part--;
    return part;
}

static struct task task_of(const struct tqi_attend_plan *p, uint32_t index) {
    const struct tqi_piece *piece = tqi_piece_of_task(p, index);
    uint32_t in_piece = index - piece->first_task, left;
    struct task t = {.piece = piece, .split = in_piece % piece->n_splits};
    t.part = part_of(piece, t.split);
    uint32_t tile = in_piece / piece->n_splits % piece->tiles;
    t.head = in_piece / piece->n_splits / piece->tiles * piece->task_heads;
    left = p->job->call.layer->n_kv_heads - t.head;
    t.n_heads = left < piece->task_heads ? left : piece->task_heads;
    t.first_row = tile * TQI_TILE_ROWS;
    t.n_rows = tile_rows(piece, tile);
    t.level = tqi_level_for(t.part->layer->attend, t.n_rows);
    t.query_bytes = t.level->query_bytes(&t.part->layer->k);
    t.from = (uint64_t)(t.part->first_split + t.split - t.part->at) * TQI_SPLIT_TOKENS;
    t.to = t.from + TQI_SPLIT_TOKENS;
    t.from = t.from > t.part->tokens.first ? t.from : t.part->tokens.first;
    t.to = t.to < t.part->tokens.last ? t.to : t.part->tokens.last;
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
                         const struct tqi_part *part, uint32_t head, uint32_t r, float *row) {
    uint32_t dim = part->layer->k.layout.dim;
    const float *mean = tqi_layer_mean(part->layer->k_mean, head, dim);
    double sum = 0;
    if (!mean)
        return 0;
    load_query(p, piece, head, r, row);
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)row[i] * (double)mean[i];
    return sum * fabs(p->job->call.scale);
}

/* The query rows of a kv head to the level's form. */
static void prepare_head(const struct tqi_attend_plan *p, struct workspace *w, const struct task *t,
                         uint32_t head) {
    const struct tqi_layer *layer = t->part->layer;
    char *queries = w->queries + (size_t)(head - t->head) * t->n_rows * t->query_bytes;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        if (p->job->call.softcap > 0)
            w->shift[(head - t->head) * t->n_rows + r] =
                mean_score(p, t->piece, t->part, head, t->first_row + r, w->row);
        load_query(p, t->piece, head, t->first_row + r, w->row);
        t->level->prepare(&layer->k, w->row, queries + r * t->query_bytes);
    }
}

/* A worker mostly goes from split to split of the same rows, whose queries it has. */
static void start_rows(const struct tqi_attend_plan *p, struct workspace *w, const struct task *t) {
    const struct tqi_layer *layer = t->part->layer;
    struct tqi_held now = {t->piece, layer, t->head, t->first_row};
    for (uint32_t r = 0; r < t->n_heads * t->n_rows; r++)
        t->level->state_clear(&layer->v, w->states + r * p->state_bytes);
    if (t->from >= t->to || (w->held->piece == now.piece && w->held->layer == now.layer &&
                             w->held->head == now.head && w->held->first_row == now.first_row))
        return;
    for (uint32_t h = 0; h < t->n_heads; h++)
        prepare_head(p, w, t, t->head + h);
    *w->held = now;
}

/* The sink's logit joins the sum and takes its share of the weight from the values. */
static void add_sink(double sink, double *out, uint32_t dim, double *lse) {
    double keep = 1 / (1 + exp(sink - *lse));
    for (uint32_t i = 0; i < dim; i++)
        out[i] *= keep;
    *lse = sink > *lse ? sink + log1p(exp(*lse - sink)) : *lse + log1p(exp(sink - *lse));
}

/* Two parts of a row by their weights; an empty one has the lse -infinity. */
static void join_parts(double *out, double *lse, const double *other, double other_lse,
                       uint32_t dim) {
    if (other_lse == -INFINITY)
        return;
    double keep = *lse == -INFINITY ? 0 : 1 / (1 + exp(other_lse - *lse));
    double add = *lse == -INFINITY ? 1 : 1 / (1 + exp(*lse - other_lse));
    for (uint32_t i = 0; i < dim; i++)
        out[i] = out[i] * keep + other[i] * add;
    double high = *lse > other_lse ? *lse : other_lse, low = *lse > other_lse ? other_lse : *lse;
    *lse = high + log1p(exp(low - high));
}

/* Merges the splits of a part of a row; returns its lse. */
static double finish_part(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                          const struct tqi_part *part, struct workspace *w, uint32_t head,
                          uint32_t r, double *out) {
    const struct tqi_attend_job *job = p->job;
    const struct tqi_rows *v = &part->layer->v;
    const struct tqi_level *level = part->layer->attend;
    char *state = state_of(p, piece, head, part->at, r);
    double lse;
    for (uint32_t split = 1; split < part->n_splits; split++)
        level->state_merge(v, state, state_of(p, piece, head, part->at + split, r));
    level->state_finish(v, state, tqi_layer_mean(part->layer->v_mean, head, v->layout.dim), out,
                        &lse, w->scratch);
    int wanted = job->call.lse || job->call.layer->sinks || piece->n_parts > 1;
    if (wanted && job->call.softcap == 0) /* else it went in before the cap */
        lse += mean_score(p, piece, part, head, r, w->row);
    return lse;
}

/* Joins what there is of a row and writes it. */
static void finish_row(const struct tqi_attend_plan *p, const struct tqi_piece *piece,
                       struct workspace *w, uint32_t head, uint32_t r) {
    const struct tqi_attend_job *job = p->job;
    const struct tqi_rows *v = &job->call.layer->v;
    double lse = finish_part(p, piece, &piece->parts[0], w, head, r, w->out);
    for (uint32_t i = 1; i < piece->n_parts; i++) {
        double other = finish_part(p, piece, &piece->parts[i], w, head, r, w->other);
        join_parts(w->out, &lse, w->other, other, v->layout.dim);
    }
    uint32_t q_head = q_head_of(p, head, r);
    int64_t row = row_of(p, piece, r);
    if (job->call.layer->sinks && lse != -INFINITY)
        add_sink((double)job->call.layer->sinks[q_head], w->out, v->layout.dim, &lse);
    int64_t at = row * job->call.out.token_stride + (int64_t)q_head * job->call.out.head_stride;
    int64_t size = job->call.out.dtype == TQ_F32 ? 4 : 2;
    job->call.layer->attend->store(w->out, v->layout.dim, job->call.out.dtype,
                                   (char *)job->call.out.data + at * size);
    size_t n_q_heads = (size_t)job->call.layer->n_kv_heads * job->call.group;
    if (job->call.lse)
        job->call.lse[(size_t)row * n_q_heads + q_head] = (float)lse;
}

/* ---- tasks ------------------------------------------------------------------------------- */

/* Task of (kv heads, tile, split): fills the states of its rows, in memory of the worker while
 * pages change them, since those of the next split lie side by side with them and another
 * worker's writes there would be fetched along. Where there is but one split
 * the rows are finished as well. */
static void walk(void *arg, uint32_t index, uint32_t worker) {
    const struct tqi_attend_plan *p = arg;
    struct task t = task_of(p, index);
    uint32_t page_tokens = t.part->view.page_tokens;
    uint64_t base = t.part->base, first = t.from > base ? (t.from - base) / page_tokens : 0;
    struct workspace w = workspace_of(p, worker);
    start_rows(p, &w, &t);
    tqi_level_enter(t.level, t.n_rows);
    for (uint64_t i = first; t.from < t.to && base + i * page_tokens < t.to; i++) {
        struct page page;
        look_at_page(p, &t, i, &page);
        for (uint32_t h = 0; h < t.n_heads; h++)
            attend_page(p, &w, &t, &page, t.head + h);
    }
    tqi_level_leave(t.level);
    for (uint32_t h = 0; h < t.n_heads; h++)
        memcpy(state_of(p, t.piece, t.head + h, t.split, t.first_row),
               w.states + (size_t)h * t.n_rows * p->state_bytes, t.n_rows * p->state_bytes);
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
