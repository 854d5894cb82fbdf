#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm4_lm4_d256_r4, stream_lm4_lm4_d256_r8;
TQI_FAST_KERNEL(stream_lm4_lm4_d256_r4, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 1, 256, 12, 1)
TQI_FAST_KERNEL(stream_lm4_lm4_d256_r8, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 2, 256, 8, 1)
} /* namespace tqi */
