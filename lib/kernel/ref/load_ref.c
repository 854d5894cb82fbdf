/* Stage load: the caller's elements to binary32 and back. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/ref/ref.h"

static float element(const void *row, tq_dtype dtype, uint32_t i) {
    if (dtype == TQ_F32) {
        float f;
        memcpy(&f, (const char *)row + (size_t)i * 4, sizeof f);
        return f;
    }
    uint16_t h;
    memcpy(&h, (const char *)row + (size_t)i * 2, sizeof h);
    return dtype == TQ_F16 ? tqi_f16_to_float(h) : tqi_bf16_to_float(h);
}

static float largest_of(tq_dtype dtype) {
    return dtype == TQ_F32 ? FLT_MAX : dtype == TQ_F16 ? 65504.0f : 0x1.fep127f;
}

void tqk_load_ref(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out,
                  struct tqi_nonfinite *count) {
    for (uint32_t i = 0; i < dim; i++) {
        float x = element(row, dtype, i);
        if (isnan(x)) {
            x = 0;
            count->nan++;
        } else if (isinf(x)) {
            x = copysignf(largest_of(dtype), x);
            count->inf++;
        }
        if (mean)
            x -= mean[i];
        out[i] = isinf(x) ? copysignf(FLT_MAX, x) : x;
    }
}

void tqk_widen_ref(const void *row, tq_dtype dtype, uint32_t dim, float *out) {
    for (uint32_t i = 0; i < dim; i++)
        out[i] = element(row, dtype, i);
}

/* Binary32 on the way to 16 bits: rounded to odd, so that the second rounding is the only
 * one that shows. */
static float to_odd(double x) {
    float f = (float)x;
    if (isnan(x) || isinf(f) || (double)f == x)
        return f;
    uint32_t bits = tqi_float_bits(f);
    if (fabs((double)f) > fabs(x))
        bits--; /* towards zero */
    return tqi_bits_float(bits | 1u);
}

void tqk_store_ref(const double *row, uint32_t dim, tq_dtype dtype, void *out) {
    for (uint32_t i = 0; i < dim; i++) {
        if (dtype == TQ_F32) {
            float f = (float)row[i];
            memcpy((char *)out + (size_t)i * 4, &f, sizeof f);
        } else {
            float f = to_odd(row[i]);
            uint16_t h = dtype == TQ_F16 ? tqi_float_to_f16(f) : tqi_float_to_bf16(f);
            memcpy((char *)out + (size_t)i * 2, &h, sizeof h);
        }
    }
}
