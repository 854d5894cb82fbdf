/* Attend: from the job of the api to launches. */
#include "attend/fast_job.h"
#include "state.h"

namespace tqi {

/* ---- the generic path ----------------------------------------------------------------------- */

static uint64_t div_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

static uint64_t clamp(uint64_t n, uint64_t low, uint64_t high) {
    return n < low ? low : n > high ? high : n;
}

/* First token that the block's first query sees: no other begins before it. */
static uint64_t first_seen(const AttendJob *job) {
    uint64_t behind = job->causal ? job->n_queries - 1 - job->first_query : 0;
    uint64_t seen = job->length > behind ? job->length - behind : 0;
    return job->window && seen > job->window ? seen - job->window : 0;
}

/* Splits so that every multiprocessor has work, none of less than a few pages. */
static void split_any(const State *s, AttendJob *job) {
    const uint64_t blocks_per_sm = 4, least_tokens = 256, tile_rows = 8;
    uint64_t blocks = job->n_heads * div_up(job->rows, tile_rows);
    uint64_t most = s->row_splits / ((uint64_t)job->rows * job->n_heads);
    uint64_t want = clamp(div_up(s->n_sms * blocks_per_sm, blocks), 1, MAX_SPLITS);
    job->first_token = first_seen(job) / job->pages.page_tokens * job->pages.page_tokens;
    uint64_t length = job->length - job->first_token;
    want = clamp(want, 1, clamp(div_up(length, least_tokens), 1, most));
    job->split_tokens = div_up(div_up(length, want), job->pages.page_tokens);
    job->split_tokens = clamp(job->split_tokens, 1, UINT64_MAX) * job->pages.page_tokens;
    job->n_splits = (uint32_t)clamp(div_up(length, job->split_tokens), 1, want);
}

/* Lays the workspace out for the block of queries at hand. */
static void lay_out_any(const State *s, AttendJob *job) {
    uint64_t rows = (uint64_t)job->rows * job->n_heads;
    job->table = s->table;
    job->queries = reinterpret_cast<float *>(s->workspace);
    job->shift = job->queries + rows * s->k_dim;
    job->states = job->shift + rows;
}

static AttendJob attend_job(const State *s, const tqi_attend_job *from) {
    const LayerState *layer = layer_of(from->layer);
    AttendJob job = {};
    job.k = layer->side[0];
    job.v = layer->side[1];
    job.pages = pages_of(from->view);
    job.q = rows_in(from->q);
    job.out = rows_out(from->out);
    job.lse = from->lse;
    job.n_heads = s->n_kv_heads;
    job.group = from->group;
    job.n_queries = from->n_queries;
    job.causal = from->causal;
    job.length = from->view.length;
    job.scale = from->scale;
    job.window = from->window;
    job.softcap = from->softcap;
    job.sinks = layer->sinks;
    return job;
}

/* Queries go in blocks whose states fit into the workspace. */
static tq_status attend_blocks(const State *s, AttendJob *job, cudaStream_t stream) {
    uint64_t per_query = (uint64_t)job->group * job->n_heads;
    uint64_t block = clamp(s->row_splits / per_query, 1, job->n_queries);
    for (uint64_t first = 0; first < job->n_queries; first += block) {
        job->first_query = (uint32_t)first;
        job->rows = (uint32_t)clamp(job->n_queries - first, 1, block) * job->group;
        split_any(s, job);
        lay_out_any(s, job);
        TQI_TRY(attend_any(*job, stream));
    }
    return TQ_OK;
}

/* ---- the fast path -------------------------------------------------------------------------- */

/* Two slots a warp where that leaves enough warps, else one. */
static tq_status shape_block(const State *s, const FastKernel *kernel, FastJob *job) {
    const uint32_t enough = 6;
    for (job->slots = 2; job->slots >= 1; job->slots--) {
        job->warps = kernel->max_warps;
        while (job->warps && kernel->shared(job->warps, job->slots) > s->shared_limit)
            job->warps--;
        if (job->warps >= enough || (job->slots == 1 && job->warps))
            return TQ_OK;
    }
    return tqi_fail(TQ_ERR_INTERNAL, "%s: a page does not fit into shared memory", kernel->name);
}

/* Few items: as many blocks for each as there are multiprocessors. Else, and where that would
 * leave many idle, warps. */
static void choose_schedule(const State *s, FastJob *job) {
    const uint64_t total = (uint64_t)job->n_items * job->n_tiles;
    uint64_t parts = clamp(s->n_sms / job->n_items, 1, job->n_tiles);
    uint64_t busy = parts * job->n_items, workers = (uint64_t)s->n_sms * job->warps;
    bool few = job->n_items <= s->n_sms;
    bool short_rows = total < 4 * workers;
    job->parts = (uint32_t)parts;
    job->workers = (uint32_t)clamp(total, 1, workers);
    job->schedule =
        few && (short_rows || 4 * busy >= 3 * (uint64_t)s->n_sms) ? SCHEDULE_BLOCK : SCHEDULE_WARP;
}

static void lay_out_fast(const State *s, FastJob *job) {
    uint64_t rows = (uint64_t)job->n_items * job->heads_per_item;
    uint64_t words = rows / 4 * 32 * fragment_words(job->call.k.format, s->k_dim);
    uint64_t pieces = job->schedule == SCHEDULE_BLOCK ? (uint64_t)job->n_items * job->parts
                                                      : (uint64_t)job->n_items + job->workers;
    job->call.table = s->table;
    job->partial = reinterpret_cast<float *>(s->workspace); /* 16-byte stores */
    job->partial_ml =
        reinterpret_cast<float2 *>(job->partial + pieces * job->heads_per_item * s->v_dim);
    job->fragments = reinterpret_cast<uint32_t *>(job->partial_ml + pieces * job->heads_per_item);
    job->q_scale = reinterpret_cast<float *>(job->fragments + words);
    job->q_half = reinterpret_cast<int32_t *>(job->q_scale + rows);
    job->shift = reinterpret_cast<float *>(job->q_half + rows);
}

/* What the integers of a side count. */
static float step_of(const Side &side) {
    return side.layout.kind == TQI_KIND_LM     ? 2 * side.unit
           : side.layout.kind == TQI_KIND_INT8 ? side.unit
                                               : 1.0f;
}

static tq_status run_fast(const FastJob &job, const FastKernel *kernel, const uint32_t *pages,
                          cudaStream_t stream) {
    PageIds ids;
    uint32_t n = job.n_tiles < ID_CHUNK ? job.n_tiles : ID_CHUNK;
    memcpy(ids.id, pages, n * sizeof *pages);
    TQI_TRY(prepare_queries(job, ids, n, stream));
    TQI_TRY(kernel->run(job, stream));
    return merge_pieces(job, stream);
}

/* Blocks of queries whose items fit into the workspace. */
static tq_status attend_fast(const State *s, const LayerState *layer, const AttendJob &call,
                             const FastKernel *kernel, const uint32_t *pages, cudaStream_t stream) {
    FastJob job = {};
    job.call = call;
    job.heads_per_item = kernel->heads;
    job.n_tiles = (uint32_t)div_up(call.length, call.pages.page_tokens);
    job.k_step = step_of(call.k);
    job.v_step = step_of(call.v);
    job.overlap = s->overlap;
    memcpy(job.table, layer->table, sizeof job.table);
    TQI_TRY(shape_block(s, kernel, &job));
    if (job.n_tiles > ID_CHUNK)
        TQI_TRY(
            upload_table(pages + ID_CHUNK, job.n_tiles - ID_CHUNK, s->table + ID_CHUNK, stream));
    uint64_t items = clamp(s->fast_rows / kernel->heads / call.n_heads, 1, UINT32_MAX);
    uint64_t block = clamp(items * kernel->heads / call.group, 1, call.n_queries);
    for (uint64_t first = 0; first < call.n_queries; first += block) {
        job.call.first_query = (uint32_t)first;
        job.call.rows = (uint32_t)(clamp(call.n_queries - first, 1, block) * call.group);
        job.items_per_head = (uint32_t)div_up(job.call.rows, kernel->heads);
        job.n_items = call.n_heads * job.items_per_head;
        choose_schedule(s, &job);
        lay_out_fast(s, &job);
        TQI_TRY(run_fast(job, kernel, pages, stream));
    }
    return TQ_OK;
}

/* ---- attend --------------------------------------------------------------------------------- */

static tq_status attend_on(const State *s, const tqi_attend_job *from, cudaStream_t stream) {
    const LayerState *layer = layer_of(from->layer);
    AttendJob job = attend_job(s, from);
    uint64_t n_pages = div_up(job.length, job.pages.page_tokens);
    /* rows of one query token decide, so that a layer has one kernel */
    const FastKernel *fast =
        find_fast(job.k.format, job.v.format, job.k.layout, job.v.layout, job.group);
    bool plain = !from->window && from->softcap == 0 && !from->layer->sinks;
    if (fast && plain && n_pages)
        return attend_fast(s, layer, job, fast, from->view.pages, stream);
    TQI_TRY(upload_table(from->view.pages, n_pages, s->table, stream));
    return attend_blocks(s, &job, stream);
}

tq_status attend(void *opened, const tqi_attend_job *from, tq_stream on) {
    State *s = state_of(opened);
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(take_workspace(s, stream));
    tq_status status = attend_on(s, from, stream);
    tq_status marked = give_workspace(s, stream);
    return status == TQ_OK ? marked : status;
}

} /* namespace tqi */
