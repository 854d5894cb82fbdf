/* The range of a query row, written once for all SIMD levels. A file includes this once, behind
 * the registers of its level (vec_*.h). */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "base/half.h"

/* Largest magnitude; NaN when there is one: its bits are above those of all numbers. */
static float largest_of(const float *x, uint32_t n) {
    ivec most = i_all(0);
    uint32_t lane[LANES], all = 0;
    for (uint32_t i = 0; i < n; i += LANES)
        most = i_larger(most, i_and(v_bits(v_load(x + i)), i_all(0x7fffffff)));
    i_store(lane, most);
    for (uint32_t i = 0; i < LANES; i++)
        all = lane[i] > all ? lane[i] : all;
    return tqi_bits_float(all);
}

static void scale_row(float *x, uint32_t n, float factor) {
    for (uint32_t i = 0; i < n; i += LANES)
        v_store(x + i, v_mul(v_load(x + i), v_all(factor)));
}

/* Brings a row to a magnitude near 1 by a power of two, so that no sum of the rotation
 * overflows. Returns the exponent, or INT_MIN for rows that are not finite. */
static int to_range(float *x, uint32_t n) {
    float most = largest_of(x, n);
    if (!(most <= FLT_MAX))
        return INT_MIN;
    if (most == 0 || (most > 0x1p-60f && most < 0x1p60f))
        return 0;
    int e = ilogbf(most), first = -e / 2;
    scale_row(x, n, ldexpf(1, first));
    scale_row(x, n, ldexpf(1, -e - first));
    return e;
}
