#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_lm2_qjl_lm3_d128;
TQI_PREFILL_KERNEL(prefill_lm2_qjl_lm3_d128, TQ_FORMAT_LM2_QJL, TQ_FORMAT_LM3, 128)
} /* namespace tqi */
