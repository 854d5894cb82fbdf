#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_fp8_lm4_d256;
TQI_PREFILL_KERNEL(prefill_fp8_lm4_d256, TQ_FORMAT_FP8, TQ_FORMAT_LM4, 256)
} /* namespace tqi */
