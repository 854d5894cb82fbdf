#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_bf16_bf16_d64;
TQI_PREFILL_KERNEL(prefill_bf16_bf16_d64, TQ_FORMAT_BF16, TQ_FORMAT_BF16, 64)
} /* namespace tqi */
