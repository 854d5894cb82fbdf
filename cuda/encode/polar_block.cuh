/* Sixteen rotated coordinates to polar codes and a radius; compiled without contraction. */
#ifndef TQI_CUDA_ENCODE_POLAR_BLOCK_CUH
#define TQI_CUDA_ENCODE_POLAR_BLOCK_CUH

#include "common/codes.cuh"

namespace tqi {

/* First-quadrant code of the direction (a, b), a and b not negative. */
__device__ __forceinline__ uint32_t angle_code(const tqi_polar_book &book, float a, float b) {
    uint32_t code = 0;
#pragma unroll
    for (int i = 0; i < TQI_POLAR_CODES - 1; i++)
        code += b * book.bound_cosine[i] > a * book.bound_sine[i];
    return code;
}

__device__ __forceinline__ float radius_of(float a, float b) {
    return __fsqrt_rn(a * a + b * b);
}

/* N radii become N / 2; returns the codes between them. */
template <int N>
__device__ __forceinline__ uint32_t upper_level(const tqi_polar_book &book, float *r) {
    uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        float a = r[2 * j], b = r[2 * j + 1];
        codes |= angle_code(book, a, b) << 2 * j;
        r[j] = radius_of(a, b);
    }
    return codes;
}

__device__ __forceinline__ PolarCodes polar_forward(const tqi_polar_book *book, const float *u,
                                                    float *radius) {
    PolarCodes codes = {0, 0, 0, 0};
    float r[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float a = u[2 * j], b = u[2 * j + 1];
        uint32_t code = angle_code(book[0], fabsf(a), fabsf(b));
        code |= __float_as_uint(a) >> 31 << 2 | __float_as_uint(b) >> 31 << 3;
        codes.level1 |= code << 4 * j;
        r[j] = radius_of(a, b);
    }
    codes.level2 = upper_level<8>(book[1], r);
    codes.level3 = upper_level<4>(book[2], r);
    codes.level4 = upper_level<2>(book[3], r);
    *radius = r[0];
    return codes;
}

} /* namespace tqi */

#endif
