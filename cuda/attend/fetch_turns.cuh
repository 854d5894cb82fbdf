/* The pages of a worker that takes several at a time. */
#ifndef TQI_CUDA_ATTEND_FETCH_TURNS_CUH
#define TQI_CUDA_ATTEND_FETCH_TURNS_CUH

#include "attend/fast_job.h"
#include "attend/instructions.cuh"
#include "attend/row_index.cuh"

namespace tqi {

/* Pages of an item that are taken together; n: how many, 0 = nothing is left. */
template <int PAGES> struct PageTurn {
    const uint8_t *base; /* of the kv head in page 0 */
    uint32_t id[PAGES];
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
        const tqi_cut cut = next_item(job.call, segment, item);
        run = min(left, cut.n_tiles);
        left -= run;
        const uint32_t *table = fresh(&job.call.step.head->table);
        enter(job, table + __ldcg(&job.call.step.segments[segment].ids) + cut.first_tile,
              item / cut.items_per_head);
    }

    /* The next pages of an item, or its last ones: their ids may still be on their way. */
    template <int PAGES> TQI_INLINE void take(const FastJob &job, PageTurn<PAGES> &turn) {
        turn.base = base;
        turn.n = min(run, (uint32_t)PAGES);
#pragma unroll
        for (int i = 0; i < PAGES; i++)
            if (i < turn.n)
                turn.id[i] = __ldcg(ids + i * stride);
        if (turn.n == 0)
            return;
        ids += turn.n * stride;
        run -= turn.n;
        if (run == 0)
            cross(job);
    }
};

/* What the thread that asks for pages knows, in shared memory, since the loop over pages has no
 * registers for it. */
template <int PAGES> struct FetchState {
    PageWalk walk;
    PageTurn<PAGES> next;
    uint32_t take, phase; /* of the ring, for them */
};

/* Fetch of fetch.cuh, several pages at a time, by one thread of those that take them: the table is
 * read a turn ahead. */
template <int PAGES> struct FetchTurns {
    FetchState<PAGES> *state;
    bool thread; /* this is the one */

    TQI_INLINE FetchTurns(const FastJob &job, const tqi_work &w, FetchState<PAGES> *room, bool own,
                          uint32_t first, uint32_t step)
        : state(room), thread(own) {
        if (!thread)
            return;
        state->take = state->phase = 0;
        state->walk = PageWalk(job, w, fresh(&job.call.step.head->table), first, step);
        state->walk.take(job, state->next);
    }

    /* Asks for the next pages. */
    template <class R> TQI_INLINE void request(const FastJob &job, R ring) {
        if (!thread || state->next.n == 0)
            return;
        ring.take = state->take;
        ring.phase = state->phase;
        ring.template ask<false>(state->next, job.page_bytes);
        state->take = ring.take;
        state->phase = ring.phase;
        state->walk.take(job, state->next);
    }
};

/* Pages that another warp asks for (produce()). */
struct Produced {
    template <class R> TQI_INLINE void request(const FastJob &, const R &) const {}
};

/* All pages of a worker, each as soon as a slot is free, by one warp. */
template <int PAGES, class R> TQI_INLINE void produce(const FastJob &job, PageWalk walk, R &ring) {
    PageTurn<PAGES> turn, next;
    walk.take(job, turn);
    while (turn.n) {
        walk.take(job, next);
        ring.template ask<true>(turn, job.page_bytes);
        turn = next;
    }
}

} /* namespace tqi */

#endif
