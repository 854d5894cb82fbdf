/*
 * Coding rows into pages. A task takes one page and some kv heads of it, of any sequence of
 * the job, so that no two tasks write the same bytes. It takes as many heads as leave enough
 * tasks for all workers: a step of one token per sequence is many small pieces of work.
 */
#include "encode/encode.h"

#include "base/checked.h"
#include "base/half.h"

/* Between the scratch of workers. */
enum { APART_FLOATS = TQI_APART_BYTES / sizeof(float) };

/* Floats that a row in 16 bits takes. */
static size_t half_floats(const struct tqi_layer *layer) {
    uint32_t k = layer->k.layout.dim, v = layer->v.layout.dim;
    return (k > v ? k : v) / 2;
}

size_t tqi_encode_scratch(const struct tqi_layer *layer) {
    size_t k = layer->encode_k->encode_scratch(&layer->k);
    size_t v = layer->encode_v->encode_scratch(&layer->v);
    size_t floats = (k > v ? k : v) + APART_FLOATS;
    return layer->exact ? floats + half_floats(layer) : floats;
}

static uint32_t pages_written(const struct tqi_encode_seq *seq, uint32_t page_tokens) {
    if (!seq->n_tokens)
        return 0;
    return (uint32_t)(tqi_div_up(seq->length + seq->n_tokens, page_tokens) -
                      seq->length / page_tokens);
}

uint32_t tqi_encode_number(struct tqi_encode_seq *seqs, uint32_t n_seqs, uint32_t page_tokens) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        seqs[i].first_item = n;
        n += pages_written(&seqs[i], page_tokens);
    }
    return n;
}

/* The sequence of an item: the last one that begins at or before it. */
static const struct tqi_encode_seq *seq_of(const struct tqi_encode_job *job, uint32_t item) {
    uint32_t low = 0, high = job->n_seqs;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (job->seqs[middle].first_item <= item)
            low = middle;
        else
            high = middle;
    }
    return &job->seqs[low];
}

/* One side of the tokens at hand. */
struct side {
    const tq_rows_in *from;
    const struct tqi_rows *rows, *exact; /* exact: NULL = none */
    const struct tqi_level *level, *exact_level;
    const float *mean;
    float inv_scale;
    float *x;
    uint16_t *half; /* a row in 16 bits */
    struct tqi_nonfinite *counts;
};

/* A finite row to 16 bits, saturating. */
static void round_row(const struct side *s, uint32_t dim) {
    int f16 = s->exact->format->id == TQ_FORMAT_F16;
    float most = f16 ? 65504 : 0x1.fep127f;
    for (uint32_t i = 0; i < dim; i++) {
        float x = s->x[i] > most ? most : s->x[i] < -most ? -most : s->x[i];
        s->half[i] = f16 ? tqi_float_to_f16(x) : tqi_float_to_bf16(x);
    }
}

/* A token whose row is kept in 16 bits in `keep` (NULL = not), or coded from that. */
static void load_exact(const struct side *s, const void *row, int rounds, uint8_t *keep,
                       uint32_t keep_slot) {
    uint32_t dim = s->rows->layout.dim;
    struct tqi_nonfinite again = {0, 0};
    tq_dtype half = s->exact->format->id == TQ_FORMAT_F16 ? TQ_F16 : TQ_BF16;
    s->level->load(row, s->from->dtype, dim, NULL, s->x, s->counts);
    round_row(s, dim);
    if (keep)
        s->exact_level->encode[s->exact->format->id].run(s->exact, 1, s->x, keep, keep_slot);
    if (rounds)
        s->level->load(s->half, half, dim, s->mean, s->x, &again);
    else
        s->level->load(row, s->from->dtype, dim, s->mean, s->x, &again);
}

static struct side side_of(const struct tqi_encode_job *job, int is_v, uint32_t head,
                           uint32_t worker) {
    const struct tqi_layer *layer = job->layer, *exact = layer->exact;
    struct side s = {.from = is_v ? &job->v : &job->k,
                     .rows = is_v ? &layer->v : &layer->k,
                     .level = is_v ? layer->encode_v : layer->encode_k,
                     .inv_scale = is_v ? layer->v_inv_scale[head] : layer->k_inv_scale[head],
                     .x = job->scratch + worker * job->scratch_floats,
                     .counts = &job->counts[worker]};
    s.mean = tqi_layer_mean(is_v ? layer->v_mean : layer->k_mean, head, s.rows->layout.dim);
    if (!exact)
        return s;
    s.exact = is_v ? &exact->v : &exact->k;
    s.exact_level = is_v ? exact->encode_v : exact->encode_k;
    s.half = (uint16_t *)(void *)(s.x + job->scratch_floats - APART_FLOATS - half_floats(layer));
    return s;
}

static void encode_row(const struct tqi_encode_job *job, const struct side *s, const void *row,
                       uint8_t *blob, uint32_t slot, uint8_t *keep, uint32_t keep_slot) {
    uint32_t rounds = job->layer->rounds;
    if (keep || (rounds && s->exact))
        load_exact(s, row, rounds != 0, keep, keep_slot);
    else
        s->level->load(row, s->from->dtype, s->rows->layout.dim, s->mean, s->x, s->counts);
    s->level->encode[s->rows->format->id].run(s->rows, s->inv_scale, s->x, blob, slot);
}

/* Where a token is kept; NULL = nowhere. */
static uint8_t *keep_at(const struct tqi_encode_job *job, const struct tqi_encode_seq *seq,
                        uint64_t token, uint32_t head) {
    if (!job->layer->exact || !seq->exact || (token >= seq->keep_until && token < seq->keep_from))
        return NULL;
    uint32_t page = tqi_exact_page(seq->exact, token / TQI_EXACT_TOKENS);
    struct tqi_page_view view = job->exact_view;
    view.pages = &page;
    return tqi_view_blob(&view, 0, head);
}

void tqi_encode_token(const struct tqi_encode_job *job, uint64_t row, uint32_t head, uint8_t *blob,
                      uint32_t token, uint32_t worker) {
    struct side k = side_of(job, 0, head, worker), v = side_of(job, 1, head, worker);
    encode_row(job, &k, tqi_row_in(&job->k, row, head), blob, token, NULL, 0);
    encode_row(job, &v, tqi_row_in(&job->v, row, head), blob, token, NULL, 0);
}

/* One page of one kv head. */
static void encode_page(const struct tqi_encode_job *job, const struct tqi_encode_seq *seq,
                        uint64_t page, uint32_t head, uint32_t worker) {
    uint32_t page_tokens = job->view.page_tokens;
    struct side k = side_of(job, 0, head, worker), v = side_of(job, 1, head, worker);
    struct tqi_page_view view = job->view;
    view.pages = seq->pages;
    uint8_t *blob = tqi_view_blob(&view, page, head);
    uint64_t start = page * page_tokens, end = start + page_tokens;
    uint64_t first = start > seq->length ? start : seq->length;
    uint64_t last = seq->length + seq->n_tokens < end ? seq->length + seq->n_tokens : end;
    for (uint64_t t = first; t < last; t++) {
        uint64_t row = seq->first_row + (t - seq->length);
        uint32_t slot = (uint32_t)(t - start), keep_slot = (uint32_t)(t % TQI_EXACT_TOKENS);
        uint8_t *keep = keep_at(job, seq, t, head);
        encode_row(job, &k, tqi_row_in(&job->k, row, head), blob, slot, keep, keep_slot);
        encode_row(job, &v, tqi_row_in(&job->v, row, head), blob, slot, keep, keep_slot);
    }
}

/* A job and the kv heads of its tasks. */
struct cut {
    const struct tqi_encode_job *job;
    uint32_t task_heads, head_blocks;
};

static void task(void *arg, uint32_t index, uint32_t worker) {
    const struct cut *cut = arg;
    const struct tqi_encode_job *job = cut->job;
    uint32_t item = index / cut->head_blocks;
    uint32_t head = index % cut->head_blocks * cut->task_heads, n = job->layer->n_kv_heads;
    const struct tqi_encode_seq *seq = seq_of(job, item);
    uint64_t page = seq->length / job->view.page_tokens + (item - seq->first_item);
    uint32_t last = n - head < cut->task_heads ? n : head + cut->task_heads;
    for (; head < last; head++)
        encode_page(job, seq, page, head, worker);
}

void tqi_encode(const struct tqi_encode_job *job) {
    uint32_t heads = job->layer->n_kv_heads, workers = job->executor->n_workers, n = heads;
    uint64_t wanted = workers > 1 ? 4 * (uint64_t)workers : 1;
    while (n > 1 && job->n_items * tqi_div_up(heads, n) < wanted)
        n = (n + 1) / 2;
    /* The count fits: heads are cut only while there are few tasks. */
    struct cut cut = {job, n, (uint32_t)tqi_div_up(heads, n)};
    tqi_executor_run(job->executor, job->n_items * cut.head_blocks, task, &cut);
}
