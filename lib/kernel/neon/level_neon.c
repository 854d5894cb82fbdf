#include "kernel/neon/neon.h"

static const struct tqi_level level = {
    .name = "neon",
    .features = TQ_CPU_NEON | TQ_CPU_DOTPROD,
    .score_size = sizeof(float),
    .score_unit = TQK_SCORE_UNIT,
    .query_bytes = tqk_query_bytes_neon,
    .state_bytes = tqk_state_bytes_neon,
    .scratch_bytes = tqk_scratch_bytes_neon,
    .encode_scratch = tqk_encode_scratch_neon,
    .load = tqk_load_neon,
    .widen = tqk_widen_ref,
    .store = tqk_store_ref,
    .prepare = tqk_prepare_neon,
    .softcap = tqk_softcap_neon,
    .softmax = tqk_softmax_neon,
    .state_clear = tqk_state_clear_neon,
    .state_merge = tqk_state_merge_neon,
    .state_finish = tqk_state_finish_neon,
    .decode = tqk_decode_ref,
#define TQI_FILL_neon(member, id, stage, format) \
    .member[id] = {tqk_##stage##_##format##_neon, "tqk_" #stage "_" #format "_neon"},
#define TQI_FILL_i8mm(member, id, stage, format)
#define TQI_FILL_ref(member, id, stage, format)
#define TQI_ENCODE(id, format, level) TQI_FILL_##level(encode, id, encode, format)
#define TQI_SCORE(id, format, level) TQI_FILL_##level(score, id, score, format)
#define TQI_ACCUMULATE(id, format, level) TQI_FILL_##level(accumulate, id, accumulate, format)
#include "kernel/kernels.def"
};

const struct tqi_level *tqi_level_neon(void) {
    return &level;
}
