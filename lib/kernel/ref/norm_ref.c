/* Stage norm: sums in a fixed order, because the gain and the codes depend on the last
 * bit of the norm, and the range step that keeps extreme rows exact. */
#include <float.h>
#include <math.h>

#include "kernel/ref/ref.h"

/* Neighbours first: (0+1), (2+3), ..; then those sums; rows end in zeros. */
static float fold(float *tree, uint32_t n) {
    uint32_t size = tqk_tree_floats(n);
    for (uint32_t i = n; i < size; i++)
        tree[i] = 0;
    for (; size > 1; size /= 2)
        for (uint32_t i = 0; i < size / 2; i++)
            tree[i] = tree[2 * i] + tree[2 * i + 1];
    return tree[0];
}

float tqk_sum_squares_ref(const float *x, uint32_t n, float *tree) {
    for (uint32_t i = 0; i < n; i++)
        tree[i] = x[i] * x[i];
    return fold(tree, n);
}

float tqk_sum_abs_ref(const float *x, uint32_t n, float *tree) {
    for (uint32_t i = 0; i < n; i++)
        tree[i] = fabsf(x[i]);
    return fold(tree, n);
}

float tqk_scale_exponent_ref(float value, int e) {
    return ldexpf(value, e);
}

int tqk_range_ref(float *x, uint32_t n, float *tree, float *sum_squares) {
    float sum = tqk_sum_squares_ref(x, n, tree), largest = 0;
    *sum_squares = sum;
    if (sum >= 0x1p-80f && sum <= 0x1p100f)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    if (largest == 0)
        return 0;
    int e = ilogbf(largest);
    for (uint32_t i = 0; i < n; i++)
        x[i] = ldexpf(x[i], -e);
    *sum_squares = tqk_sum_squares_ref(x, n, tree);
    return e;
}
