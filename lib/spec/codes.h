/* Reads and writes single codes, signs and gains in a blob: the plain meaning of
 * layout.h. Kernels that are meant to be fast read whole words instead. Blobs may be
 * unaligned (row form), hence the memcpy. */
#ifndef TQI_SPEC_CODES_H
#define TQI_SPEC_CODES_H

#include <string.h>

#include "spec/layout.h"

static inline uint16_t tqi_load16(const uint8_t *at) {
    uint16_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static inline void tqi_store16(uint8_t *at, uint16_t v) {
    memcpy(at, &v, sizeof v);
}

static inline uint32_t tqi_load32(const uint8_t *at) {
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static inline void tqi_store32(uint8_t *at, uint32_t v) {
    memcpy(at, &v, sizeof v);
}

/* Replaces the bits of `mask` in the 32-bit word at `at`. */
static inline void tqi_put_bits(uint8_t *at, uint32_t mask, uint32_t bits) {
    tqi_store32(at, (tqi_load32(at) & ~mask) | bits);
}

static inline void tqi_put_bit8(uint8_t *at, uint32_t bit, uint32_t value) {
    *at = (uint8_t)((*at & ~(1u << bit)) | value << bit);
}

/* Bit that carries the sign of 4-bit code n of a word (XOR placement): next to the
 * nibble that a byte permutation looks up in the same byte lane. */
static inline uint32_t tqi_sign_bit4(uint32_t n) {
    return n < 4 ? 8 * n + 7 : 8 * (n - 4) + 3;
}

/* A code of 2, 3 or 4 bits. */
void tqi_put_code(const struct tqi_layout *l, uint8_t *blob, uint32_t token, uint32_t dim,
                  uint32_t code);
uint32_t tqi_get_code(const struct tqi_layout *l, const uint8_t *blob, uint32_t token,
                      uint32_t dim);
/* The eight codes of a word (2, 3 or 4 bits) at once, code n in bits 4n and up, wherever their
 * bits are stored. Putting replaces the codes whose four mask bits are set. */
uint32_t tqi_get_word(const struct tqi_layout *l, const uint8_t *blob, uint32_t word,
                      uint32_t lane);
void tqi_put_word(const struct tqi_layout *l, uint8_t *blob, uint32_t word, uint32_t lane,
                  uint32_t codes, uint32_t mask);
/* Address of an 8-bit or 16-bit code. */
static inline size_t tqi_wide_offset(const struct tqi_layout *l, uint32_t token, uint32_t dim) {
    return l->codes + tqi_wide_element(l, token, dim) * (l->bits / 8);
}
/* Sign of the sketch, 1 = negative. */
void tqi_put_sketch(const struct tqi_layout *l, uint8_t *blob, uint32_t token, uint32_t dim,
                    uint32_t negative);
uint32_t tqi_get_sketch(const struct tqi_layout *l, const uint8_t *blob, uint32_t token,
                        uint32_t dim);
/* The angles of a polar block: eight 4-bit codes of level 1, four, two and one 2-bit
 * codes of levels 2, 3 and 4, each in the lowest bits first. */
struct tqi_polar_codes {
    uint32_t level1;
    uint8_t level2, level3, level4;
};
void tqi_put_polar(const struct tqi_layout *l, uint8_t *blob, uint32_t token, uint32_t block,
                   struct tqi_polar_codes codes);
struct tqi_polar_codes tqi_get_polar(const struct tqi_layout *l, const uint8_t *blob,
                                     uint32_t token, uint32_t block);

#endif
