/* Stage accumulate, integer formats; what rows of all formats do at their start and end. */
#include <math.h>

#include "kernel/avx2/avx2.h"

#define TQK_OF_LEVEL(name) tqk_##name##_avx2
#include "kernel/avx2/accumulate_codes.h"

/* ---- states ------------------------------------------------------------------------------- */

void tqk_rescale_states_avx2(const struct tqi_layout *l, char *states, size_t state_bytes,
                             uint32_t n_rows) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx2 *s = (void *)(states + r * state_bytes);
        const __m256 factor = _mm256_set1_ps(s->factor);
        for (uint32_t i = 0; s->factor != 1 && i < l->dim_pad; i += 8)
            _mm256_storeu_ps(s->acc + i, _mm256_mul_ps(_mm256_loadu_ps(s->acc + i), factor));
    }
}

/* Sums of integer formats in dim order: they lie as the kernels make them, for every word of a lane
 * four dims of eight lanes. */
static void put_in_order(const struct tqi_layout *l, const float *acc, float *x) {
    const uint32_t lane_dims = l->dim_pad / 8;
    for (uint32_t word = 0; word < l->dim_pad / 32; word++)
        for (uint32_t lane = 0; lane < 8; lane++, acc += 4)
            _mm_storeu_ps(x + (size_t)lane * lane_dims + word * 4, _mm_loadu_ps(acc));
}

void tqk_state_finish_avx2(const struct tqi_rows *v, const void *state, const float *mean,
                           double *out, double *lse, void *scratch) {
    const struct tqk_state_avx2 *s = state;
    uint32_t dim = v->layout.dim;
    float x[TQK_DIM_LIMIT_AVX2] __attribute__((aligned(32)));
    (void)scratch;
    if (tqk_is_empty_avx2(s)) {
        memset(out, 0, dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    double factor = TQK_VALUE_UNIT / (double)tqk_sum_of_avx2(s);
    if (tqk_is_integer(v))
        put_in_order(&v->layout, s->acc, x);
    else
        memcpy(x, s->acc, dim * sizeof *x);
    if (tqi_format_rotates(v->format)) {
        tqk_unrotate_avx2(&v->rotation, x);
        factor *= (tqk_is_integer(v) ? tqk_integer_unit(v) : 1) / sqrt((double)dim);
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (double)x[i] * factor + (mean ? (double)mean[i] : 0);
    *lse = (double)s->max * (double)s->scale + log((double)tqk_sum_of_avx2(s));
}
