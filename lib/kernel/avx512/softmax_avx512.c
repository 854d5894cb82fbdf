/* Stage softmax: the running maximum and sum of a query row (online softmax, Milakov and
 * Gimelshein 2018), and the join of two states over disjoint tokens. */
#include <float.h>
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

/* exp(x), x <= 0, relative error below 2e-7; NaN stays NaN. */
TQK_INLINE __m512 exponential(__m512 x) {
    __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
    y = _mm512_max_ps(_mm512_set1_ps(-200), y);
    __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(y, n), p = _mm512_set1_ps(1.535336188319500e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.339887440266574e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357674640e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471162809e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791363012e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472028550421e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, n);
}

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
    __m512 e = exponential(_mm512_mul_ps(size, _mm512_set1_ps(-2)));
    __m512 far = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    far = _mm512_or_ps(far, sign);
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_GT_OQ), far);
}

/* exp of the distance of two maxima. */
static float rescale(float from, float to, float scale) {
    return from == -INFINITY ? 0 : expf((from - to) * scale);
}

/* Scores that leave binary32 saturate, so that finite rows stay finite; NaN stays. */
TQK_INLINE __m512 saturated(const float *scores, __mmask16 mask) {
    __m512 s = _mm512_max_ps(_mm512_set1_ps(-FLT_MAX), _mm512_maskz_loadu_ps(mask, scores));
    return _mm512_min_ps(_mm512_set1_ps(FLT_MAX), s);
}

static __mmask16 mask_of(uint32_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

/* Lanes of 16 tokens from t on that are in the span. */
static __mmask16 seen(struct tqi_sight span, uint32_t t) {
    __mmask16 last = mask_of(t < span.last ? span.last - t : 0);
    return (__mmask16)(last & ~mask_of(t < span.first ? span.first - t : 0));
}

/* Nearest finite number of binary32; NaN stays. */
static float finite(double x) {
    const double most = FLT_MAX;
    return (float)(x > most ? most : x < -most ? -most : x);
}

/* Arguments are brought to where tanh is 1 within binary32, so that nothing overflows. */
void tqk_softcap_avx512(void *scores, uint32_t score_stride, const double *shift, uint32_t n_rows,
                        uint32_t n_tokens, double scale, double cap) {
    const __m512 factor = _mm512_set1_ps(finite(scale * TQK_SCORE_UNIT_AVX512 / cap));
    const __m512 unit = _mm512_set1_ps((float)(cap / TQK_SCORE_UNIT_AVX512));
    const __m512 end = _mm512_set1_ps(10), start = _mm512_set1_ps(-10);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = (float *)scores + (size_t)r * score_stride;
        __m512 before = _mm512_set1_ps(finite(shift[r] / cap));
        for (uint32_t t = 0; t < n_tokens; t += 16) {
            __mmask16 mask = mask_of(n_tokens - t);
            __m512 x = _mm512_fmadd_ps(saturated(row + t, mask), factor, before);
            x = _mm512_min_ps(end, _mm512_max_ps(start, x));
            x = _mm512_mul_ps(hyperbolic_tangent(x), unit);
            _mm512_mask_storeu_ps(row + t, mask, x);
        }
    }
}

/* Largest of the row and what came before; NaN when there is one. */
static float new_maximum(const float *scores, struct tqi_sight span, float max) {
    __m512 most = _mm512_set1_ps(max);
    __mmask16 bad = 0;
    for (uint32_t t = span.first / 16 * 16; t < span.last; t += 16) {
        __mmask16 mask = seen(span, t);
        __m512 s = saturated(scores + t, mask);
        bad |= _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q);
        most = _mm512_mask_max_ps(most, mask, most, s);
    }
    return bad || isnan(max) ? NAN : _mm512_reduce_max_ps(most);
}

static void update(struct tqk_state_avx512 *s, float *scores, struct tqi_sight span,
                   uint32_t n_tokens, float scale) {
    float max = new_maximum(scores, span, s->max);
    __m512 sum = _mm512_setzero_ps(), top = _mm512_set1_ps(max), factor = _mm512_set1_ps(scale);
    s->factor = max == s->max ? 1 : rescale(s->max, max, scale);
    s->max = max;
    s->scale = scale;
    for (uint32_t t = 0; t < n_tokens; t += 16) {
        __mmask16 mask = seen(span, t);
        __m512 x = _mm512_mul_ps(_mm512_sub_ps(saturated(scores + t, mask), top), factor);
        __m512 p = _mm512_maskz_mov_ps(mask, exponential(x));
        sum = _mm512_add_ps(sum, p);
        _mm512_mask_storeu_ps(scores + t, mask_of(n_tokens - t), p);
    }
    s->sum = s->sum * s->factor + _mm512_reduce_add_ps(sum);
}

void tqk_softmax_avx512(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                        const struct tqi_sight *spans, uint32_t n_rows, uint32_t n_tokens,
                        double scale) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx512 *s = (void *)((char *)states + r * state_bytes);
        float *row = (float *)scores + (size_t)r * score_stride;
        if (tqi_sight_empty(spans[r])) { /* nothing to take in: keep max and sum, also when empty */
            s->factor = 1;
            memset(row, 0, n_tokens * sizeof *row);
            continue;
        }
        update(s, row, spans[r], n_tokens, (float)(scale * TQK_SCORE_UNIT_AVX512));
    }
}

void tqk_state_merge_avx512(const struct tqi_rows *v, void *into, const void *from) {
    struct tqk_state_avx512 *a = into;
    const struct tqk_state_avx512 *b = from;
    if (b->max == -INFINITY)
        return;
    float max = a->max > b->max || isnan(a->max) ? a->max : b->max;
    float fa = rescale(a->max, max, b->scale), fb = rescale(b->max, max, b->scale);
    a->sum = a->sum * fa + b->sum * fb;
    for (uint32_t i = 0; i < v->layout.dim_pad; i += 16) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(a->acc + i), _mm512_set1_ps(fa));
        x = _mm512_fmadd_ps(_mm512_loadu_ps(b->acc + i), _mm512_set1_ps(fb), x);
        _mm512_storeu_ps(a->acc + i, x);
    }
    a->max = max;
    a->scale = b->scale;
}
