#include "kernel/amx/amx.h"
#include "kernel/avx512/weights_avx512.h"

size_t tqk_scratch_bytes_amx(const struct tqi_rows *rows) {
    uint32_t steps = tqk_dim_tiles_amx(&rows->layout);
    size_t few = tqk_room_amx(1, steps).end, many = tqk_room_amx(TQK_TILE_ROWS_AVX512, steps).end;
    if (!tqk_is_tiled_amx(rows))
        return tqk_scratch_bytes_avx512(rows);
    return few > many ? few : many;
}

static const struct tqi_level level = {
    .name = "amx",
    .features = TQ_CPU_AVX2 | TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI | TQ_CPU_AMX,
    .score_size = sizeof(float),
    .score_unit = TQK_SCORE_UNIT,
    .query_bytes = tqk_query_bytes_amx,
    .state_bytes = tqk_state_bytes_avx512,
    .scratch_bytes = tqk_scratch_bytes_amx,
    .encode_scratch = tqk_encode_scratch_avx512,
    .few = tqi_level_avx512,
    .few_rows = 2,
    .enter = tqk_enter_amx,
    .leave = tqk_leave_amx,
    .load = tqk_load_avx512,
    .widen = tqk_widen_avx512,
    .store = tqk_store_avx512,
    .prepare = tqk_prepare_amx,
    .softcap = tqk_softcap_avx512,
    .softmax = tqk_softmax_avx512,
    .state_clear = tqk_state_clear_avx512,
    .state_merge = tqk_state_merge_avx512,
    .state_finish = tqk_state_finish_avx512,
    .decode = tqk_decode_ref,
/* What has no kernel of this level is named here, so that its name tells what runs. */
#define SHARED_SCORE(id, format) \
    .score[id] = {tqk_score_##format##_avx512, "tqk_score_" #format "_avx512"},
#define SHARED_ACCUMULATE(id, format) \
    .accumulate[id] = {tqk_accumulate_##format##_avx512, "tqk_accumulate_" #format "_avx512"},
    SHARED_SCORE(TQ_FORMAT_BF16, bf16) SHARED_SCORE(TQ_FORMAT_F16, f16)
        SHARED_SCORE(TQ_FORMAT_FP8, fp8) SHARED_SCORE(TQ_FORMAT_POLAR, polar)
            SHARED_SCORE(TQ_FORMAT_POLAR_QJL, polar_qjl) SHARED_SCORE(TQ_FORMAT_LM3_QJL, lm3_qjl)
                SHARED_SCORE(TQ_FORMAT_LM2_QJL, lm2_qjl) SHARED_ACCUMULATE(TQ_FORMAT_BF16, bf16)
                    SHARED_ACCUMULATE(TQ_FORMAT_F16, f16) SHARED_ACCUMULATE(TQ_FORMAT_FP8, fp8)
                        SHARED_ACCUMULATE(TQ_FORMAT_POLAR, polar)
#define TQI_FILL_amx(member, id, stage, format) \
    .member[id] = {tqk_##stage##_##format##_amx, "tqk_" #stage "_" #format "_amx"},
#define TQI_FILL_avxvnni(member, id, stage, format)
#define TQI_FILL_ref(member, id, stage, format)
#define TQI_FILL_avx512(member, id, stage, format)
#define TQI_FILL_avx2(member, id, stage, format)
#define TQI_SCORE(id, format, level) TQI_FILL_##level(score, id, score, format)
#define TQI_ACCUMULATE(id, format, level) TQI_FILL_##level(accumulate, id, accumulate, format)
/* Rows are coded by AVX-512. */
#define TQI_ENCODE(id, format, level) ENCODE_##level(id, format)
#define ENCODE_avx512(id, format) \
    .encode[id] = {tqk_encode_##format##_avx512, "tqk_encode_" #format "_avx512"},
#define ENCODE_amx(id, format)
#define ENCODE_avx2(id, format)
#define ENCODE_ref(id, format)
#include "kernel/kernels.def"
};

const struct tqi_level *tqi_level_amx(void) {
    return &level;
}
