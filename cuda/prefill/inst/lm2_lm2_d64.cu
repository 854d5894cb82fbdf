#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_lm2_lm2_d64;
TQI_PREFILL_KERNEL(prefill_lm2_lm2_d64, TQ_FORMAT_LM2, TQ_FORMAT_LM2, 64)
} /* namespace tqi */
