/* Rows and pages set up as the library does it, for tests of stages. */
#ifndef TEST_UNIT_ROWS_H
#define TEST_UNIT_ROWS_H

#include "kernel/ref/ref.h"

enum { UNIT_MAX_DIM = 1024, UNIT_MAX_TOKENS = 256 };

/* Every length that the tests of layout and rotation walk: all kinds of splits. */
static const uint32_t unit_dims[] = {32,  64,  80,  96,  112, 128, 160,
                                     192, 224, 256, 320, 512, 576, 1024};

/* A side of a page, or a row, with the memory of its signs. */
struct unit_rows {
    struct tqi_rows rows;
    uint32_t bytes; /* of a blob that holds it */
    uint32_t flips[3 * UNIT_MAX_DIM];
};

static inline void unit_row_form(struct unit_rows *u, tq_format id, uint32_t dim, uint64_t seed) {
    struct tqi_layout layout;
    u->bytes = tqi_row_layout_make(&layout, tqi_format_by_id(id), dim);
    tqi_rows_init(&u->rows, tqi_format_by_id(id), &layout, seed, u->flips);
}

/* Both sides of a page. */
static inline void unit_page(struct unit_rows *k, tq_format k_id, struct unit_rows *v,
                             tq_format v_id, uint32_t dim, uint32_t page_tokens, uint64_t seed) {
    struct tqi_page_layout page;
    const struct tqi_format *kf = tqi_format_by_id(k_id), *vf = tqi_format_by_id(v_id);
    tqi_page_layout_make(&page, kf, dim, vf, dim, page_tokens);
    k->bytes = v->bytes = page.bytes;
    tqi_rows_init(&k->rows, kf, &page.k, seed, k->flips);
    tqi_rows_init(&v->rows, vf, &page.v, seed, v->flips);
}

#endif
