/*
 * Rows whose places are slots of the caller: page * page_tokens + token, or something that is no
 * slot. Rows with one slot behind another make a *run*, which ends where a group of tokens (or a
 * page) does; whoever looks at a row finds out by its neighbours whether a run begins there and
 * how far it goes. So no kernel has to write a list of pieces first.
 *
 * Several runs may lie in one group of tokens, in any order, and are written at a time. Where
 * tokens share words, bits of a run are exchanged with atomic operations, which leave the bits of
 * others alone. No slot may be there twice.
 */
#ifndef TQI_CUDA_ENCODE_SLOTS_CUH
#define TQI_CUDA_ENCODE_SLOTS_CUH

#include "encode/encode_job.h"

namespace tqi {

__device__ __forceinline__ bool is_slot(const EncodeJob &job, int64_t slot) {
    return (uint64_t)slot < job.n_slots;
}

/* Whether a run of tokens of a unit (a power of two of slots) begins with a row. */
__device__ __forceinline__ bool run_begins(const EncodeJob &job, uint32_t row, uint32_t unit) {
    int64_t slot = job.slots[row];
    return is_slot(job, slot) &&
           ((slot & (unit - 1)) == 0 || row == 0 || job.slots[row - 1] != slot - 1);
}

/* The run of a row with which one begins, by a whole warp. */
__device__ __forceinline__ AppendPiece run_at(const EncodeJob &job, uint32_t row, uint32_t unit) {
    const uint32_t page = job.pages.page_tokens;
    uint32_t n = 0, in_run;
    int64_t first = 0;
    do {
        uint64_t at = (uint64_t)row + n + threadIdx.x % 32;
        int64_t slot = at < job.max_pieces ? job.slots[at] : -1;
        first = n ? first : __shfl_sync(~0u, slot, 0);
        in_run = __ballot_sync(~0u, is_slot(job, slot) && slot - first == (int64_t)(at - row) &&
                                        (uint64_t)(slot ^ first) < unit);
        n += in_run == ~0u ? 32 : __ffs((int)~in_run) - 1;
    } while (in_run == ~0u && n < unit);
    return AppendPiece{(uint32_t)(first >> (31 - __clz((int)page))), (uint32_t)first & (page - 1),
                       n, row};
}

/* The bits of `mask`, which are nobody else's. */
__device__ __forceinline__ void exchange_bits(uint32_t *word, uint32_t bits, uint32_t mask) {
    uint32_t change = (*(volatile uint32_t *)word ^ bits) & mask;
    if (change)
        atomicXor(word, change);
}

/* The same in one or two bytes of a word. */
template <class Part>
__device__ __forceinline__ void exchange_bits(Part *part, uint32_t bits, uint32_t mask) {
    uint32_t shift = 8 * ((uintptr_t)part & 3);
    exchange_bits((uint32_t *)((uintptr_t)part & ~(uintptr_t)3), bits << shift, mask << shift);
}

} /* namespace tqi */

#endif
