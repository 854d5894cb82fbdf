#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_f16_f16_d256;
TQI_PREFILL_KERNEL(prefill_f16_f16_d256, TQ_FORMAT_F16, TQ_FORMAT_F16, 256)
} /* namespace tqi */
