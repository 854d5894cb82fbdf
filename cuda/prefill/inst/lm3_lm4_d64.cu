#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_lm3_lm4_d64;
TQI_PREFILL_KERNEL(prefill_lm3_lm4_d64, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 64)
} /* namespace tqi */
