/* Polar codes by element, for those who know it without the divisions of tqi_polar_element(). */
#ifndef TQI_SPEC_POLAR_CODES_H
#define TQI_SPEC_POLAR_CODES_H

#include "spec/codes.h"

/* Writes the codes of element `e`, and no other bit. */
void tqi_put_polar_at(const struct tqi_layout *l, uint8_t *blob, uint32_t e,
                      struct tqi_polar_codes codes);

#endif
