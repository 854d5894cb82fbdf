/*
 * Words of 3-bit codes whose sets reach into the next token group, or are not complete and end in
 * planes of bytes ("bit planes" in spec/layout.h). Bits beside those of a group's tokens belong to
 * another group, whose warp may write at the same time: they are exchanged.
 */
#ifndef TQI_CUDA_ENCODE_OPEN_SETS_CUH
#define TQI_CUDA_ENCODE_OPEN_SETS_CUH

#include "common/codes.cuh"
#include "encode/stage.cuh"

namespace tqi {

/* Where words of a group go. */
struct OpenPlace {
    const tqi_layout &layout;
    uint8_t *blob;
    uint32_t first_word; /* of the group in a lane */
};

/* The lowest bits of eight nibbles as a byte. */
TQI_ENCODE_INLINE uint32_t low_bits(uint32_t nibbles) {
    uint32_t pairs = (nibbles & 0x11111111u) | (nibbles & 0x11111111u) >> 3;
    uint32_t quads = (pairs & 0x03030303u) | (pairs & 0x03030303u) >> 6;
    return (quads & 15) | (quads >> 12 & 0xf0);
}

/* Eight codes in nibbles to word `word` of the group in a lane. */
TQI_ENCODE_INLINE void put_open(const OpenPlace &p, uint32_t word, uint32_t lane, uint32_t codes) {
    SharedWord s = share_of(p.layout, p.first_word + word);
    if (s.member != 3 && !(s.planes && s.member == s.members - 1)) {
        exchange_bits(word_at(p.layout, p.blob, s.slab + s.member, lane), codes, 0x77777777u);
        return;
    }
#pragma unroll 1
    for (uint32_t bit = 0; bit < 3; bit++)
        if (bit < s.members - 1) /* above the nibbles of another word of the set */
            exchange_bits(word_at(p.layout, p.blob, s.slab + bit, lane),
                          (codes >> bit & 0x11111111u) << 3, 0x88888888u);
        else
            *plane_at(p.layout, p.blob, s, bit - (s.members - 1), lane) =
                (uint8_t)low_bits(codes >> bit);
}

} /* namespace tqi */

#endif
