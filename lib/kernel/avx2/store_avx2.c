/* Stage store: rows of doubles to the caller's elements. On the way to 16 bits they are binary32
 * rounded to odd: where rounding to nearest has lost something, away from zero or not, the last
 * bit of what is nearer to zero is set, so that only the second rounding shows. */
#include "kernel/avx2/avx2.h"

/* Masks of four doubles as four of 32 bits. */
TQK_INLINE __m128i narrow(__m256d mask) {
    const __m256 x = _mm256_castpd_ps(mask);
    return _mm_castps_si128(
        _mm_shuffle_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1), 0x88));
}

static inline __m128i odd_half(const double *x) {
    const __m256d sign = _mm256_set1_pd(-0.0), d = _mm256_loadu_pd(x);
    const __m128 f = _mm256_cvtpd_ps(d);
    const __m256d back = _mm256_cvtps_pd(f);
    const __m128i lost = narrow(_mm256_cmp_pd(back, d, _CMP_NEQ_OQ));
    const __m128i away =
        narrow(_mm256_cmp_pd(_mm256_andnot_pd(sign, back), _mm256_andnot_pd(sign, d), _CMP_GT_OQ));
    const __m128i bits = _mm_add_epi32(_mm_castps_si128(f), away); /* a mask is minus one */
    return _mm_or_si128(bits, _mm_srli_epi32(lost, 31));
}

/* Binary32, rounded to odd. */
TQK_INLINE __m256i odd(const double *x) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(odd_half(x)), odd_half(x + 4), 1);
}

TQK_INLINE __m256i is_nan(__m256i bits) {
    return _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)),
                              _mm256_set1_epi32(0x7f800000));
}

/* The low halves of eight words that have nothing else. */
TQK_INLINE __m128i low_halves(__m256i x) {
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

TQK_INLINE __m128i to_bf16(__m256i bits) {
    const __m256i high = _mm256_srli_epi32(bits, 16), one = _mm256_set1_epi32(1);
    __m256i up = _mm256_add_epi32(_mm256_and_si256(high, one), _mm256_set1_epi32(0x7fff));
    up = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return low_halves(_mm256_blendv_epi8(up, quiet, is_nan(bits)));
}

TQK_INLINE __m128i to_f16(__m256i bits) {
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
    const __m256i nan = _mm256_or_si256(sign, _mm256_set1_epi32(0x7e00));
    const __m128i half =
        _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i mask = is_nan(bits);
    return _mm_blendv_epi8(
        half, low_halves(nan),
        _mm_packs_epi32(_mm256_castsi256_si128(mask), _mm256_extracti128_si256(mask, 1)));
}

void tqk_store_avx2(const double *row, uint32_t dim, tq_dtype dtype, void *out) {
    for (uint32_t i = 0; i < dim; i += 8) {
        if (dtype == TQ_F32) {
            float *to = (float *)(void *)((char *)out + (size_t)i * 4);
            _mm_storeu_ps(to, _mm256_cvtpd_ps(_mm256_loadu_pd(row + i)));
            _mm_storeu_ps(to + 4, _mm256_cvtpd_ps(_mm256_loadu_pd(row + i + 4)));
            continue;
        }
        const __m256i bits = odd(row + i);
        const __m128i half = dtype == TQ_F16 ? to_f16(bits) : to_bf16(bits);
        _mm_storeu_si128((void *)((char *)out + (size_t)i * 2), half);
    }
}
