/* Stage pack: codes of one token in dim order up to dim_pad, a byte each (16-bit codes: two), to
 * their place in a page or a row. Bits of other tokens stay as they are. */
#ifndef TQI_KERNEL_NEON_PACK_H
#define TQI_KERNEL_NEON_PACK_H

#include "kernel/neon/neon.h"

/* Keys and rows: a word is 8 dims of the token. */
void tqk_pack_k_neon(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token);
/* Values: a word is 8 tokens of a dim. */
void tqk_pack_v_neon(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes, uint8_t *blob,
                     uint32_t token);

#endif
