#include "encode/codec_rows.h"

#include <string.h>

#include "base/checked.h"
#include "encode/codec_gain.h"
#include "encode/codec_page.h"
#include "encode/encode.h"

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Row, query and kernel scratch, each a multiple of 64 bytes. */
static size_t row_scratch(const struct tqi_codec_rows *c) {
    return tqi_align_up(c->rows.layout.dim * sizeof(double), 64);
}

static size_t query_scratch(const struct tqi_codec_rows *c) {
    return tqi_align_up(c->score->query_bytes(&c->keys), 64);
}

size_t tqi_codec_scratch(const struct tqi_codec_rows *c) {
    size_t kernel =
        max_size(c->score->scratch_bytes(&c->keys), tqi_level_ref()->scratch_bytes(&c->rows));
    size_t reading = row_scratch(c) + query_scratch(c) + tqi_align_up(c->page_bytes, 64) +
                     tqi_align_up(kernel, 64);
    return max_size(reading, c->encode->encode_scratch(&c->rows) * sizeof(float));
}

void tqi_codec_encode_rows(const struct tqi_codec_rows *c, uint64_t n, const tq_rows_in *rows,
                           uint8_t *codes, void *scratch) {
    struct tqi_nonfinite ignored = {0, 0};
    float *x = scratch;
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *code = codes + i * c->row_bytes;
        memset(code, 0, c->row_bytes); /* bits of padding dims are zero */
        c->encode->load(tqi_row_in(rows, i, 0), rows->dtype, c->rows.layout.dim, NULL, x, &ignored);
        c->encode->encode[c->rows.format->id].run(&c->rows, 1, x, code, 0);
        if (c->unbiased)
            tqi_codec_unbias(&c->rows, x, code);
    }
}

void tqi_codec_decode_rows(const struct tqi_codec_rows *c, uint64_t n, const uint8_t *codes,
                           const tq_rows_out *rows, void *scratch) {
    const struct tqi_level *level = tqi_level_ref();
    double *row = scratch;
    void *kernel = (char *)scratch + row_scratch(c);
    for (uint64_t i = 0; i < n; i++) {
        struct tqi_tile tile = {.blob = codes + i * c->row_bytes, .last = 1, .scale = 1};
        level->decode(&c->rows, &tile, 0, row, kernel);
        int64_t at = (int64_t)i * rows->token_stride * (rows->dtype == TQ_F32 ? 4 : 2);
        level->store(row, c->rows.layout.dim, rows->dtype, (char *)rows->data + at);
    }
}

/* The reference reads rows as they are; the other levels want tokens side by side. */
static void dot_reference(const struct tqi_codec_rows *c, const char *query, uint64_t n,
                          const uint8_t *codes, float *dots, void *scratch) {
    for (uint64_t i = 0; i < n; i++) {
        struct tqi_tile tile = {.blob = codes + i * c->row_bytes, .last = 1, .scale = 1};
        double dot;
        c->score->score[c->rows.format->id].run(&c->rows, &tile, query, 1, 1, &dot, scratch);
        dots[i] = (float)dot;
    }
}

static void dot_pages(const struct tqi_codec_rows *c, const char *query, uint64_t n,
                      const uint8_t *codes, float *dots, uint8_t *page, void *scratch) {
    float scores[TQI_CODEC_PAGE_TOKENS];
    struct tqi_tile tile = {.blob = page, .scale = 1};
    for (uint64_t i = 0; i < n; i += tile.last) {
        tile.last = (uint32_t)(n - i < TQI_CODEC_PAGE_TOKENS ? n - i : TQI_CODEC_PAGE_TOKENS);
        tqi_codec_page(&c->rows.layout, &c->keys.layout, codes + i * c->row_bytes, c->row_bytes,
                       tile.last, page);
        c->score->score[c->keys.format->id].run(&c->keys, &tile, query, 1, TQI_CODEC_PAGE_TOKENS,
                                                scores, scratch);
        for (uint32_t t = 0; t < tile.last; t++)
            dots[i + t] = (float)((double)scores[t] * c->score->score_unit);
    }
}

void tqi_codec_dot_rows(const struct tqi_codec_rows *c, const tq_rows_in *query, uint64_t n,
                        const uint8_t *codes, float *dots, void *scratch) {
    struct tqi_nonfinite ignored = {0, 0};
    float *row = scratch;
    char *prepared = (char *)scratch + row_scratch(c), *page = prepared + query_scratch(c);
    char *kernel = page + tqi_align_up(c->page_bytes, 64);
    c->score->load(query->data, query->dtype, c->rows.layout.dim, NULL, row, &ignored);
    c->score->prepare(&c->keys, row, prepared);
    tqi_level_enter(c->score, 1);
    if (c->score->score_size == sizeof(double))
        dot_reference(c, prepared, n, codes, dots, kernel);
    else
        dot_pages(c, prepared, n, codes, dots, (uint8_t *)page, kernel);
    tqi_level_leave(c->score);
}
