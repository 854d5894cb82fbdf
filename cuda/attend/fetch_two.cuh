/* The pages of a worker that takes two at a time. */
#ifndef TQI_CUDA_ATTEND_FETCH_TWO_CUH
#define TQI_CUDA_ATTEND_FETCH_TWO_CUH

#include "attend/fast_job.h"
#include "attend/instructions.cuh"
#include "attend/row_index.cuh"

namespace tqi {

/* Pages of an item that are taken together, at most two; n: how many, 0 = nothing is left. */
struct PagePair {
    const uint8_t *base; /* of the kv head in page 0 */
    uint32_t id[2];
    uint32_t n;
};

/* Pages in the order in which they are consumed: tiles `stride` apart of one item, or all tiles of
 * an item and those behind it. */
struct PageWalk {
    const uint32_t *ids; /* at the next page */
    const uint8_t *base; /* of the kv head in page 0 */
    uint32_t run;        /* pages left in the item */
    uint32_t stride;
    uint32_t left; /* pages in later items */
    uint32_t segment, item;

    TQI_INLINE PageWalk(const FastJob &job, const tqi_work &w, const uint32_t *table,
                        uint32_t first, uint32_t step)
        : ids(nullptr), base(nullptr), run(0), stride(step), left(0), segment(w.segment),
          item(w.item) {
        if (first >= w.here)
            return;
        left = w.n_tiles - w.here;
        run = (w.here - first - 1) / stride + 1;
        enter(job, table + w.ids + first, w.kv_head);
    }

    TQI_INLINE void enter(const FastJob &job, const uint32_t *at, uint32_t kv_head) {
        ids = at;
        base = job.call.pages.base + (uint64_t)kv_head * job.call.pages.blob_bytes;
    }

    /* To the next item with tiles. */
    TQI_INLINE void cross(const FastJob &job) {
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
        enter(job, table + __ldcg(&job.call.step.segments[segment].ids) + cut.first_tile,
              item / cut.items_per_head);
    }

    /* The next two pages of an item, or its last one: their ids may still be on their way. */
    TQI_INLINE PagePair take(const FastJob &job) {
        PagePair pair = {base, {0, 0}, min(run, 2u)};
        if (pair.n == 0)
            return pair;
        pair.id[0] = __ldcg(ids);
        if (pair.n == 2)
            pair.id[1] = __ldcg(ids + stride);
        ids += pair.n * stride;
        run -= pair.n;
        if (run == 0)
            cross(job);
        return pair;
    }
};

/* What the thread that asks for pages knows, in shared memory, since the loop over pages has no
 * registers for it. */
struct FetchState {
    PageWalk walk;
    const uint8_t *base; /* of the next pages */
    uint32_t n;          /* of them */
    uint32_t slot;       /* for them */
};

/* Fetch of fetch.cuh, two pages at a time, by one thread of those that take them: the table is
 * read two pages ahead, and ids that are on their way are not waited for. */
struct FetchTwo {
    FetchState *state;
    bool thread; /* this is the one */
    uint32_t id[2];

    TQI_INLINE FetchTwo(const FastJob &job, const tqi_work &w, FetchState *room, bool own,
                        uint32_t first, uint32_t step)
        : state(room), thread(own) {
        if (!thread)
            return;
        state->slot = 0;
        state->walk = PageWalk(job, w, fresh(&job.call.step.head->table), first, step);
        take(job);
    }

    TQI_INLINE void take(const FastJob &job) {
        const PagePair next = state->walk.take(job);
        state->base = next.base;
        state->n = next.n;
        id[0] = next.id[0];
        id[1] = next.id[1];
    }

    /* Of the tile: two pages have been read by the warp, and by all warps. */
    template <class R> TQI_INLINE void read_by_warp(const R &, uint32_t, uint32_t) const {}
    template <class R> TQI_INLINE void read_by_all(const FastJob &job, const R &ring) {
        if (thread)
            request(job, ring);
    }

    /* Asks for the next pages. */
    template <class R> TQI_INLINE void request(const FastJob &job, const R &ring) {
        state->slot = ring.request(state->slot, PagePair{state->base, {id[0], id[1]}, state->n},
                                   job.page_bytes);
        take(job);
    }
};

/* Pages that another warp asks for (produce()), which is told what has been read. */
struct Produced {
    template <class R>
    TQI_INLINE void read_by_warp(const R &ring, uint32_t slot, uint32_t lane) const {
        ring.release(slot, lane);
    }
    template <class R> TQI_INLINE void read_by_all(const FastJob &, const R &) const {}
};

/* All pages of a worker, each as soon as a slot is free, by one thread. */
template <class R> TQI_INLINE void produce(const FastJob &job, PageWalk walk, R &ring) {
    PagePair pair = walk.take(job);
    while (pair.n) {
        const PagePair next = walk.take(job);
        ring.produce(pair, job.page_bytes);
        pair = next;
    }
}

} /* namespace tqi */

#endif
