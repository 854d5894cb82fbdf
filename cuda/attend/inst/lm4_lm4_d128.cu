#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm4_lm4_d128_r4, stream_lm4_lm4_d128_r8, stream_lm4_lm4_d128_r16;
TQI_FAST_KERNEL(stream_lm4_lm4_d128_r4, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 1, 128, 12, 1)
TQI_FAST_KERNEL(stream_lm4_lm4_d128_r8, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 2, 128, 12, 1)
TQI_FAST_KERNEL(stream_lm4_lm4_d128_r16, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 4, 128, 8, 2)
} /* namespace tqi */
