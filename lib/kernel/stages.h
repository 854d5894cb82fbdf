/* Declarations of every kernel of kernels.def, and of the reference stages that other levels
 * use as they are. */
#ifndef TQI_KERNEL_STAGES_H
#define TQI_KERNEL_STAGES_H

#include "kernel/kernel.h"

#define TQI_ENCODE(id, format, level) tqi_encode_fn tqk_encode_##format##_##level;
#define TQI_SCORE(id, format, level) tqi_score_fn tqk_score_##format##_##level;
#define TQI_ACCUMULATE(id, format, level) tqi_accumulate_fn tqk_accumulate_##format##_##level;
#include "kernel/kernels.def"
#undef TQI_ENCODE
#undef TQI_SCORE
#undef TQI_ACCUMULATE

tqi_load_fn tqk_load_ref;
tqi_widen_fn tqk_widen_ref;
tqi_store_fn tqk_store_ref;
tqi_decode_fn tqk_decode_ref;
size_t tqk_encode_scratch_ref(const struct tqi_rows *rows);

#endif
