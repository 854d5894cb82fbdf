/* Rows of tokens that are kept, to their pages: a block per run and kv head, a warp per row. The
 * launch follows that of the encoder, which reads the same rows, and runs beside it: so it waits at
 * its end. */
#include "attend/instructions.cuh"
#include "attend/row_index.cuh"
#include "common/rows.cuh"
#include "exact/exact_job.h"

namespace tqi {
namespace {

enum { WARPS = 4 };

/* One row; elements that are not finite have been counted by whoever codes them. */
__device__ void keep_row(const KeepJob &job, uint32_t side, uint32_t head, uint8_t *blob,
                         uint32_t slot, uint64_t row) {
    const Side &s = job.side[side];
    const RowsIn &rows = job.rows[side];
    uint16_t *codes = (uint16_t *)(blob + s.layout.codes);
    int64_t at = (int64_t)row * rows.token_stride + (int64_t)head * rows.head_stride;
    for (uint32_t i = threadIdx.x % 32; i < s.layout.dim_pad; i += 32) {
        uint32_t bad = 0;
        float x = i < s.layout.dim ? load_element(rows.data, rows.dtype, at + i) : 0;
        codes[tqi_wide_element(&s.layout, slot, i)] =
            to_16_bits(s.format, replace_nonfinite(x, rows.dtype, bad));
    }
}

__global__ void __launch_bounds__(WARPS * 32) tqk_keep_rows(const __grid_constant__ KeepJob job) {
    const uint32_t run = blockIdx.x / job.n_heads, head = blockIdx.x % job.n_heads;
    const uint32_t n_runs = job.runs ? __ldcg(job.n_runs) : job.max_runs;
    const KeptRun r = run >= n_runs ? KeptRun{} : job.runs ? fresh(&job.runs[run]) : job.list[run];
    uint8_t *blob = (uint8_t *)r.page.chunk + job.pages.offset +
                    r.page.page * job.pages.page_bytes + (size_t)head * job.pages.blob_bytes;
    for (uint32_t i = threadIdx.x / 32; i < 2 * r.n; i += WARPS)
        keep_row(job, i % 2, head, blob, r.slot + i / 2, (uint64_t)r.row + i / 2);
    wait_for_last_kernel();
    allow_next_kernel();
}

} /* namespace */

tq_status keep_rows(const KeepJob &job, cudaStream_t stream) {
    LaunchShape shape = {(uint64_t)job.max_runs * job.n_heads, WARPS * 32, 0, stream,
                         job.overlap != 0};
    return launch(tqk_keep_rows, shape, "tqk_keep_rows", job);
}

} /* namespace tqi */
