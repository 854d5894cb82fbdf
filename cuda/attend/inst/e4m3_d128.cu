#include "attend/e4m3_stream.cuh"
#include "attend/group_kernels.cuh"

namespace tqi {
extern const FastKernel wgmma_fp8_fp8_d128_r4, wgmma_fp8_fp8_d128_r8, wgmma_fp8_fp8_d128_r16;
extern const FastKernel mma8_fp8_fp8_d128_r4, mma8_fp8_fp8_d128_r8;
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d128_r4, 1, 128, 3, 2, 0)
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d128_r8, 2, 128, 3, 2, 0)
TQI_WGMMA_KERNEL(wgmma_fp8_fp8_d128_r16, 4, 128, 3, 2, 1)
TQI_E4M3_KERNEL(mma8_fp8_fp8_d128_r4, 1, 128, 8, 1, 0)
TQI_E4M3_KERNEL(mma8_fp8_fp8_d128_r8, 2, 128, 8, 1, 0)
} /* namespace tqi */
