/* Coded rows side by side as the keys of a page, which is what fast kernels read. */
#ifndef TQI_ENCODE_CODEC_PAGE_H
#define TQI_ENCODE_CODEC_PAGE_H

#include "spec/layout.h"

enum { TQI_CODEC_PAGE_TOKENS = 16 };

/* n rows (at most a page) in the row form to the tokens from 0 on of a page of
 * TQI_CODEC_PAGE_TOKENS keys; other bytes of the page hold anything. */
void tqi_codec_page(const struct tqi_layout *row, const struct tqi_layout *page,
                    const uint8_t *codes, size_t row_bytes, uint32_t n, uint8_t *blob);

#endif
