/* Channel means for centring: a thread per channel, in token order and double, which gives
 * the CPU's bits. Called once per layer. */
#include "common/rows.cuh"
#include "inspect/inspect.h"

namespace tqi {
namespace {

__global__ void tqk_channel_means(const __grid_constant__ MeansJob job) {
    uint64_t channel = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= (uint64_t)job.n_heads * job.dim)
        return;
    uint32_t head = (uint32_t)(channel / job.dim), i = (uint32_t)(channel % job.dim), bad = 0;
    double sum = 0;
    for (uint32_t t = 0; t < job.n_tokens; t++) {
        int64_t at = (int64_t)t * job.rows.token_stride + (int64_t)head * job.rows.head_stride + i;
        float x = load_element(job.rows.data, job.rows.dtype, at);
        sum += (double)replace_nonfinite(x, job.rows.dtype, bad);
    }
    job.mean[channel] = (float)(sum / job.n_tokens);
}

} /* namespace */

tq_status channel_means(const MeansJob &job, cudaStream_t stream) {
    uint64_t channels = (uint64_t)job.n_heads * job.dim;
    LaunchShape shape = {(channels + 127) / 128, 128, 0, stream, false};
    return launch(tqk_channel_means, shape, "tqk_channel_means", job);
}

} /* namespace tqi */
