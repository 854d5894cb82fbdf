/* The kernel: a block of warpgroups, of which one or two decode and two have 64 rows each. */
#ifndef TQI_CUDA_PREFILL_KERNEL_CUH
#define TQI_CUDA_PREFILL_KERNEL_CUH

#include "prefill/consume.cuh"

namespace tqi {

#if TQI_WGMMA

/* Tokens that row `row` of the tile, or its last, sees: [*from, to). */
TQI_INLINE uint64_t seen_by(const AttendJob &call, const TileWork &work, uint32_t row,
                            uint64_t *from) {
    row = work.rows.first_row + min(row, work.rows.n_rows - 1);
    return tqi_visible(&work.segment, call.causal, call.window, row / call.group, from);
}

/* The block's tile: the last rows, which see most, first; heads of a kv tile side by side, as they
 * finish together. False: the step has no such tile. */
TQI_INLINE bool find_work(const PrefillJob &job, TileWork *work) {
    const AttendJob &call = job.call;
    uint32_t n_tiles = job.tiles ? __ldcg(job.n_tiles) : job.most_tiles;
    work->n_parts = parts_of_tile(n_tiles * call.n_heads, job.workers);
    work->item = blockIdx.x / work->n_parts;
    work->part = blockIdx.x % work->n_parts;
    uint32_t tile = work->item / call.n_heads, first_row = 0;
    if (tile >= n_tiles)
        return false;
    tile = n_tiles - 1 - tile;
    work->segment = job.segment;
    work->ids = job.table;
    first_row = tile * TILE_ROWS;
    if (job.tiles) {
        work->segment = fresh(&job.tiles[tile].segment);
        work->ids = fresh(&call.step.head->table);
        first_row = __ldcg(&job.tiles[tile].first_row);
    }
    work->ids += work->segment.ids;
    work->rows.kv_head = work->item % call.n_heads;
    work->rows.first_row = first_row;
    work->rows.n_rows = min((uint32_t)TILE_ROWS, work->segment.n_queries * call.group - first_row);
    uint64_t from, begin, to = seen_by(call, *work, work->rows.n_rows - 1, &from);
    (void)seen_by(call, *work, 0, &begin);
    begin /= TILE_TOKENS;
    uint64_t n_pages = tqi_ceil(to, TILE_TOKENS);
    n_pages = n_pages > begin ? n_pages - begin : 0;
    uint64_t first = tqi_share_begin(n_pages, work->part, work->n_parts);
    work->first_page = (uint32_t)(begin + first);
    work->n_pages = (uint32_t)(tqi_share_begin(n_pages, work->part + 1, work->n_parts) - first);
    return true;
}

/* Pages that rows [first, first + 64) of the tile all see whole. */
TQI_INLINE void find_full_pages(const AttendJob &call, const TileWork &work, uint32_t first,
                                RowLimits *limits) {
    uint64_t from, unused, to = seen_by(call, work, first, &unused);
    (void)seen_by(call, work, first + 63, &from);
    limits->first_full = (uint32_t)tqi_ceil(from, TILE_TOKENS);
    limits->full_end = (uint32_t)(to / TILE_TOKENS);
    limits->cap = limits->cap_rate = 0;
    if (call.softcap != 0) {
        limits->cap = (float)(call.softcap * 1.4426950408889634);
        limits->cap_rate = (float)(2 / call.softcap);
        limits->full_end = 0;
    }
}

/* 64 rows from `first` on; warp: of the block's warps with rows. */
template <int KF, int VF, int D>
TQI_INLINE void consume(const PrefillJob &job, const TileWork &work, uint8_t *shared,
                        StageBarriers *barriers, uint32_t warp, uint32_t lane) {
    using Room = PrefillRoom<KF, VF, D>;
    constexpr int K_DIM = Room::K_DIM;
    uint8_t *queries = shared + Room::QUERIES + warp / 4 * query_bytes<K_DIM>();
    RowNote *notes = (RowNote *)(shared + Room::NOTES) + warp * 16;
    Consumer<KF, VF, D> c;
    RowLimits limits;
    load_queries<KF, D>(job, work, warp * 16, lane, queries, notes);
    if constexpr (queries_in_registers<K_DIM>()) {
        load_operands<K_DIM>(queries, warp % 4 * 16, lane, c.query);
    } else {
        c.queries = shared_address(queries);
        publish_stores();
        meet_warpgroup(1 + warp / 4);
    }
    c.unit[0] = notes[lane / 4].unit;
    c.unit[1] = notes[lane / 4 + 8].unit;
    limits.notes = notes + lane / 4;
    find_full_pages(job.call, work, warp / 4 * 64, &limits);
    c.clear();
    if (work.n_pages)
        consume_pages(c, shared, barriers, work.first_page, work.n_pages, limits, lane);
    if constexpr (!queries_in_registers<K_DIM>())
        meet_warpgroup(1 +
                       warp / 4); /* the warp's rows take the place of the warpgroup's queries */
    if (work.n_parts > 1 && !join_parts<D>(job, work, warp, lane, c.sums, c.state))
        return;
    store_rows<VF, D>(job, work, warp * 16, lane, c.sums, c.state, notes,
                      (float *)(queries + warp % 4 * (query_bytes<K_DIM>() / 4)));
}

#endif

template <int KF, int VF, int D>
__global__ void __launch_bounds__(PrefillRoom<KF, VF, D>::THREADS, 1)
    tqk_prefill(const __grid_constant__ PrefillJob job) {
#if TQI_WGMMA
    using Room = PrefillRoom<KF, VF, D>;
    extern __shared__ uint8_t memory[];
    __shared__ StageBarriers barriers[Room::STAGES];
    __shared__ uint64_t arrivals[4 * Room::TEAMS * Room::SLOTS]; /* of parts of pages */
    uint8_t *shared = memory + (Room::ALIGN - shared_address(memory) % Room::ALIGN);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    TileWork work;
    wait_for_last_kernel();
    allow_next_kernel();
    if (!find_work(job, &work))
        return;
    if (threadIdx.x < Room::STAGES * 4) {
        uint32_t kind = threadIdx.x % 4; /* full keys, full values, empty keys, empty values */
        barrier_init_count(shared_address((uint64_t *)barriers + threadIdx.x),
                           WARP_ARRIVALS * (kind < 2 ? 2 : Room::WARPS));
    }
    if (!Room::WIDE && threadIdx.x < 4 * Room::TEAMS * Room::SLOTS)
        barrier_init_count(shared_address(arrivals + threadIdx.x), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    if (warp < 4 * Room::TEAMS) {
        give_registers<Room::DECODES>();
        produce<KF, VF, D>(job, work, shared, barriers, arrivals, warp, lane);
    } else {
        take_registers<Room::HAS_ROWS>();
        consume<KF, VF, D>(job, work, shared, barriers, warp - 4 * Room::TEAMS, lane);
    }
#endif
}

/* ---- host -------------------------------------------------------------------------------------
 */

/* Code for other GPUs is empty: it has no barriers. */
template <int KF, int VF, int D> bool prefill_runs() {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, tqk_prefill<KF, VF, D>) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.sharedSizeBytes != 0;
}

template <int KF, int VF, int D> tq_status prepare_prefill_kernel() {
    using Room = PrefillRoom<KF, VF, D>;
    return check(cudaFuncSetAttribute(tqk_prefill<KF, VF, D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      Room::BYTES + Room::ALIGN),
                 "shared memory of prefill");
}

template <int KF, int VF, int D> tq_status run_prefill(const PrefillJob &job, cudaStream_t stream) {
    using Room = PrefillRoom<KF, VF, D>;
    LaunchShape shape = {blocks_of_tiles((uint64_t)job.most_tiles * job.call.n_heads, job.workers),
                         Room::THREADS, Room::BYTES + Room::ALIGN, stream, job.call.overlap != 0};
    return launch(tqk_prefill<KF, VF, D>, shape, "tqk_prefill", job);
}

/* An entry of the table: formats and head dim. */
#define TQI_PREFILL_KERNEL(name, kf, vf, d)                        \
    const PrefillKernel name = {kf,                                \
                                vf,                                \
                                d,                                 \
                                "tqk_" #name,                      \
                                prefill_runs<kf, vf, d>,           \
                                prepare_prefill_kernel<kf, vf, d>, \
                                run_prefill<kf, vf, d>};

} /* namespace tqi */

#endif
