/* Square roots and quotients rounded as IEEE asks, without the questions whether numbers are in
 * range. */
#ifndef TQI_CUDA_ENCODE_IN_RANGE_CUH
#define TQI_CUDA_ENCODE_IN_RANGE_CUH

#include "encode/row.cuh"

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

} /* namespace tqi */

#endif
