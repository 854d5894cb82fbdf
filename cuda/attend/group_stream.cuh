/*
 * stream.cuh with warpgroups in the place of warps, on wgmma: e4m3 a page at a time
 * (group_tile.cuh), integer codes two pages at a time (codes_tile.cuh). A worker of the row way is
 * a warpgroup, `warps` of the job are warpgroups.
 */
#ifndef TQI_CUDA_ATTEND_GROUP_STREAM_CUH
#define TQI_CUDA_ATTEND_GROUP_STREAM_CUH

#include "attend/codes_tile.cuh"
#include "attend/fetch_two.cuh"
#include "attend/group_tile.cuh"
#include "attend/stream.cuh"

namespace tqi {

/* ---- shared memory ----------------------------------------------------------------------------
 */

/* Bytes of a warpgroup's slots, which at the end hold its accumulators. */
template <class T> __host__ __device__ uint32_t group_slots_bytes(uint32_t slots) {
    uint32_t ring = slots * T::Layout::bytes, accumulators = T::HEADS * T::D * 4;
    return ring > accumulators ? ring : accumulators;
}

/* Slots, operands, states of the groups, barriers. */
template <class T> size_t group_shared(uint32_t groups, uint32_t slots) {
    return (size_t)groups *
           (group_slots_bytes<T>(slots) + T::Room::bytes + T::HEADS * 8 + slots * 8);
}

#if TQI_WGMMA

/* The parts of a block's shared memory. */
template <class T> struct GroupMemory {
    uint8_t *shared;
    uint32_t groups, slots;

    TQI_INLINE uint8_t *slots_of(uint32_t group) const {
        return shared + group * group_slots_bytes<T>(slots);
    }
    TQI_INLINE uint8_t *room_of(uint32_t group) const {
        return slots_of(groups) + group * T::Room::bytes;
    }
    TQI_INLINE float2 *states() const {
        return (float2 *)room_of(groups);
    }
    TQI_INLINE uint8_t *barriers_of(uint32_t group) const {
        return (uint8_t *)(states() + groups * T::HEADS) + group * slots * 8;
    }
};

/* ---- a group's pages of one item ------------------------------------------------------------ */

template <class T>
TQI_INLINE void load_query(const FastJob &job, const Item &i, uint32_t at, T &t) {
    constexpr uint32_t blocks = T::QUERY_BLOCKS, block_words = T::Room::query_block / 4;
    const uint32_t *from = job.fragments + (uint64_t)at * blocks * block_words;
    t.group.sync(); /* the last item's are not read any more */
    for (uint32_t w = t.group.thread; w < blocks * block_words; w += GROUP_THREADS) {
        uint32_t row = T::row_of_column(w / block_words, w / 4 % 8);
        store_shared4(t.room + w * 4, row < i.rows.n_rows ? __ldcg(from + w) : 0);
    }
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t row = min(nt * 4 + t.group.lane % 4, i.rows.n_rows - 1);
        t.set_row(job, nt, at * T::HEADS + row);
    }
    t.clear();
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
    const uint32_t full = uniform(i.n_full);
    tile = uniform(tile + i.first_tile);
    for (n = uniform(n); n; n--, tile += stride) {
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

/* The same of codes, two pages at a time. */
template <int KF, int VF, int NT, int D, class R>
TQI_INLINE void consume(const FastJob &job, const Item &i, uint32_t at, uint32_t tile, uint32_t n,
                        uint32_t stride, R &ring, FetchTwo &fetch, CodesTile<KF, VF, NT, D> &t) {
    using T = CodesTile<KF, VF, NT, D>;
    const uint32_t n_full = uniform(i.n_full), first_full = uniform(i.first_full);
    tile = uniform(tile + i.first_tile - first_full); /* wraps around before the first whole one */
    for (n = uniform(n); n; tile += 2 * stride) {
        const uint32_t here = n > 1 ? 2 : 1, second = tile + stride;
        uint32_t slot[2];
        slot[0] = slot[1] = ring.take_page();
        if (here == 2)
            slot[1] = ring.take_page();
        auto edge = [&] {
            bool own = t.group.warp < 2;
            auto e = edge_of<T>(job, i, at, (own ? tile : second) + first_full, t.group.lane);
            return own || here == 2 ? e : nothing_of(e);
        };
        auto refill = [&] {
            if (!is_fetcher(t.group))
                return;
            if (here == 2)
                fetch.next_two([&](const uint8_t *page) { ring.request(t.group, page); });
            else
                ring.request(t.group, fetch.next());
        };
        t.pages(slot, here == 1 || tile >= n_full || second >= n_full, edge, refill);
        n -= here;
    }
}

/* ---- groups as workers ------------------------------------------------------------------------
 */

template <class T> TQI_INLINE void write_piece(const FastJob &job, uint32_t piece, T &t) {
    float one[T::NT];
    t.join_threads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        one[nt] = 1;
        if (t.group.thread < 4)
            job.call.partial_ml[(uint64_t)piece * T::HEADS + nt * 4 + t.group.thread] =
                make_float2(t.max[nt], t.sum[nt]);
    }
    t.store(one, job.call.partial + (uint64_t)piece * T::HEADS * T::D);
}

/* ---- blocks as workers ------------------------------------------------------------------------
 */

/* Factors that bring the groups' states to a joint one, which the first group writes. */
template <class T>
TQI_INLINE void joint_state(const FastJob &job, uint32_t piece, float2 *states, const T &t,
                            float factor[T::NT]) {
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++)
        if (t.group.thread < 4)
            states[t.group.index * T::HEADS + nt * 4 + t.group.thread] =
                make_float2(t.max[nt], t.sum[nt]);
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t head = nt * 4 + t.group.lane % 4;
        float joint = TQI_NO_MAXIMUM, sum = 0;
        for (uint32_t w = 0; w < job.warps; w++)
            joint = fmaxf(joint, states[w * T::HEADS + head].x);
        for (uint32_t w = 0; w < job.warps; w++) {
            float2 v = states[w * T::HEADS + head];
            sum += v.y == 0 ? 0 : v.y * exp2_fast(v.x - joint);
        }
        factor[nt] = exp2_fast(t.max[nt] - joint);
        if (threadIdx.x < 4)
            job.call.partial_ml[(uint64_t)piece * T::HEADS + head] = make_float2(joint, sum);
    }
}

/* Joins the states of the groups through their slots, which no copy is filling any more. */
template <class T>
TQI_INLINE void join_groups(const FastJob &job, uint32_t piece, const GroupMemory<T> &memory,
                            T &t) {
    float factor[T::NT];
    __syncthreads(); /* all groups have read their slots */
    t.join_threads();
    joint_state(job, piece, memory.states(), t, factor);
    t.store(factor, (float *)memory.slots_of(t.group.index));
    __syncthreads();
    float4 *out = (float4 *)(job.call.partial + (uint64_t)piece * T::HEADS * T::D);
    for (uint32_t i = threadIdx.x; i < T::HEADS * T::D / 4; i += blockDim.x) {
        float4 a = ((const float4 *)memory.slots_of(0))[i];
        for (uint32_t w = 1; w < job.warps; w++) {
            float4 b = ((const float4 *)memory.slots_of(w))[i];
            a.x += b.x;
            a.y += b.y;
            a.z += b.z;
            a.w += b.w;
        }
        out[i] = a;
    }
}

/* The items of a worker whose first pages are on their way: a block's piece of one, or a group's
 * share of the row. Both take the same code for pages. */
template <class T, class R, class F>
TQI_INLINE void run_groups(const FastJob &job, uint32_t worker, const tqi_work &work, bool by_block,
                           const GroupMemory<T> &memory, R &ring, F &fetch, T &t) {
    const uint32_t group = t.group.index, stride = by_block ? job.warps : 1;
    uint32_t segment = work.segment, item = work.item, left = work.n_tiles;
    uint32_t tile = work.tile + (by_block ? group : 0);
    do {
        Item i = enter_item(job, segment, item);
        uint32_t n = min(left, i.n_tiles - tile);
        if (by_block)
            n = group < left ? (left - group - 1) / job.warps + 1 : 0;
        if (n || by_block) {
            load_query(job, i, i.index, t);
            consume(job, i, i.index, tile, n, stride, ring, fetch, t);
        }
        if (by_block) {
            idle_turns(t.group, ring, n, (left - 1) / job.warps + 1);
            join_groups(job, worker, memory, t);
            return;
        }
        if (n)
            write_piece(job, worker + i.index, t);
        left -= n;
        tile = 0;
        bool last = i.n_tiles == 0 || item + 1 == i.n_items;
        item = last ? 0 : item + 1;
        segment += last;
    } while (left);
}

template <class T, class R, class F> TQI_INLINE void fill_ring(const Group &g, R &ring, F &fetch) {
    if (is_fetcher(g))
        for (uint32_t i = 0; i < ring.n; i++)
            ring.request(g, fetch.next());
}

#endif /* TQI_WGMMA */

/* ---- the kernels ------------------------------------------------------------------------------
 */

/* tqk_stream() of stream.cuh, whose order of waiting it keeps. */
template <class S, int MAX_GROUPS>
__global__ void __launch_bounds__(MAX_GROUPS * 128, 1)
    tqk_group_stream(const __grid_constant__ FastJob job) {
#if TQI_WGMMA
    extern __shared__ __align__(128) uint8_t shared[];
    using T = typename S::Tile;
    const Group g = group_of_thread();
    const GroupMemory<T> memory = {shared, job.warps, job.slots};
    GroupRing<T::Layout::bytes> ring(g, shared_address(memory.slots_of(g.index)),
                                     shared_address(memory.barriers_of(g.index)), job.slots);
    const tqi_division division = fresh(job.call.schedule.share);
    const bool by_block = division.by_block != 0;
    const uint32_t step = by_block ? gridDim.x : gridDim.x * job.warps;
    T t;
    t.setup(job, g, shared_address(memory.room_of(g.index)));
    bool waited = false;
    for (uint32_t worker = by_block ? blockIdx.x : blockIdx.x * job.warps + g.index;
         worker < division.n_workers; worker += step) {
        const tqi_work work = fresh(&job.call.schedule.work[worker]);
        typename T::Fetch fetch(job, work, fresh(&job.call.step.head->table),
                                by_block ? g.index : 0, by_block ? job.warps : 1);
        fill_ring<T>(g, ring, fetch);
        if (!waited)
            wait_for_last_kernel();
        waited = true;
        allow_next_kernel();
        run_groups(job, worker, work, by_block, memory, ring, fetch, t);
        if (by_block) {
            allow_copies(); /* slots are free again */
            __syncthreads();
        }
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
    const GroupMemory<T> memory = {shared, job.warps, job.slots};
    GroupRing<T::Layout::bytes> ring(g, shared_address(memory.slots_of(g.index)),
                                     shared_address(memory.barriers_of(g.index)), job.slots);
    T t;
    t.setup(job, g, shared_address(memory.room_of(g.index)));
    typename T::Fetch fetch(job, work, fresh(&job.call.step.head->table), g.index, job.warps);
    tqi_segment s;
    const Item i = enter_item(job, work.segment, work.item, s);
    RowOfDim<T::D> row(g.lane, T::D, nullptr);
    row.prefetch(job.call.k);
    if (at < division.n_workers)
        whole.keep<RowOfDim<T::D>>(job, i, s);
    wait_for_last_kernel();
    fill_ring<T>(g, ring, fetch);
    allow_next_kernel();
    if (at >= division.n_workers)
        return;
    prepare_item<T>(job, i, s, warp, g.lane, row, job, at);
    load_query(job, i, at, t);
    const uint32_t n = g.index < work.n_tiles ? (work.n_tiles - g.index - 1) / job.warps + 1 : 0;
    consume(job, i, at, work.tile + g.index, n, job.warps, ring, fetch, t);
    idle_turns(g, ring, n, work.n_tiles ? (work.n_tiles - 1) / job.warps + 1 : 0);
    join_groups(job, at, memory, t);
    merge_item<T>(job, i, whole, warp, g.lane);
#endif
}

/* ---- host -------------------------------------------------------------------------------------
 */

template <class S, int MAX_GROUPS> tq_status prepare_group_stream() {
    int limit = 0, device = 0;
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    TQI_CUDA(cudaGetDevice(&device));
    TQI_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    TQI_TRY(check(cudaFuncSetAttribute(tqk_group_stream<S, MAX_GROUPS>, most, limit),
                  "shared memory of attention"));
    /* static shared memory counts too */
    return check(cudaFuncSetAttribute(tqk_group_whole<S, MAX_GROUPS>, most, limit - WHOLE_SHARED),
                 "shared memory of attention");
}

template <class S, int MAX_GROUPS> bool group_stream_runs() {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, tqk_group_whole<S, MAX_GROUPS>) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.sharedSizeBytes > 0;
}

template <class S, int MAX_GROUPS>
tq_status run_group_stream(const FastJob &job, cudaStream_t stream) {
    LaunchShape shape = {job.call.n_blocks, job.warps * 128, group_shared<S>(job.warps, job.slots),
                         stream, job.call.overlap != 0};
    if (job.whole)
        return launch(tqk_group_whole<S, MAX_GROUPS>, shape, "tqk_group_whole", job);
    return launch(tqk_group_stream<S, MAX_GROUPS>, shape, "tqk_group_stream", job);
}

/* Entries of the table: rows of a tile in fours, head dim, warpgroups of a block, slots of each,
 * whether it is the faster way (docs/PERFORMANCE.md). */
#define TQI_GROUP_KERNEL(name, kf, vf, shape, nt, dim, groups, slots, arithmetic, faster) \
    const FastKernel name = {kf,                                                          \
                             vf,                                                          \
                             dim,                                                         \
                             nt * 4,                                                      \
                             groups,                                                      \
                             slots,                                                       \
                             is_whole(dim),                                               \
                             "tqk_" #name,                                                \
                             Blob<kf, vf, dim>::bytes,                                    \
                             group_shared<shape>,                                         \
                             prepare_group_stream<shape, groups>,                         \
                             run_group_stream<shape, groups>,                             \
                             arithmetic,                                                  \
                             faster,                                                      \
                             group_stream_runs<shape, groups>};

#define TQI_WGMMA_KERNEL(name, nt, dim, groups, slots, faster)                                 \
    using Shape_##name = GroupTileShape<nt, dim>;                                              \
    TQI_GROUP_KERNEL(name, TQ_FORMAT_FP8, TQ_FORMAT_FP8, Shape_##name, nt, dim, groups, slots, \
                     ON_WGMMA, faster)

/* The same of integer codes. */
#define TQI_CODES_KERNEL(name, kf, vf, nt, dim, groups, slots) \
    using Shape_##name = CodesShape<kf, vf, nt, dim>;          \
    TQI_GROUP_KERNEL(name, kf, vf, Shape_##name, nt, dim, groups, slots, ON_WGMMA_INTEGERS, 1)

} /* namespace tqi */

#endif
