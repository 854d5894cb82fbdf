/* The AVX2 level on cores that multiply and add in one instruction: AVX-VNNI, for the integer
 * formats. The rest of it and all other formats are those of AVX2, which also codes the rows. */
#include "kernel/avxvnni/avxvnni.h"

static const struct tqi_level level = {
    .name = "avxvnni",
    .features = TQ_CPU_AVX2 | TQ_CPU_AVXVNNI,
    .score_size = sizeof(float),
    .score_unit = TQK_SCORE_UNIT,
    .query_bytes = tqk_query_bytes_avx2,
    .state_bytes = tqk_state_bytes_avx2,
    .scratch_bytes = tqk_scratch_bytes_avx2,
    .encode_scratch = tqk_encode_scratch_avx2,
    .load = tqk_load_avx2,
    .widen = tqk_widen_avx2,
    .store = tqk_store_avx2,
    .prepare = tqk_prepare_avxvnni,
    .softcap = tqk_softcap_avx2,
    .softmax = tqk_softmax_avx2,
    .state_clear = tqk_state_clear_avx2,
    .state_merge = tqk_state_merge_avx2,
    .state_finish = tqk_state_finish_avx2,
    .decode = tqk_decode_ref,
/* What has no kernel of this level is named here, so that its name tells what runs. */
#define SHARED_SCORE(id, format) \
    .score[id] = {tqk_score_##format##_avx2, "tqk_score_" #format "_avx2"},
#define SHARED_ACCUMULATE(id, format) \
    .accumulate[id] = {tqk_accumulate_##format##_avx2, "tqk_accumulate_" #format "_avx2"},
    SHARED_SCORE(TQ_FORMAT_BF16, bf16) SHARED_SCORE(TQ_FORMAT_F16, f16)
        SHARED_SCORE(TQ_FORMAT_FP8, fp8) SHARED_SCORE(TQ_FORMAT_POLAR, polar)
            SHARED_SCORE(TQ_FORMAT_POLAR_QJL, polar_qjl) SHARED_ACCUMULATE(TQ_FORMAT_BF16, bf16)
                SHARED_ACCUMULATE(TQ_FORMAT_F16, f16) SHARED_ACCUMULATE(TQ_FORMAT_FP8, fp8)
                    SHARED_ACCUMULATE(TQ_FORMAT_POLAR, polar)
#define TQI_FILL_avxvnni(member, id, stage, format) \
    .member[id] = {tqk_##stage##_##format##_avxvnni, "tqk_" #stage "_" #format "_avxvnni"},
#define TQI_FILL_ref(member, id, stage, format)
#define TQI_FILL_amx(member, id, stage, format)
#define TQI_FILL_avx512(member, id, stage, format)
#define TQI_FILL_avx2(member, id, stage, format)
#define TQI_ENCODE(id, format, level) TQI_FILL_##level(encode, id, encode, format)
#define TQI_SCORE(id, format, level) TQI_FILL_##level(score, id, score, format)
#define TQI_ACCUMULATE(id, format, level) TQI_FILL_##level(accumulate, id, accumulate, format)
#include "kernel/kernels.def"
};

const struct tqi_level *tqi_level_avxvnni(void) {
    return &level;
}
