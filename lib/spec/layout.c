#include "spec/layout.h"

#include <string.h>

/* Bytes of a page's codes that go through slabs, see "bit planes" in layout.h. */
static uint32_t slab_bytes(const struct tqi_layout *l) {
    uint32_t lanes = tqi_slab_lanes(l);
    return (uint32_t)((uint64_t)l->words * lanes * l->bits);
}

static void set_codes(struct tqi_layout *l, uint32_t *at) {
    l->codes = *at;
    if (l->kind != TQI_KIND_POLAR) {
        l->codes_size = slab_bytes(l);
    } else {
        uint32_t elements = l->tokens * (l->dim_pad / TQI_POLAR_BLOCK);
        l->polar_level2 = l->codes + elements * 4;
        l->polar_level3 = l->polar_level2 + elements;
        l->polar_level4 = l->polar_level3 + (elements + 1) / 2;
        l->codes_size = elements * 5 + (elements + 1) / 2 + (elements + 3) / 4;
    }
    *at += l->codes_size;
}

static void set_sketch(struct tqi_layout *l, uint32_t sketch, uint32_t *at) {
    l->sketch = *at;
    l->sketch_size = sketch ? l->words * tqi_slab_lanes(l) : 0;
    *at += l->sketch_size;
}

static void set_gains(struct tqi_layout *l, uint32_t *at) {
    uint32_t per_token = l->kind == TQI_KIND_POLAR                            ? l->dim_pad / 16
                         : l->kind == TQI_KIND_LM || l->kind == TQI_KIND_INT8 ? 1
                                                                              : 0;
    l->gains = *at;
    l->gains_size = per_token * l->tokens * 2;
    *at += l->gains_size;
}

static void set_sketch_gains(struct tqi_layout *l, uint32_t *at) {
    l->sketch_gains = *at;
    l->sketch_gains_size = l->sketch_size ? l->tokens * 2 : 0;
    *at += l->sketch_gains_size;
}

static void start(struct tqi_layout *l, enum tqi_side side, const struct tqi_format *f,
                  uint32_t dim, uint32_t tokens) {
    memset(l, 0, sizeof *l);
    l->side = (uint32_t)side;
    l->kind = (uint32_t)f->kind;
    l->bits = f->bits;
    l->dim = dim;
    l->dim_pad = (dim + TQI_PAD_DIMS - 1) / TQI_PAD_DIMS * TQI_PAD_DIMS;
    l->tokens = tokens;
    l->group = tokens < TQI_GROUP_MAX ? tokens : TQI_GROUP_MAX;
    l->words = tokens / l->group * (l->dim_pad / 32);
}

/* Sections of a page start at multiples of 16 bytes. */
static void align(uint32_t *at, uint32_t to) {
    *at = (*at + to - 1) / to * to;
}

void tqi_page_layout_make(struct tqi_page_layout *page, const struct tqi_format *k, uint32_t k_dim,
                          const struct tqi_format *v, uint32_t v_dim, uint32_t page_tokens) {
    uint32_t at = 0;
    start(&page->k, TQI_SIDE_K, k, k_dim, page_tokens);
    start(&page->v, TQI_SIDE_V, v, v_dim, page_tokens);
    set_codes(&page->k, &at);
    align(&at, 16);
    set_sketch(&page->k, k->sketch, &at);
    align(&at, 16);
    set_codes(&page->v, &at);
    align(&at, 16);
    set_gains(&page->k, &at);
    align(&at, 16);
    set_sketch_gains(&page->k, &at);
    align(&at, 16);
    set_gains(&page->v, &at);
    align(&at, 128);
    page->bytes = at;
}

uint32_t tqi_row_layout_make(struct tqi_layout *row, const struct tqi_format *f, uint32_t dim) {
    uint32_t at = 0;
    start(row, TQI_SIDE_ROW, f, dim, 1);
    set_codes(row, &at);
    set_sketch(row, f->sketch, &at);
    set_gains(row, &at);
    set_sketch_gains(row, &at);
    return at;
}
