#include "kernel/ref/ref.h"

static const struct tqi_level level = {
    .name = "ref",
    .features = 0,
    .score_size = sizeof(double),
    .score_unit = 1,
    .query_bytes = tqk_query_bytes_ref,
    .state_bytes = tqk_state_bytes_ref,
    .scratch_bytes = tqk_scratch_bytes_ref,
    .encode_scratch = tqk_encode_scratch_ref,
    .load = tqk_load_ref,
    .widen = tqk_widen_ref,
    .store = tqk_store_ref,
    .prepare = tqk_prepare_ref,
    .softcap = tqk_softcap_ref,
    .softmax = tqk_softmax_ref,
    .state_clear = tqk_state_clear_ref,
    .state_merge = tqk_state_merge_ref,
    .state_finish = tqk_state_finish_ref,
    .decode = tqk_decode_ref,
#define TQI_FILL_ref(member, id, stage, format) \
    .member[id] = {tqk_##stage##_##format##_ref, "tqk_" #stage "_" #format "_ref"},
#define TQI_FILL_amx(member, id, stage, format)
#define TQI_FILL_avx512(member, id, stage, format)
#define TQI_FILL_avxvnni(member, id, stage, format)
#define TQI_FILL_avx2(member, id, stage, format)
#define TQI_FILL_i8mm(member, id, stage, format)
#define TQI_FILL_neon(member, id, stage, format)
#define TQI_ENCODE(id, format, level) TQI_FILL_##level(encode, id, encode, format)
#define TQI_SCORE(id, format, level) TQI_FILL_##level(score, id, score, format)
#define TQI_ACCUMULATE(id, format, level) TQI_FILL_##level(accumulate, id, accumulate, format)
#include "kernel/kernels.def"
};

const struct tqi_level *tqi_level_ref(void) {
    return &level;
}
