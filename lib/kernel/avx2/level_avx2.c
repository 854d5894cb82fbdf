#include "kernel/avx2/avx2.h"

static const struct tqi_level level = {
    .name = "avx2",
    .features = TQ_CPU_AVX2,
    .score_size = sizeof(float),
    .score_unit = TQK_SCORE_UNIT,
    .query_bytes = tqk_query_bytes_avx2,
    .state_bytes = tqk_state_bytes_avx2,
    .scratch_bytes = tqk_scratch_bytes_avx2,
    .encode_scratch = tqk_encode_scratch_avx2,
    .load = tqk_load_avx2,
    .widen = tqk_widen_avx2,
    .store = tqk_store_avx2,
    .prepare = tqk_prepare_avx2,
    .softcap = tqk_softcap_avx2,
    .softmax = tqk_softmax_avx2,
    .state_clear = tqk_state_clear_avx2,
    .state_merge = tqk_state_merge_avx2,
    .state_finish = tqk_state_finish_avx2,
    .decode = tqk_decode_ref,
#define TQI_FILL_avx2(member, id, stage, format) \
    .member[id] = {tqk_##stage##_##format##_avx2, "tqk_" #stage "_" #format "_avx2"},
#define TQI_FILL_avxvnni(member, id, stage, format)
#define TQI_FILL_amx(member, id, stage, format)
#define TQI_FILL_ref(member, id, stage, format)
#define TQI_FILL_avx512(member, id, stage, format)
#define TQI_ENCODE(id, format, level) TQI_FILL_##level(encode, id, encode, format)
#define TQI_SCORE(id, format, level) TQI_FILL_##level(score, id, score, format)
#define TQI_ACCUMULATE(id, format, level) TQI_FILL_##level(accumulate, id, accumulate, format)
#include "kernel/kernels.def"
};

const struct tqi_level *tqi_level_avx2(void) {
    return &level;
}
