/* Tokens kept in 16 bits: from jobs of the api to launches. */
#include "run_attend.h"

namespace tqi {

static KeptLayer kept_layer_of(const tqi_page_view &view) {
    return KeptLayer{view.layer_offset, view.layer_bytes, (uint32_t)view.blob_bytes};
}

/* ---- append --------------------------------------------------------------------------------- */

static KeepJob keep_job_of(const State *s, const tqi_layer *from, const tqi_page_view &view,
                           const tq_rows_in &k, const tq_rows_in &v) {
    const LayerState *layer = layer_of(from);
    KeepJob job = {};
    for (int i = 0; i < 2; i++)
        job.side[i] = layer->exact[i];
    job.rows[0] = rows_in(k);
    job.rows[1] = rows_in(v);
    job.pages = kept_layer_of(view);
    job.n_heads = s->n_kv_heads;
    job.overlap = s->overlap;
    return job;
}

/* Tokens [from, to), of which the append's first is the view's length. */
static tq_status keep_tokens(KeepJob *job, const tqi_encode_job *append, uint64_t from, uint64_t to,
                             cudaStream_t stream) {
    while (from < to) {
        for (job->max_runs = 0; from < to && job->max_runs < KEPT_RUNS; job->max_runs++) {
            uint32_t slot = (uint32_t)(from % TQI_EXACT_TOKENS);
            uint32_t n = (uint32_t)tqi_least(to - from, TQI_EXACT_TOKENS - slot);
            uint32_t page = tqi_exact_page(append->exact, from / TQI_EXACT_TOKENS);
            job->list[job->max_runs] = KeptRun{kept_page_of(append->exact_view, page), slot, n,
                                               (uint32_t)(from - append->view.length), 0};
            from += n;
        }
        TQI_TRY(keep_rows(*job, stream));
    }
    return TQ_OK;
}

tq_status keep_appended(const State *s, const tqi_encode_job *from, cudaStream_t stream) {
    if (!from->layer->exact || !from->exact)
        return TQ_OK;
    KeepJob job = keep_job_of(s, from->layer, from->exact_view, from->k, from->v);
    uint64_t length = from->view.length, end = length + from->n_tokens;
    uint64_t until = tqi_least(end, from->keep_until);
    TQI_TRY(keep_tokens(&job, from, length, until, stream));
    uint64_t rest = until > length ? until : length;
    return keep_tokens(&job, from, from->keep_from > rest ? from->keep_from : rest, end, stream);
}

tq_status keep_step(const State *s, const Room &room, const tqi_step_append *from, uint32_t runs,
                    cudaStream_t stream) {
    if (!from->layer->exact)
        return TQ_OK;
    KeepJob job = keep_job_of(s, from->layer, from->exact_view, from->k, from->v);
    job.runs = room.kept_runs;
    job.n_runs = &room.step.head->n_kept;
    job.max_runs = runs;
    return keep_rows(job, stream);
}

/* ---- attend --------------------------------------------------------------------------------- */

/* A block takes few rows of several query tokens where sequences have several. */
static uint32_t block_tokens_of(const Room *room, uint32_t group, uint32_t rows) {
    const uint32_t block_rows = 8;
    return rows >= 4 * room->limits.segments && group < block_rows ? block_rows / group : 1;
}

void make_exact(const State *s, const Room *room, const tqi_attend_call &call, uint32_t rows,
                Attend *attend) {
    const LayerState *layer = layer_of(call.layer);
    AttendJob *codes = &attend->job.call;
    ExactJob *job = &attend->exact;
    attend->keeps = true;
    job->k = layer->exact[0];
    job->v = layer->exact[1];
    job->pages = kept_layer_of(call.exact_view);
    job->q = codes->q;
    job->out = codes->out;
    job->out_aligned = codes->out_aligned;
    job->lse = codes->lse;
    job->n_heads = codes->n_heads;
    job->group = codes->group;
    job->causal = codes->causal;
    job->block_tokens = block_tokens_of(room, call.group, rows);
    job->overlap = codes->overlap;
    job->window = codes->window;
    job->scale = codes->scale;
    job->softcap = codes->softcap;
    job->sinks = codes->sinks;
    job->step = codes->step;
    codes->sinks = s->no_sinks;
    codes->out = RowsOut{room->part, (int64_t)s->n_q_heads * s->v_dim, s->v_dim, TQ_F32};
    codes->lse = room->part_lse;
    codes->out_aligned = takes_quads(codes->out);
}

void place_parts(Attend *attend) {
    AttendJob *codes = &attend->job.call;
    ExactJob *job = &attend->exact;
    const uint32_t first = codes->range.first_row - job->range.first_row;
    const int64_t heads = (int64_t)job->n_heads * job->group;
    /* rows of the step are counted from its first */
    codes->out.data = static_cast<float *>(codes->out.data) - first * codes->out.token_stride;
    codes->lse -= first * heads;
    job->range = codes->range;
    job->part = RowsIn{codes->out.data, codes->out.token_stride, codes->out.head_stride, TQ_F32};
    job->part_lse = codes->lse;
}

/* A sequence whose pages are being listed. */
struct Listing {
    const State *s;
    const tqi_attend_job *from;
    KeptOnly *out;
    cudaStream_t stream;
    uint64_t n; /* entries so far, of which the last ones are in the list */
};

/* What the list has goes to the table behind what went there before. */
static tq_status flush(Listing *l) {
    const uint32_t words = sizeof(KeptPage) / sizeof(uint32_t);
    uint64_t n = l->n % KEPT_PAGES ? l->n % KEPT_PAGES : KEPT_PAGES;
    KeptPage *to = l->s->kept_table + (l->n - n);
    l->out->table = l->s->kept_table;
    return upload_table(reinterpret_cast<const uint32_t *>(l->out->list), n * words,
                        reinterpret_cast<uint32_t *>(to), l->stream);
}

/* Pages of [first, last), in the order of their numbers. */
static tq_status list_pages(Listing *l, uint64_t first, uint64_t last) {
    for (; first < last; first++) {
        if (l->n && l->n % KEPT_PAGES == 0)
            TQI_TRY(flush(l));
        l->out->list[l->n++ % KEPT_PAGES] =
            kept_page_of(l->from->call.exact_view, tqi_exact_page(l->from->exact, first));
    }
    return TQ_OK;
}

tq_status list_kept(const State *s, const tqi_attend_job *from, KeptOnly *out,
                    cudaStream_t stream) {
    const tqi_exact_view *e = from->exact;
    const uint64_t length = from->call.view.length;
    Listing l = {s, from, out, stream, 0};
    memset(out, 0, sizeof *out);
    out->seq.n_head = (uint32_t)tqi_ceil(e->sinks, TQI_EXACT_TOKENS);
    out->seq.first = e->start / TQI_EXACT_TOKENS;
    if (out->seq.first < out->seq.n_head)
        out->seq.first = out->seq.n_head;
    TQI_TRY(list_pages(&l, 0, out->seq.n_head));
    if (e->start < length)
        TQI_TRY(list_pages(&l, out->seq.first, tqi_ceil(length, TQI_EXACT_TOKENS)));
    return l.n > KEPT_PAGES ? flush(&l) : TQ_OK;
}

} /* namespace tqi */
