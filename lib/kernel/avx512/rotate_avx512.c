/* Stage rotate: signs and a Hadamard matrix, in the order of spec/rotation.h. Every sum is
 * the one that the reference makes: codes are cut from them. */
#include "kernel/avx512/avx512.h"

/* One butterfly inside a register: (a, b) -> (a + b, a - b) for lanes `stride` apart, given
 * the lanes exchanged and the sign bits of the b lanes. */
TQK_INLINE __m512 butterfly(__m512 x, __m512 exchanged, __m512i b_sign) {
    __m512i flipped = _mm512_xor_si512(_mm512_castps_si512(x), b_sign);
    return _mm512_add_ps(exchanged, _mm512_castsi512_ps(flipped));
}

static __m512i signs_of(__mmask16 lanes) {
    return _mm512_maskz_set1_epi32(lanes, INT32_MIN);
}

/* Strides 1, 2, 4 and, for blocks of 16 and more, 8. */
static void butterflies_inside(float *x, uint32_t dim, uint32_t block) {
    const __m512i s1 = signs_of(0xaaaa), s2 = signs_of(0xcccc), s4 = signs_of(0xf0f0);
    const __m512i s8 = signs_of(0xff00);
    for (uint32_t i = 0; i < dim; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        if (block > 1)
            v = butterfly(v, _mm512_permute_ps(v, 0xb1), s1);
        if (block > 2)
            v = butterfly(v, _mm512_permute_ps(v, 0x4e), s2);
        if (block > 4)
            v = butterfly(v, _mm512_shuffle_f32x4(v, v, 0xb1), s4);
        if (block > 8)
            v = butterfly(v, _mm512_shuffle_f32x4(v, v, 0x4e), s8);
        _mm512_storeu_ps(x + i, v);
    }
}

static void butterflies(float *x, uint32_t dim, uint32_t block) {
    butterflies_inside(x, dim, block);
    for (uint32_t stride = 16; stride < block; stride *= 2)
        for (uint32_t base = 0; base < dim; base += 2 * stride)
            for (uint32_t i = base; i < base + stride; i += 16) {
                __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + stride);
                _mm512_storeu_ps(x + i, _mm512_add_ps(a, b));
                _mm512_storeu_ps(x + i + stride, _mm512_sub_ps(a, b));
            }
}

/* Column b of every block, b in lanes; `lanes` of them are real. H_m or its transpose. */
static void mix_lanes(const struct tqi_rotation *r, float *x, uint32_t block, __mmask16 lanes,
                      bool transpose) {
    __m512 in[36];
    for (uint32_t a = 0; a < r->order; a++)
        in[a] = _mm512_maskz_loadu_ps(lanes, x + (size_t)a * block);
    for (uint32_t row = 0; row < r->order; row++) {
        __m512 sum = _mm512_setzero_ps();
        for (uint32_t a = 0; a < r->order; a++) {
            uint64_t minus = transpose ? r->rows[a] >> row & 1 : r->rows[row] >> a & 1;
            __m512i sign = _mm512_set1_epi32(minus ? INT32_MIN : 0);
            __m512 v = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(in[a]), sign));
            sum = a == 0 ? v : _mm512_add_ps(sum, v);
        }
        _mm512_mask_storeu_ps(x + (size_t)row * block, lanes, sum);
    }
}

static void mix_blocks(const struct tqi_rotation *r, float *x, bool transpose) {
    uint32_t block = 1u << r->log2_block;
    for (uint32_t b = 0; b < block; b += 16) {
        uint32_t n = block - b;
        mix_lanes(r, x + b, block, (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1), transpose);
    }
}

static void flip_signs(const struct tqi_rotation *r, float *x) {
    for (uint32_t i = 0; i < r->dim; i += 16) {
        __m512i v = _mm512_xor_si512(_mm512_loadu_si512(x + i), _mm512_loadu_si512(r->flips + i));
        _mm512_storeu_si512(x + i, v);
    }
}

void tqk_rotate_avx512(const struct tqi_rotation *r, float *x) {
    flip_signs(r, x);
    butterflies(x, r->dim, 1u << r->log2_block);
    if (r->order > 1)
        mix_blocks(r, x, false);
}

void tqk_unrotate_avx512(const struct tqi_rotation *r, float *x) {
    if (r->order > 1)
        mix_blocks(r, x, true);
    butterflies(x, r->dim, 1u << r->log2_block);
    flip_signs(r, x);
}
