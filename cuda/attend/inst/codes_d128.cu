#include "attend/group_stream.cuh"

namespace tqi {
extern const FastKernel wgmma_lm4_lm4_d128_r16, wgmma_lm3_lm4_d128_r16, wgmma_lm3_lm3_d128_r16,
    wgmma_int8_int8_d128_r16;
TQI_CODES_KERNEL(wgmma_lm4_lm4_d128_r16, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 4, 128, 4, 4, 1)
TQI_CODES_KERNEL(wgmma_lm3_lm4_d128_r16, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 4, 128, 4, 4, 1)
TQI_CODES_KERNEL(wgmma_lm3_lm3_d128_r16, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 4, 128, 4, 4, 1)
TQI_CODES_KERNEL(wgmma_int8_int8_d128_r16, TQ_FORMAT_INT8, TQ_FORMAT_INT8, 4, 128, 2, 3, 2)
} /* namespace tqi */
