/* The step of a call whose launches are planned one by one. */
#include "paged/import.cuh"

namespace tqi {
namespace {

__global__ void __launch_bounds__(SCAN_THREADS) tqk_import(const __grid_constant__ ImportJob job) {
    __shared__ uint64_t room[SCAN_WARPS];
    wait_for_last_kernel();
    import_seqs(job, room);
    __threadfence();
}

} /* namespace */

tq_status import_step(const ImportJob &job, cudaStream_t stream) {
    LaunchShape shape = {1, SCAN_THREADS, 0, stream, job.overlap != 0};
    return launch(tqk_import, shape, "tqk_import", job);
}

} /* namespace tqi */
