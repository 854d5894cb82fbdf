/* The range of a query row, written once for all SIMD levels. A file includes this once and has
 * defined for its level largest_of(x, n), the largest magnitude or NaN, and
 * scale_row(x, n, factor). */
#include <float.h>
#include <limits.h>
#include <math.h>

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
