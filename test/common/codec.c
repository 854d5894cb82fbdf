#include "common/codec.h"

static tq_context *ctx;

int codec_set_up(void **state) {
    (void)state;
    return tq_context_create(NULL, &ctx);
}

int codec_tear_down(void **state) {
    (void)state;
    tq_context_destroy(ctx);
    ctx = NULL;
    return 0;
}

tq_context *codec_context(void) {
    return ctx;
}

tq_codec *codec_make(tq_format format, uint32_t dim, uint64_t seed) {
    tq_codec_config c = {.struct_size = sizeof c, .format = format, .dim = dim, .seed = seed};
    tq_codec *codec = NULL;
    OK(tq_codec_create(ctx, &c, &codec));
    return codec;
}

unsigned char *codec_codes(const tq_codec *codec, const float *rows, size_t n) {
    unsigned char *codes = must_alloc(n, tq_codec_row_bytes(codec));
    tq_rows_in in = rows_in(rows);
    OK(tq_codec_encode(codec, n, &in, codes));
    return codes;
}

float *codec_rows(const tq_codec *codec, const void *codes, size_t n, uint32_t dim) {
    float *rows = must_alloc(n * dim, sizeof *rows);
    tq_rows_out out = rows_out(rows);
    OK(tq_codec_decode(codec, n, codes, &out));
    return rows;
}
