#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_fp8_lm4_d64;
TQI_PREFILL_KERNEL(prefill_fp8_lm4_d64, TQ_FORMAT_FP8, TQ_FORMAT_LM4, 64)
} /* namespace tqi */
