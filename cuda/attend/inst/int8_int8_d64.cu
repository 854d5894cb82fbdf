#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_int8_int8_d64_r4, stream_int8_int8_d64_r8;
TQI_FAST_KERNEL(stream_int8_int8_d64_r4, TQ_FORMAT_INT8, TQ_FORMAT_INT8, 1, 64, 12, 2)
TQI_FAST_KERNEL(stream_int8_int8_d64_r8, TQ_FORMAT_INT8, TQ_FORMAT_INT8, 2, 64, 12, 1)
} /* namespace tqi */
