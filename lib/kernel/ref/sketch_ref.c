/* Stage sketch: the QJL sign sketch of a residual (arXiv 2406.03482; TurboQuant Alg. 2)
 * with a projection of two signed Hadamard rounds, whose rows are orthogonal.
 *
 * The stored gain is ||r|| times expected over found ||S r||_1. With the paper's ||r||
 * the estimator is unbiased over projections; with this gain it is exact along r for
 * every single projection, which also holds for sparse residuals, where the entries of
 * S r are not Gaussian. docs/FORMAT.md has the measurement. */
#include <math.h>

#include "kernel/ref/ref.h"
#include "spec/codes.h"

float tqk_sketch_ref(const struct tqi_rows *rows, float *r, uint8_t *blob, uint32_t token,
                     float *tree) {
    uint32_t dim = rows->layout.dim;
    float energy = tqk_sum_squares_ref(r, dim, tree);
    tqk_rotate_ref(&rows->sketch[0], r, tree);
    tqk_rotate_ref(&rows->sketch[1], r, tree);
    for (uint32_t i = 0; i < rows->layout.dim_pad; i++)
        tqi_put_sketch(&rows->layout, blob, token, i, i < dim && signbit(r[i]) ? 1 : 0);
    float sum = tqk_sum_abs_ref(r, dim, tree);
    return sum > 0 ? energy * rows->sketch_factor / sum : 0;
}
