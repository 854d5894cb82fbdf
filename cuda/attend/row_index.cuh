/* Where a query row stands: in the caller's arrays, in its segment, in its item. */
#ifndef TQI_CUDA_ATTEND_ROW_INDEX_CUH
#define TQI_CUDA_ATTEND_ROW_INDEX_CUH

#include "attend/attend_job.h"

namespace tqi {

/* A struct of the step or the plan, past the first cache, which may hold it from before. */
template <class T> __device__ inline T fresh(const T *from) {
    T to;
    if constexpr (sizeof(T) % 16 == 0) {
        uint4 words[sizeof(T) / 16];
#pragma unroll
        for (uint32_t i = 0; i < sizeof(T) / 16; i++)
            words[i] = __ldcg((const uint4 *)from + i);
        memcpy(&to, words, sizeof to);
    } else {
        static_assert(sizeof(T) % 8 == 0, "halves of a load of 16 bytes");
        uint2 words[sizeof(T) / 8];
#pragma unroll
        for (uint32_t i = 0; i < sizeof(T) / 8; i++)
            words[i] = __ldcg((const uint2 *)from + i);
        memcpy(&to, words, sizeof to);
    }
    return to;
}

/* A segment with what is hidden from the layer. */
__device__ inline tqi_segment segment_of(const AttendJob &job, uint32_t index) {
    tqi_segment s = fresh(&job.step.segments[index]);
    if (job.hidden) {
        Hidden h = fresh(&job.hidden[index]);
        s.front = h.front;
        s.back = h.back;
    }
    return s;
}

struct RowPlace {
    uint32_t row, q_head; /* of the caller's arrays */
    uint32_t kv_head;
    uint32_t item; /* of the launch */
    uint32_t in_item;
};

/* Row `index` of a launch, query head fastest; false beyond the last. */
__device__ inline bool find_row(const AttendJob &job, uint32_t index, RowPlace *place) {
    uint32_t n_q_heads = job.n_heads * job.group, row = index / n_q_heads;
    if (row >= job.range.n_rows)
        return false;
    tqi_row_place known = fresh(&job.schedule.rows[row]);
    place->row = job.range.first_row + row;
    place->q_head = index - row * n_q_heads;
    place->kv_head = place->q_head / job.group;
    uint32_t in_head = known.query * job.group + place->q_head - place->kv_head * job.group;
    place->item =
        known.first_item + place->kv_head * known.items_per_head + in_head / job.item_rows;
    place->in_item = in_head % job.item_rows;
    return known.exists;
}

/* An item of a segment: its rows are queries [first_row / group, ...) of the kv head. */
struct ItemRows {
    uint32_t kv_head, first_row, n_rows; /* of the segment's rows of the kv head */
};

__device__ inline ItemRows rows_of_item(const AttendJob &job, const tqi_segment &s,
                                        const tqi_cut &cut, uint32_t item) {
    ItemRows r;
    r.kv_head = tqi_quotient(item, cut.items_per_head);
    r.first_row = (item - r.kv_head * cut.items_per_head) * job.item_rows;
    r.n_rows = min(job.item_rows, s.n_queries * job.group - r.first_row);
    return r;
}

/* Row `row` of an item whose rows are known. */
__device__ inline RowPlace place_of(const AttendJob &job, const tqi_segment &s,
                                    const ItemRows &rows, uint32_t item, uint32_t row) {
    uint32_t in_head = rows.first_row + row, query = in_head / job.group;
    return RowPlace{s.query_row + query, rows.kv_head * job.group + in_head - query * job.group,
                    rows.kv_head, item, row};
}

/* Element of a row in the caller's queries or outputs. */
template <class Rows> __device__ inline int64_t row_start(const Rows &rows, const RowPlace &place) {
    return (int64_t)place.row * rows.token_stride + (int64_t)place.q_head * rows.head_stride;
}

/* To the next item with tiles, from one of a segment: the segment's cut. */
TQI_INLINE tqi_cut next_item(const AttendJob &job, uint32_t &segment, uint32_t &item) {
    tqi_cut cut = fresh(&job.schedule.cuts[segment]);
    if (++item == cut.items_per_head * job.n_heads) {
        item = 0;
        do
            cut = fresh(&job.schedule.cuts[++segment]);
        while (cut.n_tiles == 0);
    }
    return cut;
}

} /* namespace tqi */

#endif
