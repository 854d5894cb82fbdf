/*
 * Few items, a block per part of one: the block prepares the queries while its first pages are
 * on their way, and the last block of an item joins all pieces. One launch instead of three.
 */
#ifndef TQI_CUDA_ATTEND_WHOLE_CUH
#define TQI_CUDA_ATTEND_WHOLE_CUH

#include "attend/merge_row.cuh"
#include "attend/prepare_row.cuh"
#include "attend/words.cuh"

namespace tqi {

/* An item and what its rows see. */
struct Item {
    uint32_t segment, item; /* of the segment */
    uint32_t index;         /* of the launch */
    ItemRows rows;
    uint32_t first_tile, n_tiles, n_items; /* of the segment */
    /* Tiles that every row sees whole and as they are, first_full counted from page 0. */
    uint32_t first_full, n_full;
};

/* Rows further down see later tokens: the last row decides where the whole tiles begin, the
 * first one where they end. */
TQI_INLINE void find_full(const FastJob &job, const tqi_segment &s, Item &i) {
    const AttendJob &call = job.call;
    uint64_t from,
        to = tqi_visible(&s, call.causal, call.window, i.rows.first_row / call.group, &from);
    uint32_t last = (i.rows.first_row + i.rows.n_rows - 1) / call.group;
    (void)tqi_visible(&s, call.causal, call.window, last, &from);
    uint32_t end = (uint32_t)(to / FAST_TOKENS);
    i.first_full = (uint32_t)((from + FAST_TOKENS - 1) / FAST_TOKENS);
    i.n_full = job.cap != 0 || end < i.first_full ? 0 : end - i.first_full;
}

TQI_INLINE Item enter_item(const FastJob &job, uint32_t segment, uint32_t item) {
    const AttendJob &call = job.call;
    tqi_cut cut = fresh(&call.schedule.cuts[segment]);
    tqi_segment s = segment_of(call, segment);
    Item i;
    i.segment = segment;
    i.item = item;
    i.index = cut.first_item + item;
    i.rows = rows_of_item(call, s, cut, item);
    i.first_tile = cut.first_tile;
    i.n_tiles = cut.n_tiles;
    i.n_items = cut.items_per_head * call.n_heads;
    find_full(job, s, i);
    return i;
}

/* Head dims whose rows fit into the registers of a group of lanes. */
__host__ __device__ constexpr bool is_whole(int dim) {
    return dim == 64 || dim == 128 || dim == 256;
}

template <int D> using RowOfDim = RegisterRow<(D < 128 ? 16 : 32), (D > 128 ? 8 : 4)>;

/* Operands of the item's rows, to the block's own place: parts of an item do not wait for each
 * other. */
template <class T>
TQI_INLINE void prepare_item(const FastJob &job, const Item &i, uint32_t warp, uint32_t lane) {
    using Row = RowOfDim<T::D>;
    constexpr uint32_t per_warp = 32 / Row::LANES;
    const uint32_t warps = blockDim.x / 32;
    tqi_segment s = segment_of(job.call, i.segment);
#pragma unroll 1
    for (uint32_t first = warp * per_warp; first < T::HEADS; first += warps * per_warp) {
        uint32_t r = first + lane / Row::LANES;
        bool in = r < i.rows.n_rows;
        RowPlace p = place_of(job.call, s, i.rows, blockIdx.x, in ? r : 0);
        Row row(lane, T::D, nullptr);
        row.prefetch(job.call.k);
        float shift = load_row(job.call, p, in, row);
        if (job.call.k.rotates)
            row.rotate_row(job.call.k);
        to_operands(job, p, in, shift, row);
    }
    __syncthreads();
}

/* Counts, so that what the block has stored before is seen by whoever counts later. */
TQI_INLINE uint32_t count_arrival(uint32_t *counter) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0,[%1],1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

/* Whether this block is the last of the item to leave its piece; flag: shared by the block. */
TQI_INLINE bool is_last(const FastJob &job, const Item &i, uint32_t parts, uint32_t *flag) {
    __syncthreads();
    if (threadIdx.x == 0) {
        *flag = parts == 1 || count_arrival(&job.arrived[i.index]) + 1 == parts;
        if (*flag)
            job.arrived[i.index] = 0; /* for the next launch */
    }
    __syncthreads();
    return *flag;
}

template <class T>
TQI_INLINE void merge_item(const FastJob &job, const Item &i, uint32_t *flag, uint32_t warp,
                           uint32_t lane) {
    using Row = RowOfDim<T::D>;
    constexpr uint32_t per_warp = 32 / Row::LANES;
    const uint32_t warps = blockDim.x / 32;
    tqi_pieces pieces = fresh(&job.call.schedule.pieces[i.index]);
    tqi_segment s = segment_of(job.call, i.segment);
    if (!is_last(job, i, pieces.n, flag))
        return;
#pragma unroll 1
    for (uint32_t first = warp * per_warp; first < T::HEADS; first += warps * per_warp) {
        uint32_t r = first + lane / Row::LANES;
        bool in = r < i.rows.n_rows;
        RowPlace p = place_of(job.call, s, i.rows, blockIdx.x, in ? r : 0);
        RowPieces row_pieces = pieces_at(job.call, pieces, p.in_item);
        Row row(lane, T::D, nullptr);
        row.prefetch(job.call.v);
        merge_row(job.call, p, in, row_pieces, end_of_row(job.call, p), row);
    }
}

} /* namespace tqi */

#endif
