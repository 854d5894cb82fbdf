/* The caller's rows: loading an element as append does it, storing a result. */
#ifndef TQI_CUDA_COMMON_ROWS_CUH
#define TQI_CUDA_COMMON_ROWS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <float.h>

#include "params.h"
#include "tq/tq.h"

namespace tqi {

__device__ inline float bf16_bits(uint16_t h) {
    return __uint_as_float((uint32_t)h << 16);
}

__device__ inline float f16_bits(uint16_t h) {
    return __half2float(__ushort_as_half(h));
}

/* Element i of a row as binary32, unchanged. */
__device__ inline float load_element(const void *data, int32_t dtype, int64_t i) {
    if (dtype == TQ_F32)
        return ((const float *)data)[i];
    uint16_t h = ((const uint16_t *)data)[i];
    return dtype == TQ_F16 ? f16_bits(h) : bf16_bits(h);
}

__device__ inline float largest_of(int32_t dtype) {
    return dtype == TQ_F32 ? FLT_MAX : dtype == TQ_F16 ? 65504.0f : 3.38953139e38f;
}

/* NaN to 0, infinities to the largest finite value; bad: 1 for a NaN, 1 << 16 for an
 * infinity is added. */
__device__ inline float replace_nonfinite(float x, int32_t dtype, uint32_t &bad) {
    uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
    if (magnitude < 0x7f800000u)
        return x;
    bad += magnitude > 0x7f800000u ? 1u : 1u << 16;
    return magnitude > 0x7f800000u ? 0.0f : copysignf(largest_of(dtype), x);
}

/* A finite number in bf16 or f16, saturating. */
__device__ inline uint16_t to_16_bits(uint32_t format, float x) {
    float most = format == TQ_FORMAT_F16 ? 65504.0f : 3.38953139e38f;
    x = fminf(fmaxf(x, -most), most);
    return format == TQ_FORMAT_F16 ? __half_as_ushort(__float2half_rn(x))
                                   : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* x - mean, kept finite. */
__device__ inline float subtract_mean(float x, float mean) {
    float y = x - mean;
    return isinf(y) ? copysignf(FLT_MAX, y) : y;
}

__device__ inline void store_element(const RowsOut &rows, int64_t i, float x) {
    if (rows.dtype == TQ_F32)
        ((float *)rows.data)[i] = x;
    else if (rows.dtype == TQ_F16)
        ((__half *)rows.data)[i] = __float2half_rn(x);
    else
        ((__nv_bfloat16 *)rows.data)[i] = __float2bfloat16_rn(x);
}

/* A number that, stored as an element, is x rounded once: for 16 bits it is rounded to odd. */
__device__ inline float narrowed(int32_t dtype, double x) {
    float f = __double2float_rz(x);
    if (dtype == TQ_F32)
        f = __double2float_rn(x);
    else if ((double)f != x && !isnan(f))
        f = __uint_as_float(__float_as_uint(f) | 1);
    return f;
}

__device__ inline void store_element(const RowsOut &rows, int64_t i, double x) {
    store_element(rows, i, narrowed(rows.dtype, x));
}

/* Four elements of a row as they are; aligned: they can be read at a time. */
__device__ __forceinline__ void load_quad(const RowsIn &q, bool aligned, int64_t at, float x[4]) {
    if (!aligned) {
        for (int i = 0; i < 4; i++)
            x[i] = load_element(q.data, q.dtype, at + i);
    } else if (q.dtype == TQ_F32) {
        float4 v = *(const float4 *)((const float *)q.data + at);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        uint2 v = *(const uint2 *)((const uint16_t *)q.data + at);
        bool half = q.dtype == TQ_F16;
        x[0] = half ? f16_bits((uint16_t)v.x) : bf16_bits((uint16_t)v.x);
        x[1] = half ? f16_bits((uint16_t)(v.x >> 16)) : bf16_bits((uint16_t)(v.x >> 16));
        x[2] = half ? f16_bits((uint16_t)v.y) : bf16_bits((uint16_t)v.y);
        x[3] = half ? f16_bits((uint16_t)(v.y >> 16)) : bf16_bits((uint16_t)(v.y >> 16));
    }
}

__device__ __forceinline__ uint32_t pack16(int32_t dtype, float a, float b) {
    uint32_t r;
    if (dtype == TQ_F16)
        asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(b), "f"(a));
    else
        asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}

/* aligned: four elements can be written at a time. */
__device__ __forceinline__ void store_quad(const RowsOut &out, bool aligned, int64_t at,
                                           const float x[4]) {
    if (!aligned) {
        for (int i = 0; i < 4; i++)
            store_element(out, at + i, x[i]);
    } else if (out.dtype == TQ_F32) {
        *(float4 *)((float *)out.data + at) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
        *(uint2 *)((uint16_t *)out.data + at) =
            make_uint2(pack16(out.dtype, x[0], x[1]), pack16(out.dtype, x[2], x[3]));
    }
}

} /* namespace tqi */

#endif
