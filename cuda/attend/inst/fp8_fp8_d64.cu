#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_fp8_fp8_d64_r4, stream_fp8_fp8_d64_r8;
TQI_FAST_KERNEL(stream_fp8_fp8_d64_r4, TQ_FORMAT_FP8, TQ_FORMAT_FP8, 1, 64, 12, 2)
TQI_FAST_KERNEL(stream_fp8_fp8_d64_r8, TQ_FORMAT_FP8, TQ_FORMAT_FP8, 2, 64, 12, 2)
} /* namespace tqi */
