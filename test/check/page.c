#include <stdlib.h>

#include "check.h"

void make_page(struct page *p, tq_format k, tq_format v, uint32_t dim, uint32_t tokens) {
    const struct tqi_format *kf = tqi_format_by_id(k), *vf = tqi_format_by_id(v);
    tqi_page_layout_make(&p->layout, kf, dim, vf, dim, tokens);
    p->flips = calloc((size_t)dim * 3, sizeof *p->flips);
    tqi_rows_init(&p->k, kf, &p->layout.k, 7, p->flips);
    tqi_rows_init(&p->v, vf, &p->layout.v, 7, p->flips);
    p->blob = guard_alloc(p->layout.bytes);
}

void free_page(struct page *p) {
    guard_free(p->blob, p->layout.bytes);
    free(p->flips);
}

static void fill_side(const struct tqi_rows *rows, uint8_t *blob, uint32_t tokens) {
    const struct tqi_level *ref = tqi_level_ref();
    uint32_t dim = rows->layout.dim;
    float *x = malloc((ref->encode_scratch(rows) + dim) * sizeof *x);
    for (uint32_t t = 0; t < tokens; t++) {
        double size = 0.5 + uniform();
        for (uint32_t i = 0; i < dim; i++)
            x[i] = (float)(size * gaussian());
        ref->encode[rows->format->id].run(rows, 1, x, blob, t);
    }
    free(x);
}

void fill_page(struct page *p, uint32_t tokens) {
    for (uint32_t i = 0; i < p->layout.bytes; i++)
        p->blob[i] = (uint8_t)next_random();
    fill_side(&p->k, p->blob, tokens);
    fill_side(&p->v, p->blob, tokens);
}
