/*
 * Numbers for the FP8 tensor cores. An e4m3 has four significant bits, so a query element is the
 * sum of three (planes): x = h + l / 16 + r / 256, each the rounding of what is left over times
 * 16. Two planes hold every bf16 exactly, three every f16. Probabilities take two.
 *
 * Planes become columns of B. In block nt of 8 columns, columns 2 t and 2 t + 1 are the first
 * two planes of query row 4 nt + t; block NT + b holds the third of rows 8 b + t and
 * 8 b + 4 + t in columns 2 t and 2 t + 1. So a thread (g, t) ends up with all planes of its
 * rows 4 nt + t.
 *
 * Fragments of an item: [block][word][lane], lane 4 n + t has dims t D/4 + 4 word + 0..3 of
 * column n. 128 bytes of a word are a core matrix of wgmma, 8 columns of 16 bytes.
 */
#ifndef TQI_CUDA_ATTEND_E4M3_CUH
#define TQI_CUDA_ATTEND_E4M3_CUH

#include "attend/operands.cuh"

namespace tqi {

/* The largest element of a query and of a tile's probabilities, as an e4m3 (of at most 448). */
#define TQI_E4M3_LARGEST 256.0f
#define TQI_E4M3_LOG2_LARGEST 8.0f

/* Blocks of columns of an item of 4 nt rows. */
__host__ __device__ constexpr uint32_t query_blocks(uint32_t nt) {
    return nt + (nt + 1) / 2;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define TQI_E4M3_MMA 1
#else
#define TQI_E4M3_MMA 0
#endif

/* Two e4m3 in a word's low half, the first lowest. */
TQI_INLINE uint32_t to_e4m3(float a, float b) {
    uint32_t r = 0;
#if TQI_E4M3_MMA
    asm("{.reg .b16 h;\ncvt.rn.satfinite.e4m3x2.f32 h,%2,%1;\ncvt.u32.u16 %0,h;\n}"
        : "=r"(r)
        : "f"(a), "f"(b));
#endif
    return r;
}

TQI_INLINE float2 from_e4m3(uint32_t w) {
    uint32_t low, high;
    e4m3_to_halves(w, low, high);
    return halves_of(low);
}

/* Two numbers as two planes each: bytes a, b of the first, then of the second. */
TQI_INLINE uint32_t two_planes(float a, float b) {
    uint32_t first = to_e4m3(a, b);
    float2 is = from_e4m3(first);
    return first | to_e4m3((a - is.x) * 16.0f, (b - is.y) * 16.0f) << 16;
}

/* Four numbers as three planes; words of four bytes. */
TQI_INLINE void three_planes(const float x[4], uint32_t plane[3]) {
    float rest[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
    for (int i = 0; i < 3; i++) {
        uint32_t low = to_e4m3(rest[0], rest[1]), high = to_e4m3(rest[2], rest[3]);
        float2 a = from_e4m3(low), b = from_e4m3(high);
        plane[i] = low | high << 16;
        rest[0] = (rest[0] - a.x) * 16.0f;
        rest[1] = (rest[1] - a.y) * 16.0f;
        rest[2] = (rest[2] - b.x) * 16.0f;
        rest[3] = (rest[3] - b.y) * 16.0f;
    }
}

/* A sum from those of the planes. */
TQI_INLINE float joined_planes(float first, float second) {
    return fmaf(second, 1.0f / 16.0f, first);
}

TQI_INLINE float joined_planes(float first, float second, float third) {
    return fmaf(fmaf(third, 1.0f / 16.0f, second), 1.0f / 16.0f, first);
}

} /* namespace tqi */

#endif
