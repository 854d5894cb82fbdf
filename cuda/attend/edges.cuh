/*
 * What the rows of an item see, kept in shared memory: few pages are edges, and what only they
 * need would otherwise be computed in front of the loop over pages and stay in registers.
 */
#ifndef TQI_CUDA_ATTEND_EDGES_CUH
#define TQI_CUDA_ATTEND_EDGES_CUH

#include "attend/operands.cuh"
#include "attend/whole.cuh"

namespace tqi {

/* A record: tokens [from, to) of every row, 16 bytes each; the shifts of the rows, 4 bytes each;
 * tokens of the sequence, 8 bytes. */
template <int HEADS> struct EdgeRecord {
    static constexpr uint32_t shifts = HEADS * 16, length = shifts + HEADS * 4, bytes = length + 16;
    uint32_t address; /* in shared memory, a multiple of 16 */

    /* A warp writes it; others that read it are for the caller to hold back. at: the item, or the
     * block that has prepared it. Rows that the item lacks see what its last one does. */
    TQI_INLINE void keep(const FastJob &job, const Item &i, const tqi_segment &s, uint32_t at,
                         uint32_t lane) const {
        const AttendJob &call = job.call;
        if (lane < HEADS) {
            uint32_t row = min(lane, i.rows.n_rows - 1);
            uint64_t from,
                to = tqi_visible(&s, call.causal, call.window,
                                 tqi_quotient(i.rows.first_row + row, call.group), &from);
            float shift = job.cap != 0 ? TQI_LOG2E * __ldcg(&call.shift[at * HEADS + row]) : 0;
            store_shared16(address + lane * 16, from, to);
            store_shared4(address + shifts + lane * 4, __float_as_uint(shift));
        }
        if (lane == 0)
            store_shared8(address + length, s.length);
        __syncwarp();
    }

    /* Of the page, counted from page 0. */
    template <int NT>
    TQI_INLINE PageEdge<NT> edge(const FastJob &job, uint32_t page, uint32_t lane) const {
        const int64_t start = (int64_t)page * FAST_TOKENS;
        PageEdge<NT> e;
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const uint32_t row = nt * 4 + lane % 4;
            e.first[nt] = within(address + row * 16, start);
            e.end[nt] = within(address + row * 16 + 8, start);
            e.shift[nt] = __uint_as_float(load_shared4(address + shifts + row * 4));
        }
        e.valid = within(address + length, start);
        e.cap = job.cap;
        e.cap_rate = job.cap_rate;
        return e;
    }

  private:
    /* Of the tokens that the record names, those behind `start`, at most a page. */
    TQI_INLINE static int within(uint32_t at, int64_t start) {
        const uint2 tokens = load_shared8(at);
        const int64_t n = (int64_t)((uint64_t)tokens.y << 32 | tokens.x) - start;
        return (int)max(min(n, (int64_t)FAST_TOKENS), (int64_t)0);
    }
};

/* The same of page `page` without a record. at: as above. */
template <class T>
TQI_INLINE typename T::Edge edge_of(const FastJob &job, const Item &i, uint32_t at, uint32_t page,
                                    uint32_t lane) {
    const AttendJob &call = job.call;
    tqi_segment s = segment_of(call, i.segment);
    int64_t start = (int64_t)page * FAST_TOKENS;
    const uint32_t last = i.rows.n_rows - 1;
    typename T::Edge e;
#pragma unroll
    for (int nt = 0; nt < T::NT; nt++) {
        uint32_t row = min(nt * 4 + lane % 4, last);
        uint64_t from, to = tqi_visible(&s, call.causal, call.window,
                                        (i.rows.first_row + row) / call.group, &from);
        e.first[nt] = (int)max(min((int64_t)from - start, (int64_t)FAST_TOKENS), (int64_t)0);
        e.end[nt] = (int)max(min((int64_t)to - start, (int64_t)FAST_TOKENS), (int64_t)0);
        e.shift[nt] = job.cap != 0 ? TQI_LOG2E * __ldcg(&call.shift[at * T::HEADS + row]) : 0;
    }
    e.valid = (int)min((int64_t)s.length - start, (int64_t)FAST_TOKENS);
    e.cap = job.cap;
    e.cap_rate = job.cap_rate;
    return e;
}

} /* namespace tqi */

#endif
