/* A look at what the caller's arrays say, before attention and append believe it. */
#include "paged/paged_job.h"

namespace tqi {
namespace {

enum { THREADS = 256 };

__device__ void report(uint64_t *fault, uint64_t found) {
    atomicMin((unsigned long long *)fault, (unsigned long long)found);
}

/* Rows and length of a sequence, by every lane of a warp. */
__device__ bool check_rows(const CheckJob &job, uint32_t seq) {
    const CallerSeqs &s = job.seqs;
    int64_t first = s.starts[seq], end = s.starts[seq + 1], length = s.lengths[seq];
    if (seq == 0 && first != 0)
        report(job.fault, fault_of(FAULT_START, 0, 0));
    if (end < first || end > (int64_t)s.n_rows)
        report(job.fault, fault_of(FAULT_ROWS, seq, 0));
    else if (length < 0 || length > (int64_t)s.max_length)
        report(job.fault, fault_of(FAULT_ROWS, seq, 1));
    else
        return true;
    return false;
}

/* Pages that some row sees. */
__device__ void check_pages(const CheckJob &job, uint32_t seq) {
    const CallerSeqs &s = job.seqs;
    tqi_segment whole = {(uint64_t)s.lengths[seq], 0, 0, 0, 0, 0};
    whole.n_queries = (uint32_t)(s.starts[seq + 1] - s.starts[seq]);
    uint64_t from;
    if (whole.n_queries == 0)
        return;
    (void)tqi_visible(&whole, job.causal, job.window, 0, &from);
    const int32_t *ids = s.table + (int64_t)seq * s.table_stride;
    for (uint64_t page = from / job.page_tokens + threadIdx.x % 32;
         page * job.page_tokens < whole.length; page += 32)
        if ((uint32_t)ids[page] >= job.n_pages)
            report(job.fault, fault_of(FAULT_PAGE, seq, page));
}

__global__ void tqk_check_seqs(const __grid_constant__ CheckJob job) {
    const uint32_t warps = THREADS / 32;
    for (uint64_t seq = blockIdx.x * warps + threadIdx.x / 32; seq < job.seqs.n_seqs;
         seq += gridDim.x * warps)
        if (check_rows(job, (uint32_t)seq))
            check_pages(job, (uint32_t)seq);
}

/* Range, and whether a token before has the same slot. */
__global__ void tqk_check_slots(const __grid_constant__ SlotsJob job) {
    for (uint64_t i = blockIdx.x; i < job.n_tokens; i += gridDim.x) {
        int64_t slot = job.slots[i];
        bool twice = false;
        if (slot < 0)
            continue;
        if ((uint64_t)slot >= job.n_slots)
            report(job.fault, 2 * i);
        for (uint64_t j = threadIdx.x; j < i && !twice; j += THREADS)
            twice = job.slots[j] == slot;
        if (twice)
            report(job.fault, 2 * i + 1);
    }
}

} /* namespace */

tq_status check_seqs(const CheckJob &job, uint32_t n_sms, cudaStream_t stream) {
    uint64_t blocks = tqi_ceil(job.seqs.n_seqs, THREADS / 32), most = 8ull * n_sms;
    LaunchShape shape = {tqi_least(blocks, most), THREADS, 0, stream, false};
    return launch(tqk_check_seqs, shape, "tqk_check_seqs", job);
}

tq_status check_slots(const SlotsJob &job, uint32_t n_sms, cudaStream_t stream) {
    LaunchShape shape = {tqi_least(job.n_tokens, 8ull * n_sms), THREADS, 0, stream, false};
    return launch(tqk_check_slots, shape, "tqk_check_slots", job);
}

} /* namespace tqi */
