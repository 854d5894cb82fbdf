#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_lm3_lm3_d256;
TQI_PREFILL_KERNEL(prefill_lm3_lm3_d256, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 256)
} /* namespace tqi */
