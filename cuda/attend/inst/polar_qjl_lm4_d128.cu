#include "attend/polar.cuh"
#include "attend/sketch.cuh"
#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_polar_qjl_lm4_d128_r4, stream_polar_qjl_lm4_d128_r8;
TQI_FAST_KERNEL(stream_polar_qjl_lm4_d128_r4, TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 1, 128, 12, 2)
TQI_FAST_KERNEL(stream_polar_qjl_lm4_d128_r8, TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 2, 128, 8, 2)
} /* namespace tqi */
