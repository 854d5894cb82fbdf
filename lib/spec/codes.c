#include "spec/codes.h"

#include "spec/polar_codes.h"

/* Where a word of 2-bit or 3-bit codes lives: in a slab of its own, or in the bits that
 * its neighbours leave free, or in byte planes. */
struct shared_place {
    uint32_t slab;    /* first slab of the set of words */
    uint32_t member;  /* index of the word in its set */
    uint32_t members; /* words of the set: 4 (3 bits), 2 (2 bits), fewer for the last set */
    uint32_t planes;  /* byte planes of the last member; 0 when the set is full */
    size_t plane;     /* offset of the first plane in the codes */
};

static struct shared_place share(const struct tqi_layout *l, uint32_t word) {
    uint32_t size = tqi_share(l->bits), per_set = l->bits * size / 4, set = word / size;
    struct shared_place s;
    s.slab = set * per_set;
    s.member = word % size;
    s.members = set < l->words / size ? size : l->words % size;
    s.planes = s.members == size ? 0 : l->bits == 3 ? 4 - s.members : 2;
    s.plane = (size_t)(s.slab + s.members - 1) * tqi_slab_lanes(l) * 4;
    return s;
}

static size_t word_offset(const struct tqi_layout *l, uint32_t slab, uint32_t lane) {
    return l->codes + ((size_t)slab * tqi_slab_lanes(l) + lane) * 4;
}

/* The last member of a set: its bit `bit` is in the spare top bits of the member's
 * neighbours while they last, then in byte planes. */
static void put_last3(const struct tqi_layout *l, uint8_t *blob, struct shared_place s,
                      struct tqi_place p, uint32_t code) {
    for (uint32_t bit = 0; bit < 3; bit++) {
        uint32_t value = code >> bit & 1u;
        if (bit < s.members - 1) {
            uint32_t at = 4 * p.code + 3;
            tqi_put_bits(blob + word_offset(l, s.slab + bit, p.lane), 1u << at, value << at);
        } else {
            size_t plane = (size_t)(bit - (s.members - 1)) * tqi_slab_lanes(l);
            tqi_put_bit8(blob + l->codes + s.plane + plane + p.lane, p.code, value);
        }
    }
}

static uint32_t get_last3(const struct tqi_layout *l, const uint8_t *blob, struct shared_place s,
                          struct tqi_place p) {
    uint32_t code = 0;
    for (uint32_t bit = 0; bit < 3; bit++) {
        uint32_t value;
        if (bit < s.members - 1) {
            value = tqi_load32(blob + word_offset(l, s.slab + bit, p.lane)) >> (4 * p.code + 3);
        } else {
            size_t plane = (size_t)(bit - (s.members - 1)) * tqi_slab_lanes(l);
            value = (uint32_t)blob[l->codes + s.plane + plane + p.lane] >> p.code;
        }
        code |= (value & 1u) << bit;
    }
    return code;
}

static void put_code3(const struct tqi_layout *l, uint8_t *blob, struct tqi_place p,
                      uint32_t code) {
    struct shared_place s = share(l, p.word);
    if (s.member == 3 || (s.planes && s.member == s.members - 1)) {
        put_last3(l, blob, s, p, code);
        return;
    }
    tqi_put_bits(blob + word_offset(l, s.slab + s.member, p.lane), 7u << 4 * p.code,
                 code << 4 * p.code);
}

static uint32_t get_code3(const struct tqi_layout *l, const uint8_t *blob, struct tqi_place p) {
    struct shared_place s = share(l, p.word);
    if (s.member == 3 || (s.planes && s.member == s.members - 1))
        return get_last3(l, blob, s, p);
    return tqi_load32(blob + word_offset(l, s.slab + s.member, p.lane)) >> 4 * p.code & 7u;
}

static void put_code2(const struct tqi_layout *l, uint8_t *blob, struct tqi_place p,
                      uint32_t code) {
    struct shared_place s = share(l, p.word);
    if (!s.planes) {
        uint32_t at = 4 * p.code + 2 * s.member;
        tqi_put_bits(blob + word_offset(l, s.slab, p.lane), 3u << at, code << at);
        return;
    }
    for (uint32_t bit = 0; bit < 2; bit++)
        tqi_put_bit8(blob + l->codes + s.plane + (size_t)bit * tqi_slab_lanes(l) + p.lane, p.code,
                     code >> bit & 1u);
}

static uint32_t get_code2(const struct tqi_layout *l, const uint8_t *blob, struct tqi_place p) {
    struct shared_place s = share(l, p.word);
    if (!s.planes)
        return tqi_load32(blob + word_offset(l, s.slab, p.lane)) >> (4 * p.code + 2 * s.member) &
               3u;
    const uint8_t *plane = blob + l->codes + s.plane + p.lane;
    uint32_t low = plane[0], high = plane[tqi_slab_lanes(l)];
    return (low >> p.code & 1u) | (high >> p.code & 1u) << 1;
}

static void put_code4(const struct tqi_layout *l, uint8_t *blob, struct tqi_place p,
                      uint32_t code) {
    uint32_t sign = tqi_sign_bit4(p.code);
    tqi_put_bits(blob + word_offset(l, p.word, p.lane), 7u << 4 * p.code | 1u << sign,
                 (code & 7u) << 4 * p.code | code >> 3 << sign);
}

static uint32_t get_code4(const struct tqi_layout *l, const uint8_t *blob, struct tqi_place p) {
    uint32_t w = tqi_load32(blob + word_offset(l, p.word, p.lane));
    return (w >> 4 * p.code & 7u) | (w >> tqi_sign_bit4(p.code) & 1u) << 3;
}

void tqi_put_code(const struct tqi_layout *l, uint8_t *blob, uint32_t token, uint32_t dim,
                  uint32_t code) {
    struct tqi_place p = tqi_place_of(l, token, dim);
    if (l->bits == 4)
        put_code4(l, blob, p, code);
    else if (l->bits == 3)
        put_code3(l, blob, p, code);
    else
        put_code2(l, blob, p, code);
}

uint32_t tqi_get_code(const struct tqi_layout *l, const uint8_t *blob, uint32_t token,
                      uint32_t dim) {
    struct tqi_place p = tqi_place_of(l, token, dim);
    return l->bits == 4   ? get_code4(l, blob, p)
           : l->bits == 3 ? get_code3(l, blob, p)
                          : get_code2(l, blob, p);
}

/* ---- whole words ------------------------------------------------------------------------- */

/* Bit n of a byte in bit 4n of a word, and back. */
static uint32_t spread_byte(uint32_t bits) {
    bits = (bits | bits << 12) & 0x000f000fu;
    bits = (bits | bits << 6) & 0x03030303u;
    return (bits | bits << 3) & 0x11111111u;
}

static uint32_t gather_byte(uint32_t word) {
    word &= 0x11111111u;
    word = (word | word >> 3) & 0x03030303u;
    word = (word | word >> 6) & 0x000f000fu;
    return (word | word >> 12) & 0xffu;
}

/* Bit 4n of a word at the place of the sign of 4-bit code n, and back. */
static uint32_t spread_signs(uint32_t bits) {
    uint32_t signs = 0;
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t x = bits >> 16 * half & 0x1111u;
        x = (x | x << 8) & 0x00110011u;
        signs |= ((x | x << 4) & 0x01010101u) << (half ? 3 : 7);
    }
    return signs;
}

static uint32_t gather_signs(uint32_t word) {
    uint32_t bits = 0;
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t x = word >> (half ? 3 : 7) & 0x01010101u;
        x = (x | x >> 4) & 0x00110011u;
        bits |= ((x | x >> 8) & 0x1111u) << 16 * half;
    }
    return bits;
}

/* A bit of the last member of a set of 3-bit words: like put_last3(), eight codes at once. */
static uint32_t get_plane3(const struct tqi_layout *l, const uint8_t *blob, struct shared_place s,
                           uint32_t lane, uint32_t bit) {
    if (bit < s.members - 1)
        return tqi_load32(blob + word_offset(l, s.slab + bit, lane)) >> 3 & 0x11111111u;
    size_t plane = (size_t)(bit - (s.members - 1)) * tqi_slab_lanes(l);
    return spread_byte(blob[l->codes + s.plane + plane + lane]);
}

static void put_plane3(const struct tqi_layout *l, uint8_t *blob, struct shared_place s,
                       uint32_t lane, uint32_t bit, uint32_t values, uint32_t mask) {
    mask &= 0x11111111u;
    values &= mask;
    if (bit < s.members - 1) {
        tqi_put_bits(blob + word_offset(l, s.slab + bit, lane), mask << 3, values << 3);
        return;
    }
    size_t plane = (size_t)(bit - (s.members - 1)) * tqi_slab_lanes(l);
    uint8_t *byte = blob + l->codes + s.plane + plane + lane;
    *byte = (uint8_t)((*byte & ~gather_byte(mask)) | gather_byte(values));
}

static uint32_t get_word3(const struct tqi_layout *l, const uint8_t *blob, uint32_t word,
                          uint32_t lane) {
    struct shared_place s = share(l, word);
    uint32_t codes = 0;
    if (s.member + 1 < s.members)
        return tqi_load32(blob + word_offset(l, s.slab + s.member, lane)) & 0x77777777u;
    for (uint32_t bit = 0; bit < 3; bit++)
        codes |= get_plane3(l, blob, s, lane, bit) << bit;
    return codes;
}

static void put_word3(const struct tqi_layout *l, uint8_t *blob, uint32_t word, uint32_t lane,
                      uint32_t codes, uint32_t mask) {
    struct shared_place s = share(l, word);
    if (s.member + 1 < s.members) {
        mask &= 0x77777777u;
        tqi_put_bits(blob + word_offset(l, s.slab + s.member, lane), mask, codes & mask);
        return;
    }
    for (uint32_t bit = 0; bit < 3; bit++)
        put_plane3(l, blob, s, lane, bit, codes >> bit, mask);
}

static uint32_t get_word2(const struct tqi_layout *l, const uint8_t *blob, uint32_t word,
                          uint32_t lane) {
    struct shared_place s = share(l, word);
    if (!s.planes)
        return tqi_load32(blob + word_offset(l, s.slab, lane)) >> 2 * s.member & 0x33333333u;
    const uint8_t *plane = blob + l->codes + s.plane + lane;
    return spread_byte(plane[0]) | spread_byte(plane[tqi_slab_lanes(l)]) << 1;
}

static void put_word2(const struct tqi_layout *l, uint8_t *blob, uint32_t word, uint32_t lane,
                      uint32_t codes, uint32_t mask) {
    struct shared_place s = share(l, word);
    mask &= 0x33333333u;
    if (!s.planes) {
        tqi_put_bits(blob + word_offset(l, s.slab, lane), mask << 2 * s.member,
                     (codes & mask) << 2 * s.member);
        return;
    }
    for (uint32_t bit = 0; bit < 2; bit++) {
        uint8_t *byte = blob + l->codes + s.plane + (size_t)bit * tqi_slab_lanes(l) + lane;
        *byte = (uint8_t)((*byte & ~gather_byte(mask)) | gather_byte((codes & mask) >> bit));
    }
}

uint32_t tqi_get_word(const struct tqi_layout *l, const uint8_t *blob, uint32_t word,
                      uint32_t lane) {
    if (l->bits == 2)
        return get_word2(l, blob, word, lane);
    if (l->bits == 3)
        return get_word3(l, blob, word, lane);
    uint32_t w = tqi_load32(blob + word_offset(l, word, lane));
    return (w & 0x77777777u) | gather_signs(w) << 3;
}

void tqi_put_word(const struct tqi_layout *l, uint8_t *blob, uint32_t word, uint32_t lane,
                  uint32_t codes, uint32_t mask) {
    if (l->bits == 2) {
        put_word2(l, blob, word, lane, codes, mask);
        return;
    }
    if (l->bits == 3) {
        put_word3(l, blob, word, lane, codes, mask);
        return;
    }
    uint32_t bits = (mask & 0x77777777u) | spread_signs(mask >> 3);
    uint32_t values = (codes & 0x77777777u) | spread_signs(codes >> 3);
    tqi_put_bits(blob + word_offset(l, word, lane), bits, values & bits);
}

/* ---- sketch and polar -------------------------------------------------------------------- */

void tqi_put_sketch(const struct tqi_layout *l, uint8_t *blob, uint32_t token, uint32_t dim,
                    uint32_t negative) {
    struct tqi_place p = tqi_place_k(l, token, dim);
    tqi_put_bit8(blob + l->sketch + tqi_sketch_byte(l, p), p.code, negative);
}

uint32_t tqi_get_sketch(const struct tqi_layout *l, const uint8_t *blob, uint32_t token,
                        uint32_t dim) {
    struct tqi_place p = tqi_place_k(l, token, dim);
    return (uint32_t)blob[l->sketch + tqi_sketch_byte(l, p)] >> p.code & 1u;
}

/* Replaces `width` bits of a byte, element `e` of a section of such fields. */
static void put_field(uint8_t *section, uint32_t e, uint32_t width, uint32_t value) {
    uint32_t per_byte = 8 / width, at = e % per_byte * width, mask = (1u << width) - 1;
    uint8_t *byte = section + e / per_byte;
    *byte = (uint8_t)((*byte & ~(mask << at)) | value << at);
}

static uint32_t get_field(const uint8_t *section, uint32_t e, uint32_t width) {
    uint32_t per_byte = 8 / width;
    return (uint32_t)section[e / per_byte] >> (e % per_byte * width) & ((1u << width) - 1);
}

void tqi_put_polar(const struct tqi_layout *l, uint8_t *blob, uint32_t token, uint32_t block,
                   struct tqi_polar_codes codes) {
    tqi_put_polar_at(l, blob, tqi_polar_element(l, token, block), codes);
}

void tqi_put_polar_at(const struct tqi_layout *l, uint8_t *blob, uint32_t e,
                      struct tqi_polar_codes codes) {
    tqi_store32(blob + l->codes + (size_t)e * 4, codes.level1);
    blob[l->polar_level2 + e] = codes.level2;
    put_field(blob + l->polar_level3, e, 4, codes.level3);
    put_field(blob + l->polar_level4, e, 2, codes.level4);
}

struct tqi_polar_codes tqi_get_polar(const struct tqi_layout *l, const uint8_t *blob,
                                     uint32_t token, uint32_t block) {
    uint32_t e = tqi_polar_element(l, token, block);
    struct tqi_polar_codes codes;
    codes.level1 = tqi_load32(blob + l->codes + (size_t)e * 4);
    codes.level2 = blob[l->polar_level2 + e];
    codes.level3 = (uint8_t)get_field(blob + l->polar_level3, e, 4);
    codes.level4 = (uint8_t)get_field(blob + l->polar_level4, e, 2);
    return codes;
}
