#include "attend/stream.cuh"

namespace tqi {
extern const FastKernel stream_bf16_bf16_d128_r4, stream_bf16_bf16_d128_r8;
TQI_FAST_KERNEL(stream_bf16_bf16_d128_r4, TQ_FORMAT_BF16, TQ_FORMAT_BF16, 1, 128, 7, 1)
TQI_FAST_KERNEL(stream_bf16_bf16_d128_r8, TQ_FORMAT_BF16, TQ_FORMAT_BF16, 2, 128, 7, 1)
} /* namespace tqi */
