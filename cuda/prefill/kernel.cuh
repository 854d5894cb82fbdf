/* The kernel: a block of three warpgroups, of which one decodes and two have 64 rows each. */
#ifndef TQI_CUDA_PREFILL_KERNEL_CUH
#define TQI_CUDA_PREFILL_KERNEL_CUH

#include "prefill/consume.cuh"

namespace tqi {

enum { PREFILL_THREADS = 384 };

#if TQI_WGMMA

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
    uint64_t from, to = tqi_visible(&work->segment, call.causal, 0,
                                    (first_row + work->rows.n_rows - 1) / call.group, &from);
    uint64_t n_pages = tqi_ceil(to, TILE_TOKENS);
    work->first_page = (uint32_t)tqi_share_begin(n_pages, work->part, work->n_parts);
    work->n_pages =
        (uint32_t)tqi_share_begin(n_pages, work->part + 1, work->n_parts) - work->first_page;
    return true;
}

TQI_INLINE uint64_t seen_by(const PrefillJob &job, const TileWork &work, uint32_t row) {
    uint64_t from;
    row = work.rows.first_row + min(row, work.rows.n_rows - 1);
    return tqi_visible(&work.segment, job.call.causal, 0, row / job.call.group, &from);
}

/* 64 rows from `first` on; warp: of the block's warps with rows. */
template <int KF, int VF, int D>
TQI_INLINE void consume(const PrefillJob &job, const TileWork &work, uint8_t *shared,
                        StageBarriers *barriers, uint32_t warp, uint32_t lane) {
    using Room = PrefillRoom<KF, VF, D>;
    uint8_t *queries = shared + Room::QUERIES + warp / 4 * query_bytes<D>();
    QueryUnit *units = (QueryUnit *)(shared + Room::UNITS) + warp * 16;
    Consumer<KF, VF, D> c;
    RowLimits limits;
    load_queries<D>(job, work, warp * 16, lane, queries, units);
    if constexpr (queries_in_registers<D>()) {
        load_operands<D>(queries, warp % 4 * 16, lane, c.query);
    } else {
        c.queries = shared_address(queries);
        publish_stores();
        meet_warpgroup(1 + warp / 4);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        c.unit[h] = units[lane / 4 + 8 * h].scale;
        limits.sees[h] = seen_by(job, work, warp * 16 + lane / 4 + 8 * h);
    }
    limits.full = (uint32_t)(seen_by(job, work, warp / 4 * 64) / TILE_TOKENS);
    c.clear();
    if (work.n_pages)
        consume_pages(c, shared, barriers, work.first_page, work.n_pages, limits, lane);
    if (work.n_parts > 1 && !join_parts<D>(job, work, warp, lane, c.sums, c.state))
        return;
    store_rows<D>(job, work, warp * 16, lane, c.sums, c.state, units);
}

#endif

template <int KF, int VF, int D>
__global__ void __launch_bounds__(PREFILL_THREADS, 1)
    tqk_prefill(const __grid_constant__ PrefillJob job) {
#if TQI_WGMMA
    using Room = PrefillRoom<KF, VF, D>;
    extern __shared__ uint8_t memory[];
    __shared__ StageBarriers barriers[Room::STAGES];
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
                           ARRIVALS * (kind < 2 ? 2 : Room::WARPS));
    }
    __syncthreads();
    if (warp < 4) {
        give_registers<Room::DECODES>();
        if (warp < 2)
            produce<KF, VF, D, true>(job, work, shared, barriers, warp, lane);
        else
            produce<KF, VF, D, false>(job, work, shared, barriers, warp - 2, lane);
    } else {
        take_registers<Room::HAS_ROWS>();
        consume<KF, VF, D>(job, work, shared, barriers, warp - 4, lane);
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
                         PREFILL_THREADS, Room::BYTES + Room::ALIGN, stream, job.call.overlap != 0};
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
