#include "attend/e4m3_stream.cuh"
#include "attend/group_kernels.cuh"

namespace tqi {
extern const FastKernel wgmma_fp8_fp8_d64_r4, wgmma_fp8_fp8_d64_r8, wgmma_fp8_fp8_d64_r16;
extern const FastKernel mma8_fp8_fp8_d64_r4, mma8_fp8_fp8_d64_r8;
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d64_r4, 1, 64, 4, 2, 1)
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d64_r8, 2, 64, 4, 2, 1)
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d64_r16, 4, 64, 4, 6, 1)
TQI_E4M3_KERNEL(mma8_fp8_fp8_d64_r4, 1, 64, 12, 1, 0)
TQI_E4M3_KERNEL(mma8_fp8_fp8_d64_r8, 2, 64, 12, 1, 0)
} /* namespace tqi */
