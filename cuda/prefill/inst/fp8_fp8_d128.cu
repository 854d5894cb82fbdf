#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_fp8_fp8_d128;
TQI_PREFILL_KERNEL(prefill_fp8_fp8_d128, TQ_FORMAT_FP8, TQ_FORMAT_FP8, 128)
} /* namespace tqi */
