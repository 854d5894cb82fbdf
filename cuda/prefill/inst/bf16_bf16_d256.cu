#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_bf16_bf16_d256;
TQI_PREFILL_KERNEL(prefill_bf16_bf16_d256, TQ_FORMAT_BF16, TQ_FORMAT_BF16, 256)
} /* namespace tqi */
