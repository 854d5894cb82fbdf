/* Encode: the same bytes as the reference for load and encode together, whatever the row and
 * whatever the page held before. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "check.h"

/* Rows of many sizes, with zeros, spikes and values that are not finite. */
static void make_row(float *x, uint32_t dim) {
    unsigned what = (unsigned)(next_random() % 16);
    double size = exp2(what == 0   ? 120 * (2 * uniform() - 1)
                       : what == 1 ? -126 - 20 * uniform()
                       : what == 2 ? 100 + 28 * uniform()
                                   : 6 * (2 * uniform() - 1));
    for (uint32_t i = 0; i < dim; i++) {
        double v = size * gaussian();
        if (what == 3 && next_random() % 8)
            v = 0;
        if (what == 4 && next_random() % 64 == 0)
            v *= 1e4;
        if (what == 5)
            v = size;
        if (what == 6)
            v = rint(v);
        x[i] = (float)fmax(fmin(v, (double)FLT_MAX), (double)-FLT_MAX);
        if (what == 7 && next_random() % 50 == 0)
            x[i] = next_random() % 2 ? NAN : next_random() % 2 ? INFINITY : -INFINITY;
    }
    if (what == 8)
        memset(x, 0, dim * sizeof *x);
}

/* To one of the caller's types, in place of the row. */
static void convert(const float *x, uint32_t dim, tq_dtype type, void *out) {
    for (uint32_t i = 0; i < dim; i++) {
        uint16_t h = type == TQ_F16 ? tqi_float_to_f16(x[i]) : tqi_float_to_bf16(x[i]);
        if (type == TQ_F32)
            memcpy((char *)out + i * 4, &x[i], 4);
        else
            memcpy((char *)out + i * 2, &h, 2);
    }
}

struct subject {
    const struct tqi_level *level;
    const struct tqi_rows *rows;
    uint8_t *blob;
    float *x;
    struct tqi_nonfinite count;
};

static void code(struct subject *s, const void *row, tq_dtype type, const float *mean,
                 uint32_t token) {
    s->level->load(row, type, s->rows->layout.dim, mean, s->x, &s->count);
    s->level->encode[s->rows->format->id].run(s->rows, 0.5f, s->x, s->blob, token);
}

static void check_rows(struct result *r, const struct tqi_level *level, const struct tqi_rows *rows,
                       uint32_t bytes, unsigned n) {
    uint32_t dim = rows->layout.dim, tokens = rows->layout.tokens;
    size_t room = (level->encode_scratch(rows) * sizeof(float) + 63) / 64 * 64;
    size_t row_bytes = (dim * 4 + 63) / 64 * 64;
    struct subject a = {level, rows, malloc(bytes), guard_alloc(room), {0, 0}};
    struct subject b = {tqi_level_ref(), rows, malloc(bytes), malloc(room + 65536), {0, 0}};
    char *row = guard_alloc(row_bytes);
    float *x = malloc(dim * sizeof *x), *mean = malloc(dim * sizeof *mean);
    for (uint32_t i = 0; i < bytes; i++)
        a.blob[i] = b.blob[i] = (uint8_t)next_random();
    for (uint32_t i = 0; i < dim; i++)
        mean[i] = (float)gaussian();
    for (unsigned i = 0; i < n; i++) {
        tq_dtype type = (tq_dtype[]){TQ_F32, TQ_F16, TQ_BF16}[next_random() % 3];
        size_t used = dim * (type == TQ_F32 ? 4u : 2u);
        char *at = row + row_bytes - used;
        uint32_t token = (uint32_t)(next_random() % tokens);
        const float *with = next_random() % 4 == 0 ? mean : NULL;
        make_row(x, dim);
        convert(x, dim, type, at);
        code(&a, at, type, with, token);
        code(&b, at, type, with, token);
        judge(r,
              memcmp(a.blob, b.blob, bytes) == 0 && a.count.nan == b.count.nan &&
                  a.count.inf == b.count.inf,
              "%s: %s dim %u, page of %u, side %u, token %u: other bytes", level->name,
              rows->format->name, dim, tokens, rows->layout.side, token);
        memcpy(a.blob, b.blob, bytes);
    }
    guard_free(a.x, room);
    guard_free(row, row_bytes);
    free(a.blob);
    free(b.blob);
    free(b.x);
    free(x);
    free(mean);
}

void check_encode(struct result *r, const struct tqi_level *level, tq_format f, unsigned rows) {
    static const uint32_t dims[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 576};
    static const uint32_t pages[] = {16, 32, 64, 256};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t t = 0; t < sizeof pages / sizeof *pages; t++) {
            struct page p;
            if (tqi_rows_check_dim(tqi_format_by_id(f), dims[d], 1024))
                continue;
            tq_format v = tqi_format_by_id(f)->roles & TQ_ROLE_V ? f : TQ_FORMAT_LM4;
            make_page(&p, f, v, dims[d], pages[t]);
            check_rows(r, level, &p.k, p.layout.bytes, rows / 10);
            if (v == f)
                check_rows(r, level, &p.v, p.layout.bytes, rows / 10);
            free_page(&p);
        }
}
