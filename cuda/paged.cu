/* Pages of the caller: the kernels of batches over a step that the device writes into the
 * caller's workspace, and over slots. */
#include "paged/paged_job.h"
#include "encode/encode_job.h"
#include "run_attend.h"

namespace tqi {

/* ---- checked calls ----------------------------------------------------------------------------
 */

namespace {

/* Checked calls of a cache take turns with the place where faults are reported; they wait for the
 * device anyway. */
struct Turn {
    State *s;
    explicit Turn(State *state) : s(state) {
        while (__atomic_test_and_set(&s->fault_busy, __ATOMIC_ACQUIRE)) {
        }
    }
    ~Turn() {
        __atomic_clear(&s->fault_busy, __ATOMIC_RELEASE);
    }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;
};

tq_status refuse_capture(cudaStream_t stream) {
    bool yes = false;
    TQI_TRY(is_capturing(stream, &yes));
    return yes ? tqi_fail(TQ_ERR_INVALID_STATE,
                          "pool: a checked call waits for the device, which a stream that is being "
                          "captured can't")
               : TQ_OK;
}

/* The fault that check(job) finds, ~0 for none. */
template <class Job>
tq_status find_fault(State *s, Job job, tq_status (*check_it)(const Job &, uint32_t, cudaStream_t),
                     cudaStream_t stream, uint64_t *fault) {
    Turn turn(s);
    job.fault = s->fault;
    TQI_CUDA(cudaMemsetAsync(s->fault, 0xff, sizeof *fault, stream));
    TQI_TRY(check_it(job, s->n_sms, stream));
    TQI_CUDA(cudaMemcpyAsync(fault, s->fault, sizeof *fault, cudaMemcpyDeviceToHost, stream));
    return check(cudaStreamSynchronize(stream), "checking a call");
}

/* An element of an array on the device, for a message. */
template <class T> tq_status fetch(const T *from, T *to, cudaStream_t stream) {
    TQI_CUDA(cudaMemcpyAsync(to, from, sizeof *to, cudaMemcpyDeviceToHost, stream));
    return check(cudaStreamSynchronize(stream), "reading what is wrong");
}

tq_status refuse_slots(State *s, const tqi_paged_append *job, cudaStream_t stream) {
    uint64_t fault, n_slots = job->n_pages * job->view.page_tokens;
    SlotsJob slots = {job->slots, job->n_tokens, n_slots, nullptr};
    int64_t slot = 0;
    TQI_TRY(refuse_capture(stream));
    TQI_TRY(find_fault(s, slots, check_slots, stream, &fault));
    if (fault == ~(uint64_t)0)
        return TQ_OK;
    unsigned at = (unsigned)(fault / 2);
    TQI_TRY(fetch(job->slots + at, &slot, stream));
    if (fault & 1)
        return tqi_fail(TQ_ERR_INVALID_ARGUMENT, "slots[%u]: %lld, a token before it has that too",
                        at, (long long)slot);
    return tqi_fail(TQ_ERR_INVALID_ARGUMENT, "slots[%u]: %lld, the pool has %llu", at,
                    (long long)slot, (unsigned long long)n_slots);
}

CallerSeqs seqs_of(const tqi_paged_attend *job) {
    return CallerSeqs{job->table,  job->table_stride, job->lengths,   job->starts,
                      job->n_seqs, job->n_queries,    job->max_length};
}

/* Says what is wrong with rows or length of a sequence. */
tq_status refuse_rows(const tqi_paged_attend *job, uint32_t seq, uint32_t at, cudaStream_t stream) {
    int32_t first = 0, second = 0;
    if (at == 1) {
        TQI_TRY(fetch(job->lengths + seq, &first, stream));
        return tqi_fail(TQ_ERR_INVALID_ARGUMENT, "seq_lens[%u]: %d, max_seq_len is %u", seq, first,
                        job->max_length);
    }
    TQI_TRY(fetch(job->starts + seq, &first, stream));
    TQI_TRY(fetch(job->starts + seq + 1, &second, stream));
    return tqi_fail(TQ_ERR_INVALID_ARGUMENT, "query_starts[%u]: %d after %d, of %u rows", seq + 1,
                    second, first, job->n_queries);
}

tq_status refuse_seqs(State *s, const tqi_paged_attend *job, cudaStream_t stream) {
    const tqi_attend_call &call = job->call;
    CheckJob seqs = {seqs_of(job), job->n_pages, call.view.page_tokens,
                     call.causal,  call.window,  nullptr};
    uint64_t fault;
    int32_t id = 0;
    TQI_TRY(refuse_capture(stream));
    TQI_TRY(find_fault(s, seqs, check_seqs, stream, &fault));
    if (fault == ~(uint64_t)0)
        return TQ_OK;
    uint32_t seq = (uint32_t)(fault >> 30), at = (uint32_t)(fault & ((1u << 30) - 1));
    if (fault >> 62 == FAULT_START) {
        TQI_TRY(fetch(job->starts, &id, stream));
        return tqi_fail(TQ_ERR_INVALID_ARGUMENT, "query_starts[0]: must be 0, not %d", id);
    }
    if (fault >> 62 == FAULT_ROWS)
        return refuse_rows(job, seq, at, stream);
    TQI_TRY(fetch(job->table + (int64_t)seq * job->table_stride + at, &id, stream));
    return tqi_fail(TQ_ERR_INVALID_ARGUMENT,
                    "block_table: page %u of sequence %u is %d, the pool has %llu", at, seq, id,
                    (unsigned long long)job->n_pages);
}

/* Kernels count the bytes between pages in 32 bits. */
tq_status check_stride(const tqi_page_view &view) {
    if (view.layer_bytes > UINT32_MAX)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "pool: page_stride of %zu bytes, CUDA takes %u at most",
                        view.layer_bytes, UINT32_MAX);
    return TQ_OK;
}

} /* namespace */

/* ---- append ------------------------------------------------------------------------------------
 */

tq_status paged_append(void *opened, const tqi_paged_append *from, tq_stream on) {
    State *s = state_of(opened);
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(s->index);
    TQI_TRY(guard.status());
    TQI_TRY(check_stride(from->view));
    if (from->checked)
        TQI_TRY(refuse_slots(s, from, stream));
    EncodeJob job = encode_job_of(s, from->layer, from->view, from->k, from->v);
    job.slots = from->slots;
    job.n_slots = from->n_pages * from->view.page_tokens;
    job.max_pieces = from->n_tokens;
    job.max_rows = from->n_tokens;
    return encode(job, stream);
}

/* ---- attend ------------------------------------------------------------------------------------
 */

size_t paged_workspace(void *opened, uint32_t max_seqs, uint32_t max_queries, uint32_t max_length) {
    const State *s = state_of(opened);
    Room room;
    (void)max_length; /* page ids stay where they are */
    place_room(s, limits_of_steps(s, max_seqs, max_queries), false, nullptr, &room);
    return room.bytes;
}

namespace {

/* The step of a call in its workspace. */
ImportJob import_of(const State *s, const tqi_paged_attend *job, const Room &room) {
    const Limits &l = room.limits;
    ImportJob import = {};
    import.seqs = seqs_of(job);
    import.step = room.step;
    import.block_rows = l.block_rows;
    import.n_blocks = launches_of(l, l.rows) * (l.launch_rows / l.block_rows);
    import.n_segments = l.segments;
    import.arrived = room.arrived;
    import.overlap = s->overlap;
    import.group = job->call.group;
    return import;
}

/* Which sequences have many rows is known on the device only: the launch is made for as many tiles
 * as there can be, unless every sequence has one row. */
void import_tiles(const Room &room, ImportJob *import, PrefillJob *prefill) {
    import->tiles = room.tiles;
    import->most_tiles = room.limits.tiles;
    import->tile_arrived = room.tile_arrived;
    import->n_tile_arrived = room.n_tile_arrived;
    prefill->tiles = room.tiles;
    prefill->n_tiles = &room.step.head->n_tiles;
    prefill->most_tiles = room.limits.tiles;
}

/* What a workspace holds once a call has planned in it: where its step lies and how it was cut. */
struct PlanMark {
    uint64_t words[TQI_PLAN_WORDS];
    PlanMark(const tqi_paged_attend *job, const tqi_way &way)
        : words{(uint64_t)job->workspace, (uint64_t)job->table,  (uint64_t)job->table_stride,
                (uint64_t)job->lengths,   (uint64_t)job->starts, job->n_seqs,
                job->n_queries,           job->max_length} {
        static_assert(sizeof way + 8 * sizeof *words <= sizeof words, "a step has room");
        memcpy(words + 8, &way, sizeof way);
    }
};

} /* namespace */

tq_status paged_attend(void *opened, const tqi_paged_attend *job, tq_stream on) {
    State *s = state_of(opened);
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    DeviceGuard guard(s->index);
    Room room;
    Attend attend;
    TQI_TRY(guard.status());
    TQI_TRY(check_stride(job->call.view));
    if (job->checked)
        TQI_TRY(refuse_seqs(s, job, stream));
    place_room(s, limits_of_steps(s, job->n_seqs, job->n_queries), false,
               static_cast<uint8_t *>(job->workspace), &room);
    const Limits &l = room.limits;
    const PrefillKernel *kernel = nullptr;
    PrefillJob prefill;
    TQI_TRY(make_attend(s, &room, job->call, l.launch_rows, job->max_length, false, &attend));
    ImportJob import = import_of(s, job, room);
    import.n_arrived = attend.job.whole ? room.n_arrived : 0;
    if (l.tiles && job->n_queries > job->n_seqs)
        make_prefill(s, &room, job->call, &kernel, &prefill);
    if (kernel)
        import_tiles(room, &import, &prefill);
    attend.way.skips = kernel != nullptr;
    PlanJob plan = plan_of(room, KEPT_PLANS, attend.way, s->overlap);
    bool one = plan.launch_rows >= l.rows;
    const PlanMark mark(job, attend.way);
    if (!job->planned || memcmp(job->planned, mark.words, sizeof mark.words) != 0)
        TQI_TRY(one ? plan_import(plan, import, stream) : import_step(import, stream));
    if (job->planned)
        memcpy(job->planned, mark.words, sizeof mark.words);
    if (kernel)
        TQI_TRY(kernel->run(prefill, stream));
    return run_rows(room, plan, one, l.rows, &attend, stream);
}

} /* namespace tqi */
