/* Stage softcap: cap * tanh(logit / cap). */
#include <float.h>

#include "kernel/avx512/exp_avx512.h"

/* tanh(x), relative error below 3e-7; NaN stays NaN. */
TQK_INLINE __m512 hyperbolic_tangent(__m512 x) {
    const __m512 one = _mm512_set1_ps(1), sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
    __m512 size = _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x), z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(-6.09671417e-3f);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0997179e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.38509096e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33327697e-1f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33333289e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    __m512 e = tqk_exp2_avx512(_mm512_mul_ps(size, _mm512_set1_ps((float)(-2 * TQK_LOG2_E))));
    __m512 far = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    far = _mm512_or_ps(far, sign);
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_GT_OQ), far);
}

/* Nearest finite number of binary32; NaN stays. */
static float finite(double x) {
    const double most = FLT_MAX;
    return (float)(x > most ? most : x < -most ? -most : x);
}

/* Arguments are brought to where tanh is 1 within binary32, so that nothing overflows. */
void tqk_softcap_avx512(void *scores, uint32_t score_stride, const double *shift, uint32_t n_rows,
                        uint32_t n_tokens, double scale, double cap) {
    const __m512 factor = _mm512_set1_ps(finite(scale * TQK_SCORE_UNIT / cap));
    const __m512 unit = _mm512_set1_ps((float)(cap / TQK_SCORE_UNIT));
    const __m512 end = _mm512_set1_ps(10), start = _mm512_set1_ps(-10);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = (float *)scores + (size_t)r * score_stride;
        __m512 before = _mm512_set1_ps(finite(shift[r] / cap));
        for (uint32_t t = 0; t < n_tokens; t += 16) {
            __mmask16 mask = tqk_first_avx512(n_tokens - t);
            __m512 x = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, row + t), factor, before);
            x = _mm512_min_ps(end, _mm512_max_ps(start, x));
            x = _mm512_mul_ps(hyperbolic_tangent(x), unit);
            _mm512_mask_storeu_ps(row + t, mask, x);
        }
    }
}
