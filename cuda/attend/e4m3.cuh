/*
 * Numbers for the FP8 tensor cores, as sums of e4m3, which have four significant bits (planes).
 *
 * Of products that they add, the tensor cores of sm_90 keep 13 bits below the largest, so that one
 * loud channel takes the low bits of all others. So elements of a query at least a quarter of its
 * largest (at least 64, where the largest is in [128, 256)) begin in the first plane, and all
 * others in the second, where of a loud element only the rest is left:
 *
 *     q = a + b / 4 + c / 64     a = q or 0, b = 4 (q - a), c = 16 (4 (q - a) - b), each rounded
 *     p = a + b / 16             probabilities
 *
 * Three planes hold every bf16 exactly.
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

/* Row of an item whose plane stands in a column, 4 nt of them. */
TQI_INLINE uint32_t row_of_column(uint32_t nt, uint32_t block, uint32_t column) {
    uint32_t first = block < nt ? 4 * block : 4 * (2 * (block - nt) + column % 2);
    return first + column / 2;
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

/* Two probabilities; both bytes of the first plane, then of the second. */
TQI_INLINE uint32_t weight_planes(float a, float b) {
    uint32_t first = to_e4m3(a, b);
    float2 is = from_e4m3(first);
    return first | to_e4m3((a - is.x) * 16.0f, (b - is.y) * 16.0f) << 16;
}

/* Where a query element begins in the first plane. NaN does. */
TQI_INLINE float loud(float x) {
    return fabsf(x) < TQI_E4M3_LARGEST / 4 ? 0 : x;
}

/* Four elements of a query: a word of each plane. */
TQI_INLINE void query_planes(const float x[4], uint32_t plane[3]) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t a = to_e4m3(loud(x[i]), loud(x[i + 1]));
        float2 is = from_e4m3(a);
        float rest[2] = {(x[i] - is.x) * 4.0f, (x[i + 1] - is.y) * 4.0f};
        uint32_t b = to_e4m3(rest[0], rest[1]);
        is = from_e4m3(b);
        uint32_t c = to_e4m3((rest[0] - is.x) * 16.0f, (rest[1] - is.y) * 16.0f);
        plane[0] = i ? plane[0] | a << 16 : a;
        plane[1] = i ? plane[1] | b << 16 : b;
        plane[2] = i ? plane[2] | c << 16 : c;
    }
}

/* Sums from those of the planes. */
TQI_INLINE float joined_weights(float a, float b) {
    return fmaf(b, 1.0f / 16.0f, a);
}

TQI_INLINE float joined_query(float a, float b, float c) {
    return fmaf(fmaf(c, 1.0f / 16.0f, b), 1.0f / 4.0f, a);
}

} /* namespace tqi */

#endif
