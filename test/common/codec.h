/* What the tests of the codec share: a context for a group of tests, codecs, codes of rows. */
#ifndef TEST_COMMON_CODEC_H
#define TEST_COMMON_CODEC_H

#include "common/rig.h"

/* Set-up and tear-down of a group; the context in between. */
int codec_set_up(void **state);
int codec_tear_down(void **state);
tq_context *codec_context(void);

tq_codec *codec_make(tq_format format, uint32_t dim, uint64_t seed);
/* n rows to codes, and back, in new memory. */
unsigned char *codec_codes(const tq_codec *codec, const float *rows, size_t n);
float *codec_rows(const tq_codec *codec, const void *codes, size_t n, uint32_t dim);

#endif
