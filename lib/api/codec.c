#include "api/codec.h"

#include "encode/codec_page.h"

/* Longer rows are scored by the reference: fixed-point queries would have too few bits, since
 * their sums must fit 32. */
enum { MAX_CODEC_DIM = 4096, MAX_FAST_DIM = 1024 };

tq_status tqi_codec_check(const tq_context *ctx, const tq_codec_config *c,
                          const struct tqi_format **format) {
    struct tqi_rotation split;
    TQI_REQUIRE((c->flags & ~TQ_CODEC_UNBIASED) == 0, "codec config: unknown flags 0x%x", c->flags);
    if (ctx->device.page_memory != TQ_MEM_HOST)
        return tqi_fail(TQ_ERR_UNSUPPORTED, "codec: only CPU contexts have codecs");
    TQI_REQUIRE(c->format != 0, "format: required");
    *format = tqi_format_by_id(c->format);
    if (!*format)
        return tqi_fail(TQ_ERR_NOT_FOUND, "no format with id %u", c->format);
    bool plain = (*format)->kind == TQI_KIND_LM || (*format)->kind == TQI_KIND_INT8;
    if (c->flags & TQ_CODEC_UNBIASED && (!plain || (*format)->sketch))
        return tqi_fail(TQ_ERR_UNSUPPORTED, "flags: format %s has no unbiased gains",
                        (*format)->name);
    TQI_REQUIRE(c->dim >= 32 && c->dim <= MAX_CODEC_DIM && c->dim % TQI_POLAR_BLOCK == 0,
                "dim: %u is not a multiple of 16 in 32 to %d", c->dim, MAX_CODEC_DIM);
    if (tqi_format_rotates(*format) && !tqi_rotation_split(c->dim, &split))
        return tqi_fail(TQ_ERR_UNSUPPORTED, "dim: %u, format %s: %s", c->dim, (*format)->name,
                        tqi_rows_check_dim(*format, c->dim, MAX_CODEC_DIM));
    return TQ_OK;
}

/* Dots run in the level that has kernels for keys of the format; the values of its pages are not
 * there to be read. */
static void choose_kernels(tq_codec *codec, const struct tqi_kernels *kernels, uint32_t dim) {
    const struct tqi_format *f = codec->rows.rows.format, *v = tqi_format_by_id(TQ_FORMAT_LM2);
    struct tqi_page_layout page;
    tqi_page_layout_make(&page, f, dim, v, dim, TQI_CODEC_PAGE_TOKENS);
    codec->rows.keys = codec->rows.rows;
    codec->rows.keys.layout = page.k;
    codec->rows.page_bytes = page.bytes;
    codec->rows.encode = tqi_kernels_encode(kernels, f->id);
    codec->rows.score = dim > MAX_FAST_DIM
                            ? tqi_level_ref()
                            : tqi_level_for(tqi_kernels_attend(kernels, f->id, v->id), 1);
}

static tq_status fill(tq_codec *codec, const tq_context *ctx, const tq_codec_config *c,
                      const struct tqi_format *f) {
    struct tqi_layout layout;
    codec->n_flips = tqi_rows_flips(f, c->dim);
    codec->flips = tqi_calloc(&codec->heap, codec->n_flips, sizeof *codec->flips);
    if (!codec->flips)
        return TQ_ERR_OUT_OF_MEMORY;
    codec->rows.row_bytes = tqi_row_layout_make(&layout, f, c->dim);
    tqi_rows_init(&codec->rows.rows, f, &layout, c->seed, codec->flips);
    codec->rows.unbiased = (c->flags & TQ_CODEC_UNBIASED) != 0;
    choose_kernels(codec, &ctx->kernels, c->dim);
    return TQ_OK;
}

tq_status tqi_codec_start(tq_context *ctx, tq_codec **out) {
    struct tqi_heap heap = tqi_heap_like(&ctx->heap);
    tq_codec *codec = tqi_calloc(&heap, 1, sizeof *codec);
    if (!codec)
        return TQ_ERR_OUT_OF_MEMORY;
    codec->heap = heap;
    *out = codec;
    return TQ_OK;
}

tq_status tq_codec_create(tq_context *ctx, const tq_codec_config *config, tq_codec **out) {
    tq_codec_config c;
    const struct tqi_format *format = NULL;
    TQI_REQUIRE(ctx && config && out, "context, config and out: must not be NULL");
    TQI_TRY(tqi_struct_in("codec config", &c, sizeof c, sizeof c, config));
    tq_codec *codec;
    TQI_TRY(tqi_codec_check(ctx, &c, &format));
    TQI_TRY(tqi_codec_start(ctx, &codec));
    tq_status status = fill(codec, ctx, &c, format);
    if (status != TQ_OK) {
        tq_codec_destroy(codec);
        return status;
    }
    *out = codec;
    return TQ_OK;
}

void tq_codec_destroy(tq_codec *codec) {
    if (!codec)
        return;
    struct tqi_heap heap = codec->heap;
    tqi_free(&heap, codec->study, 1, sizeof *codec->study, TQ_MEM_HOST);
    tqi_free(&heap, codec->flips, codec->n_flips, sizeof *codec->flips, TQ_MEM_HOST);
    tqi_free(&heap, codec, 1, sizeof *codec, TQ_MEM_HOST);
}

size_t tq_codec_row_bytes(const tq_codec *codec) {
    return codec ? codec->rows.row_bytes : 0;
}

static size_t scratch_bytes(const tq_codec *codec) {
    return codec->study ? tqi_codec_study_scratch(codec->study) : tqi_codec_scratch(&codec->rows);
}

/* The calls below take scratch from the allocator: codecs may be used by many threads. */
static void *take_scratch(const tq_codec *codec, struct tqi_heap *heap) {
    *heap = tqi_heap_like(&codec->heap);
    return tqi_alloc(heap, 1, scratch_bytes(codec), TQ_MEM_HOST);
}

static void give_scratch(const tq_codec *codec, struct tqi_heap *heap, void *scratch) {
    tqi_free(heap, scratch, 1, scratch_bytes(codec), TQ_MEM_HOST);
}

tq_status tq_codec_encode(const tq_codec *codec, uint64_t n_rows, const tq_rows_in *rows,
                          void *codes) {
    struct tqi_heap heap;
    tq_rows_in in;
    TQI_REQUIRE(codec && codes, "codec and codes: must not be NULL");
    TQI_TRY(tqi_check_rows_in("rows", rows, 1, codec->rows.rows.layout.dim, &in));
    TQI_REQUIRE(rows->head_stride == 0, "rows: head_stride must be 0");
    void *scratch = take_scratch(codec, &heap);
    if (!scratch)
        return TQ_ERR_OUT_OF_MEMORY;
    if (codec->study)
        tqi_codec_study_encode(codec->study, n_rows, &in, codes, scratch);
    else
        tqi_codec_encode_rows(&codec->rows, n_rows, &in, codes, scratch);
    give_scratch(codec, &heap, scratch);
    return TQ_OK;
}

tq_status tq_codec_decode(const tq_codec *codec, uint64_t n_rows, const void *codes,
                          const tq_rows_out *rows) {
    struct tqi_heap heap;
    tq_rows_out to;
    TQI_REQUIRE(codec && codes, "codec and codes: must not be NULL");
    TQI_TRY(tqi_check_rows_out("rows", rows, 1, codec->rows.rows.layout.dim, &to));
    TQI_REQUIRE(rows->head_stride == 0, "rows: head_stride must be 0");
    void *scratch = take_scratch(codec, &heap);
    if (!scratch)
        return TQ_ERR_OUT_OF_MEMORY;
    if (codec->study)
        tqi_codec_study_decode(codec->study, n_rows, codes, &to, scratch);
    else
        tqi_codec_decode_rows(&codec->rows, n_rows, codes, &to, scratch);
    give_scratch(codec, &heap, scratch);
    return TQ_OK;
}

tq_status tq_codec_dot(const tq_codec *codec, const tq_rows_in *query, uint64_t n_rows,
                       const void *codes, float *dots) {
    struct tqi_heap heap;
    tq_rows_in in;
    TQI_REQUIRE(codec && codes && dots, "codec, codes and dots: must not be NULL");
    TQI_TRY(tqi_check_rows_in("query", query, 1, codec->rows.rows.layout.dim, &in));
    TQI_REQUIRE(query->head_stride == 0 && query->token_stride == 0, "query: strides must be 0");
    void *scratch = take_scratch(codec, &heap);
    if (!scratch)
        return TQ_ERR_OUT_OF_MEMORY;
    if (codec->study)
        tqi_codec_study_dot(codec->study, &in, n_rows, codes, dots, scratch);
    else
        tqi_codec_dot_rows(&codec->rows, &in, n_rows, codes, dots, scratch);
    give_scratch(codec, &heap, scratch);
    return TQ_OK;
}
