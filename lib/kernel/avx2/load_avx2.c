/* Stages load and widen: the caller's elements to binary32. Rows to load with an element that is
 * not finite go to the reference, which replaces and counts it. */
#include <float.h>

#include "kernel/avx2/avx2.h"

TQK_INLINE __m256 elements(const void *row, tq_dtype dtype, uint32_t i) {
    if (dtype == TQ_F32)
        return _mm256_loadu_ps((const void *)((const char *)row + (size_t)i * 4));
    __m128i half = _mm_loadu_si128((const void *)((const char *)row + (size_t)i * 2));
    if (dtype == TQ_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

TQK_INLINE bool load(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out) {
    const __m256 most = _mm256_set1_ps(FLT_MAX), least = _mm256_set1_ps(-FLT_MAX);
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    __m256 bad = _mm256_setzero_ps();
    for (uint32_t i = 0; i < dim; i += 8) {
        __m256 x = elements(row, dtype, i);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(_mm256_and_ps(x, magnitude), most, _CMP_NLE_UQ));
        if (mean) {
            x = _mm256_sub_ps(x, _mm256_loadu_ps(mean + i));
            x = _mm256_max_ps(_mm256_min_ps(x, most), least);
        }
        _mm256_storeu_ps(out + i, x);
    }
    return _mm256_movemask_ps(bad) == 0;
}

void tqk_load_avx2(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out,
                   struct tqi_nonfinite *count) {
    bool finite = dtype == TQ_F32   ? load(row, TQ_F32, dim, mean, out)
                  : dtype == TQ_F16 ? load(row, TQ_F16, dim, mean, out)
                                    : load(row, TQ_BF16, dim, mean, out);
    if (!finite)
        tqk_load_ref(row, dtype, dim, mean, out, count);
}

void tqk_widen_avx2(const void *row, tq_dtype dtype, uint32_t dim, float *out) {
    for (uint32_t i = 0; i < dim; i += 8)
        _mm256_storeu_ps(out + i, elements(row, dtype, i));
}
