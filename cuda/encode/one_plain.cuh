/*
 * A row a warp, of head dim 128 and a format that does not rotate: one_row.cuh for plain.cuh. Few
 * instructions count here as well: those of a small kernel between large ones have to be fetched
 * anew each time.
 */
#ifndef TQI_CUDA_ENCODE_ONE_PLAIN_CUH
#define TQI_CUDA_ENCODE_ONE_PLAIN_CUH

#include "encode/one_row.cuh"
#include "encode/plain.cuh"

namespace tqi {

/* Four elements of 16 bits. */
TQI_ENCODE_INLINE void put_16(const QuadPlace &p, bool keys, uint2 w) {
    if (keys) {
        const uint32_t slab = 4 * p.chunk_of_lane() + 2 * (p.quad % 2);
        *p.key_word(slab) = w.x;
        *p.key_word(slab + 1) = w.y;
        return;
    }
    const uint32_t e = p.token % 8;
    uint32_t *at = p.value_words(p.quad % 4 + e / 2 * (QuadPlace::D / 32));
    uint16_t *to = (uint16_t *)at + e % 2;
    to[0] = (uint16_t)w.x;
    to[2] = (uint16_t)(w.x >> 16);
    to[4] = (uint16_t)w.y;
    to[6] = (uint16_t)(w.y >> 16);
}

/* False: the row needs more care, nothing has been written. scale: of fp8. */
TQI_ENCODE_INLINE bool encode_one_plain(const FastEncodeJob &f, const Unit &u, uint32_t token,
                                        float scale) {
    const RowsIn &rows = f.job.rows[u.side];
    const uint32_t format = f.job.side[u.side].format;
    const bool bf16 = rows.dtype == TQ_BF16, fp8 = format == TQ_FORMAT_FP8;
    if (!(f.simple >> u.side & 1) || (!fp8 && (format == TQ_FORMAT_BF16) != bf16))
        return false;
    const QuadPlace p(f, u, token);
    const uint2 v = *(const uint2 *)(u.from + token * rows.token_stride * 2 + p.quad * 8);
    /* an exponent of ones carries into the sign bit */
    const uint32_t exponent = bf16 ? 0x7f807f80u : 0x7c007c00u,
                   lowest = bf16 ? 0x00800080u : 0x04000400u;
    if (__any_sync(~0u, (((v.x & exponent) + lowest) | ((v.y & exponent) + lowest)) & 0x80008000u))
        return false;
    if (!fp8) {
        put_16(p, u.side == TQI_SIDE_K, v);
        return true;
    }
    float x[4];
    to_floats(v, !bf16, x);
    put_8<true>(p, u.side == TQI_SIDE_K, e4m3_word(x, scale));
    return true;
}

} /* namespace tqi */

#endif
