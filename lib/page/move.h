/* Moves tokens between page blobs as they are coded: bits change their place, no number is
 * looked at. Blobs may be unaligned. */
#ifndef TQI_PAGE_MOVE_H
#define TQI_PAGE_MOVE_H

#include "spec/layout.h"

/* Tokens [from_token, + n) of one blob become tokens [to_token, + n) of another. Bits of other
 * tokens stay. The blobs do not overlap. */
void tqi_blob_move(const struct tqi_page_layout *page, uint8_t *to, uint32_t to_token,
                   const uint8_t *from, uint32_t from_token, uint32_t n);

#endif
