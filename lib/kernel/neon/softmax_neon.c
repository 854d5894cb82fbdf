/* Stage softmax: the running maximum and sum of a query row (online softmax, Milakov and
 * Gimelshein 2018), and the join of two states over disjoint tokens. */
#include <float.h>
#include <math.h>

#include "kernel/neon/neon.h"

size_t tqk_state_bytes_neon(const struct tqi_rows *v) {
    return sizeof(struct tqk_state_neon) + v->layout.dim_pad * sizeof(float);
}

void tqk_state_clear_neon(const struct tqi_rows *v, void *state) {
    struct tqk_state_neon *s = state;
    memset(s, 0, tqk_state_bytes_neon(v));
    s->max = -INFINITY;
    s->factor = 1;
}

/* The first n of 4 lanes. */
TQK_INLINE uint32x4_t first(uint32_t n) {
    static const uint32_t lanes[4] = {0, 1, 2, 3};
    return vcgtq_u32(vdupq_n_u32(n), vld1q_u32(lanes));
}

/* Lanes of 4 tokens from t on that are in the span. */
TQK_INLINE uint32x4_t seen(struct tqi_sight span, uint32_t t) {
    uint32x4_t last = first(t < span.last ? span.last - t : 0);
    return vbicq_u32(last, first(t < span.first ? span.first - t : 0));
}

/* exp(x), -87 <= x <= 0, relative error below 2e-7; 0 below, as a small number would be heard from
 * values of 10^38; NaN stays NaN. */
TQK_INLINE float32x4_t exponential(float32x4_t x) {
    float32x4_t y = vmulq_n_f32(x, 1.44269504f);
    uint32x4_t below = vcltq_f32(y, vdupq_n_f32(-126));
    y = vmaxq_f32(y, vdupq_n_f32(-126));
    float32x4_t n = vrndnq_f32(y), f = vsubq_f32(y, n);
    float32x4_t p = vdupq_n_f32(1.535336188319500e-4f);
    p = vfmaq_f32(vdupq_n_f32(1.339887440266574e-3f), p, f);
    p = vfmaq_f32(vdupq_n_f32(9.618437357674640e-3f), p, f);
    p = vfmaq_f32(vdupq_n_f32(5.550332471162809e-2f), p, f);
    p = vfmaq_f32(vdupq_n_f32(2.402264791363012e-1f), p, f);
    p = vfmaq_f32(vdupq_n_f32(6.931472028550421e-1f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1), p, f);
    int32x4_t e = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    uint32x4_t power = vreinterpretq_u32_f32(vmulq_f32(p, vreinterpretq_f32_s32(e)));
    return vreinterpretq_f32_u32(vbicq_u32(power, below));
}

/* tanh(x), relative error below 3e-7; NaN stays NaN. */
TQK_INLINE float32x4_t hyperbolic_tangent(float32x4_t x) {
    float32x4_t size = vabsq_f32(x), z = vmulq_f32(x, x), one = vdupq_n_f32(1);
    float32x4_t p = vdupq_n_f32(-6.09671417e-3f);
    p = vfmaq_f32(vdupq_n_f32(2.0997179e-2f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-5.38509096e-2f), p, z);
    p = vfmaq_f32(vdupq_n_f32(1.33327697e-1f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-3.33333289e-1f), p, z);
    p = vfmaq_f32(x, vmulq_f32(p, z), x);
    float32x4_t e = exponential(vmulq_n_f32(size, -2));
    float32x4_t far = vdivq_f32(vsubq_f32(one, e), vaddq_f32(one, e));
    far = vbslq_f32(vdupq_n_u32(0x80000000u), x, far);
    return vbslq_f32(vcgtq_f32(size, vdupq_n_f32(0.625f)), far, p);
}

/* exp of the distance of two maxima. */
static float rescale(float from, float to, float scale) {
    return from == -INFINITY ? 0 : expf((from - to) * scale);
}

/* At most 4 of a row from x on, zeros behind them. */
TQK_INLINE float32x4_t some(const float *x, uint32_t n) {
    float part[4] = {0};
    if (n >= 4)
        return vld1q_f32(x);
    memcpy(part, x, n * sizeof *x);
    return vld1q_f32(part);
}

TQK_INLINE void put_some(float *to, uint32_t n, float32x4_t x) {
    float part[4];
    if (n >= 4) {
        vst1q_f32(to, x);
        return;
    }
    vst1q_f32(part, x);
    memcpy(to, part, n * sizeof *to);
}

/* Scores that leave binary32 saturate, so that finite rows stay finite; NaN stays. */
TQK_INLINE float32x4_t saturated(const float *scores, uint32_t n) {
    float32x4_t s = vmaxq_f32(some(scores, n), vdupq_n_f32(-FLT_MAX));
    return vminq_f32(s, vdupq_n_f32(FLT_MAX));
}

/* Nearest finite number of binary32; NaN stays. */
static float finite(double x) {
    const double most = FLT_MAX;
    return (float)(x > most ? most : x < -most ? -most : x);
}

/* Arguments are brought to where tanh is 1 within binary32, so that nothing overflows. */
void tqk_softcap_neon(void *scores, uint32_t score_stride, const double *shift, uint32_t n_rows,
                      uint32_t n_tokens, double scale, double cap) {
    const float factor = finite(scale * TQK_SCORE_UNIT / cap);
    const float unit = (float)(cap / TQK_SCORE_UNIT);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = (float *)scores + (size_t)r * score_stride;
        float32x4_t before = vdupq_n_f32(finite(shift[r] / cap));
        for (uint32_t t = 0; t < n_tokens; t += 4) {
            float32x4_t x = vfmaq_n_f32(before, saturated(row + t, n_tokens - t), factor);
            x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(-10)), vdupq_n_f32(10));
            put_some(row + t, n_tokens - t, vmulq_n_f32(hyperbolic_tangent(x), unit));
        }
    }
}

/* Largest of the row and what came before; NaN when there is one. */
static float new_maximum(const float *scores, struct tqi_sight span, float max) {
    float32x4_t most = vdupq_n_f32(max);
    for (uint32_t t = span.first / 4 * 4; t < span.last; t += 4) {
        float32x4_t larger = vmaxq_f32(most, saturated(scores + t, span.last - t));
        most = vbslq_f32(seen(span, t), larger, most);
    }
    return vmaxvq_f32(most);
}

static void update(struct tqk_state_neon *s, float *scores, struct tqi_sight span,
                   uint32_t n_tokens, float scale) {
    float max = new_maximum(scores, span, s->max);
    float32x4_t sum = vdupq_n_f32(0), top = vdupq_n_f32(max);
    s->factor = max == s->max ? 1 : rescale(s->max, max, scale);
    s->max = max;
    s->scale = scale;
    for (uint32_t t = 0; t < n_tokens; t += 4) {
        float32x4_t s4 = saturated(scores + t, n_tokens - t);
        float32x4_t x = vmulq_n_f32(vsubq_f32(s4, top), scale);
        uint32x4_t p = vandq_u32(vreinterpretq_u32_f32(exponential(x)), seen(span, t));
        sum = vaddq_f32(sum, vreinterpretq_f32_u32(p));
        put_some(scores + t, n_tokens - t, vreinterpretq_f32_u32(p));
    }
    s->sum = s->sum * s->factor + vaddvq_f32(sum);
}

void tqk_softmax_neon(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                      const struct tqi_sight *spans, uint32_t n_rows, uint32_t n_tokens,
                      double scale) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_neon *s = (void *)((char *)states + r * state_bytes);
        float *row = (float *)scores + (size_t)r * score_stride;
        if (tqi_sight_empty(spans[r])) { /* nothing to take in: keep max and sum, also when empty */
            s->factor = 1;
            memset(row, 0, n_tokens * sizeof *row);
            continue;
        }
        update(s, row, spans[r], n_tokens, (float)(scale * TQK_SCORE_UNIT));
    }
}

void tqk_state_merge_neon(const struct tqi_rows *v, void *into, const void *from) {
    struct tqk_state_neon *a = into;
    const struct tqk_state_neon *b = from;
    if (b->max == -INFINITY)
        return;
    float max = a->max > b->max || isnan(a->max) ? a->max : b->max;
    float fa = rescale(a->max, max, b->scale), fb = rescale(b->max, max, b->scale);
    a->sum = a->sum * fa + b->sum * fb;
    for (uint32_t i = 0; i < v->layout.dim_pad; i += 4) {
        float32x4_t x = vmulq_n_f32(vld1q_f32(a->acc + i), fa);
        vst1q_f32(a->acc + i, vfmaq_n_f32(x, vld1q_f32(b->acc + i), fb));
    }
    a->max = max;
    a->scale = b->scale;
}
