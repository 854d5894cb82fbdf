/* Stage load: the caller's elements to binary32. Rows with an element that is not finite go
 * to the reference, which replaces and counts it. */
#include <float.h>

#include "kernel/neon/neon.h"

/* Rows need no more alignment than their elements have. */
TQK_INLINE float32x4_t elements(const void *row, tq_dtype dtype, uint32_t i) {
    uint16x4_t half;
    if (dtype == TQ_F32) {
        float32x4_t x;
        memcpy(&x, (const char *)row + (size_t)i * 4, sizeof x);
        return x;
    }
    memcpy(&half, (const char *)row + (size_t)i * 2, sizeof half);
    if (dtype == TQ_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

TQK_INLINE bool load(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out) {
    const float32x4_t most = vdupq_n_f32(FLT_MAX), least = vdupq_n_f32(-FLT_MAX);
    uint32x4_t finite = vdupq_n_u32(UINT32_MAX);
    for (uint32_t i = 0; i < dim; i += 4) {
        float32x4_t x = elements(row, dtype, i);
        finite = vandq_u32(finite, vcleq_f32(vabsq_f32(x), most));
        if (mean) {
            x = vsubq_f32(x, vld1q_f32(mean + i));
            x = vmaxq_f32(vminq_f32(x, most), least);
        }
        vst1q_f32(out + i, x);
    }
    return vminvq_u32(finite) != 0;
}

void tqk_load_neon(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out,
                   struct tqi_nonfinite *count) {
    bool finite = dtype == TQ_F32   ? load(row, TQ_F32, dim, mean, out)
                  : dtype == TQ_F16 ? load(row, TQ_F16, dim, mean, out)
                                    : load(row, TQ_BF16, dim, mean, out);
    if (!finite)
        tqk_load_ref(row, dtype, dim, mean, out, count);
}
