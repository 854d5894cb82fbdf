#include "attend/sketch.cuh"
#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_lm2_qjl_lm3_d64_r4, stream_lm2_qjl_lm3_d64_r8;
TQI_FAST_KERNEL(stream_lm2_qjl_lm3_d64_r4, TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3, 1, 64, 12, 2)
TQI_FAST_KERNEL(stream_lm2_qjl_lm3_d64_r8, TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3, 2, 64, 12, 2)
} /* namespace tqi */
