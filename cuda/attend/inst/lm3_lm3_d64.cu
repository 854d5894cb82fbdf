#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm3_lm3_d64_r4, stream_lm3_lm3_d64_r8;
TQI_FAST_KERNEL(stream_lm3_lm3_d64_r4, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 1, 64, 12, 2)
TQI_FAST_KERNEL(stream_lm3_lm3_d64_r8, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 2, 64, 12, 1)
} /* namespace tqi */
