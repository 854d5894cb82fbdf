/* Stage pack, written once for all SIMD levels: where the codes of keys lie, word by word. The
 * levels make the words. */
#ifndef TQI_KERNEL_SIMD_WORDS_H
#define TQI_KERNEL_SIMD_WORDS_H

#include <stdbool.h>
#include <string.h>

#include "spec/codes.h"

/* ---- the set of words that 3-bit and 2-bit codes share ------------------------------------ */

/* As in spec/codes.c: where a word lives. */
struct tqk_shared {
    uint32_t slab, member, members;
    bool last; /* of a set: its bits are in the spare bits of the others, or in planes */
};

static inline struct tqk_shared tqk_share(const struct tqi_layout *l, uint32_t bits,
                                          uint32_t word) {
    uint32_t size = bits == 3 ? 4 : 2, set = word / size, left = l->words - set * size;
    struct tqk_shared s = {.slab = set * (bits == 3 ? 3 : 1), .member = word % size};
    s.members = left < size ? left : size;
    s.last = s.member == s.members - 1 && (bits == 3 || s.members < size);
    return s;
}

/* ---- keys --------------------------------------------------------------------------------- */

/* Bit 0 of every nibble to a byte. */
static inline uint8_t tqk_squeeze(uint32_t x) {
    x = (x | x >> 3) & 0x03030303u;
    x = (x | x >> 6) & 0x000f000fu;
    return (uint8_t)(x | x >> 12);
}

/* One word of nibbles (sign placement done) to element `lane` of its slab. */
static inline void tqk_put_word(const struct tqi_layout *l, uint32_t bits, uint8_t *codes,
                                uint32_t word, uint32_t lane, uint32_t nibbles) {
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, at = (size_t)lane * 4;
    if (bits == 4) {
        tqi_store32(codes + word * slab + at, nibbles);
        return;
    }
    struct tqk_shared s = tqk_share(l, bits, word);
    uint32_t mask = bits == 3 ? 0x77777777u : 0x33333333u;
    uint8_t *first = codes + s.slab * slab;
    if (!s.last) {
        uint32_t up = bits == 3 ? 0 : 2 * s.member;
        uint8_t *to = first + (bits == 3 ? s.member * slab : 0) + at;
        tqi_put_bits(to, mask << up, nibbles << up);
        return;
    }
    uint32_t spare = s.members - 1; /* slabs with a spare bit; the other bits go to planes */
    uint8_t *planes = first + spare * slab + lane;
    for (uint32_t bit = 0; bit < bits; bit++) {
        uint32_t x = nibbles >> bit & 0x11111111u;
        if (bit < spare)
            tqi_put_bits(first + bit * slab + at, 0x88888888u, x << 3);
        else
            planes[(bit - spare) * (slab / 4)] = tqk_squeeze(x);
    }
}

/* Element of the token in the slabs of its group, lane 0; lanes are `step` apart. */
struct tqk_slot {
    uint32_t word, lane, step;
};

static inline struct tqk_slot tqk_slot_of(const struct tqi_layout *l, uint32_t token) {
    uint32_t granule = l->group < 4 ? l->group : 4, in_group = token % l->group;
    struct tqk_slot s = {token / l->group * (l->dim_pad / 32),
                         in_group / granule * 4 * granule + in_group % granule, granule};
    return s;
}

/* 8-bit or 16-bit codes of a token, in dim order, to their words: 4 bytes of every slab. */
static inline void tqk_put_key_bytes(const struct tqi_layout *l, uint32_t bits, uint8_t *to,
                                     struct tqk_slot s, const uint8_t *codes) {
    uint32_t slabs = bits / 4, per_lane = l->dim_pad / 32 * slabs;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    to += s.word * slabs * slab + (size_t)s.lane * 4;
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t j = 0; j < per_lane; j++, codes += 4)
            memcpy(to + j * slab + (size_t)t * s.step * 4, codes, 4);
}

/* Words of nibbles of a token, in dim order, to their slabs. */
static inline void tqk_put_key_words(const struct tqi_layout *l, uint32_t bits, uint8_t *to,
                                     struct tqk_slot s, const uint32_t *words) {
    uint32_t per_lane = l->dim_pad / 32, t = 0, j = 0;
    for (uint32_t i = 0; i < l->dim_pad / 8; i++) {
        tqk_put_word(l, bits, to, s.word + j, s.lane + t * s.step, words[i]);
        t += ++j == per_lane;
        j = j == per_lane ? 0 : j;
    }
}

#endif
