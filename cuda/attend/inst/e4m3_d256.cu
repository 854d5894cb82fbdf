#include "attend/e4m3_stream.cuh"
#include "attend/group_kernels.cuh"

namespace tqi {
extern const FastKernel wgmma_fp8_fp8_d256_r4, wgmma_fp8_fp8_d256_r8, wgmma_fp8_fp8_d256_r16;
extern const FastKernel mma8_fp8_fp8_d256_r4, mma8_fp8_fp8_d256_r8;
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d256_r4, 1, 256, 3, 1, 0)
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d256_r8, 2, 256, 3, 1, 0)
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d256_r16, 4, 256, 2, 2, 1)
TQI_E4M3_KERNEL(mma8_fp8_fp8_d256_r4, 1, 256, 6, 1, 0)
TQI_E4M3_KERNEL(mma8_fp8_fp8_d256_r8, 2, 256, 6, 1, 0)
} /* namespace tqi */
