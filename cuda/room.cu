/* Laying out, opening and sharing the memory that attention works in. */
#include "room.h"

#include "state.h"

namespace tqi {

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

uint32_t launches_of(const Limits &limits, uint32_t rows) {
    return (uint32_t)tqi_ceil(rows, limits.launch_rows);
}

Limits limits_of_steps(const State *s, uint32_t max_seqs, uint32_t max_tokens) {
    const uint64_t block_heads = 4096, blocks_per_launch = 8;
    uint64_t block = tqi_least(block_heads / s->n_q_heads, max_tokens);
    block = block ? block : 1;
    uint64_t blocks = tqi_ceil(max_tokens, block);
    Limits l = {};
    l.rows = max_tokens;
    l.block_rows = (uint32_t)block;
    l.launch_rows = (uint32_t)(block * tqi_least(blocks, blocks_per_launch));
    l.segments = (uint32_t)tqi_least(max_tokens, max_seqs + blocks);
    return l;
}

/* ---- layout --------------------------------------------------------------------------------- */

/* The most items that `rows` query rows make: each segment can leave a tile of rows unfilled. */
static uint64_t most_items(const State *s, const Limits &l, uint32_t item_rows, uint64_t rows) {
    uint64_t group = s->n_q_heads / s->n_kv_heads;
    uint64_t separate = rows * tqi_ceil(group, item_rows);
    uint64_t joined = rows * group / item_rows + tqi_least(rows, l.segments);
    return s->n_kv_heads * tqi_least(separate, joined);
}

bool has_few_items(const State *s, const Limits &limits, uint32_t item_rows, uint32_t rows) {
    const uint64_t least_parts = 3; /* else cuts are too coarse for ragged batches */
    return most_items(s, limits, item_rows, rows) * least_parts <= s->n_sms;
}

/* The most of everything over the kernels of the cache. */
struct Most {
    uint64_t items, row_workers, workers, item_rows, piece_rows;
};

static Most most_of(const State *s, const Limits &l) {
    Most m = {};
    for (uint32_t i = 0; i < s->n_shapes; i++) {
        const KernelShape &k = s->shapes[i];
        uint64_t items = most_items(s, l, k.item_rows, l.launch_rows);
        uint64_t fixed = most_items(s, l, k.item_rows, l.block_rows) * TQI_FIXED_PARTS;
        m.items = larger(m.items, items);
        m.row_workers = larger(m.row_workers, larger(k.workers, s->n_sms));
        m.workers = larger(m.workers, larger(m.row_workers, fixed));
        m.item_rows = larger(m.item_rows, larger(items, s->n_sms) * k.item_rows);
        m.piece_rows = larger(m.piece_rows, larger(items + k.workers, fixed) * k.item_rows);
    }
    return m;
}

/* Hands out pieces of a block of memory. */
struct Carver {
    uint8_t *base;
    size_t at;

    template <class T> T *take(uint64_t n) {
        at = (at + 255) & ~(size_t)255;
        T *p = reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(base) + at);
        at += n * sizeof(T);
        return p;
    }
};

static void carve_step(const State *s, const Limits &l, Carver *c, Room *room) {
    uint32_t blocks = (uint32_t)tqi_ceil(l.rows, l.block_rows);
    room->step.head = c->take<StepHead>(1);
    room->step.segments = c->take<tqi_segment>(l.segments);
    room->step.row_segment = c->take<uint32_t>(l.rows);
    room->step.block_segment =
        c->take<uint32_t>(launches_of(l, l.rows) * (l.launch_rows / l.block_rows) + blocks + 1);
    room->pieces[0] = c->take<AppendPiece>(l.groups);
    room->pieces[1] = c->take<AppendPiece>(l.runs);
    room->tiles = c->take<RowTile>(l.tiles);
    if (s->keeps && l.kept) {
        room->kept_seqs = c->take<KeptSeq>(l.segments);
        room->hidden = c->take<Hidden>(((uint64_t)s->n_layers + 1) * l.segments);
        room->kept_runs = c->take<KeptRun>(l.kept);
    }
    room->step_bytes = c->at = (c->at + 15) & ~(size_t)15;
}

/* Plans of `launches` launches with room for `workers` each; returns the first. */
static Schedule carve_plan(const Limits &l, uint32_t launches, uint64_t workers, uint64_t items,
                           Carver *c, size_t *launch_bytes) {
    Schedule first = {};
    for (uint32_t launch = 0; launch < launches; launch++) {
        Schedule plan;
        plan.share = c->take<tqi_division>(1);
        size_t start = c->at - sizeof(tqi_division);
        plan.cuts = c->take<tqi_cut>(l.segments);
        plan.work = c->take<tqi_work>(workers);
        plan.pieces = c->take<tqi_pieces>(items);
        plan.rows = c->take<tqi_row_place>(l.launch_rows);
        c->at = (c->at + 255) & ~(size_t)255;
        *launch_bytes = c->at - start;
        if (launch == 0)
            first = plan;
    }
    return first;
}

/* Steps of very many launches keep no plans: they would fill the memory. */
static void carve_plans(const Limits &l, const Most &most, bool keeps, Carver *c, Room *room) {
    const uint32_t most_launches = 32;
    uint32_t launches = launches_of(l, l.rows);
    size_t unused;
    room->n_kept = keeps && launches <= most_launches ? KEPT_PLANS : 0;
    for (uint32_t i = 0; i < room->n_kept; i++)
        room->plans[i] =
            carve_plan(l, launches, most.row_workers, most.items, c, &room->plan_bytes);
    room->plans[KEPT_PLANS] = carve_plan(l, 1, most.workers, most.items, c, &unused);
}

void place_room(const State *s, const Limits &l, bool keeps, uint8_t *memory, Room *room) {
    Most most = most_of(s, l);
    Carver c = {memory, 0};
    memset(room, 0, sizeof *room);
    room->limits = l;
    room->memory = memory;
    carve_step(s, l, &c, room);
    carve_plans(l, most, keeps, &c, room);
    if (s->keeps) {
        uint64_t rows = (uint64_t)l.launch_rows * s->n_q_heads;
        room->part = c.take<float>(rows * s->v_dim);
        room->part_lse = c.take<float>(rows);
    }
    room->partial = c.take<float>(most.piece_rows * s->v_dim);
    room->partial_ml = c.take<float2>(most.piece_rows);
    room->queries = c.take<float>(most.item_rows * s->k_dim * (s->sketches ? 2 : 1));
    room->q_scale = c.take<float>(most.item_rows);
    room->shift = c.take<float>(most.item_rows);
    room->q_half = c.take<int32_t>(most.item_rows);
    room->q_sketch = c.take<float2>(s->sketches ? most.item_rows : 0);
    room->n_arrived = (uint32_t)most.items;
    room->arrived = c.take<uint32_t>(most.items);
    uint64_t parts = l.tiles ? s->n_sms : 0;
    room->tile_partial = c.take<float>(parts * TILE_ROWS * s->v_dim);
    room->tile_states = c.take<float4>(parts * TILE_WARPS * 32);
    room->tile_arrived = c.take<uint32_t>(parts * TILE_WARPS);
    room->n_tile_arrived = (uint32_t)parts * TILE_WARPS;
    room->bytes = c.at;
}

/* ---- open and close ------------------------------------------------------------------------- */

tq_status open_room(State *s, const Limits &limits, Room *room) {
    place_room(s, limits, true, nullptr, room);
    uint8_t *memory = static_cast<uint8_t *>(tqi_alloc(s->heap, 1, room->bytes, TQ_MEM_DEVICE));
    if (!memory)
        return TQ_ERR_OUT_OF_MEMORY;
    place_room(s, limits, true, memory, room);
    TQI_CUDA(cudaEventCreateWithFlags(&room->done, cudaEventDisableTiming));
    TQI_CUDA(cudaMemset(room->arrived, 0, room->n_arrived * sizeof *room->arrived));
    TQI_CUDA(cudaMemset(room->tile_arrived, 0, room->n_tile_arrived * sizeof(uint32_t)));
    return check(cudaEventRecord(room->done, nullptr), "marking the workspace");
}

void close_room(State *s, Room *room) {
    if (room->done)
        (void)cudaEventDestroy(room->done);
    tqi_free(s->heap, room->memory, 1, room->bytes, TQ_MEM_DEVICE);
    memset(room, 0, sizeof *room);
}

PlanJob plan_of(const Room &room, uint32_t plan, const tqi_way &way, uint32_t overlap) {
    const Limits &l = room.limits;
    PlanJob job = {};
    job.way = way;
    job.step = room.step;
    job.schedule = room.plans[plan];
    job.launch_bytes = plan == KEPT_PLANS ? 0 : room.plan_bytes;
    job.n_launches = plan == KEPT_PLANS ? 1 : launches_of(l, l.rows);
    job.launch_blocks = way.fixed ? 1 : l.launch_rows / l.block_rows;
    job.launch_rows = job.launch_blocks * l.block_rows;
    job.overlap = overlap;
    return job;
}

/* ---- sharing -------------------------------------------------------------------------------- */

tq_status is_capturing(cudaStream_t stream, bool *out) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    TQI_CUDA(cudaStreamIsCapturing(stream, &status));
    *out = status != cudaStreamCaptureStatusNone;
    return TQ_OK;
}

/* Callers hold a room only while they launch: a short wait. A graph is ordered by whoever
 * replays it. */
tq_status take_room(Room *room, cudaStream_t stream) {
    bool capturing = false;
    while (__atomic_test_and_set(&room->busy, __ATOMIC_ACQUIRE)) {
    }
    tq_status status = is_capturing(stream, &capturing);
    if (status == TQ_OK && !capturing)
        status = check(cudaStreamWaitEvent(stream, room->done, 0), "waiting for the workspace");
    if (status != TQ_OK)
        __atomic_clear(&room->busy, __ATOMIC_RELEASE);
    return status;
}

tq_status give_room(Room *room, cudaStream_t stream) {
    bool capturing = false;
    tq_status status = is_capturing(stream, &capturing);
    if (status == TQ_OK && !capturing)
        status = check(cudaEventRecord(room->done, stream), "marking the workspace");
    __atomic_clear(&room->busy, __ATOMIC_RELEASE);
    return status;
}

} /* namespace tqi */
