/*
 * Pages to partial states. Every warp has its own slots in shared memory and refills a slot
 * as soon as it has consumed it: no producer warp, no barrier between warps while pages
 * stream. (Slots shared by warps are wrong with bulk copies: a copy can complete after
 * younger ones, and a waiting warp would then pass a barrier one phase early.)
 */
#ifndef TQI_CUDA_ATTEND_STREAM_CUH
#define TQI_CUDA_ATTEND_STREAM_CUH

#include "attend/fast_job.h"
#include "attend/tile.cuh"

namespace tqi {

/* ---- slots -------------------------------------------------------------------------------- */

/* The slots of a warp: a ring that is filled and consumed in order. */
template <int BYTES> struct Ring {
    uint32_t slots, barriers; /* addresses */
    uint32_t n, lane;
    uint32_t fill = 0, take = 0; /* next slot of either end */
    uint32_t phase = 0;
#if TQI_BULK_COPY
    uint64_t policy;
#endif

    TQI_INLINE Ring(uint8_t *shared, uint32_t warp_bytes, uint32_t warp, uint32_t warps,
                    uint32_t n_slots, uint32_t l)
        : n(n_slots), lane(l) {
        slots = shared_address(shared) + warp * warp_bytes;
        barriers = shared_address(shared) + warps * warp_bytes + warp * n * 8;
#if TQI_BULK_COPY
        policy = evict_first();
        if (lane < n)
            barrier_init(barriers + 8 * lane);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        __syncwarp();
#endif
    }

    /* Fills the next slot; NULL: nothing is left, the ring runs dry. */
    TQI_INLINE void request(const uint8_t *page) {
#if TQI_BULK_COPY
        if (page && lane == 0)
            bulk_copy(slots + fill * BYTES, page, BYTES, barriers + 8 * fill, policy);
#else
        for (uint32_t i = lane * 16; page && i < BYTES; i += 512)
            copy16(slots + fill * BYTES + i, page + i);
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
        fill = fill + 1 == n ? 0 : fill + 1;
    }

    /* The oldest page. */
    TQI_INLINE Slot wait() {
#if TQI_BULK_COPY
        barrier_wait(barriers + 8 * take, phase);
#else
        if (n == 1)
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
#endif
        return Slot{slots + take * BYTES, lane * 16};
    }

    /* The oldest page has been read: its slot takes another. */
    TQI_INLINE void replace(const uint8_t *page) {
        __syncwarp();
        request(page);
        if (++take == n) {
            take = 0;
            phase ^= 1;
        }
    }
};

/* ---- work ----------------------------------------------------------------------------------- */

/* Pages to fetch, in the order in which they are consumed: tiles `stride` apart of one item,
 * or, in a row of items, all tiles of each. The table is read one page ahead. */
struct Fetch {
    const FastJob &job;
    uint64_t left; /* pages still to be named */
    uint32_t item, tile, stride;
    uint32_t id; /* of the page at (item, tile) */

    TQI_INLINE Fetch(const FastJob &j, uint64_t n, uint32_t first_item, uint32_t first_tile,
                     uint32_t step)
        : job(j), left(n), item(first_item), tile(first_tile), stride(step) {
        id = left ? __ldcg(job.call.table + tile) : 0;
    }

    TQI_INLINE const uint8_t *next() {
        if (left == 0)
            return nullptr;
        const uint8_t *page = job.call.pages.base + (uint64_t)id * job.call.pages.page_bytes +
                              (uint64_t)(item / job.items_per_head) * job.call.pages.blob_bytes;
        tile += stride;
        if (tile >= job.n_tiles) { /* the next item; never with a stride */
            tile = 0;
            item++;
        }
        if (--left)
            id = __ldcg(job.call.table + tile);
        return page;
    }
};

/* ---- a warp's consecutive pages of one item ---------------------------------------------------
 */

/* Tokens that the thread's rows see. */
template <class T>
TQI_INLINE void visible_tokens(const FastJob &job, uint32_t item, uint32_t lane,
                               int64_t visible[T::NT], int64_t &least, int64_t &most) {
    uint32_t first = item % job.items_per_head * T::HEADS;
    least = most = (int64_t)job.call.length;
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t row = min(first + nt * 4 + lane % 4, job.call.rows - 1);
        uint32_t query = job.call.first_query + row / job.call.group;
        visible[nt] = least - (job.call.causal ? job.call.n_queries - 1 - query : 0);
    }
    if (job.call.causal) {
        uint32_t query = job.call.first_query + first / job.call.group;
        least -= job.call.n_queries - 1 - query;
    }
}

template <class T>
TQI_INLINE void load_query(const FastJob &job, uint32_t item, uint32_t lane, T &t) {
    const uint32_t *from = job.fragments + (uint64_t)item * T::NT * T::Q_WORDS * 32 + lane;
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
#pragma unroll
        for (int i = 0; i < T::Q_WORDS; i++)
            t.q[nt][i] = __ldcg(from + (nt * T::Q_WORDS + i) * 32);
        uint32_t row = item * T::HEADS + nt * 4 + lane % 4;
        t.q_scale[nt] = __ldcg(job.q_scale + row);
        t.q_half[nt] = T::K_INT ? __ldcg(job.q_half + row) : 0;
    }
    t.clear();
}

/* n pages from `tile` on, `stride` apart. */
template <class T, class R>
TQI_INLINE void consume(const FastJob &job, uint32_t item, uint32_t tile, uint32_t n,
                        uint32_t stride, uint32_t lane, R &ring, Fetch &fetch, T &t) {
    int64_t visible[T::NT], least, most;
    visible_tokens<T>(job, item, lane, visible, least, most);
    load_query(job, item, lane, t);
    for (uint32_t i = 0; i < n; i++, tile += stride) {
        Slot slot = ring.wait();
        int64_t start = (int64_t)tile * FAST_TOKENS;
        int left[T::NT];
        if (start + FAST_TOKENS <= least) {
            t.template page<false>(slot, lane, FAST_TOKENS, left);
        } else {
#pragma unroll
            for (int nt = 0; nt < T::NT; nt++)
                left[nt] = (int)max(min(visible[nt] - start, (int64_t)FAST_TOKENS), (int64_t)-1);
            t.template page<true>(slot, lane, (int)min(most - start, (int64_t)FAST_TOKENS), left);
        }
        ring.replace(fetch.next());
    }
}

/* ---- a piece by a warp ------------------------------------------------------------------------
 */

template <class T>
TQI_INLINE void write_piece(const FastJob &job, uint64_t piece, uint32_t lane, T &t) {
    float one[T::NT];
    t.join_threads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        one[nt] = 1;
        if (lane < 4)
            job.partial_ml[piece * T::HEADS + nt * 4 + lane] = make_float2(t.max[nt], t.sum[nt]);
    }
    t.store(lane, one, job.partial + piece * T::HEADS * T::D);
}

template <class T, class R>
TQI_INLINE void run_warp(const FastJob &job, uint32_t worker, uint32_t lane, R &ring, T &t) {
    uint64_t total = (uint64_t)job.n_items * job.n_tiles;
    uint64_t begin = share_begin(total, worker, job.workers);
    uint64_t end = share_begin(total, worker + 1, job.workers);
    if (worker >= job.workers || begin == end)
        return;
    uint32_t item = (uint32_t)(begin / job.n_tiles), tile = (uint32_t)(begin % job.n_tiles);
    Fetch fetch(job, end - begin, item, tile, 1);
    for (uint32_t i = 0; i < ring.n; i++)
        ring.request(fetch.next());
    for (uint64_t at = begin; at < end; item++, tile = 0) {
        uint32_t n = (uint32_t)min(end - at, (uint64_t)(job.n_tiles - tile));
        consume(job, item, tile, n, 1u, lane, ring, fetch, t);
        write_piece(job, warp_piece(worker, item), lane, t);
        at += n;
    }
}

/* ---- a piece by a block -------------------------------------------------------------------------
 */

/* Joins the states of the warps through shared memory, which no copy is filling any more. */
template <class T>
TQI_INLINE void join_warps(const FastJob &job, uint64_t piece, uint32_t warp, uint32_t lane,
                           uint8_t *shared, uint32_t warp_bytes, float2 *ml, T &t) {
    const uint32_t warps = job.warps;
    float factor[T::NT];
    t.join_threads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++)
        if (lane < 4)
            ml[warp * T::HEADS + nt * 4 + lane] = make_float2(t.max[nt], t.sum[nt]);
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t head = nt * 4 + lane % 4;
        float joint = TQI_NO_MAXIMUM, sum = 0;
        for (uint32_t w = 0; w < warps; w++)
            joint = fmaxf(joint, ml[w * T::HEADS + head].x);
        for (uint32_t w = 0; w < warps; w++) {
            float2 v = ml[w * T::HEADS + head];
            sum += v.y == 0 ? 0 : v.y * exp2_fast(v.x - joint);
        }
        factor[nt] = exp2_fast(t.max[nt] - joint);
        if (warp == 0 && lane < 4)
            job.partial_ml[piece * T::HEADS + head] = make_float2(joint, sum);
    }
    t.store(lane, factor, (float *)(shared + warp * warp_bytes));
    __syncthreads();
    float4 *out = (float4 *)(job.partial + piece * T::HEADS * T::D);
    for (uint32_t i = threadIdx.x; i < T::HEADS * T::D / 4; i += blockDim.x) {
        float4 a = ((const float4 *)shared)[i];
        for (uint32_t w = 1; w < warps; w++) {
            float4 b = ((const float4 *)(shared + w * warp_bytes))[i];
            a.x += b.x;
            a.y += b.y;
            a.z += b.z;
            a.w += b.w;
        }
        out[i] = a;
    }
}

template <class T, class R>
TQI_INLINE void run_block(const FastJob &job, uint32_t warp, uint32_t lane, uint8_t *shared,
                          uint32_t warp_bytes, float2 *ml, R &ring, T &t) {
    uint32_t item = blockIdx.x / job.parts, part = blockIdx.x % job.parts;
    uint32_t begin = (uint32_t)share_begin(job.n_tiles, part, job.parts);
    uint32_t end = (uint32_t)share_begin(job.n_tiles, part + 1, job.parts), first = begin + warp;
    uint32_t n = first < end ? (end - first - 1) / job.warps + 1 : 0;
    Fetch fetch(job, n, item, first, job.warps);
    for (uint32_t i = 0; i < ring.n; i++)
        ring.request(fetch.next());
    consume(job, item, first, n, job.warps, lane, ring, fetch, t);
    join_warps(job, blockIdx.x, warp, lane, shared, warp_bytes, ml, t);
}

/* ---- the kernel
 * ----------------------------------------------------------------------------------- */

/* Bytes of a warp: its slots, which at the end hold its accumulators. */
template <class T> __host__ __device__ uint32_t warp_bytes_of(uint32_t slots) {
    uint32_t ring = slots * T::Layout::bytes, accumulators = T::HEADS * T::D * 4;
    return ring > accumulators ? ring : accumulators;
}

/* Bytes of a block: the warps' own, barriers, states of the warps. */
template <class T> size_t stream_shared(uint32_t warps, uint32_t slots) {
    return (size_t)warps * (warp_bytes_of<T>(slots) + slots * 8 + T::HEADS * 8);
}

template <class T, int MAX_WARPS>
__global__ void __launch_bounds__(MAX_WARPS * 32, 1)
    tqk_stream(const __grid_constant__ FastJob job) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    allow_next_kernel();
    const uint32_t warp_bytes = warp_bytes_of<T>(job.slots);
    Ring<T::Layout::bytes> ring(shared, warp_bytes, warp, job.warps, job.slots, lane);
    T t;
    t.k_table = ByteTable{in_register(job.table[0][0]), in_register(job.table[0][1])};
    t.v_table = ByteTable{in_register(job.table[1][0]), in_register(job.table[1][1])};
    wait_for_last_kernel();
    if (job.schedule == SCHEDULE_WARP) {
        run_warp(job, blockIdx.x * job.warps + warp, lane, ring, t);
    } else {
        float2 *ml = (float2 *)(shared + job.warps * (warp_bytes + job.slots * 8));
        run_block(job, warp, lane, shared, warp_bytes, ml, ring, t);
    }
}

template <class T, int MAX_WARPS> tq_status prepare_stream() {
    int limit = 0, device = 0;
    TQI_CUDA(cudaGetDevice(&device));
    TQI_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return check(cudaFuncSetAttribute(tqk_stream<T, MAX_WARPS>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, limit),
                 "shared memory of attention");
}

template <class T, int MAX_WARPS> tq_status run_stream(const FastJob &job, cudaStream_t stream) {
    uint64_t blocks = job.schedule == SCHEDULE_WARP ? (job.workers + job.warps - 1) / job.warps
                                                    : (uint64_t)job.n_items * job.parts;
    LaunchShape shape = {blocks, job.warps * 32, stream_shared<T>(job.warps, job.slots), stream,
                         job.overlap != 0};
    return launch(tqk_stream<T, MAX_WARPS>, shape, "tqk_stream", job);
}

/* An entry of the table: formats, rows of a tile in fours, head dim, warps that the registers
 * allow. */
#define TQI_FAST_KERNEL(name, kf, vf, nt, dim, warps)                      \
    const FastKernel name = {kf,                                           \
                             vf,                                           \
                             dim,                                          \
                             nt * 4,                                       \
                             warps,                                        \
                             "tqk_" #name,                                 \
                             Blob<kf, vf, dim>::bytes,                     \
                             stream_shared<Tile<kf, vf, nt, dim>>,         \
                             prepare_stream<Tile<kf, vf, nt, dim>, warps>, \
                             run_stream<Tile<kf, vf, nt, dim>, warps>};

} /* namespace tqi */

#endif
