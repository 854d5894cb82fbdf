/*
 * Batches: plan() writes the step into the batch's room and the plans of the ways in which it
 * has been attended before; append and attend launch what depends on the maxima only while a
 * graph is captured, and no more than the step needs else.
 */
#include "encode/encode_job.h"
#include "run_attend.h"
#include "step_image.h"

namespace tqi {

namespace {

/* What plan() copies from; used again once the copy has been made. */
struct Staging {
    uint8_t *memory;
    size_t bytes;
    tq_memory space;
    cudaEvent_t copied;
};

enum { N_STAGING = 2, MAX_TABLES = 40 };

struct Batch {
    State *state;
    Room room;
    uint32_t max_seqs, max_tokens;
    Staging staging[N_STAGING];
    uint32_t next_staging;
    /* Page ids; a larger table follows a smaller one, which graphs may still be reading. */
    uint32_t *tables[MAX_TABLES];
    uint64_t table_size[MAX_TABLES];
    uint32_t n_tables;
    uint32_t rows; /* query rows of the step */
    StepCounts counts;
};

Batch *batch_of(void *batch) {
    return static_cast<Batch *>(batch);
}

/* ---- open and close ------------------------------------------------------------------------- */

Limits limits_of(const State *s, uint32_t max_seqs, uint32_t max_tokens) {
    Limits l = limits_of_steps(s, max_seqs, max_tokens);
    l.runs = (uint32_t)tqi_least(max_tokens, max_tokens / s->page_tokens + 2 * (uint64_t)max_seqs);
    l.groups = (uint32_t)tqi_least(max_tokens, max_tokens / group_tokens(s->page_tokens) +
                                                   2 * (uint64_t)max_seqs);
    if (max_tokens <= max_seqs) /* one token of every sequence: graphs are spared the launch */
        l.tiles = 0;
    /* sinks and window of a sequence may each begin and end inside a page */
    if (s->keeps)
        l.kept =
            (uint32_t)tqi_least(max_tokens, max_tokens / TQI_EXACT_TOKENS + 4 * (uint64_t)max_seqs);
    return l;
}

/* Page-locked where the hooks have such memory; copies from other memory are staged by the
 * driver. */
tq_status open_staging(Batch *b, Staging *staging, size_t bytes) {
    tqi_heap *heap = b->state->heap;
    if (staging->bytes >= bytes)
        return TQ_OK;
    tqi_free(heap, staging->memory, 1, staging->bytes, staging->space);
    staging->bytes = 0;
    staging->space = TQ_MEM_HOST_PINNED;
    staging->memory = static_cast<uint8_t *>(tqi_alloc(heap, 1, bytes, TQ_MEM_HOST_PINNED));
    if (!staging->memory) {
        staging->space = TQ_MEM_HOST;
        staging->memory = static_cast<uint8_t *>(tqi_alloc(heap, 1, bytes, TQ_MEM_HOST));
    }
    if (!staging->memory)
        return TQ_ERR_OUT_OF_MEMORY;
    staging->bytes = bytes;
    return TQ_OK;
}

/* A table of at least n ids. */
tq_status open_table(Batch *b, uint64_t n) {
    uint64_t have = b->n_tables ? b->table_size[b->n_tables - 1] : 0;
    if (n <= have)
        return TQ_OK;
    if (b->n_tables == MAX_TABLES)
        return tqi_fail(TQ_ERR_INTERNAL, "batch: its page table has grown too often");
    uint64_t size = n > 2 * have ? n : 2 * have;
    void *table = tqi_alloc(b->state->heap, size, sizeof(uint32_t), TQ_MEM_DEVICE);
    if (!table)
        return TQ_ERR_OUT_OF_MEMORY;
    b->tables[b->n_tables] = static_cast<uint32_t *>(table);
    b->table_size[b->n_tables++] = size;
    return TQ_OK;
}

/* What steps of a few tokens keep: windows that are full, as far as the pool has tokens. */
uint64_t first_kept_words(const Batch *b) {
    const uint64_t words = sizeof(KeptPage) / sizeof(uint32_t);
    return words * tqi_least(b->state->max_kept, 64 * (uint64_t)b->max_seqs);
}

tq_status fill_batch(Batch *b) {
    State *s = b->state;
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(open_room(s, limits_of(s, b->max_seqs, b->max_tokens), &b->room));
    /* sequences that share nothing fill the pool at most */
    TQI_TRY(open_table(b, s->max_pages + b->max_seqs + first_kept_words(b)));
    for (Staging &staging : b->staging) {
        TQI_CUDA(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming));
        TQI_TRY(open_staging(b, &staging, b->room.step_bytes));
    }
    /* no step yet: replayed launches find nothing to do */
    TQI_CUDA(cudaMemset(b->room.memory, 0, b->room.step_bytes));
    return check(cudaEventRecord(b->room.done, nullptr), "marking the workspace");
}

} /* namespace */

tq_status open_batch(void *opened, uint32_t max_seqs, uint32_t max_tokens, void **out) {
    State *s = state_of(opened);
    Batch *b = static_cast<Batch *>(tqi_calloc(s->heap, 1, sizeof(Batch)));
    if (!b)
        return TQ_ERR_OUT_OF_MEMORY;
    b->state = s;
    b->max_seqs = max_seqs;
    b->max_tokens = max_tokens;
    tq_status status = fill_batch(b);
    if (status != TQ_OK) {
        close_batch(b);
        return status;
    }
    *out = b;
    return TQ_OK;
}

void close_batch(void *opened) {
    Batch *b = batch_of(opened);
    if (!b)
        return;
    State *s = b->state;
    DeviceGuard guard(s->index);
    /* Nobody is left to tell of an error; memory must not be freed under a kernel. */
    (void)cudaDeviceSynchronize();
    for (Staging &staging : b->staging) {
        if (staging.copied)
            (void)cudaEventDestroy(staging.copied);
        tqi_free(s->heap, staging.memory, 1, staging.bytes, staging.space);
    }
    for (uint32_t i = 0; i < b->n_tables; i++)
        tqi_free(s->heap, b->tables[i], b->table_size[i], sizeof(uint32_t), TQ_MEM_DEVICE);
    close_room(s, &b->room);
    tqi_free(s->heap, b, 1, sizeof *b, TQ_MEM_HOST);
}

/* ---- plan -------------------------------------------------------------------------------------
 */

namespace {

/* Copies, then the plans that captured or coming launches read. */
tq_status upload_step(Batch *b, const Staging &staging, uint64_t n_ids, cudaStream_t stream) {
    const Room &room = b->room;
    TQI_CUDA(cudaMemcpyAsync(room.memory, staging.memory, room.step_bytes, cudaMemcpyHostToDevice,
                             stream));
    if (n_ids)
        TQI_CUDA(cudaMemcpyAsync(b->tables[b->n_tables - 1], staging.memory + room.step_bytes,
                                 n_ids * sizeof(uint32_t), cudaMemcpyHostToDevice, stream));
    TQI_CUDA(cudaEventRecord(staging.copied, stream));
    for (uint32_t i = 0; i < room.n_ways; i++)
        TQI_TRY(plan_step(plan_of(room, i, room.ways[i], b->state->overlap), stream));
    return TQ_OK;
}

tq_status plan_on(Batch *b, const tqi_step *step, cudaStream_t stream) {
    const uint64_t page_tokens = b->state->page_tokens;
    const uint32_t n_layers = b->state->n_layers;
    const uint64_t n_ids = table_words(*step, n_layers, page_tokens);
    if (n_ids > UINT32_MAX)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "batch: %llu page ids in one step",
                        (unsigned long long)n_ids);
    Staging *staging = &b->staging[b->next_staging];
    TQI_CUDA(cudaEventSynchronize(staging->copied)); /* two plans ago: as a rule long done */
    TQI_TRY(open_table(b, n_ids));
    TQI_TRY(open_staging(b, staging, b->room.step_bytes + n_ids * sizeof(uint32_t)));
    const StepImage image = {&b->room, staging->memory, b->tables[b->n_tables - 1], n_layers};
    b->counts = write_step(image, *step, page_tokens, b->state->n_q_heads / b->state->n_kv_heads);
    b->rows = step->query_rows;
    b->next_staging = (b->next_staging + 1) % N_STAGING;
    return upload_step(b, *staging, n_ids, stream);
}

} /* namespace */

tq_status plan_batch(void *opened, const tqi_step *step, tq_stream on) {
    Batch *b = batch_of(opened);
    State *s = b->state;
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(check(s->copy_error, "copying a shared page"));
    if (capturing(s, on))
        return tqi_fail(TQ_ERR_INVALID_STATE, "batch: a plan cannot be captured into a graph");
    TQI_TRY(take_room(&b->room, stream));
    tq_status status = plan_on(b, step, stream);
    tq_status marked = give_room(&b->room, stream);
    return status == TQ_OK ? marked : status;
}

/* ---- append and attend ------------------------------------------------------------------------
 */

namespace {

tq_status append_on(Batch *b, const tqi_step_append *from, bool whole, cudaStream_t stream) {
    State *s = b->state;
    EncodeJob job = encode_job_of(s, from->layer, from->view, from->k, from->v);
    uint32_t unit = encode_takes_groups(job) ? 0 : 1;
    const Limits &l = b->room.limits;
    job.pieces = b->room.pieces[unit];
    job.n_pieces = unit ? &b->room.step.head->n_runs : &b->room.step.head->n_groups;
    job.max_pieces = whole ? (unit ? l.runs : l.groups) : b->counts.pieces[unit];
    job.max_rows = whole ? b->max_tokens : b->counts.appended;
    TQI_TRY(encode(job, stream));
    return keep_step(s, b->room, from, whole ? l.kept : b->counts.kept, stream);
}

/* The kept plan of a way, or the last, which is made anew for every launch. *made: it was made
 * for this step before. */
uint32_t find_plan(Room *room, const tqi_way &way, bool *made) {
    *made = true;
    for (uint32_t i = 0; i < room->n_ways; i++)
        if (memcmp(&room->ways[i], &way, sizeof way) == 0)
            return i;
    *made = false;
    if (way.fixed || room->n_ways == room->n_kept)
        return KEPT_PLANS;
    room->ways[room->n_ways] = way;
    return room->n_ways++;
}

/* Sequences of many rows. *taken: whether the call can go this way; then the others are left. */
tq_status attend_tiles(Batch *b, const tqi_attend_call &call, bool whole, cudaStream_t stream,
                       bool *taken) {
    const Room &room = b->room;
    const PrefillKernel *kernel = nullptr;
    PrefillJob job;
    if (room.limits.tiles)
        make_prefill(b->state, &room, call, &kernel, &job);
    *taken = kernel != nullptr;
    if (!kernel)
        return TQ_OK;
    job.tiles = room.tiles;
    job.n_tiles = &room.step.head->n_tiles;
    job.most_tiles = whole ? room.limits.tiles : b->counts.tiles;
    return kernel->run(job, stream);
}

/* whole: all that the batch may ever have. */
tq_status attend_on(Batch *b, const tqi_step_attend *from, bool whole, cudaStream_t stream) {
    Room *room = &b->room;
    Attend attend;
    bool made, skips;
    TQI_TRY(attend_tiles(b, from->call, whole, stream, &skips));
    if (skips && !whole && b->counts.plain_rows == 0)
        return TQ_OK;
    TQI_TRY(make_attend(b->state, room, from->call, room->limits.launch_rows, b->counts.longest,
                        true, &attend));
    attend.way.skips = skips;
    if (b->state->keeps) {
        uint32_t layer = attend.keeps ? from->layer_index : b->state->n_layers;
        attend.job.call.hidden = room->hidden + (size_t)layer * room->limits.segments;
        attend.exact.hidden = attend.job.call.hidden;
        attend.exact.seqs = room->kept_seqs;
    }
    uint32_t index = find_plan(room, attend.way, &made);
    PlanJob plan = plan_of(*room, index, attend.way, b->state->overlap);
    if (!made && index != KEPT_PLANS)
        TQI_TRY(plan_step(plan, stream));
    return run_rows(*room, plan, index != KEPT_PLANS, whole ? room->limits.rows : b->rows, &attend,
                    stream);
}

} /* namespace */

tq_status batch_append(void *opened, const tqi_step_append *job, tq_stream on) {
    Batch *b = batch_of(opened);
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(b->state->index);
    bool whole = false;
    TQI_TRY(guard.status());
    TQI_TRY(is_capturing(stream, &whole));
    TQI_TRY(take_room(&b->room, stream));
    tq_status status = append_on(b, job, whole, stream);
    tq_status marked = give_room(&b->room, stream);
    return status == TQ_OK ? marked : status;
}

tq_status batch_attend(void *opened, const tqi_step_attend *job, tq_stream on) {
    Batch *b = batch_of(opened);
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(b->state->index);
    bool whole = false;
    TQI_TRY(guard.status());
    TQI_TRY(is_capturing(stream, &whole));
    TQI_TRY(take_room(&b->room, stream));
    tq_status status = attend_on(b, job, whole, stream);
    tq_status marked = give_room(&b->room, stream);
    return status == TQ_OK ? marked : status;
}

int capturing(void *opened, tq_stream stream) {
    bool yes = false;
    DeviceGuard guard(state_of(opened)->index);
    return is_capturing(static_cast<cudaStream_t>(stream), &yes) == TQ_OK && yes;
}

} /* namespace tqi */
