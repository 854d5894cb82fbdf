#include "prefill/kernel.cuh"

namespace tqi {
extern const PrefillKernel prefill_int8_int8_d256;
TQI_PREFILL_KERNEL(prefill_int8_int8_d256, TQ_FORMAT_INT8, TQ_FORMAT_INT8, 256)
} /* namespace tqi */
