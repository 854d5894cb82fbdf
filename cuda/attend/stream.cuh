/*
 * Pages to partial states: every worker walks its share of the plan, page after page.
 */
#ifndef TQI_CUDA_ATTEND_STREAM_CUH
#define TQI_CUDA_ATTEND_STREAM_CUH

#include "attend/edges.cuh"
#include "attend/fast_job.h"
#include "attend/fetch.cuh"
#include "attend/join_warps.cuh"
#include "attend/ring.cuh"
#include "attend/row_index.cuh"
#include "attend/tile.cuh"
#include "attend/whole.cuh"

namespace tqi {

/* ---- a warp's pages of one item ------------------------------------------------------------ */

/* at: the item, or the block that has prepared it. */
template <class T, class Queries>
TQI_INLINE void load_query(const Queries &job, const Item &i, uint32_t at, uint32_t lane, T &t) {
    const uint32_t last = i.rows.n_rows - 1; /* stands for the rows that a tile lacks */
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t row = min(nt * 4 + lane / 8, last);
        const uint32_t *from = job.fragments + ((uint64_t)at * T::NT + row / 4) * T::Q_WORDS * 32 +
                               8 * (row % 4) + lane % 8;
#pragma unroll
        for (int w = 0; w < T::Q_WORDS; w++)
            t.q[nt][w] = operand(job, from + w * 32);
        row = at * T::HEADS + min(nt * 4 + lane % 4, last);
        t.q_scale[nt] = operand(job, job.q_scale + row);
        t.set_half(nt, T::K_INT ? operand(job, job.q_half + row) : 0);
        if constexpr (T::SKETCH)
            t.sketch[nt] = operand(job, job.q_sketch + row);
    }
    t.clear();
}

/* What a turn asks of the pages (tile.cuh). */
template <class T, class R> struct ItemPages {
    const FastJob &job;
    R &ring;
    Fetch &fetch;
    const uint32_t lane, stride;
    uint32_t page; /* the first of the turn, counted from page 0 */
    uint32_t here; /* of the turn */
    Turn<T::PAGES> next;

    TQI_INLINE EdgeRecord<T::HEADS> record() const {
        return EdgeRecord<T::HEADS>{ring.behind_slots()};
    }

    TQI_INLINE PageEdge<T::NT> edge(uint32_t n) const {
        auto e = record().template edge<T::NT>(job, page + n * stride, lane);
        return n < here ? e : nothing_of(e);
    }

    /* The fences come first: they wait for loads, also for that of the page id behind the next. */
    TQI_INLINE void keys_read() {
        if (!T::SPLIT)
            return;
        allow_copies();
        next = fetch.template next_turn<T::PAGES>();
        ring.refill_keys(next);
    }

    TQI_INLINE void wait_values() {
        ring.wait_values();
    }

    TQI_INLINE void values_read() {
        allow_copies();
        if (!T::SPLIT)
            next = fetch.template next_turn<T::PAGES>();
        ring.refill_values(next);
    }
};

/* n pages from `tile` on, `stride` apart. */
template <class T, class R>
TQI_INLINE void consume(const FastJob &job, const Item &i, const tqi_segment &s, uint32_t at,
                        uint32_t tile, uint32_t n, uint32_t stride, uint32_t lane, R &ring,
                        Fetch &fetch, T &t) {
    ItemPages<T, R> pages = {job, ring, fetch, lane, stride, 0, 0, {}};
    pages.record().keep(job, i, s, at, lane);
    tile += i.first_tile - i.first_full; /* from the first whole one on: wraps around before it */
    for (; n; n -= pages.here, tile += T::PAGES * stride) {
        Slot slot[T::PAGES];
        ring.wait_keys(slot);
        pages.here = min(n, (uint32_t)T::PAGES);
        pages.page = tile + i.first_full;
        bool edge = pages.here < T::PAGES;
#pragma unroll
        for (uint32_t page = 0; page < T::PAGES; page++)
            edge |= tile + page * stride >= i.n_full;
        t.turn(slot, lane, edge, pages);
    }
}

/* ---- warps as workers -------------------------------------------------------------------------
 */

template <class T>
TQI_INLINE void write_piece(const FastJob &job, uint32_t piece, uint32_t lane, T &t) {
    float one[T::NT];
    t.join_threads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        one[nt] = 1;
        if (lane < 4)
            job.call.partial_ml[(uint64_t)piece * T::HEADS + nt * 4 + lane] =
                make_float2(t.max[nt], t.sum[nt]);
    }
    t.store(lane, one, job.call.partial + (uint64_t)piece * T::HEADS * T::D);
}

/* ---- the kernel
 * ----------------------------------------------------------------------------------- */

/* Bytes of a block: the warps' own, barriers, states of the warps. */
template <class T> size_t stream_shared(uint32_t warps, uint32_t slots) {
    return (size_t)warps * (warp_bytes_of<T>(slots) + slots * 16 + T::HEADS * 8);
}

/* Operands of an item in shared memory, behind all that. */
template <class T> __host__ __device__ constexpr uint32_t query_bytes() {
    return T::HEADS / 4 * T::Q_WORDS * 128 + T::HEADS * (T::SKETCH ? 16 : 8);
}
template <class T> __host__ __device__ size_t bytes_with_queries(uint32_t warps, uint32_t slots) {
    return (size_t)warps * (warp_bytes_of<T>(slots) + slots * 16 + T::HEADS * 8) + query_bytes<T>();
}
template <class T> __host__ __device__ bool keeps_queries(const FastJob &job) {
    return bytes_with_queries<T>(job.warps, job.slots) + WHOLE_SHARED <= job.shared_limit;
}
template <class T> TQI_INLINE WholeQueries queries_of_block(const FastJob &job, uint8_t *shared) {
    constexpr uint32_t words = T::HEADS / 4 * T::Q_WORDS * 32, rows = T::HEADS;
    WholeQueries q = {job.call,
                      job.planes,
                      job.k_step,
                      job.fragments + (size_t)blockIdx.x * words,
                      job.q_scale + blockIdx.x * rows,
                      job.q_half + blockIdx.x * rows,
                      job.q_sketch + blockIdx.x * rows};
    if (keeps_queries<T>(job)) {
        q.fragments = (uint32_t *)(shared + job.warps * (warp_bytes_of<T>(job.slots) +
                                                         job.slots * 16 + rows * 8));
        q.q_sketch = (float2 *)(q.fragments + words);
        q.q_scale = (float *)(q.q_sketch + (T::SKETCH ? rows : 0));
        q.q_half = (int32_t *)(q.q_scale + rows);
    }
    return q;
}

/* What the kernel's formats say of the job: spares code that would never run. */
template <class T> TQI_INLINE void assume_formats(const FastJob &job) {
    __builtin_assume(has_integer_query(job.call.k) == T::K_INT);
    __builtin_assume((job.call.k.sketch_flips != nullptr) == T::SKETCH);
    __builtin_assume((job.call.k.format == TQ_FORMAT_BF16) == T::K_BF16);
}

/* The items of a worker whose first pages are on their way: a block's piece of one, or a warp's
 * share of the row. Both take the same code for pages. */
template <class T, class R>
TQI_INLINE void run_worker(const FastJob &job, uint32_t worker, const tqi_work &work, bool by_block,
                           uint8_t *shared, R &ring, Fetch &fetch, T &t) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t stride = by_block ? job.warps : 1;
    uint32_t segment = work.segment, item = work.item, left = work.n_tiles;
    uint32_t tile = work.tile + (by_block ? warp : 0);
    do {
        tqi_segment s;
        Item i = enter_item(job, segment, item, s);
        uint32_t n = min(left, i.n_tiles - tile);
        if (by_block)
            n = warp < left ? (left - warp - 1) / job.warps + 1 : 0;
        if (n || by_block) {
            load_query(job, i, i.index, lane, t);
            consume(job, i, s, i.index, tile, n, stride, lane, ring, fetch, t);
        }
        if (by_block) {
            join_warps(job, worker, warp, lane, shared, t);
            return;
        }
        if (n)
            write_piece(job, worker + i.index, lane, t);
        left -= n;
        tile = 0;
        bool last = i.n_tiles == 0 || item + 1 == i.n_items;
        item = last ? 0 : item + 1;
        segment += last;
    } while (left);
}

/* Copies of pages that were in place before the kernel in front began may start at once; its
 * queries are waited for. */
template <class T, int MAX_WARPS, int SLOTS>
__global__ void __launch_bounds__(MAX_WARPS * 32, 1)
    tqk_stream(const __grid_constant__ FastJob job) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Ring<typename T::Layout, T::SPLIT, T::PAGES, SLOTS> ring(shared, warp_bytes_of<T>(job.slots),
                                                             warp, job.warps, job.slots, lane);
    const tqi_division division = fresh(job.call.schedule.share);
    const bool by_block = division.by_block != 0;
    const uint32_t step = by_block ? gridDim.x : gridDim.x * job.warps;
    T t;
    t.setup(job);
    t.keys.load(job.call.k, lane);
    bool waited = false;
    for (uint32_t worker = by_block ? blockIdx.x : blockIdx.x * job.warps + warp;
         worker < division.n_workers; worker += step) {
        const tqi_work work = fresh(&job.call.schedule.work[worker]);
        Fetch fetch(job, work, fresh(&job.call.step.head->table), by_block ? warp : 0,
                    by_block ? job.warps : 1);
        for (uint32_t i = 0; i < ring.n; i++)
            ring.request(fetch.template next_turn<T::PAGES>());
        if (!waited)
            wait_for_last_kernel();
        waited = true;
        allow_next_kernel();
        run_worker(job, worker, work, by_block, shared, ring, fetch, t);
        if (by_block) {
            allow_copies(); /* slots are free again */
            __syncthreads();
        }
    }
    if (!waited)
        wait_for_last_kernel(); /* the kernel behind relies on all that came before */
}

/* Few items (whole.cuh): the kernel in front may have written pages, so that all but the plan, and
 * pages that are older than it, is waited for. */
template <class T, int MAX_WARPS, int SLOTS>
__global__ void __launch_bounds__(MAX_WARPS * 32, 1)
    tqk_stream_whole(const __grid_constant__ FastJob job) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ WholeItem whole;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = blockIdx.x;
    const tqi_work work = fresh(&job.call.schedule.work[at]);
    const tqi_division division = fresh(job.call.schedule.share);
    Ring<typename T::Layout, T::SPLIT, T::PAGES, SLOTS> ring(shared, warp_bytes_of<T>(job.slots),
                                                             warp, job.warps, job.slots, lane);
    T t;
    t.setup(job);
    t.keys.load(job.call.k, lane);
    Fetch fetch(job, work, fresh(&job.call.step.head->table), warp, job.warps);
    tqi_segment s;
    const Item i = enter_item(job, work.segment, work.item, s);
    RowOfDim<T::D> row(lane, T::D, nullptr);
    row.prefetch(job.call.k);
    if (at < division.n_workers)
        whole.keep<RowOfDim<T::D>>(job, i, s);
    if (!are_old(s, i.first_tile + work.tile + warp + (ring.n * T::PAGES - 1) * job.warps))
        wait_for_last_kernel();
    for (uint32_t n = 0; n < ring.n; n++)
        ring.request(fetch.template next_turn<T::PAGES>());
    wait_for_last_kernel();
    allow_next_kernel();
    if (at >= division.n_workers)
        return;
    assume_formats<T>(job);
    const WholeQueries queries = queries_of_block<T>(job, shared);
    prepare_item<T>(job, i, s, warp, lane, row, queries, 0);
    load_query(queries, i, 0, lane, t);
    const uint32_t n = warp < work.n_tiles ? (work.n_tiles - warp - 1) / job.warps + 1 : 0;
    consume(job, i, whole.s, at, work.tile + warp, n, job.warps, lane, ring, fetch, t);
    join_warps(job, at, warp, lane, shared, t);
    merge_item<T>(job, i, whole, warp, lane);
}

/* ---- host -------------------------------------------------------------------------------------
 */

template <class T, int MAX_WARPS, int SLOTS> tq_status prepare_stream() {
    if constexpr (is_whole(T::D))
        TQI_TRY(allow_shared(tqk_stream_whole<T, MAX_WARPS, SLOTS>, WHOLE_SHARED));
    return allow_shared(tqk_stream<T, MAX_WARPS, SLOTS>, 0);
}

template <class T, int MAX_WARPS, int SLOTS>
tq_status run_stream(const FastJob &job, cudaStream_t stream) {
    LaunchShape shape = {job.call.n_blocks, job.warps * 32, stream_shared<T>(job.warps, job.slots),
                         stream, job.call.overlap != 0};
    if constexpr (is_whole(T::D))
        if (job.whole) {
            if (keeps_queries<T>(job))
                shape.shared = bytes_with_queries<T>(job.warps, job.slots);
            return launch(tqk_stream_whole<T, MAX_WARPS, SLOTS>, shape, "tqk_stream_whole", job);
        }
    return launch(tqk_stream<T, MAX_WARPS, SLOTS>, shape, "tqk_stream", job);
}

/* An entry of the table: formats, rows of a tile in fours, head dim, warps of a block and slots
 * of a warp, as measured (docs/experiments/gpu_decode.md). */
#define TQI_FAST_KERNEL(name, kf, vf, nt, dim, warps, slots)                      \
    const FastKernel name = {kf,                                                  \
                             vf,                                                  \
                             dim,                                                 \
                             nt * 4,                                              \
                             warps,                                               \
                             slots,                                               \
                             is_whole(dim),                                       \
                             Tile<kf, vf, nt, dim>::PAGES,                        \
                             "tqk_" #name,                                        \
                             Blob<kf, vf, dim>::bytes,                            \
                             stream_shared<Tile<kf, vf, nt, dim>>,                \
                             prepare_stream<Tile<kf, vf, nt, dim>, warps, slots>, \
                             run_stream<Tile<kf, vf, nt, dim>, warps, slots>};

} /* namespace tqi */

#endif
