#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_polar_qjl_lm4_d128;
TQI_PREFILL_KERNEL(prefill_polar_qjl_lm4_d128, TQ_FORMAT_POLAR_QJL, TQ_FORMAT_LM4, 128)
} /* namespace tqi */
