#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_bf16_bf16_d64_r4, stream_bf16_bf16_d64_r8;
TQI_FAST_KERNEL(stream_bf16_bf16_d64_r4, TQ_FORMAT_BF16, TQ_FORMAT_BF16, 1, 64, 12, 1)
TQI_FAST_KERNEL(stream_bf16_bf16_d64_r8, TQ_FORMAT_BF16, TQ_FORMAT_BF16, 2, 64, 12, 1)
} /* namespace tqi */
