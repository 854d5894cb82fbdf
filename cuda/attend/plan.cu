/* The plan of a launch: segments to workers and pieces, by one block. */
#include "attend/attend_job.h"
#include "attend/instructions.cuh"
#include "attend/scan.cuh"
#include "paged/import.cuh"

namespace tqi {
namespace {

enum { THREADS = SCAN_THREADS, WARPS = SCAN_WARPS };

/* What the block agrees on. */
struct Shared {
    uint64_t room[WARPS];
    tqi_division share;
    uint32_t size; /* tiles of a part; 0 = row way */
};

/* Segments of a launch, and where their cut goes. */
struct Range {
    uint32_t first, n;
    Schedule schedule;
};

struct Totals {
    uint64_t tiles;
    uint32_t items, busy_items; /* those with tiles */
    uint32_t longest;           /* tiles of an item */
};

/* Cuts every segment; where it begins in the row. */
__device__ Totals cut_segments(const PlanJob &job, Range range, Shared &shared) {
    tqi_cut *cuts = range.schedule.cuts + range.first;
    Totals t = {0, 0, 0, 0};
    for (uint32_t base = 0; base < range.n; base += THREADS) {
        uint32_t s = base + threadIdx.x;
        bool in = s < range.n;
        tqi_cut cut = {};
        if (in)
            cut = tqi_cut_segment(&job.way, &job.step.segments[range.first + s]);
        uint64_t tiles = tqi_n_tiles(&job.way, &cut), all_tiles;
        uint32_t items = tqi_n_items(&job.way, &cut), all_items, busy;
        cut.tiles_before = t.tiles + scan(tiles, shared.room, &all_tiles);
        cut.first_item = t.items + scan(items, shared.room, &all_items);
        (void)scan(cut.n_tiles ? items : 0, shared.room, &busy);
        if (in)
            cuts[s] = cut;
        t.tiles += all_tiles;
        t.items += all_items;
        t.busy_items += busy;
        t.longest = max(t.longest, __reduce_max_sync(~0u, cut.n_tiles));
    }
    if (threadIdx.x % 32 == 0)
        shared.room[threadIdx.x / 32] = t.longest;
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++)
        t.longest = max(t.longest, (uint32_t)shared.room[w]);
    __syncthreads();
    return t;
}

/* Parts that a size makes, by one warp. */
__device__ uint64_t parts_of_size(const PlanJob &job, Range range, uint32_t size) {
    const tqi_cut *cuts = range.schedule.cuts + range.first;
    uint64_t parts = 0;
    for (uint32_t s = threadIdx.x; s < range.n; s += 32)
        parts +=
            (uint64_t)tqi_n_items(&job.way, &cuts[s]) * tqi_parts(&job.way, cuts[s].n_tiles, size);
    for (uint32_t o = 16; o; o /= 2)
        parts += __shfl_xor_sync(~0u, parts, o);
    return parts;
}

/* The smallest part with which every part has a block; 0 where rows are better. By one warp. */
__device__ uint32_t choose_size(const PlanJob &job, Range range, const Totals &t) {
    if (job.way.fixed || (job.way.whole && t.busy_items == 0))
        return 1;
    if (t.busy_items == 0 || t.busy_items > job.way.n_blocks)
        return 0;
    uint32_t low = (uint32_t)tqi_ceil(t.tiles, job.way.n_blocks);
    uint32_t high = t.longest;
    /* items without tiles take a block of theirs where all items have one */
    uint32_t blocks = job.way.n_blocks - (job.way.whole ? t.items - t.busy_items : 0);
    if (blocks >= t.busy_items)
        high = (uint32_t)tqi_ceil(t.longest, blocks / t.busy_items);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (parts_of_size(job, range, middle) <= job.way.n_blocks)
            high = middle;
        else
            low = middle + 1;
    }
    return tqi_prefers_blocks(&job.way, t.tiles, t.longest, low) ? low : 0;
}

/* Parts of every segment; returns their number. */
__device__ uint32_t number_parts(const PlanJob &job, Range range, uint32_t size, Shared &shared) {
    tqi_cut *cuts = range.schedule.cuts + range.first;
    uint32_t total = 0;
    for (uint32_t base = 0; base < range.n; base += THREADS) {
        uint32_t s = base + threadIdx.x, all, parts = 0, items = 0;
        if (s < range.n) {
            parts = tqi_parts(&job.way, cuts[s].n_tiles, size);
            items = tqi_n_items(&job.way, &cuts[s]);
        }
        uint32_t first = total + scan(parts * items, shared.room, &all);
        if (s < range.n) {
            cuts[s].parts = parts;
            cuts[s].first_piece = first;
        }
        total += all;
    }
    return total;
}

__device__ tqi_work work_of(const PlanJob &job, Range range, const tqi_row &row,
                            const tqi_division &share, uint32_t worker) {
    const tqi_cut *cuts = range.schedule.cuts + range.first;
    tqi_work work = share.by_block ? tqi_block_work(cuts, range.first, range.n, worker)
                                   : tqi_row_work(&row, cuts, range.first, range.n, worker);
    work.ids += job.step.segments[work.segment].ids;
    return work;
}

__device__ void write_tables(const PlanJob &job, Range range, const Totals &t,
                             const tqi_division &share) {
    const tqi_cut *cuts = range.schedule.cuts + range.first;
    const tqi_row row = tqi_row_of(&job.way, t.tiles, t.items, t.busy_items, share.n_workers);
    /* whole: blocks look at their work before they know how many have some */
    uint32_t n = job.way.whole ? max(share.n_workers, job.way.n_blocks) : share.n_workers;
    for (uint32_t w = threadIdx.x; w < n; w += THREADS)
        range.schedule.work[w] =
            w < share.n_workers ? work_of(job, range, row, share, w) : tqi_work{};
    for (uint32_t i = threadIdx.x; i < t.items; i += THREADS)
        range.schedule.pieces[i] = tqi_pieces_of(&row, &share, cuts, range.n, i);
    if (threadIdx.x == 0)
        *range.schedule.share = share;
}

/* Where the rows of the launch stand, those that the step lacks included. */
__device__ void place_rows(const PlanJob &job, Range range, uint32_t first_row) {
    uint32_t n_rows = job.step.head->n_rows;
    for (uint32_t i = threadIdx.x; i < job.launch_rows; i += THREADS) {
        tqi_row_place place = {0, 0, 0, 0};
        if (first_row + i < n_rows) {
            uint32_t segment = job.step.row_segment[first_row + i];
            const tqi_cut &cut = range.schedule.cuts[segment];
            place.first_item = cut.first_item;
            place.items_per_head = cut.items_per_head;
            place.query = first_row + i - job.step.segments[segment].query_row;
            place.exists = !(job.way.skips && job.step.segments[segment].tiled);
        }
        range.schedule.rows[i] = place;
    }
}

/* The kernel behind is not allowed to begin early, and reads the plan before its wait. */
__device__ void plan(const PlanJob &job, Range range, uint32_t first_row) {
    __shared__ Shared shared;
    Totals t = cut_segments(job, range, shared);
    if (threadIdx.x < 32) {
        uint32_t size = choose_size(job, range, t);
        if (threadIdx.x == 0)
            shared.size = size;
    }
    __syncthreads();
    tqi_division share = {shared.size != 0, 0};
    share.n_workers = share.by_block ? number_parts(job, range, shared.size, shared)
                                     : (uint32_t)min(t.tiles, (uint64_t)job.way.n_workers);
    __syncthreads();
    write_tables(job, range, t, share);
    place_rows(job, range, first_row);
    __threadfence();
}

__global__ void __launch_bounds__(THREADS) tqk_plan(const __grid_constant__ PlanJob job) {
    wait_for_last_kernel();
    uint32_t launch = job.first_launch + blockIdx.x;
    const uint32_t *bounds = job.step.block_segment + launch * job.launch_blocks;
    uint32_t first = __ldcg(bounds), end = __ldcg(bounds + job.launch_blocks);
    plan(job, Range{first, end - first, schedule_of(job, launch)}, launch * job.launch_rows);
}

__global__ void __launch_bounds__(THREADS)
    tqk_plan_one(const __grid_constant__ PlanJob job, const __grid_constant__ tqi_segment segment,
                 uint32_t *table, const __grid_constant__ PageIds ids, uint32_t n_ids) {
    wait_for_last_kernel();
    for (uint32_t i = threadIdx.x; i < n_ids; i += THREADS)
        table[i] = ids.id[i];
    for (uint32_t i = threadIdx.x; i < segment.n_queries; i += THREADS)
        job.step.row_segment[segment.query_row + i] = 0;
    if (threadIdx.x == 0) {
        StepHead head = {table, segment.query_row + segment.n_queries, 0, 0, 0};
        *job.step.head = head;
        job.step.segments[0] = segment;
    }
    __syncthreads();
    plan(job, Range{0, 1, job.schedule}, 0);
}

/* A step of one launch whose sequences are the caller's. */
__global__ void __launch_bounds__(THREADS)
    tqk_plan_import(const __grid_constant__ PlanJob job, const __grid_constant__ ImportJob from) {
    __shared__ uint64_t room[WARPS];
    wait_for_last_kernel();
    import_seqs(from, room);
    plan(job, Range{0, job.step.block_segment[job.launch_blocks], job.schedule}, 0);
}

__global__ void tqk_upload_table(const __grid_constant__ PageIds ids, uint32_t n, uint32_t *table) {
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        table[i] = ids.id[i];
}

} /* namespace */

tq_status plan_step(const PlanJob &job, cudaStream_t stream) {
    LaunchShape shape = {job.n_launches, THREADS, 0, stream, job.overlap != 0};
    return launch(tqk_plan, shape, "tqk_plan", job);
}

tq_status plan_import(const PlanJob &job, const ImportJob &from, cudaStream_t stream) {
    LaunchShape shape = {1, THREADS, 0, stream, job.overlap != 0};
    return launch(tqk_plan_import, shape, "tqk_plan_import", job, from);
}

tq_status plan_one(const PlanJob &job, const tqi_segment &segment, uint32_t *table,
                   const PageIds &ids, uint32_t n_ids, cudaStream_t stream) {
    LaunchShape shape = {1, THREADS, 0, stream, job.overlap != 0};
    return launch(tqk_plan_one, shape, "tqk_plan_one", job, segment, table, ids, n_ids);
}

tq_status upload_table(const uint32_t *ids, uint64_t n, uint32_t *table, cudaStream_t stream) {
    for (uint64_t first = 0; first < n; first += ID_CHUNK) {
        uint32_t count = (uint32_t)(n - first < ID_CHUNK ? n - first : ID_CHUNK);
        PageIds chunk;
        memcpy(chunk.id, ids + first, count * sizeof *ids);
        LaunchShape shape = {1, 256, 0, stream, false};
        TQI_TRY(launch(tqk_upload_table, shape, "tqk_upload_table", chunk, count, table + first));
    }
    return TQ_OK;
}

} /* namespace tqi */
