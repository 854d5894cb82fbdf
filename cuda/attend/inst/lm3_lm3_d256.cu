#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm3_lm3_d256_r4, stream_lm3_lm3_d256_r8;
TQI_FAST_KERNEL(stream_lm3_lm3_d256_r4, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 1, 256, 12, 1)
TQI_FAST_KERNEL(stream_lm3_lm3_d256_r8, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 2, 256, 8, 1)
} /* namespace tqi */
