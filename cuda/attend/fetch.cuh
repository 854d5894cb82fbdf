/* The pages of a worker. */
#ifndef TQI_CUDA_ATTEND_FETCH_CUH
#define TQI_CUDA_ATTEND_FETCH_CUH

#include "attend/fast_job.h"
#include "attend/ring.cuh"
#include "attend/row_index.cuh"

namespace tqi {

/* Pages to fetch, in the order in which they are consumed: tiles `stride` apart of one item,
 * or all tiles of an item and those behind it. The table is read one page ahead. */
struct Fetch {
    const FastJob &job;
    const uint32_t *ids; /* at the next page */
    const uint8_t *base; /* of the kv head in page 0 */
    uint32_t run;        /* pages left in the item */
    uint32_t id;         /* of the next page */
    uint32_t stride;
    uint32_t left; /* pages in later items */
    uint32_t segment, item;

    TQI_INLINE Fetch(const FastJob &j, const tqi_work &w, const uint32_t *table, uint32_t first,
                     uint32_t step)
        : job(j), run(0), id(0), stride(step), left(0), segment(w.segment), item(w.item) {
        if (first >= w.here)
            return;
        left = w.n_tiles - w.here;
        run = (w.here - first - 1) / stride + 1;
        enter(table + w.ids + first, w.kv_head);
    }

    TQI_INLINE void enter(const uint32_t *at, uint32_t kv_head) {
        ids = at;
        base = job.call.pages.base + (uint64_t)kv_head * job.call.pages.blob_bytes;
        id = __ldcg(ids);
    }

    /* To the next item with tiles. */
    TQI_INLINE void cross() {
        if (left == 0)
            return;
        const tqi_cut cut = next_item(job.call, segment, item);
        run = min(left, cut.n_tiles);
        left -= run;
        const uint32_t *table = fresh(&job.call.step.head->table);
        enter(table + __ldcg(&job.call.step.segments[segment].ids) + cut.first_tile,
              item / cut.items_per_head);
    }

    TQI_INLINE const uint8_t *next() {
        if (run == 0)
            return nullptr;
        const uint8_t *page = base + (uint64_t)id * job.page_bytes;
        ids += stride;
        if (--run == 0)
            cross();
        else
            id = __ldcg(ids);
        return page;
    }

    /* The next N pages, of one item. */
    template <int N> TQI_INLINE Turn<N> next_turn() {
        Turn<N> turn;
        uint32_t here = run;
#pragma unroll
        for (int i = 0; i < N; i++)
            turn.page[i] = i == 0 || here > i ? next() : nullptr;
        return turn;
    }
};

} /* namespace tqi */

#endif
