/* Rows and codes of a study (kernel/study.h), for the public codec. */
#ifndef TQI_ENCODE_CODEC_STUDY_H
#define TQI_ENCODE_CODEC_STUDY_H

#include "kernel/study.h"

/* Bytes of scratch for each of the calls below. */
size_t tqi_codec_study_scratch(const struct tqi_study *study);
/* As their namesakes in codec_rows.h. */
void tqi_codec_study_encode(const struct tqi_study *study, uint64_t n, const tq_rows_in *rows,
                            uint8_t *codes, void *scratch);
void tqi_codec_study_decode(const struct tqi_study *study, uint64_t n, const uint8_t *codes,
                            const tq_rows_out *rows, void *scratch);
void tqi_codec_study_dot(const struct tqi_study *study, const tq_rows_in *query, uint64_t n,
                         const uint8_t *codes, float *dots, void *scratch);

#endif
