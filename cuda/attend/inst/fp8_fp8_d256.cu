#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_fp8_fp8_d256_r4, stream_fp8_fp8_d256_r8;
TQI_FAST_KERNEL(stream_fp8_fp8_d256_r4, TQ_FORMAT_FP8, TQ_FORMAT_FP8, 1, 256, 6, 1)
TQI_FAST_KERNEL(stream_fp8_fp8_d256_r8, TQ_FORMAT_FP8, TQ_FORMAT_FP8, 2, 256, 6, 1)
} /* namespace tqi */
