#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_int8_int8_d128;
TQI_PREFILL_KERNEL(prefill_int8_int8_d128, TQ_FORMAT_INT8, TQ_FORMAT_INT8, 128)
} /* namespace tqi */
