#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_lm3_lm4_d256;
TQI_PREFILL_KERNEL(prefill_lm3_lm4_d256, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 256)
} /* namespace tqi */
