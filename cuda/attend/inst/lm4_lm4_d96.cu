#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm4_lm4_d96_r4, stream_lm4_lm4_d96_r8;
TQI_FAST_KERNEL(stream_lm4_lm4_d96_r4, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 1, 96, 12, 1)
TQI_FAST_KERNEL(stream_lm4_lm4_d96_r8, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 2, 96, 12, 1)
} /* namespace tqi */
