/* Stage rotate: signs and a Hadamard matrix, in the order of spec/rotation.h. Every sum is
 * the one that the reference makes: codes are cut from them. */
#include "kernel/avx2/avx2.h"

/* (a, b) -> (a + b, a - b) for lanes `stride` apart, given the lanes exchanged and the sign
 * bits of the b lanes. */
TQK_INLINE __m256 butterfly(__m256 x, __m256 exchanged, __m256 b_sign) {
    return _mm256_add_ps(exchanged, _mm256_xor_ps(x, b_sign));
}

static __m256 signs(int s0, int s1, int s2, int s3, int s4, int s5, int s6, int s7) {
    __m256i x = _mm256_setr_epi32(s0, s1, s2, s3, s4, s5, s6, s7);
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 31));
}

static void butterflies(float *x, uint32_t dim, uint32_t block) {
    const __m256 s1 = signs(0, 1, 0, 1, 0, 1, 0, 1), s2 = signs(0, 0, 1, 1, 0, 0, 1, 1);
    const __m256 s4 = signs(0, 0, 0, 0, 1, 1, 1, 1);
    for (uint32_t i = 0; i < dim; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        if (block > 1)
            v = butterfly(v, _mm256_permute_ps(v, 0xb1), s1);
        if (block > 2)
            v = butterfly(v, _mm256_permute_ps(v, 0x4e), s2);
        if (block > 4)
            v = butterfly(v, _mm256_permute2f128_ps(v, v, 0x01), s4);
        _mm256_storeu_ps(x + i, v);
    }
    for (uint32_t stride = 8; stride < block; stride *= 2)
        for (uint32_t base = 0; base < dim; base += 2 * stride)
            for (uint32_t i = base; i < base + stride; i += 8) {
                __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + stride);
                _mm256_storeu_ps(x + i, _mm256_add_ps(a, b));
                _mm256_storeu_ps(x + i + stride, _mm256_sub_ps(a, b));
            }
}

/* Column b of every block, b in lanes; `lanes` of them are real. H_m or its transpose. */
static void mix_lanes(const struct tqi_rotation *r, float *x, uint32_t block, __m256i lanes,
                      bool transpose) {
    __m256 in[36];
    for (uint32_t a = 0; a < r->order; a++)
        in[a] = _mm256_maskload_ps(x + (size_t)a * block, lanes);
    for (uint32_t row = 0; row < r->order; row++) {
        __m256 sum = _mm256_setzero_ps();
        for (uint32_t a = 0; a < r->order; a++) {
            uint64_t minus = transpose ? r->rows[a] >> row & 1 : r->rows[row] >> a & 1;
            __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32(minus ? INT32_MIN : 0));
            __m256 v = _mm256_xor_ps(in[a], sign);
            sum = a == 0 ? v : _mm256_add_ps(sum, v);
        }
        _mm256_maskstore_ps(x + (size_t)row * block, lanes, sum);
    }
}

static void mix_blocks(const struct tqi_rotation *r, float *x, bool transpose) {
    uint32_t block = 1u << r->log2_block;
    for (uint32_t b = 0; b < block; b += 8)
        mix_lanes(r, x + b, block, tqk_first_avx2(block - b), transpose);
}

static void flip_signs(const struct tqi_rotation *r, float *x) {
    for (uint32_t i = 0; i < r->dim; i += 8) {
        __m256 flips = _mm256_loadu_ps((const float *)(const void *)(r->flips + i));
        _mm256_storeu_ps(x + i, _mm256_xor_ps(_mm256_loadu_ps(x + i), flips));
    }
}

void tqk_rotate_avx2(const struct tqi_rotation *r, float *x) {
    flip_signs(r, x);
    butterflies(x, r->dim, 1u << r->log2_block);
    if (r->order > 1)
        mix_blocks(r, x, false);
}

void tqk_unrotate_avx2(const struct tqi_rotation *r, float *x) {
    if (r->order > 1)
        mix_blocks(r, x, true);
    butterflies(x, r->dim, 1u << r->log2_block);
    flip_signs(r, x);
}
