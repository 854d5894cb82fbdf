/* Calls over pages of the caller: what the kernels in front of attention get. */
#ifndef TQI_CUDA_PAGED_JOB_H
#define TQI_CUDA_PAGED_JOB_H

#include "prefill/prefill_job.h"

namespace tqi {

/* The caller's sequences, in device memory. */
struct CallerSeqs {
    const int32_t *table; /* page ids */
    int64_t table_stride;
    const int32_t *lengths; /* [n_seqs] */
    const int32_t *starts;  /* [n_seqs + 1] query rows */
    uint32_t n_seqs, n_rows, max_length;
};

struct ImportJob {
    CallerSeqs seqs;
    StepView step;
    uint32_t block_rows, n_blocks, n_segments; /* of the step, the last two at most */
    uint32_t *arrived;                         /* [n_arrived] to be cleared */
    uint32_t n_arrived;
    RowTile *tiles;         /* of the step; NULL: it has none */
    uint32_t most_tiles;    /* at most */
    uint32_t group;         /* query heads of a kv head */
    uint32_t *tile_arrived; /* [n_tile_arrived] to be cleared */
    uint32_t n_tile_arrived;
    uint32_t overlap;
};

/* Sequences to the step of a room, whose table is the caller's. */
tq_status import_step(const ImportJob &job, cudaStream_t stream);
/* The same and the plan of its only launch, by one kernel. */
tq_status plan_import(const PlanJob &job, const ImportJob &from, cudaStream_t stream);

/* ---- looking at ids, slots and lengths before they are used -----------------------------------
 */

enum FaultKind { FAULT_START, FAULT_ROWS, FAULT_PAGE };

/* The first thing that is wrong, the smallest: what kind, and where. */
__host__ __device__ inline uint64_t fault_of(uint64_t kind, uint64_t seq, uint64_t at) {
    return kind << 62 | seq << 30 | at;
}

struct CheckJob {
    CallerSeqs seqs;
    uint64_t n_pages;
    uint32_t page_tokens, causal, window;
    uint64_t *fault; /* the smallest of all; ~0 = none */
};

/* FAULT_START: starts[0]; FAULT_ROWS: rows (at 0) or length (at 1) of a sequence; FAULT_PAGE: a
 * page that some row of it sees. */
tq_status check_seqs(const CheckJob &job, uint32_t n_sms, cudaStream_t stream);

struct SlotsJob {
    const int64_t *slots;
    uint32_t n_tokens;
    uint64_t n_slots;
    uint64_t *fault; /* twice the index, plus 1 where the slot is in the call before */
};

tq_status check_slots(const SlotsJob &job, uint32_t n_sms, cudaStream_t stream);

} /* namespace tqi */

#endif
