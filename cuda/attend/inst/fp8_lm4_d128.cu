#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_fp8_lm4_d128_r4, stream_fp8_lm4_d128_r8;
TQI_FAST_KERNEL(stream_fp8_lm4_d128_r4, TQ_FORMAT_FP8, TQ_FORMAT_LM4, 1, 128, 12, 1)
TQI_FAST_KERNEL(stream_fp8_lm4_d128_r8, TQ_FORMAT_FP8, TQ_FORMAT_LM4, 2, 128, 8, 1)
} /* namespace tqi */
