/* Stage accumulate: the integer formats, and the end of a row. */
#include <math.h>

#include "kernel/neon/accumulate_int.h"

/* ---- the end of a row --------------------------------------------------------------------- */

void tqk_state_finish_neon(const struct tqi_rows *v, const void *state, const float *mean,
                           double *out, double *lse, void *scratch) {
    const struct tqk_state_neon *s = state;
    uint32_t dim = v->layout.dim;
    float x[TQK_DIM_LIMIT_NEON];
    (void)scratch;
    if (s->max == -INFINITY) {
        memset(out, 0, dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    double factor = TQK_VALUE_UNIT / (double)s->sum;
    memcpy(x, s->acc, dim * sizeof *x);
    if (tqi_format_rotates(v->format)) {
        tqk_unrotate_neon(&v->rotation, x);
        factor *= (tqk_is_integer(v) ? tqk_integer_unit(v) : 1) / sqrt((double)dim);
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (double)x[i] * factor + (mean ? (double)mean[i] : 0);
    *lse = (double)s->max * (double)s->scale + log((double)s->sum);
}
