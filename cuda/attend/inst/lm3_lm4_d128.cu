#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm3_lm4_d128_r4, stream_lm3_lm4_d128_r8;
TQI_FAST_KERNEL(stream_lm3_lm4_d128_r4, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 1, 128, 12, 1)
TQI_FAST_KERNEL(stream_lm3_lm4_d128_r8, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 2, 128, 12, 1)
} /* namespace tqi */
