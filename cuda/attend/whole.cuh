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
    uint64_t from, to = tqi_visible(&s, call.causal, call.window,
                                    tqi_quotient(i.rows.first_row, call.group), &from);
    uint32_t last = tqi_quotient(i.rows.first_row + i.rows.n_rows - 1, call.group);
    (void)tqi_visible(&s, call.causal, call.window, last, &from);
    uint32_t end = (uint32_t)(to / FAST_TOKENS);
    i.first_full = (uint32_t)((from + FAST_TOKENS - 1) / FAST_TOKENS);
    i.n_full = job.cap != 0 || end < i.first_full ? 0 : end - i.first_full;
}

TQI_INLINE Item enter_item(const FastJob &job, uint32_t segment, uint32_t item, tqi_segment &s) {
    const AttendJob &call = job.call;
    tqi_cut cut = fresh(&call.schedule.cuts[segment]);
    s = segment_of(call, segment);
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

/* Whether pages up to `page`, counted from page 0, were in place before the plan was made, and so
 * whatever the kernel in front writes. */
TQI_INLINE bool are_old(const tqi_segment &s, uint32_t page) {
    return ((uint64_t)page + 1) * FAST_TOKENS + s.n_new <= s.length;
}

/* Head dims whose rows fit into the registers of a group of lanes. */
__host__ __device__ constexpr bool is_whole(int dim) {
    return dim == 64 || dim == 128 || dim == 256;
}

template <int D> using RowOfDim = RegisterRow<(D < 128 ? 16 : 32), (D > 128 ? 8 : 4)>;

/* What a block knows of its item before it waits for the kernel in front, in shared memory. */
struct WholeItem {
    tqi_segment s;
    tqi_pieces pieces;
    uint32_t last;      /* this block leaves the last piece */
    uint32_t signs[32]; /* of the values' rotation, by lane of a row */

    template <class Row>
    TQI_INLINE void keep(const FastJob &job, const Item &i, const tqi_segment &segment) {
        if (threadIdx.x == 0) {
            s = segment;
            pieces = fresh(&job.call.schedule.pieces[i.index]);
        }
        if (threadIdx.x < 32) {
            Row row(threadIdx.x, job.call.v.layout.dim, nullptr);
            row.prefetch(job.call.v);
            signs[threadIdx.x] = row.signs;
        }
    }
};
static_assert(sizeof(WholeItem) <= WHOLE_SHARED, "beside the shared memory of the launch");

/* Where operands of a block's item go, as FastJob has them for all items. */
struct WholeQueries {
    const AttendJob &call;
    uint32_t planes;
    float k_step;
    uint32_t *fragments;
    float *q_scale;
    int32_t *q_half;
    float2 *q_sketch;
};

/* A word of operands, past the first cache where another kernel has written it. */
template <class Word> TQI_INLINE Word operand(const FastJob &, const Word *from) {
    return __ldcg(from);
}
template <class Word> TQI_INLINE Word operand(const WholeQueries &, const Word *from) {
    return *from;
}

/* Operands of the item's rows, to the block's own place: parts of an item do not wait for each
 * other. row: with the signs of the keys' rotation; to: FastJob, or WholeQueries for place 0. */
template <class T, class Row, class Queries>
TQI_INLINE void prepare_item(const FastJob &job, const Item &i, const tqi_segment &s, uint32_t warp,
                             uint32_t lane, Row &row, const Queries &to, uint32_t place) {
    constexpr uint32_t per_warp = 32 / Row::LANES;
    const uint32_t warps = blockDim.x / 32;
#pragma unroll 1
    for (uint32_t first = warp * per_warp; first < T::HEADS; first += warps * per_warp) {
        uint32_t r = first + lane / Row::LANES;
        bool in = r < i.rows.n_rows;
        RowPlace p = place_of(job.call, s, i.rows, blockIdx.x, in ? r : 0);
        float shift = load_row(job.call, p, in, row);
        if (job.call.k.rotates)
            row.rotate_row(job.call.k);
        if (in && row.lane == 0)
            store_shift(job.call, p, shift);
        p.item = place;
        to_operands(to, p, in, row);
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

/* Whether this block is the last of the item to leave its piece. */
TQI_INLINE bool is_last(const FastJob &job, const Item &i, WholeItem &whole) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t parts = whole.pieces.n;
        whole.last = parts == 1 || count_arrival(&job.arrived[i.index]) + 1 == parts;
        if (whole.last)
            job.arrived[i.index] = 0; /* for the next launch */
    }
    __syncthreads();
    return whole.last;
}

template <class T>
TQI_INLINE void merge_item(const FastJob &job, const Item &i, WholeItem &whole, uint32_t warp,
                           uint32_t lane) {
    using Row = RowOfDim<T::D>;
    constexpr uint32_t per_warp = 32 / Row::LANES;
    const uint32_t warps = blockDim.x / 32;
    if (!is_last(job, i, whole))
        return;
#pragma unroll 1
    for (uint32_t first = warp * per_warp; first < T::HEADS; first += warps * per_warp) {
        uint32_t r = first + lane / Row::LANES;
        bool in = r < i.rows.n_rows;
        RowPlace p = place_of(job.call, whole.s, i.rows, blockIdx.x, in ? r : 0);
        RowPieces row_pieces = pieces_at(job.call, whole.pieces, p.in_item);
        const RowEnd end = end_of_row(job.call, p);
        Row row(lane, T::D, nullptr);
        row.signs = whole.signs[lane];
        const float2 joint =
            join_batches<64 / (T::D / Row::LANES)>(row_pieces, T::D, row); /* 16 at a time */
        finish_row(job.call, p, in, joint, end, row);
    }
}

} /* namespace tqi */

#endif
