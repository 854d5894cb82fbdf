/*
 * stream.cuh with warpgroups in the place of warps, on wgmma: e4m3 a page at a time
 * (group_tile.cuh), integer codes two or four pages at a time (codes_tile.cuh). A worker of the row
 * way is a warpgroup, `warps` of the job are warpgroups.
 */
#ifndef TQI_CUDA_ATTEND_GROUP_STREAM_CUH
#define TQI_CUDA_ATTEND_GROUP_STREAM_CUH

#include "attend/codes_tile.cuh"
#include "attend/group_pieces.cuh"
#include "attend/group_tile.cuh"

namespace tqi {

#if TQI_WGMMA

/* ---- a group's pages of one item ------------------------------------------------------------ */

template <class T> TQI_INLINE EdgeRecord<T::HEADS> edges_of(const T &t) {
    return EdgeRecord<T::HEADS>{t.room + T::Room::edges};
}

/* s: the item's segment; at: the item, or the block that has prepared it; stride: of the group's
 * tiles. */
template <class T>
TQI_INLINE void load_query(const FastJob &job, const Item &i, const tqi_segment &s, uint32_t at,
                           uint32_t stride, T &t) {
    /* Of 16 bytes. */
    constexpr uint32_t of_block = T::Room::query_block / 16, units = T::QUERY_BLOCKS * of_block;
    constexpr uint32_t own = (units - 1) / GROUP_THREADS + 1;
    const ulonglong2 *from = (const ulonglong2 *)job.fragments + (uint64_t)at * units;
    ulonglong2 x[own];
#pragma unroll
    for (uint32_t n = 0; n < own; n++) {
        const uint32_t u = n * GROUP_THREADS + t.group.thread;
        x[n] = make_ulonglong2(0, 0);
        if (u < units && T::row_of_column(u / of_block, u % 8) < i.rows.n_rows)
            x[n] = __ldcg(from + u);
    }
    t.group.sync(); /* the last item's are not read any more */
#pragma unroll
    for (uint32_t n = 0; n < own; n++) {
        const uint32_t u = n * GROUP_THREADS + t.group.thread;
        if (u < units)
            store_shared16(t.room + u * 16, x[n].x, x[n].y);
    }
    t.set_rows(job, at * T::HEADS, i.rows.n_rows - 1);
    t.clear();
    if constexpr (T::RECORDS) {
        if (t.group.warp == EDGES_WARP)
            edges_of(t).keep(job, i, s, at, t.group.lane);
        if (t.group.thread == 0)
            store_shared8(t.room + T::Room::walk, (uint64_t)i.n_full << 32 | stride);
    }
    publish_stores();
    t.group.sync();
}

/* n pages of e4m3 from `tile` on, `stride` apart; never with a window or a cap. */
template <int NT, int D, class R>
TQI_INLINE void consume(const FastJob &job, const Item &i, uint32_t at, uint32_t tile, uint32_t n,
                        uint32_t stride, R &ring, Fetch &fetch, GroupTile<NT, D> &t) {
    using T = GroupTile<NT, D>;
    auto refill = [&] {
        if (is_fetcher(t.group))
            ring.request(t.group, fetch.next());
    };
    const uint32_t full = same_in_warp(i.n_full);
    tile = same_in_warp(tile + i.first_tile);
    for (n = same_in_warp(n); n; n--, tile += stride) {
        uint32_t slot = ring.take_page();
        if (tile < full) {
            typename T::Edge none;
            t.template page<false>(slot, FAST_TOKENS, none.end, refill);
        } else {
            auto edge = edge_of<T>(job, i, at, tile, t.group.lane);
            t.template page<true>(slot, edge.valid, edge.end, refill);
        }
    }
}

/* The same of codes, several pages at a time. */
template <int KF, int VF, int NT, int D, int PAGES, int SLOTS, class R, class F>
TQI_INLINE void consume(const FastJob &job, const Item &i, uint32_t, uint32_t tile, uint32_t n,
                        uint32_t, R &ring, F &fetch, CodesTile<KF, VF, NT, D, PAGES, SLOTS> &t) {
    using Room = typename CodesTile<KF, VF, NT, D, PAGES, SLOTS>::Room;
    const uint32_t first_full = same_in_warp(i.first_full);
    tile = same_in_warp(tile + i.first_tile -
                        first_full); /* wraps around before the first whole one */
    for (n = same_in_warp(n); n;) {
        t.hide_lane();
        /* The stride, the number of whole tiles: the loop has no registers for them. */
        const uint2 walk = load_shared8(t.room + Room::walk);
        const uint32_t here = min(n, (uint32_t)PAGES), from = tile;
        const uint32_t last = from + (PAGES - 1) * walk.x;
        auto edge = [&] {
            const uint32_t own = t.group.warp * PAGES / GROUP_WARPS;
            const uint32_t by = load_shared4(t.room + Room::walk);
            auto e = edges_of(t).template edge<NT>(job, from + own * by + first_full, t.group.lane);
            return own < here ? e : nothing_of(e);
        };
        tile = last + walk.x;
        t.pages(ring.slot(), here < PAGES || from >= walk.y || last >= walk.y, edge, ring);
        ring.step();
        fetch.request(job, ring);
        n -= here;
    }
}

/* ---- workers ------------------------------------------------------------------------------ */

/* What a group comes back to behind the pages of an item. It lies in shared memory: the loop over
 * pages has no registers for it. */
struct Rest {
    uint32_t piece;   /* NONE: the group has no tiles of the item */
    uint32_t left;    /* by block: pages of the group */
    uint32_t segment; /* by block: pages of the group that has most */
    uint32_t item;    /* BLOCK: by block */

    enum : uint32_t { NONE = ~0u, BLOCK = ~0u };

    /* Before a barrier of the group. */
    TQI_INLINE void keep(const Group &g, uint32_t at) const {
        if (g.thread == 0) {
            store_shared8(at, (uint64_t)left << 32 | piece);
            store_shared8(at + 8, (uint64_t)item << 32 | segment);
        }
    }
    TQI_INLINE static Rest kept(uint32_t at) {
        const uint4 w = load_shared16(at);
        return Rest{w.x, w.y, w.z, w.w};
    }
};

/* The items of a worker whose first pages are on their way: a block's piece of one, or a group's
 * share of the row. Both take the same code for pages. */
template <class T, class R, class F>
TQI_INLINE bool run_groups(const FastJob &job, uint32_t worker, const tqi_work &work, bool by_block,
                           const GroupMemory<T> &memory, R &ring, F &fetch, T &t, bool &waited) {
    const uint32_t kept = t.room + T::Room::rest;
    Rest rest = {worker, work.n_tiles, work.segment, work.item};
    uint32_t tile = work.tile;
    do {
        tqi_segment s;
        Item i = enter_item(job, rest.segment, rest.item, s);
        if (!waited) {
            wait_for_last_kernel();
            allow_next_kernel();
            waited = true;
        }
        uint32_t n = min(rest.left, i.n_tiles - tile), stride = 1;
        if (by_block) {
            const uint32_t most = (rest.left - 1) / job.warps + 1, group = t.group.index;
            n = group < rest.left ? (rest.left - group - 1) / job.warps + 1 : 0;
            stride = job.warps;
            tile += group;
            rest = Rest{worker, n, most, Rest::BLOCK};
        } else {
            const bool last = i.n_tiles == 0 || rest.item + 1 == i.n_items;
            rest = Rest{n ? worker + i.index : Rest::NONE, rest.left - n, rest.segment + last,
                        last ? 0 : rest.item + 1};
        }
        if (n || by_block) {
            rest.keep(t.group, kept);
            load_query(job, i, s, i.index, stride, t);
            consume(job, i, i.index, tile, n, stride, ring, fetch, t);
            rest = Rest::kept(kept);
        }
        if (rest.item == Rest::BLOCK) {
            idle_turns(t.group, ring, (rest.left + T::PAGES - 1) / T::PAGES,
                       (rest.segment + T::PAGES - 1) / T::PAGES, T::BARRIERS);
            join_groups<T::RECORDS>(job, rest.piece, memory, t);
            return true;
        }
        if (rest.piece != Rest::NONE)
            write_piece(job, rest.piece, t);
        tile = 0;
    } while (rest.left);
    return false;
}

template <class R>
TQI_INLINE void fill_ring(const FastJob &, const Group &g, R &ring, Fetch &fetch) {
    if (is_fetcher(g))
        for (uint32_t i = 0; i < ring.n; i++)
            ring.request(g, fetch.next());
}

template <int PAGES, class R>
TQI_INLINE void fill_ring(const FastJob &job, const Group &, R &ring, FetchTurns<PAGES> &fetch) {
    for (int i = 0; i < R::N; i++)
        fetch.request(job, ring);
}

#endif /* TQI_WGMMA */

/* ---- the kernels ------------------------------------------------------------------------------
 */

#if TQI_WGMMA

/* The pages of a worker: the first ones are on their way, or another warp sees to them. */
template <class S, class T, class R>
TQI_INLINE auto begin(const FastJob &job, const tqi_work &work, const GroupMemory<T> &memory,
                      R &ring, bool by_block, const T &t) {
    if constexpr (S::PRODUCED) {
        return Produced();
    } else {
        auto fetch = t.begin_fetch(job, work, memory.room_of(t.group.index),
                                   by_block ? t.group.index : 0, by_block ? job.warps : 1);
        fill_ring(job, t.group, ring, fetch);
        return fetch;
    }
}

/* The workers of the groups, by the group of threads behind them: a warp asks for the pages of a
 * group. */
template <class S, class T>
TQI_INLINE void produce_all(const FastJob &job, const GroupMemory<T> &memory, const Group &g) {
    const uint32_t group = g.warp;
    typename S::Ring ring(shared_address(memory.slots_of(group)),
                          shared_address(memory.barriers_of(group)), job.slots);
    const tqi_division division = fresh(job.call.schedule.share);
    const bool by_block = division.by_block != 0;
    const uint32_t step = by_block ? gridDim.x : gridDim.x * job.warps;
    for (uint32_t worker = by_block ? blockIdx.x : blockIdx.x * job.warps + group;
         worker < division.n_workers; worker += step) {
        if (group < job.warps) {
            const tqi_work work = fresh(&job.call.schedule.work[worker]);
            produce<S::PAGES>(job,
                              PageWalk(job, work, fresh(&job.call.step.head->table),
                                       by_block ? group : 0, by_block ? job.warps : 1),
                              ring);
        }
        if (by_block && worker + step < division.n_workers)
            sync_block(); /* the slots held accumulators */
    }
}

#endif

/* tqk_stream() of stream.cuh, whose order of waiting it keeps. */
template <class S, int MAX_GROUPS>
__global__ void __launch_bounds__((MAX_GROUPS + S::PRODUCED) * 128, 1)
    tqk_group_stream(const __grid_constant__ FastJob job) {
#if TQI_WGMMA
    extern __shared__ __align__(128) uint8_t shared[];
    using T = typename S::Tile;
    const Group g = group_of_thread();
    const GroupMemory<T> memory = {shared, job.warps, S::slots_of(job.slots)};
    typename S::Ring ring(shared_address(memory.slots_of(g.index)),
                          shared_address(memory.barriers_of(g.index)), job.slots);
    if (!S::PRODUCED || g.index < job.warps)
        ring.init(g);
    if constexpr (S::PRODUCED) {
        __syncthreads();
        if (g.index == job.warps) {
            keep_registers<PRODUCER_REGISTERS>();
            produce_all<S>(job, memory, g);
            return;
        }
        take_registers<MAX_GROUPS == 4 ? 112 : 160>();
    }
    const tqi_division division = fresh(job.call.schedule.share);
    const bool by_block = division.by_block != 0;
    const uint32_t step = by_block ? gridDim.x : gridDim.x * job.warps;
    T t;
    t.setup(job, g, shared_address(memory.room_of(g.index)));
    bool waited = false;
    for (uint32_t worker = by_block ? blockIdx.x : blockIdx.x * job.warps + g.index;
         worker < division.n_workers; worker += step) {
        const tqi_work work = fresh(&job.call.schedule.work[worker]);
        auto fetch = begin<S>(job, work, memory, ring, by_block, t);
        if (g.thread == 0)
            store_shared4(t.room + T::Room::rest + 16, worker);
        const bool by_slots =
            run_groups(job, worker, work, by_block, memory, ring, fetch, t, waited);
        worker = load_shared4(t.room + T::Room::rest + 16);
        if (by_slots && worker + step < division.n_workers) {
            allow_copies(); /* slots held accumulators */
            sync_block();
        }
        g.sync();
    }
    if (!waited)
        wait_for_last_kernel(); /* the kernel behind relies on all that came before */
#endif
}

/* tqk_stream_whole() of stream.cuh. Its static shared memory tells the host that this is not the
 * empty body of another architecture. */
template <class S, int MAX_GROUPS>
__global__ void __launch_bounds__(MAX_GROUPS * 128, 1)
    tqk_group_whole(const __grid_constant__ FastJob job) {
#if TQI_WGMMA
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ WholeItem whole;
    using T = typename S::Tile;
    const Group g = group_of_thread();
    const uint32_t at = blockIdx.x, warp = threadIdx.x / 32;
    const tqi_work work = fresh(&job.call.schedule.work[at]);
    const tqi_division division = fresh(job.call.schedule.share);
    const GroupMemory<T> memory = {shared, job.warps, S::slots_of(job.slots)};
    typename S::Ring ring(shared_address(memory.slots_of(g.index)),
                          shared_address(memory.barriers_of(g.index)), job.slots);
    ring.init(g);
    T t;
    t.setup(job, g, shared_address(memory.room_of(g.index)));
    auto fetch = t.begin_fetch(job, work, memory.room_of(g.index), g.index, job.warps);
    tqi_segment s;
    const Item i = enter_item(job, work.segment, work.item, s);
    RowOfDim<T::D> row(g.lane, T::D, nullptr);
    row.prefetch(job.call.k);
    if (at < division.n_workers)
        whole.keep<RowOfDim<T::D>>(job, i, s);
    wait_for_last_kernel();
    fill_ring(job, g, ring, fetch);
    allow_next_kernel();
    if (at >= division.n_workers)
        return;
    prepare_item<T>(job, i, s, warp, g.lane, row, job, at);
    load_query(job, i, s, at, job.warps, t);
    const uint32_t n = g.index < work.n_tiles ? (work.n_tiles - g.index - 1) / job.warps + 1 : 0;
    consume(job, i, at, work.tile + g.index, n, job.warps, ring, fetch, t);
    const uint32_t most = (work.n_tiles + job.warps - 1) / job.warps;
    idle_turns(g, ring, (n + T::PAGES - 1) / T::PAGES, (most + T::PAGES - 1) / T::PAGES,
               T::BARRIERS);
    join_groups<false>(job, at, memory, t);
    merge_item<T>(job, i, whole, warp, g.lane);
#endif
}

} /* namespace tqi */

#endif
