/* The pages of a worker that takes two at a time. */
#ifndef TQI_CUDA_ATTEND_FETCH_TWO_CUH
#define TQI_CUDA_ATTEND_FETCH_TWO_CUH

#include "attend/fast_job.h"
#include "attend/instructions.cuh"
#include "attend/row_index.cuh"

namespace tqi {

/* A page whose id may still be on its way. */
struct PageAt {
    const uint8_t *base; /* of the kv head in page 0; NULL: there is none */
    uint32_t id;

    TQI_INLINE const uint8_t *address(const FastJob &job) const {
        return base ? base + (uint64_t)id * job.page_bytes : nullptr;
    }
};

/* Pages in the order in which they are consumed: tiles `stride` apart of one item, or all tiles of
 * an item and those behind it. */
struct Walk {
    const FastJob &job;
    const uint32_t *ids; /* at the next page */
    const uint8_t *base; /* of the kv head in page 0 */
    uint32_t run;        /* pages left in the item */
    uint32_t stride;
    uint32_t left; /* pages in later items */
    uint32_t segment, item;

    TQI_INLINE Walk(const FastJob &j, const tqi_work &w, const uint32_t *table, uint32_t first,
                    uint32_t step)
        : job(j), ids(nullptr), base(nullptr), run(0), stride(step), left(0), segment(w.segment),
          item(w.item) {
        if (first >= w.here)
            return;
        left = w.n_tiles - w.here;
        run = (w.here - first - 1) / stride + 1;
        enter(table + w.ids + first, w.kv_head);
    }

    TQI_INLINE void enter(const uint32_t *at, uint32_t kv_head) {
        ids = at;
        base = job.call.pages.base + (uint64_t)kv_head * job.call.pages.blob_bytes;
    }

    /* To the next item with tiles. */
    TQI_INLINE void cross() {
        if (left == 0)
            return;
        tqi_cut cut = fresh(&job.call.schedule.cuts[segment]);
        if (++item == cut.items_per_head * job.call.n_heads) {
            item = 0;
            do
                cut = fresh(&job.call.schedule.cuts[++segment]);
            while (cut.n_tiles == 0);
        }
        run = min(left, cut.n_tiles);
        left -= run;
        const uint32_t *table = fresh(&job.call.step.head->table);
        enter(table + __ldcg(&job.call.step.segments[segment].ids) + cut.first_tile,
              item / cut.items_per_head);
    }

    TQI_INLINE PageAt take() {
        if (run == 0)
            return PageAt{nullptr, 0};
        PageAt page = {base, __ldcg(ids)};
        ids += stride;
        if (--run == 0)
            cross();
        return page;
    }
};

/* Fetch of stream.cuh, two pages at a time: the table is read two pages ahead, and what a load is
 * to bring is not waited for. */
struct FetchTwo {
    Walk walk;
    PageAt page[2];

    TQI_INLINE FetchTwo(const FastJob &j, const tqi_work &w, const uint32_t *table, uint32_t first,
                        uint32_t step)
        : walk(j, w, table, first, step) {
        page[0] = walk.take();
        page[1] = walk.take();
    }

    TQI_INLINE const uint8_t *next() {
        const uint8_t *at = page[0].address(walk.job);
        page[0] = page[1];
        page[1] = walk.take();
        return at;
    }

    /* The next two, to f. */
    template <class F> TQI_INLINE void next_two(F f) {
        f(page[0].address(walk.job));
        f(page[1].address(walk.job));
        page[0] = walk.take();
        page[1] = walk.take();
    }
};

} /* namespace tqi */

#endif
