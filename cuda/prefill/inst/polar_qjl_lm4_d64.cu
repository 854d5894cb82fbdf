#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_polar_qjl_lm4_d64;
TQI_PREFILL_KERNEL(prefill_polar_qjl_lm4_d64, TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 64)
} /* namespace tqi */
