#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_f16_f16_d64;
TQI_PREFILL_KERNEL(prefill_f16_f16_d64, TQ_FORMAT_F16, TQ_FORMAT_F16, 64)
} /* namespace tqi */
