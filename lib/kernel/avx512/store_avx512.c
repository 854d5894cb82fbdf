/* Stage store: rows of doubles to the caller's elements. On the way to 16 bits they are binary32
 * rounded to odd, truncated with the last bit set where that lost something, so that only the
 * second rounding shows. */
#include "kernel/avx512/avx512.h"

static inline __m256i odd_half(const double *x) {
    const __m512d d = _mm512_loadu_pd(x);
    const __m256 f = _mm512_cvt_roundpd_ps(d, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask8 lost = _mm512_cmp_pd_mask(_mm512_cvtps_pd(f), d, _CMP_NEQ_OQ);
    const __m256i bits = _mm256_castps_si256(f);
    return _mm256_mask_or_epi32(bits, lost, bits, _mm256_set1_epi32(1));
}

/* Binary32, rounded to odd. */
TQK_INLINE __m512i odd(const double *x) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(odd_half(x)), odd_half(x + 8), 1);
}

TQK_INLINE __mmask16 is_nan(__m512i bits) {
    return _mm512_cmp_epu32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                 _mm512_set1_epi32(0x7f800000), _MM_CMPINT_NLE);
}

TQK_INLINE __m256i to_bf16(__m512i bits) {
    const __m512i high = _mm512_srli_epi32(bits, 16), one = _mm512_set1_epi32(1);
    __m512i up = _mm512_add_epi32(_mm512_and_si512(high, one), _mm512_set1_epi32(0x7fff));
    up = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
    up = _mm512_mask_or_epi32(up, is_nan(bits), high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(up);
}

TQK_INLINE __m256i to_f16(__m512i bits) {
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000));
    const __m512i nan = _mm512_or_si512(sign, _mm512_set1_epi32(0x7e00));
    const __m256i half =
        _mm512_cvtps_ph(_mm512_castsi512_ps(bits), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm256_mask_mov_epi16(half, is_nan(bits), _mm512_cvtepi32_epi16(nan));
}

void tqk_store_avx512(const double *row, uint32_t dim, tq_dtype dtype, void *out) {
    for (uint32_t i = 0; i < dim; i += 16) {
        if (dtype == TQ_F32) {
            float *to = (float *)(void *)((char *)out + (size_t)i * 4);
            _mm256_storeu_ps(to, _mm512_cvtpd_ps(_mm512_loadu_pd(row + i)));
            _mm256_storeu_ps(to + 8, _mm512_cvtpd_ps(_mm512_loadu_pd(row + i + 8)));
            continue;
        }
        const __m512i bits = odd(row + i);
        const __m256i half = dtype == TQ_F16 ? to_f16(bits) : to_bf16(bits);
        _mm256_storeu_si256((void *)((char *)out + (size_t)i * 2), half);
    }
}
