/* Rows and codes without pages, for the public codec. */
#ifndef TQI_ENCODE_CODEC_ROWS_H
#define TQI_ENCODE_CODEC_ROWS_H

#include "kernel/kernel.h"

struct tqi_codec_rows {
    struct tqi_rows rows; /* row form */
    size_t row_bytes;
    struct tqi_rows keys; /* the same as keys of a page, see codec_page.h */
    size_t page_bytes;
    const struct tqi_level *encode, *score;
    bool unbiased; /* gains by codec_gain.h */
};

/* Bytes of scratch for each of the calls below. */
size_t tqi_codec_scratch(const struct tqi_codec_rows *c);
/* strides resolved; scratch aligned for doubles. */
void tqi_codec_encode_rows(const struct tqi_codec_rows *c, uint64_t n, const tq_rows_in *rows,
                           uint8_t *codes, void *scratch);
void tqi_codec_decode_rows(const struct tqi_codec_rows *c, uint64_t n, const uint8_t *codes,
                           const tq_rows_out *rows, void *scratch);
void tqi_codec_dot_rows(const struct tqi_codec_rows *c, const tq_rows_in *query, uint64_t n,
                        const uint8_t *codes, float *dots, void *scratch);

#endif
