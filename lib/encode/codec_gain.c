#include "encode/codec_gain.h"

#include <math.h>

#include "base/half.h"
#include "spec/codes.h"

/* Of a row u and its codes v, by places of a word. */
struct products {
    double uu[8], uv[8];
    int64_t vv;
};

static void add_products(struct products *p, const float *u, const int32_t v[8]) {
    for (uint32_t n = 0; n < 8; n++) {
        double x = (double)u[n];
        p->uu[n] += x * x;
        p->uv[n] += x * (double)v[n];
        p->vv += (int64_t)v[n] * v[n];
    }
}

/* The codes of eight dims from `dim` on, which are word `word` of lane `lane`. */
static void values_of(const struct tqi_rows *rows, const uint8_t *code, uint32_t dim, uint32_t word,
                      uint32_t lane, int32_t v[8]) {
    const struct tqi_layout *l = &rows->layout;
    if (l->bits == 8) {
        for (uint32_t n = 0; n < 8; n++)
            v[n] = (int8_t)code[tqi_wide_offset(l, 0, dim + n)];
        return;
    }
    uint32_t codes = tqi_get_word(l, code, word, lane);
    for (uint32_t n = 0; n < 8; n++)
        v[n] = rows->book.code_v2[codes >> 4 * n & 15u];
}

static double sum_of_eight(const double x[8]) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

void tqi_codec_unbias(const struct tqi_rows *rows, const float *u, uint8_t *code) {
    const struct tqi_layout *l = &rows->layout;
    const uint32_t words = l->dim_pad / 32;
    struct products p = {.vv = 0};
    int32_t v[8];
    for (uint32_t dim = 0; dim < l->dim; dim += 8) {
        values_of(rows, code, dim, dim / 8 % words, dim / 8 / words, v);
        add_products(&p, u + dim, v);
    }
    double uv = sum_of_eight(p.uv);
    if (!(uv > 0))
        return; /* a row of zeros */
    double ratio = sqrt(sum_of_eight(p.uu) * (double)p.vv) / uv;
    float gain = (float)((double)tqi_f16_to_float(tqi_load16(code + l->gains)) * ratio);
    tqi_store16(code + l->gains, tqi_float_to_f16(fminf(gain, 65504.0f)));
}
