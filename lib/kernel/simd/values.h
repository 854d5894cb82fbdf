/* Stage pack, written once for all SIMD levels: codes of values to their places. Bits of other
 * tokens stay as they are.
 *
 * A file includes this once, in front of its tqk_pack_v, and has defined for its level: quad, a
 * register of 4 words; merge(at, mask, x), which replaces the bits of `mask` in 4 words;
 * merge_bytes(at, n, x), which replaces bit n of 4 bytes; up_by(x, n), down_by(x, n);
 * masked(x, mask), joined(x, y); quad_of(at) and quad_of_halves(at), 4 bytes or halves as words. */
#include "kernel/simd/words.h"

/* The token's code is number `place` of the words of 4 dims from `lane` on. */
static void put_quad(const struct tqi_layout *l, uint32_t bits, uint8_t *codes, uint32_t word,
                     uint32_t lane, uint32_t place, quad code) {
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, at = (size_t)lane * 4;
    struct tqk_shared s = tqk_share(l, bits, word);
    uint8_t *first = codes + s.slab * slab;
    if (!s.last) {
        uint32_t add = bits == 3 ? 0 : 2 * s.member, mask = bits == 3 ? 7 : 3;
        uint8_t *to = first + (bits == 3 ? s.member * slab : 0) + at;
        merge(to, mask << (4 * place + add), up_by(code, 4 * place + add));
        return;
    }
    uint32_t spare = s.members - 1;
    uint8_t *planes = first + spare * slab + lane;
    for (uint32_t bit = 0; bit < bits; bit++) {
        quad x = masked(down_by(code, bit), 1);
        if (bit < spare)
            merge(first + bit * slab + at, 8u << 4 * place, up_by(x, 4 * place + 3));
        else
            merge_bytes(planes + (bit - spare) * (slab / 4), place, x);
    }
}

/* 4-bit codes: one place in one word. */
static void put_whole(uint8_t *at, uint32_t place, quad code) {
    uint32_t sign = tqi_sign_bit4(place);
    quad level = up_by(masked(code, 7), 4 * place), minus = up_by(down_by(code, 3), sign);
    merge(at, 7u << 4 * place | 1u << sign, joined(level, minus));
}

/* 8-bit and 16-bit codes: one place in a word of one slab, [group][part of 8 tokens][dims]. */
TQK_INLINE void put_wide_values(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes,
                                uint8_t *blob, uint32_t token) {
    struct tqi_place p = tqi_place_v(l, token, 0);
    uint32_t part = tqi_wide_part(l, token, p), per_word = 32 / bits, per_lane = l->dim_pad / 32;
    uint32_t up = part % per_word * bits, mask = (bits == 8 ? 0xffu : 0xffffu) << up;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    uint8_t *to = blob + l->codes + (size_t)p.lane * 4;
    to += (p.word * (bits / 4) + part / per_word * per_lane) * slab;
    for (uint32_t lane = 0; lane < 8; lane++, to += (size_t)l->group / 2 * 4)
        for (uint32_t x = 0; x < per_lane; x++, codes += bits / 2) {
            quad code = bits == 8 ? quad_of(codes) : quad_of_halves(codes);
            merge(to + x * slab, mask, up_by(code, up));
        }
}

static void put_values(const struct tqi_layout *l, uint32_t bits, const uint8_t *codes,
                       uint8_t *blob, uint32_t token) {
    if (bits >= 8) {
        if (bits == 8)
            put_wide_values(l, 8, codes, blob, token);
        else
            put_wide_values(l, 16, codes, blob, token);
        return;
    }
    struct tqi_place p = tqi_place_v(l, token, 0);
    uint32_t per_lane = l->dim_pad / 32, x = 0, lane = p.lane;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    uint8_t *to = blob + l->codes;
    for (uint32_t i = 0; i < l->dim_pad; i += 4) {
        quad code = quad_of(codes + i);
        if (bits == 4) {
            put_whole(to + (p.word + x) * slab + (size_t)lane * 4, p.code, code);
        } else {
            put_quad(l, bits, to, p.word + x, lane, p.code, code);
        }
        bool wrap = ++x == per_lane;
        x = wrap ? 0 : x;
        lane += wrap ? l->group / 2 : 0;
    }
}
