#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_bf16_bf16_d128;
TQI_PREFILL_KERNEL(prefill_bf16_bf16_d128, TQ_FORMAT_BF16, TQ_FORMAT_BF16, 128)
} /* namespace tqi */
