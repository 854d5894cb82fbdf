/* Stages load and widen: the caller's elements to binary32. Rows to load with an element that is
 * not finite go to the reference, which replaces and counts it. */
#include <float.h>

#include "kernel/avx512/avx512.h"

TQK_INLINE __m512 elements(const void *row, tq_dtype dtype, uint32_t i) {
    if (dtype == TQ_F32)
        return _mm512_loadu_ps((const char *)row + (size_t)i * 4);
    __m256i half = _mm256_loadu_si256((const void *)((const char *)row + (size_t)i * 2));
    if (dtype == TQ_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

TQK_INLINE bool load(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out) {
    const __m512 most = _mm512_set1_ps(FLT_MAX), least = _mm512_set1_ps(-FLT_MAX);
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < dim; i += 16) {
        __m512 x = elements(row, dtype, i);
        bad |= _mm512_cmp_ps_mask(_mm512_abs_ps(x), most, _CMP_NLE_UQ);
        if (mean) {
            x = _mm512_sub_ps(x, _mm512_loadu_ps(mean + i));
            x = _mm512_max_ps(_mm512_min_ps(x, most), least);
        }
        _mm512_storeu_ps(out + i, x);
    }
    return bad == 0;
}

void tqk_load_avx512(const void *row, tq_dtype dtype, uint32_t dim, const float *mean, float *out,
                     struct tqi_nonfinite *count) {
    bool finite = dtype == TQ_F32   ? load(row, TQ_F32, dim, mean, out)
                  : dtype == TQ_F16 ? load(row, TQ_F16, dim, mean, out)
                                    : load(row, TQ_BF16, dim, mean, out);
    if (!finite)
        tqk_load_ref(row, dtype, dim, mean, out, count);
}

void tqk_widen_avx512(const void *row, tq_dtype dtype, uint32_t dim, float *out) {
    for (uint32_t i = 0; i < dim; i += 16)
        _mm512_storeu_ps(out + i, elements(row, dtype, i));
}
