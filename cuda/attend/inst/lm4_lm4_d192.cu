#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm4_lm4_d192_r4, stream_lm4_lm4_d192_r8;
TQI_FAST_KERNEL(stream_lm4_lm4_d192_r4, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 1, 192, 12, 1)
TQI_FAST_KERNEL(stream_lm4_lm4_d192_r8, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 2, 192, 8, 1)
} /* namespace tqi */
