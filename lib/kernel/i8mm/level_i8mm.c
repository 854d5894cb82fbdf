#include "kernel/i8mm/i8mm.h"

static const struct tqi_level level = {
    .name = "i8mm",
    .features = TQ_CPU_NEON | TQ_CPU_DOTPROD | TQ_CPU_I8MM,
    .score_size = sizeof(float),
    .score_unit = TQK_SCORE_UNIT,
    .query_bytes = tqk_query_bytes_neon,
    .state_bytes = tqk_state_bytes_neon,
    .scratch_bytes = tqk_scratch_bytes_neon,
    .encode_scratch = tqk_encode_scratch_neon,
    .load = tqk_load_neon,
    .widen = tqk_widen_ref,
    .store = tqk_store_ref,
    .prepare = tqk_prepare_i8mm,
    .softcap = tqk_softcap_neon,
    .softmax = tqk_softmax_neon,
    .state_clear = tqk_state_clear_neon,
    .state_merge = tqk_state_merge_neon,
    .state_finish = tqk_state_finish_neon,
    .decode = tqk_decode_ref,
/* What has no kernel of this level is named here, so that its name tells what runs. */
#define SHARED(stage, id, format) \
    .stage[id] = {tqk_##stage##_##format##_neon, "tqk_" #stage "_" #format "_neon"}
    SHARED(score, TQ_FORMAT_BF16, bf16),
    SHARED(score, TQ_FORMAT_F16, f16),
    SHARED(score, TQ_FORMAT_FP8, fp8),
    SHARED(score, TQ_FORMAT_POLAR, polar),
    SHARED(score, TQ_FORMAT_POLAR_QJL, polar_qjl),
    SHARED(accumulate, TQ_FORMAT_BF16, bf16),
    SHARED(accumulate, TQ_FORMAT_F16, f16),
    SHARED(accumulate, TQ_FORMAT_FP8, fp8),
    SHARED(accumulate, TQ_FORMAT_POLAR, polar),
#define TQI_FILL_i8mm(member, id, stage, format) \
    .member[id] = {tqk_##stage##_##format##_i8mm, "tqk_" #stage "_" #format "_i8mm"},
#define TQI_FILL_neon(member, id, stage, format)
#define TQI_FILL_ref(member, id, stage, format)
/* Rows are coded by NEON. */
#define TQI_ENCODE(id, format, level) ENCODE_##level(id, format)
#define ENCODE_neon(id, format) SHARED(encode, id, format),
#define ENCODE_ref(id, format)
#define TQI_SCORE(id, format, level) TQI_FILL_##level(score, id, score, format)
#define TQI_ACCUMULATE(id, format, level) TQI_FILL_##level(accumulate, id, accumulate, format)
#include "kernel/kernels.def"
};

const struct tqi_level *tqi_level_i8mm(void) {
    return &level;
}
