#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_f16_f16_d128;
TQI_PREFILL_KERNEL(prefill_f16_f16_d128, TQ_FORMAT_F16, TQ_FORMAT_F16, 128)
} /* namespace tqi */
