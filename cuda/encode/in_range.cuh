/* Square roots and quotients rounded as IEEE asks, without the questions whether numbers are in
 * range, and gains by them. */
#ifndef TQI_CUDA_ENCODE_IN_RANGE_CUH
#define TQI_CUDA_ENCODE_IN_RANGE_CUH

#include "encode/row.cuh"
#include "encode/unit.cuh"

namespace tqi {

TQI_ENCODE_INLINE float sqrt_in_range(float x) {
    float r;
    asm volatile("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    float s = x * r;
    return fmaf(fmaf(-s, s, x), r * 0.5f, s);
}

TQI_ENCODE_INLINE float reciprocal_in_range(float x) {
    float r;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return fmaf(fmaf(-x, r, 1.0f), r, r);
}

TQI_ENCODE_INLINE float quotient_in_range(float a, float b) {
    float r;
    asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    r = fmaf(fmaf(-b, r, 1.0f), r, r);
    float q = a * r;
    q = fmaf(fmaf(-b, q, a), r, q);
    return fmaf(fmaf(-b, q, a), r, q);
}

/* Gain of a token of a unit: its norm over that of its codes, whose sum of squares is `squares`. */
TQI_ENCODE_INLINE void store_gain_in_range(const FastEncodeJob &f, const Unit &u, uint32_t token,
                                           float norm, uint32_t squares) {
    const Side &s = f.job.side[u.side];
    float gain = quotient_in_range(norm * s.gain_factor, sqrt_in_range((float)squares));
    uint8_t *at = u.blob + s.layout.gains + (u.slot + token) * 2;
    if (u.side == TQI_SIDE_V)
        *(__nv_bfloat16 *)at = __float2bfloat16_rn(gain);
    else
        *(__half *)at = __float2half_rn(fminf(gain, 65504.0f));
}

} /* namespace tqi */

#endif
