/* Exponentials of 16 lanes. */
#ifndef TQI_KERNEL_AVX512_EXP_H
#define TQI_KERNEL_AVX512_EXP_H

#include "kernel/avx512/avx512.h"

#define TQK_LOG2_E 1.44269504088896340736

/* 2^y, y small or negative, relative error below 2e-7; NaN stays NaN. Below 2^-100 it is 0, so that
 * no product with a gain is subnormal (some 150 cycles each on Intel cores): a small number in its
 * place would be heard from values of 10^38. What y is above the integer below it takes one
 * operation, in [0, 1), and so does the power of two of that integer. */
TQK_INLINE __m512 tqk_exp2_avx512(__m512 y) {
    const __mmask16 above = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-100), _CMP_NLT_UQ);
    __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(1.86713007e-3f); /* minimax of the relative error, exact at 0 */
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.01703032e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.57999131e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40164450e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93151312e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_maskz_scalef_ps(above, p, y);
}

/* The first n of 16 lanes. */
static inline __mmask16 tqk_first_avx512(uint32_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

#endif
