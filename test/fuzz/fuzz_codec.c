/* Codecs: any bytes as rows are coded to the same bytes each time and decoded to finite numbers;
 * any bytes as codes are read without harm. Buffers have just the size that the calls announce,
 * so that AddressSanitizer sees what lies beyond. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"

const char fuzz_name[] = "codec";

enum { HEAP_LIMIT = 1 << 20, MAX_ROWS = 4 };

struct codec {
    tq_codec *codec;
    uint32_t dim, n_rows;
    size_t code_bytes; /* of all rows */
};

static size_t size_of(tq_dtype dtype) {
    return dtype == TQ_F32 ? 4 : 2;
}

/* Rows at a stride; the last one ends where the block ends. */
static size_t rows_bytes(const struct codec *c, tq_dtype dtype, int64_t stride) {
    return ((size_t)stride * (c->n_rows - 1) + c->dim) * size_of(dtype);
}

/* The input's bytes, again and again. */
static void *repeated(const struct input *in, size_t bytes) {
    uint8_t *block = fuzz_alloc(bytes);
    size_t have = input_left(in);
    for (size_t i = 0; have && i < bytes; i++)
        block[i] = in->at[i % have];
    return block;
}

/* ---- reading ---------------------------------------------------------------------------- */

static void read_f32(const struct codec *c, const uint8_t *codes, int finite) {
    float *x = fuzz_alloc(rows_bytes(c, TQ_F32, c->dim));
    tq_rows_out to = {.data = x, .dtype = TQ_F32};
    MUST(tq_codec_decode(c->codec, c->n_rows, codes, &to) == TQ_OK);
    for (size_t i = 0; finite && i < (size_t)c->dim * c->n_rows; i++)
        MUST(isfinite(x[i]));
    free(x);
}

static void read_narrow(const struct codec *c, const uint8_t *codes, int64_t stride) {
    for (tq_dtype dtype = TQ_F16; dtype <= TQ_BF16; dtype++) {
        void *x = fuzz_alloc(rows_bytes(c, dtype, stride));
        tq_rows_out to = {.data = x, .token_stride = stride, .dtype = dtype};
        MUST(tq_codec_decode(c->codec, c->n_rows, codes, &to) == TQ_OK);
        free(x);
    }
}

/* Twice: a product must not depend on what was in scratch memory. */
static void read_dots(const struct codec *c, const uint8_t *codes, const struct input *in,
                      tq_dtype dtype) {
    void *q = repeated(in, c->dim * size_of(dtype));
    float *dots = fuzz_alloc(c->n_rows * sizeof *dots);
    float *again = fuzz_alloc(c->n_rows * sizeof *again);
    tq_rows_in query = {.data = q, .dtype = dtype};
    MUST(tq_codec_dot(c->codec, &query, c->n_rows, codes, dots) == TQ_OK);
    MUST(tq_codec_dot(c->codec, &query, c->n_rows, codes, again) == TQ_OK);
    for (uint32_t i = 0; i < c->n_rows; i++)
        MUST(memcmp(&dots[i], &again[i], sizeof *dots) == 0 || isnan(dots[i]));
    free(q);
    free(dots);
    free(again);
}

/* ---- writing ---------------------------------------------------------------------------- */

static uint8_t *encode(const struct codec *c, const tq_rows_in *rows, uint8_t before) {
    uint8_t *codes = fuzz_alloc(c->code_bytes);
    memset(codes, before, c->code_bytes);
    MUST(tq_codec_encode(c->codec, c->n_rows, rows, codes) == TQ_OK);
    return codes;
}

static void try_rows(const struct codec *c, const struct input *in, tq_dtype dtype,
                     int64_t stride) {
    void *data = repeated(in, rows_bytes(c, dtype, stride));
    tq_rows_in rows = {.data = data, .token_stride = stride, .dtype = dtype};
    uint8_t *codes = encode(c, &rows, 0), *again = encode(c, &rows, 0xff);
    MUST(memcmp(codes, again, c->code_bytes) == 0);
    read_f32(c, codes, 1);
    read_narrow(c, codes, stride);
    read_dots(c, codes, in, dtype);
    free(again);
    free(codes);
    free(data);
}

static void try_codes(const struct codec *c, const struct input *in, tq_dtype dtype,
                      int64_t stride) {
    uint8_t *codes = repeated(in, c->code_bytes);
    read_f32(c, codes, 0);
    read_narrow(c, codes, stride);
    read_dots(c, codes, in, dtype);
    free(codes);
}

static tq_format format_at(uint32_t index) {
    tq_format_info info = {.struct_size = sizeof info};
    MUST(tq_format_get(index, &info) == TQ_OK);
    return info.id;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint32_t dims[] = {32, 64, 80, 96, 112, 128, 160, 224, 256, 576, 48, 144};
    struct input in = input_of(data, size);
    struct fuzz_heap heap = {.limit = HEAP_LIMIT};
    tq_context *ctx = fuzz_context(&heap, NULL, 0);
    tq_codec_config config = {.struct_size = sizeof config};
    struct codec c = {0};
    config.format = format_at(take_below(&in, tq_format_count()));
    config.dim = c.dim = dims[take_below(&in, sizeof dims / sizeof *dims)];
    config.seed = take8(&in);
    c.n_rows = 1 + take_below(&in, MAX_ROWS);
    tq_dtype dtype = (tq_dtype)take_below(&in, 3);
    int64_t stride = (int64_t)c.dim + take_below(&in, 8);
    if (tq_codec_create(ctx, &config, &c.codec) == TQ_OK) {
        c.code_bytes = tq_codec_row_bytes(c.codec) * c.n_rows;
        try_rows(&c, &in, dtype, stride);
        try_codes(&c, &in, dtype, stride);
    }
    tq_codec_destroy(c.codec);
    tq_context_destroy(ctx);
    MUST(heap.live == 0);
    return 0;
}
