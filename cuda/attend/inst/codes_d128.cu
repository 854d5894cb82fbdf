#include "attend/group_kernels.cuh"

namespace tqi {
extern const FastKernel wgmma_lm4_lm4_d128_r16, wgmma_lm3_lm4_d128_r16, wgmma_lm3_lm3_d128_r16,
    wgmma_int8_int8_d128_r16;
TQI_CODES_KERNEL(wgmma_lm4_lm4_d128_r16, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 4, 4, 1)
TQI_CODES_KERNEL(wgmma_lm3_lm4_d128_r16, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 128, 4, 4, 1)
TQI_CODES_KERNEL(wgmma_lm3_lm3_d128_r16, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 128, 4, 4, 1)
TQI_CODES_KERNEL(wgmma_int8_int8_d128_r16, TQ_FORMAT_INT8, TQ_FORMAT_INT8, 128, 2, 3, 2)

extern const FastKernel stream_lm4_lm4_d128_r8, stream_lm3_lm4_d128_r8, stream_lm3_lm3_d128_r8;
extern const FastKernel wgmma_lm4_lm4_d128_r8, wgmma_lm3_lm4_d128_r8, wgmma_lm3_lm3_d128_r8;
TQI_CODES8_KERNEL(wgmma_lm4_lm4_d128_r8, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 4, 4, 1,
                  stream_lm4_lm4_d128_r8, wgmma_lm4_lm4_d128_r16, 8, TQI_LONG_TOKENS)
TQI_CODES8_KERNEL(wgmma_lm3_lm4_d128_r8, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 128, 4, 4, 1,
                  stream_lm3_lm4_d128_r8, wgmma_lm3_lm4_d128_r16, 8, TQI_LONG_TOKENS)
TQI_CODES8_KERNEL(wgmma_lm3_lm3_d128_r8, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 128, 4, 4, 1,
                  stream_lm3_lm3_d128_r8, wgmma_lm3_lm3_d128_r16, 8, TQI_LONG_TOKENS)

/* The same code in the place of tiles of four rows: half of its rows are nobody's, but it reads
 * long sequences faster. */
extern const FastKernel stream_lm4_lm4_d128_r4, stream_lm3_lm4_d128_r4, stream_lm3_lm3_d128_r4;
extern const FastKernel wgmma_lm4_lm4_d128_r4, wgmma_lm3_lm4_d128_r4, wgmma_lm3_lm3_d128_r4;
TQI_CODES8_KERNEL(wgmma_lm4_lm4_d128_r4, TQ_FORMAT_LM4, TQ_FORMAT_LM4, 128, 4, 4, 1,
                  stream_lm4_lm4_d128_r4, wgmma_lm4_lm4_d128_r16, 4, 8 * TQI_LONG_TOKENS)
TQI_CODES8_KERNEL(wgmma_lm3_lm4_d128_r4, TQ_FORMAT_LM3, TQ_FORMAT_LM4, 128, 4, 4, 1,
                  stream_lm3_lm4_d128_r4, wgmma_lm3_lm4_d128_r16, 4, 8 * TQI_LONG_TOKENS)
TQI_CODES8_KERNEL(wgmma_lm3_lm3_d128_r4, TQ_FORMAT_LM3, TQ_FORMAT_LM3, 128, 4, 4, 1,
                  stream_lm3_lm3_d128_r4, wgmma_lm3_lm3_d128_r16, 4, 8 * TQI_LONG_TOKENS)
} /* namespace tqi */
