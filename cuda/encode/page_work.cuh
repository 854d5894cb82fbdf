/* Which tokens a block codes. */
#ifndef TQI_CUDA_ENCODE_PAGE_WORK_CUH
#define TQI_CUDA_ENCODE_PAGE_WORK_CUH

#include "encode/slots.cuh"

namespace tqi {

/* New tokens of a page: slots [first, last), the first from a row of the caller's. */
struct PageWork {
    uint64_t id, row;
    uint32_t first, last;
};

/* page: or piece, or row of a slot. */
__device__ inline bool page_work(const EncodeJob &job, uint32_t page, PageWork *w) {
    if (job.pieces || job.slots) {
        if (job.slots ? !run_begins(job, page, job.pages.page_tokens) : page >= *job.n_pieces)
            return false;
        AppendPiece p = job.slots ? run_at(job, page, job.pages.page_tokens) : job.pieces[page];
        *w = PageWork{p.page, p.row, p.slot, p.slot + p.n};
        return true;
    }
    uint64_t start = (job.first_page + page) * job.pages.page_tokens;
    uint64_t from = max(start, job.length), to = min(start + job.pages.page_tokens, job.end);
    *w = PageWork{job.ids.id[page], from - job.length, (uint32_t)(from - start),
                  (uint32_t)(to - start)};
    return true;
}

} /* namespace tqi */

#endif
