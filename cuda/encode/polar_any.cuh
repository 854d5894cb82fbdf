/*
 * Step "polar" of the encode contract (spec/rows.h): PolarQuant's recursive transform of blocks of
 * 16 coordinates, a lane a block. No angle is computed: one is beyond a bound when a cross product
 * is positive.
 */
#ifndef TQI_CUDA_ENCODE_POLAR_ANY_CUH
#define TQI_CUDA_ENCODE_POLAR_ANY_CUH

#include "encode/polar_block.cuh"
#include "encode/row_any.cuh"
#include "encode/slots.cuh"

namespace tqi {
namespace {

/* Codes of levels 3 and 4 wait in r.codes, a byte a block: pages hold those of several tokens in
 * a byte. x becomes what is left of the row. */
__device__ inline void encode_block(const RowWork &r, const Side &s, uint8_t *blob, uint32_t token,
                                    uint32_t block, int e) {
    const tqi_layout &l = s.layout;
    const uint32_t element = tqi_polar_element(&l, token, block);
    PolarCodes codes = {0, 0, 0, 0};
    uint16_t gain = 0;
    if (block < l.dim / TQI_POLAR_BLOCK) { /* others are padding */
        float *x = r.x + block * TQI_POLAR_BLOCK, u[TQI_POLAR_BLOCK], radius;
        for (int i = 0; i < TQI_POLAR_BLOCK; i++)
            u[i] = x[i];
        codes = polar_forward(s.polar, u, &radius);
        gain = gain_to_bits(s, ldexpf(radius * s.inv_sqrt_dim, e));
        float stored = ldexpf(gain_bits(s, gain), -e) * s.sqrt_dim;
        for (int i = 0; i < TQI_POLAR_BLOCK; i++)
            x[i] = u[i] - polar_number(s, codes, stored, (uint32_t)i);
    }
    ((uint32_t *)(blob + l.codes))[element] = codes.level1;
    blob[l.polar_level2 + element] = (uint8_t)codes.level2;
    r.codes[block] = (uint8_t)(codes.level3 | codes.level4 << 4);
    ((uint16_t *)(blob + l.gains))[element] = gain;
}

__device__ inline void encode_polar(const RowWork &r, const Side &s, uint8_t *blob,
                                    uint32_t token) {
    const tqi_layout &l = s.layout;
    float sum;
    int e = bring_into_range(r, l.dim, &sum);
    rotate(r.warp, s, s.flips, r.x, r.tree);
    for (uint32_t block = r.warp.rank; block < l.dim_pad / TQI_POLAR_BLOCK; block += 32)
        encode_block(r, s, blob, token, block, e);
    r.warp.sync();
    if (s.sketch_flips)
        encode_sketch(r, s, blob, token, e);
}

/* Levels 3 and 4 of tokens [first, last) of the group that begins at `base`; a thread takes four
 * tokens of a block, whose codes share bytes with nothing else. shared: other blocks write to the
 * group too. */
__device__ inline void pack_polar(const tqi_layout &l, uint8_t *blob, const uint8_t *codes,
                                  uint32_t base, uint32_t first, uint32_t last, bool shared) {
    const uint32_t blocks = l.dim_pad / TQI_POLAR_BLOCK, quads = l.group / 4;
    for (uint32_t i = threadIdx.x; i < blocks * quads; i += blockDim.x) {
        uint32_t block = i / quads, token = i % quads * 4;
        uint32_t element = tqi_polar_element(&l, base + token, block);
        uint16_t *level3 = (uint16_t *)(blob + l.polar_level3 + element / 2);
        uint8_t *level4 = blob + l.polar_level4 + element / 4;
        uint32_t bits = 0, mask = 0; /* level 4 above the 16 bits of level 3 */
        for (uint32_t z = 0; z < 4; z++) {
            if (token + z < first || token + z >= last)
                continue;
            uint32_t code = codes[(token + z) * l.dim_pad + block];
            bits |= (code & 15) << 4 * z | code >> 4 << (16 + 2 * z);
            mask |= 15u << 4 * z | 3u << (16 + 2 * z);
        }
        if (mask == 0)
            continue;
        if (shared) {
            exchange_bits(level3, bits & 0xffff, mask & 0xffff);
            exchange_bits(level4, bits >> 16, mask >> 16);
            continue;
        }
        uint32_t old = *level3 | (uint32_t)*level4 << 16;
        bits |= old & ~mask;
        *level3 = (uint16_t)bits;
        *level4 = (uint8_t)(bits >> 16);
    }
}

} /* namespace */
} /* namespace tqi */

#endif
