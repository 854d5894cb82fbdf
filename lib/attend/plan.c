#include "attend/plan.h"

#include <string.h>

/* ---- sizes ------------------------------------------------------------------------------- */

static void raise(size_t *size, size_t to) {
    to = tqi_align_up(to, TQI_ALIGNMENT);
    *size = to > *size ? to : *size;
}

static void measure_level(struct tqi_attend_plan *p, const struct tqi_layer *layer,
                          const struct tqi_level *level) {
    raise(&p->query_bytes, level->query_bytes(&layer->k));
    raise(&p->state_bytes, level->state_bytes(&layer->v));
    raise(&p->scores_bytes, (size_t)TQI_TILE_ROWS * layer->page.k.tokens * level->score_size);
    raise(&p->scratch_bytes, level->scratch_bytes(&layer->k));
    raise(&p->scratch_bytes, level->scratch_bytes(&layer->v));
}

static void measure_form(struct tqi_attend_plan *p, const struct tqi_layer *layer) {
    measure_level(p, layer, layer->attend);
    measure_level(p, layer, tqi_level_for(layer->attend, 1));
}

static void measure(struct tqi_attend_plan *p, const struct tqi_layer *layer) {
    measure_form(p, layer);
    if (layer->exact)
        measure_form(p, layer->exact);
    p->worker_bytes =
        tqi_align_up(TQI_ALIGNMENT + TQI_TILE_ROWS * (p->query_bytes + p->state_bytes) +
                         p->scores_bytes + p->scratch_bytes +
                         (2 * layer->v.layout.dim + TQI_TILE_ROWS) * sizeof(double) +
                         layer->k.layout.dim * sizeof(float),
                     TQI_ALIGNMENT) +
        TQI_APART_BYTES;
}

void tqi_attend_measure(const struct tqi_layer *layer, struct tqi_attend_sizes *sizes) {
    struct tqi_attend_plan p = {0};
    measure(&p, layer);
    if (sizes->state_bytes < p.state_bytes)
        sizes->state_bytes = p.state_bytes;
    if (sizes->worker_bytes < p.worker_bytes)
        sizes->worker_bytes = p.worker_bytes;
}

/* All splits of a sequence, at least one; of tokens in 16 bits as many as they can touch. */
static uint64_t splits_of(const struct tqi_attend_seq *seq) {
    uint64_t n = seq->length ? tqi_div_up(seq->length, TQI_SPLIT_TOKENS) : 1;
    return seq->n_exact ? n + seq->n_exact / TQI_SPLIT_TOKENS + 5 : n;
}

static size_t pieces_bytes(uint32_t n_seqs) {
    return tqi_align_up(n_seqs * sizeof(struct tqi_piece), TQI_ALIGNMENT);
}

size_t tqi_attend_memory(const struct tqi_attend_sizes *sizes, uint32_t n_q_heads,
                         const struct tqi_attend_seq *seqs, uint32_t n_seqs, uint32_t n_workers) {
    size_t largest = 0, all = 0; /* states of one query; of all, up to a full block */
    for (uint32_t i = 0; i < n_seqs; i++) {
        size_t per_query = n_q_heads * splits_of(&seqs[i]) * sizes->state_bytes;
        size_t room = TQI_STATES_BYTES - all;
        if (!seqs[i].n_queries)
            continue;
        largest = largest < per_query ? per_query : largest;
        all = seqs[i].n_queries > room / per_query ? TQI_STATES_BYTES
                                                   : all + seqs[i].n_queries * per_query;
    }
    return n_workers * sizes->worker_bytes + pieces_bytes(n_seqs) + (largest > all ? largest : all);
}

size_t tqi_attend_memory_bound(const struct tqi_attend_sizes *sizes, uint32_t n_q_heads,
                               uint32_t max_seqs, uint32_t max_queries, uint64_t max_length,
                               uint32_t n_workers) {
    /* One sequence with all the queries and all the tokens takes the most. */
    struct tqi_attend_seq worst = {.length = max_length, .n_queries = max_queries};
    return tqi_attend_memory(sizes, n_q_heads, &worst, 1, n_workers) - pieces_bytes(1) +
           pieces_bytes(max_seqs);
}

void tqi_attend_start(struct tqi_attend_plan *p, const struct tqi_attend_job *job) {
    memset(p, 0, sizeof *p);
    measure(p, job->call.layer);
    p->job = job;
    p->workers = job->memory;
    char *pieces = p->workers + job->executor->n_workers * p->worker_bytes;
    p->pieces = (struct tqi_piece *)(void *)pieces;
    p->states = pieces + pieces_bytes(job->n_seqs);
}

/* ---- blocks ------------------------------------------------------------------------------ */

/* Adds a part with those of its tokens that some query sees: the first query begins first. The
 * codes have a split, maybe without a token; other parts are left out without one. */
static void add_part(const struct tqi_attend_plan *p, struct tqi_piece *piece,
                     struct tqi_part part) {
    uint64_t seen = tqi_seen_by(p->job, piece->seq, 0).first;
    part.tokens.first = part.tokens.first > seen ? part.tokens.first : seen;
    if (part.tokens.last > piece->seq->length)
        part.tokens.last = piece->seq->length;
    int empty = part.tokens.first >= part.tokens.last;
    if (empty && piece->n_parts)
        return;
    part.first_split = (uint32_t)(part.tokens.first / TQI_SPLIT_TOKENS);
    part.n_splits =
        empty ? 1 : (uint32_t)tqi_div_up(part.tokens.last, TQI_SPLIT_TOKENS) - part.first_split;
    part.at = piece->n_splits;
    piece->n_splits += part.n_splits;
    piece->parts[piece->n_parts++] = part;
}

static void add_exact(const struct tqi_attend_plan *p, struct tqi_piece *piece) {
    const struct tqi_exact_view *e = piece->seq->exact;
    uint64_t head = (uint64_t)e->n_head * TQI_EXACT_TOKENS, end = piece->seq->length;
    struct tqi_part part = {.layer = p->job->call.layer->exact, .view = p->job->call.exact_view};
    part.view.pages = e->pages;
    part.tokens = (struct tqi_range){0, e->sinks};
    add_part(p, piece, part);
    part.written = e->start;
    part.tokens = (struct tqi_range){e->start, end < head ? end : head};
    add_part(p, piece, part);
    part.view.pages = e->pages ? e->pages + e->n_head : NULL;
    part.base = e->first * TQI_EXACT_TOKENS;
    part.tokens = (struct tqi_range){e->start > head ? e->start : head, end};
    add_part(p, piece, part);
}

/* The forms of the sequence's tokens, each cut into splits. */
static void set_parts(const struct tqi_attend_plan *p, struct tqi_piece *piece) {
    const struct tqi_attend_seq *seq = piece->seq;
    int exact = p->job->call.layer->exact && seq->exact;
    struct tqi_part codes = {.layer = p->job->call.layer, .view = p->job->call.view};
    codes.view.pages = seq->pages;
    codes.tokens = (struct tqi_range){0, seq->length};
    if (exact)
        codes.tokens = (struct tqi_range){seq->exact->sinks, seq->exact->start};
    piece->n_parts = 0;
    piece->n_splits = 0;
    add_part(p, piece, codes);
    if (exact)
        add_exact(p, piece);
}

/* A piece with the queries of a sequence from `first` on that room is left for; one at least
 * where the block is empty. Returns how many. */
static uint32_t add_piece(struct tqi_attend_plan *p, const struct tqi_attend_seq *seq,
                          uint32_t first, size_t *used) {
    const struct tqi_attend_job *job = p->job;
    struct tqi_piece *piece = &p->pieces[p->n_pieces];
    piece->seq = seq;
    set_parts(p, piece);
    size_t n_q_heads = (size_t)job->call.layer->n_kv_heads * job->call.group;
    size_t per_query = n_q_heads * piece->n_splits * p->state_bytes;
    size_t left = seq->n_queries - first;
    size_t n = *used < TQI_STATES_BYTES ? (TQI_STATES_BYTES - *used) / per_query : 0;
    if (n == 0 && p->n_pieces == 0)
        n = 1;
    n = n < left ? n : left;
    if (n == 0)
        return 0;
    piece->first_query = first;
    piece->n_queries = (uint32_t)n;
    piece->rows = piece->n_queries * job->call.group;
    piece->tiles = (piece->rows + TQI_TILE_ROWS - 1) / TQI_TILE_ROWS;
    piece->states = p->states + *used;
    *used += n * per_query;
    p->n_pieces++;
    return piece->n_queries;
}

/* Heads of a task: as many as the tile has room for while all workers find enough tasks. */
static void set_heads(const struct tqi_attend_plan *p, struct tqi_piece *piece, uint64_t per_head) {
    uint32_t heads = p->job->call.layer->n_kv_heads, n = 1;
    uint32_t workers = p->job->executor->n_workers;
    uint64_t wanted = workers > 1 ? 4 * (uint64_t)workers : 1;
    while (2 * n <= heads && 2 * n * piece->rows <= TQI_TILE_ROWS &&
           per_head * ((heads + 2 * n - 1) / (2 * n)) >= wanted)
        n *= 2;
    piece->task_heads = n;
    piece->head_blocks = (heads + n - 1) / n;
}

static void number_tasks(struct tqi_attend_plan *p) {
    uint64_t per_head = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++)
        per_head += (uint64_t)p->pieces[i].tiles * p->pieces[i].n_splits;
    p->n_tasks = p->n_joins = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        struct tqi_piece *piece = &p->pieces[i];
        set_heads(p, piece, per_head);
        piece->first_task = p->n_tasks;
        piece->first_join = p->n_joins;
        p->n_tasks += piece->head_blocks * piece->tiles * piece->n_splits;
        if (piece->n_splits > 1)
            p->n_joins += p->job->call.layer->n_kv_heads * piece->tiles;
    }
}

int tqi_attend_next_block(struct tqi_attend_plan *p) {
    size_t used = 0;
    p->n_pieces = 0;
    while (p->next_seq < p->job->n_seqs) {
        const struct tqi_attend_seq *seq = &p->job->seqs[p->next_seq];
        if (p->next_query < seq->n_queries) {
            uint32_t taken = add_piece(p, seq, p->next_query, &used);
            p->next_query += taken;
            if (p->next_query < seq->n_queries)
                break;
        }
        p->next_seq++;
        p->next_query = 0;
    }
    number_tasks(p);
    for (uint32_t w = 0; w < p->job->executor->n_workers; w++)
        memset(tqi_held_by(p, w), 0, sizeof(struct tqi_held)); /* pieces are others now */
    return p->n_pieces > 0;
}

/* ---- pieces ------------------------------------------------------------------------------ */

const struct tqi_piece *tqi_piece_of_task(const struct tqi_attend_plan *p, uint32_t task) {
    uint32_t low = 0, high = p->n_pieces;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (p->pieces[middle].first_task <= task)
            low = middle;
        else
            high = middle;
    }
    return &p->pieces[low];
}

const struct tqi_piece *tqi_piece_of_join(const struct tqi_attend_plan *p, uint32_t join) {
    uint32_t low = 0, high = p->n_pieces;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (p->pieces[middle].first_join <= join)
            low = middle;
        else
            high = middle;
    }
    return &p->pieces[low];
}
