/* Attend: from the job of the api to launches. */
#include "run_attend.h"

namespace tqi {

/* ---- the job of a launch -------------------------------------------------------------------- */

/* What the integers of a side count. */
static float step_of(const Side &side) {
    return side.layout.kind == TQI_KIND_LM      ? 2 * side.unit
           : side.layout.kind == TQI_KIND_INT8  ? side.unit
           : side.layout.kind == TQI_KIND_POLAR ? (float)TQI_POLAR_STEP
                                                : 1.0f;
}

static void fill_job(const State *s, const Room *room, const tqi_attend_call &call,
                     AttendJob *job) {
    const LayerState *layer = layer_of(call.layer);
    job->k = layer->side[0];
    job->v = layer->side[1];
    job->pages = pages_of(call.view);
    job->q = rows_in(call.q);
    job->out = rows_out(call.out);
    job->lse = call.lse;
    job->n_heads = s->n_kv_heads;
    job->group = call.group;
    job->causal = call.causal != 0;
    job->aligned = takes_quads(call.q);
    job->out_aligned = takes_quads(call.out);
    job->overlap = s->overlap;
    job->window = call.window;
    job->scale = call.scale;
    job->softcap = call.softcap;
    job->sinks = layer->sinks;
    job->step = room->step;
    job->queries = room->queries;
    job->shift = room->shift;
    job->partial = room->partial;
    job->partial_ml = room->partial_ml;
    job->item_rows = ANY_ROWS;
    job->n_blocks = s->n_sms * ANY_BLOCKS_PER_SM;
    job->v_unit = 1;
}

static tq_status shape_block(const State *s, const FastKernel *kernel, FastJob *job) {
    BlockShape shape = shape_of_block(*kernel, s->shared_limit);
    job->warps = shape.warps;
    job->slots = shape.slots;
    if (shape.warps)
        return TQ_OK;
    return tqi_fail(TQ_ERR_INTERNAL, "%s: a page does not fit into shared memory", kernel->name);
}

/* What is asked for of a worker's pages while its queries are being prepared, as measured
 * (docs/experiments/gpu_decode.md, "Launches" and "Few rows"): a page, or as many as make 8 KB.
 * Formats with larger pages wait for memory longer than they compute, and use more; so do workers
 * that take four pages at a time, of which there are fewer. */
static uint32_t bytes_ahead(const Pages &pages, const FastKernel &kernel) {
    const uint32_t least = 8 << 10, large = 12 << 10, most = 20 << 10;
    if (kernel.turn >= 4)
        return 3 * pages.blob_bytes;
    if (pages.blob_bytes >= large)
        return most;
    return pages.blob_bytes < least ? least : pages.blob_bytes;
}

static tq_status fill_fast(const State *s, const Room *room, const LayerState *layer,
                           const FastKernel *kernel, FastJob *job) {
    job->call.item_rows = kernel->heads;
    job->call.n_blocks = s->n_sms;
    job->call.v_unit = step_of(job->call.v);
    job->page_bytes = (uint32_t)job->call.pages.page_bytes;
    job->k_step = step_of(job->call.k);
    memcpy(job->table, layer->table, sizeof job->table);
    job->power[0] = 16;
    job->power[1] = 256;
    if (job->call.softcap != 0) {
        job->cap = (float)(job->call.softcap * 1.4426950408889634);
        job->cap_rate = (float)(2 / job->call.softcap);
    }
    job->fragments = reinterpret_cast<uint32_t *>(room->queries);
    job->q_scale = room->q_scale;
    job->q_half = room->q_half;
    job->q_sketch = room->q_sketch;
    job->arrived = room->arrived;
    job->shared_limit = s->shared_limit;
    job->ahead = s->overlap ? bytes_ahead(job->call.pages, *kernel) : 0;
    job->planes = is_native(kernel->arithmetic);
    return shape_block(s, kernel, job);
}

static void fill_way(const tqi_attend_call &call, const FastKernel *fast, const FastJob &job,
                     tqi_way *way) {
    way->rows = job.call.item_rows;
    way->n_heads = job.call.n_heads;
    way->group = job.call.group;
    way->n_blocks = fast ? job.call.n_blocks : 0;
    way->n_workers = fast ? job.call.n_blocks * job.warps : job.call.n_blocks;
    way->page_tokens = job.call.pages.page_tokens;
    way->causal = job.call.causal;
    way->fixed = call.invariant != 0;
    way->whole = job.whole;
    way->turn = fast ? fast->turn : 1;
    way->entry = fast ? fast->entry : 1;
    way->window = job.call.window;
}

/* What the native kernels of e4m3 lack. */
static bool has_edges(const tqi_attend_call &call, bool keeps) {
    return call.window || call.softcap != 0 || keeps;
}

tq_status make_attend(const State *s, const Room *room, const tqi_attend_call &call,
                      uint32_t few_rows, uint64_t longest, bool keeps, Attend *out) {
    memset(out, 0, sizeof *out); /* ways are compared as bytes */
    FastJob *job = &out->job;
    keeps = keeps && call.layer->exact;
    fill_job(s, room, call, &job->call);
    /* rows of one query token decide, so that a layer has one kernel */
    out->fast =
        find_fast(job->call.k.format, job->call.v.format, job->call.k.layout, job->call.v.layout,
                  call.group, has_edges(call, keeps) ? without_native(s->choice) : s->choice);
    if (out->fast) {
        const FastKernel *few = kernel_of_few(*out->fast);
        /* where results must not depend on the batch it has one kernel */
        const bool may = few && !call.invariant;
        const bool whole = may && few_rows && has_few_items(s, room->limits, few->heads, few_rows);
        if (whole || (may && longest < out->fast->long_tokens))
            out->fast = few;
        TQI_TRY(fill_fast(s, room, layer_of(call.layer), out->fast, job));
        job->whole = whole;
    }
    fill_way(call, out->fast, *job, &out->way);
    out->way.hides = keeps;
    if (keeps)
        make_exact(s, room, call, few_rows, out);
    return TQ_OK;
}

void make_prefill(const State *s, const Room *room, const tqi_attend_call &call,
                  const PrefillKernel **kernel, PrefillJob *job) {
    *job = PrefillJob{};
    *kernel = nullptr;
    /* invariant: whether rows are many must not matter */
    if (call.invariant || call.layer->exact || !layer_of(call.layer)->prefill)
        return;
    *kernel = layer_of(call.layer)->prefill;
    fill_job(s, room, call, &job->call);
    job->call.v_unit = step_of(job->call.v);
    /* polar coordinates become halves, not integers */
    job->k_step = job->call.k.layout.kind == TQI_KIND_POLAR ? 1 : step_of(job->call.k);
    job->sketch_rate = (float)(job->call.k.sketch_unit / job->k_step);
    job->workers = s->n_sms;
    job->partial = room->tile_partial;
    job->states = room->tile_states;
    job->arrived = room->tile_arrived;
}

static tq_status run_codes(const Attend &attend, cudaStream_t stream) {
    const FastJob &job = attend.job;
    if (job.whole)
        return attend.fast->run(job, stream);
    if (attend.fast) {
        TQI_TRY(prepare_operands(job, stream));
        TQI_TRY(attend.fast->run(job, stream));
    } else {
        TQI_TRY(prepare_rows(job.call, stream));
        TQI_TRY(attend_any(job.call, stream));
    }
    return merge_pieces(job.call, stream);
}

tq_status run_launch(Attend *attend, cudaStream_t stream) {
    if (!attend->keeps)
        return run_codes(*attend, stream);
    place_parts(attend);
    TQI_TRY(run_codes(*attend, stream));
    return attend_exact(attend->exact, stream);
}

tq_status run_rows(const Room &room, PlanJob plan, bool planned, uint32_t rows, Attend *attend,
                   cudaStream_t stream) {
    AttendJob *call = &attend->job.call;
    uint32_t per_launch = plan.launch_blocks * room.limits.block_rows;
    for (uint32_t first = 0, launch = 0; first < rows; first += per_launch, launch++) {
        call->range = RowRange{first, (uint32_t)tqi_least(rows - first, per_launch)};
        call->schedule = schedule_of(plan, launch);
        if (!planned) {
            plan.first_launch = launch;
            TQI_TRY(plan_step(plan, stream));
        }
        TQI_TRY(run_launch(attend, stream));
    }
    return TQ_OK;
}

/* ---- a single sequence ---------------------------------------------------------------------- */

/* Rows from query token `first` on. */
static const void *row_at(const tq_rows_in &rows, uint64_t first) {
    int64_t size = rows.dtype == TQ_F32 ? 4 : 2;
    return static_cast<const uint8_t *>(rows.data) + (int64_t)first * rows.token_stride * size;
}

static void *row_at(const tq_rows_out &rows, uint64_t first) {
    int64_t size = rows.dtype == TQ_F32 ? 4 : 2;
    return static_cast<uint8_t *>(rows.data) + (int64_t)first * rows.token_stride * size;
}

/* Query tokens [first, first + n) of the call as a step of one segment. kept: NULL = nothing is. */
static tq_status attend_block(State *s, const tqi_attend_job *from, const PageIds &ids,
                              uint32_t n_ids, const KeptOnly *kept, uint32_t first, uint32_t n,
                              cudaStream_t stream) {
    tqi_attend_call call = from->call;
    Attend attend;
    call.q.data = row_at(call.q, first);
    call.out.data = row_at(call.out, first);
    if (call.lse)
        call.lse += (size_t)first * s->n_q_heads;
    TQI_TRY(make_attend(s, &s->one, call, n, call.view.length, kept != nullptr, &attend));
    if (kept)
        attend.exact.only = *kept;
    attend.job.call.range = RowRange{0, n};
    attend.job.call.schedule = s->one.plans[KEPT_PLANS];
    PlanJob plan = {};
    plan.way = attend.way;
    plan.step = s->one.step;
    plan.schedule = s->one.plans[KEPT_PLANS];
    plan.launch_rows = n;
    plan.overlap = s->overlap;
    tqi_segment segment = {call.view.length, 0, n, 0, from->n_queries - first - n, 0, 0, 0, 0};
    if (kept) {
        segment.front = from->exact->sinks;
        segment.back = segment.length - from->exact->start;
    }
    TQI_TRY(plan_one(plan, segment, s->table, ids, n_ids, stream));
    return run_launch(&attend, stream);
}

/* All query tokens of a call in tiles; *done: whether they could go this way. */
static tq_status attend_tiles(State *s, const tqi_attend_job *from, cudaStream_t stream,
                              bool *done) {
    const PrefillKernel *kernel;
    PrefillJob job;
    const tqi_page_view &view = from->call.view;
    make_prefill(s, &s->one, from->call, &kernel, &job);
    *done = kernel && takes_tiles(from->n_queries, from->call.group);
    if (!*done)
        return TQ_OK;
    job.segment = tqi_segment{view.length, 0, from->n_queries, 0, 0, 0, 0, 0, 0};
    job.table = s->table;
    job.most_tiles = row_tiles(from->n_queries, from->call.group);
    TQI_TRY(upload_table(view.pages, tqi_ceil(view.length, view.page_tokens), s->table, stream));
    return kernel->run(job, stream);
}

static tq_status attend_on(State *s, const tqi_attend_job *from, cudaStream_t stream) {
    bool done;
    TQI_TRY(attend_tiles(s, from, stream, &done));
    if (done)
        return TQ_OK;
    const tqi_page_view &view = from->call.view;
    const uint64_t n_pages = tqi_ceil(view.length, view.page_tokens);
    const uint32_t block = s->one.limits.rows;
    PageIds ids;
    uint32_t n_ids = (uint32_t)tqi_least(n_pages, ID_CHUNK);
    if (n_ids)
        memcpy(ids.id, view.pages, n_ids * sizeof *ids.id);
    TQI_TRY(upload_table(view.pages + n_ids, n_pages - n_ids, s->table + n_ids, stream));
    const bool keeps = from->exact && from->call.layer->exact;
    KeptOnly kept;
    if (keeps)
        TQI_TRY(list_kept(s, from, &kept, stream));
    for (uint32_t first = 0; first < from->n_queries; first += block) {
        uint32_t n = (uint32_t)tqi_least(from->n_queries - first, block);
        TQI_TRY(attend_block(s, from, ids, first ? 0 : n_ids, keeps ? &kept : nullptr, first, n,
                             stream));
    }
    return TQ_OK;
}

tq_status attend(void *opened, const tqi_attend_job *from, tq_stream on) {
    State *s = state_of(opened);
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(take_room(&s->one, stream));
    tq_status status = attend_on(s, from, stream);
    tq_status marked = give_room(&s->one, stream);
    return status == TQ_OK ? marked : status;
}

} /* namespace tqi */
