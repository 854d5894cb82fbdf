/* stream.cuh with e4m3 as it is, on mma.sync (e4m3_tile.cuh). */
#ifndef TQI_CUDA_ATTEND_E4M3_STREAM_CUH
#define TQI_CUDA_ATTEND_E4M3_STREAM_CUH

#include "attend/e4m3_tile.cuh"
#include "attend/stream.cuh"

namespace tqi {

/* Whether the code here has MMAs of e4m3. */
template <class T, int MAX_WARPS, int SLOTS> bool e4m3_stream_runs() {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, tqk_stream<T, MAX_WARPS, SLOTS>) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.ptxVersion >= 89;
}

/* An entry of the table: rows of a tile in fours, head dim, warps of a block, slots of each,
 * whether it is the faster way (docs/PERFORMANCE.md). */
#define TQI_E4M3_KERNEL(name, nt, dim, warps, slots, faster)                  \
    const FastKernel name = {TQ_FORMAT_FP8,                                   \
                             TQ_FORMAT_FP8,                                   \
                             dim,                                             \
                             nt * 4,                                          \
                             warps,                                           \
                             slots,                                           \
                             1,                                               \
                             0,                                               \
                             "tqk_" #name,                                    \
                             Blob<TQ_FORMAT_FP8, TQ_FORMAT_FP8, dim>::bytes,  \
                             stream_shared<E4m3Tile<nt, dim>>,                \
                             prepare_stream<E4m3Tile<nt, dim>, warps, slots>, \
                             run_stream<E4m3Tile<nt, dim>, warps, slots>,     \
                             ON_E4M3_MMA,                                     \
                             faster,                                          \
                             e4m3_stream_runs<E4m3Tile<nt, dim>, warps, slots>};

} /* namespace tqi */

#endif
