#include "encode/codec_page.h"

#include "spec/polar_codes.h"

/* Both forms have slabs of words, then slabs of bytes, in the same order; a slab is four elements
 * in a row and four for every token in a page, where four tokens of an element are neighbours. */

static size_t element_of(uint32_t token, uint32_t lane) {
    return (token / 4 * 4 + lane) * 4 + token % 4;
}

/* A section of codes or signs. */
static void put_slabs(const uint8_t *row, uint32_t size, uint32_t token, uint8_t *page) {
    uint32_t slabs = size / 16, planes = size % 16 / 4;
    const size_t page_slab = 4 * TQI_CODEC_PAGE_TOKENS;
    for (uint32_t s = 0; s < slabs; s++, row += 16, page += page_slab * 4)
        for (uint32_t lane = 0; lane < 4; lane++)
            memcpy(page + element_of(token, lane) * 4, row + (size_t)lane * 4, 4);
    for (uint32_t s = 0; s < planes; s++, row += 4, page += page_slab)
        for (uint32_t lane = 0; lane < 4; lane++)
            page[element_of(token, lane)] = row[lane];
}

/* In a row the element of a block is its number. */
static void put_polar(const struct tqi_layout *row, const struct tqi_layout *page,
                      const uint8_t *codes, uint32_t token, uint8_t *blob) {
    uint32_t blocks = row->dim_pad / TQI_POLAR_BLOCK;
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t quad = b / 4, lanes = blocks - quad * 4 < 4 ? blocks - quad * 4 : 4;
        uint32_t e = quad * 4 * TQI_CODEC_PAGE_TOKENS + (token / 4 * lanes + b % 4) * 4 + token % 4;
        struct tqi_polar_codes c = {
            .level1 = tqi_load32(codes + row->codes + (size_t)b * 4),
            .level2 = codes[row->polar_level2 + b],
            .level3 = codes[row->polar_level3 + b / 2] >> b % 2 * 4 & 15,
            .level4 = codes[row->polar_level4 + b / 4] >> b % 4 * 2 & 3,
        };
        tqi_put_polar_at(page, blob, e, c);
        memcpy(blob + page->gains + (size_t)e * 2, codes + row->gains + (size_t)b * 2, 2);
    }
}

void tqi_codec_page(const struct tqi_layout *row, const struct tqi_layout *page,
                    const uint8_t *codes, size_t row_bytes, uint32_t n, uint8_t *blob) {
    for (uint32_t i = 0; i < n; i++, codes += row_bytes) {
        if (row->kind == TQI_KIND_POLAR) {
            put_polar(row, page, codes, i, blob);
        } else {
            put_slabs(codes + row->codes, row->codes_size, i, blob + page->codes);
            if (row->gains_size)
                memcpy(blob + page->gains + (size_t)i * 2, codes + row->gains, 2);
        }
        if (!row->sketch_size)
            continue;
        put_slabs(codes + row->sketch, row->sketch_size, i, blob + page->sketch);
        memcpy(blob + page->sketch_gains + (size_t)i * 2, codes + row->sketch_gains, 2);
    }
}
