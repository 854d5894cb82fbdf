/* The state of a query row: start, join of two over disjoint tokens, end. */
#include <math.h>
#include <string.h>

#include "kernel/avx512/avx512.h"

size_t tqk_state_bytes_avx512(const struct tqi_rows *v) {
    return sizeof(struct tqk_state_avx512) + v->layout.dim_pad * sizeof(float);
}

void tqk_state_clear_avx512(const struct tqi_rows *v, void *state) {
    struct tqk_state_avx512 *s = state;
    memset(s, 0, tqk_state_bytes_avx512(v));
    s->max = -INFINITY;
    s->factor = 1;
}

static double sum_of(const struct tqk_state_avx512 *s) {
    return (double)_mm512_reduce_add_ps(_mm512_loadu_ps(s->sum));
}

/* No token seen. Rows of NaN alone have no maximum either, but a sum. */
static bool is_empty(const struct tqk_state_avx512 *s) {
    return s->max == -INFINITY && sum_of(s) == 0;
}

/* exp of the distance of two maxima. */
static float rescale(float from, float to, float scale) {
    return from == -INFINITY ? 0 : expf((from - to) * scale);
}

void tqk_state_merge_avx512(const struct tqi_rows *v, void *into, const void *from) {
    struct tqk_state_avx512 *a = into;
    const struct tqk_state_avx512 *b = from;
    if (is_empty(b))
        return;
    float max = a->max > b->max ? a->max : b->max;
    const __m512 fa = _mm512_set1_ps(rescale(a->max, max, b->scale));
    const __m512 fb = _mm512_set1_ps(rescale(b->max, max, b->scale));
    __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(a->sum), fa);
    _mm512_storeu_ps(a->sum, _mm512_fmadd_ps(_mm512_loadu_ps(b->sum), fb, sum));
    for (uint32_t i = 0; i < v->layout.dim_pad; i += 16) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(a->acc + i), fa);
        x = _mm512_fmadd_ps(_mm512_loadu_ps(b->acc + i), fb, x);
        _mm512_storeu_ps(a->acc + i, x);
    }
    a->max = max;
    a->scale = b->scale;
}

void tqk_state_finish_avx512(const struct tqi_rows *v, const void *state, const float *mean,
                             double *out, double *lse, void *scratch) {
    const struct tqk_state_avx512 *s = state;
    uint32_t dim = v->layout.dim;
    float x[TQK_DIM_LIMIT_AVX512] __attribute__((aligned(64)));
    (void)scratch;
    if (is_empty(s)) {
        memset(out, 0, dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    double factor = tqk_value_unit_avx512(v) / sum_of(s);
    memcpy(x, s->acc, dim * sizeof *x);
    if (tqi_format_rotates(v->format)) {
        tqk_unrotate_avx512(&v->rotation, x);
        factor /= sqrt((double)dim);
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (double)x[i] * factor + (mean ? (double)mean[i] : 0);
    *lse = (double)s->max * (double)s->scale + log(sum_of(s));
}
