#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_lm3_lm2_d128;
TQI_PREFILL_KERNEL(prefill_lm3_lm2_d128, TQ_FORMAT_LM3, TQ_FORMAT_LM2, 128)
} /* namespace tqi */
