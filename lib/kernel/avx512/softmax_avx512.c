/* Stage softmax: scores to probabilities relative to the running maximum of a query row (online
 * softmax, Milakov and Gimelshein 2018). The maximum of a state follows the scores only when
 * they leave it behind by more than LEAD, so that most pages neither look for theirs nor rescale
 * anything. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/avx512.h"

/* Probabilities reach 2^LEAD at most. */
enum { LEAD = 6 };

#define LOG2_E 1.44269504088896340736

/* 2^y, y <= LEAD, relative error below 2e-7; NaN stays NaN. */
TQK_INLINE __m512 power_of_two(__m512 y) {
    y = _mm512_max_ps(_mm512_set1_ps(-200), y);
    __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(y, n), p = _mm512_set1_ps(1.339887440266574e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357674640e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471162809e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791363012e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472028550421e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, n);
}

/* A row of scores. A negative scale turns their order round: `flip` is a sign bit then. */
struct row {
    float *scores;
    uint32_t visible;
    __m512i flip;
};

static __mmask16 mask_of(uint32_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

TQK_INLINE __m512 scores_at(const struct row *row, uint32_t t, __mmask16 mask) {
    __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, row->scores + t));
    return _mm512_castsi512_ps(_mm512_xor_si512(bits, row->flip));
}

/* Moves the maximum of a state if the row leaves it behind. NaN is above nothing: it stays in
 * its probability, and so in the sum. */
static void follow(struct tqk_state_avx512 *s, const struct row *row) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    uint32_t t = 0;
    for (; t + 16 <= row->visible; t += 16)
        most = _mm512_max_ps(scores_at(row, t, 0xffff), most);
    if (t < row->visible) {
        __mmask16 mask = mask_of(row->visible - t);
        most = _mm512_mask_max_ps(most, mask, scores_at(row, t, mask), most);
    }
    float lead = LEAD / (s->scale * (float)LOG2_E), limit = s->max + (lead <= FLT_MAX ? lead : 0);
    s->factor = 1;
    if (_mm512_cmp_ps_mask(most, _mm512_set1_ps(limit), _CMP_GT_OQ) == 0)
        return;
    float max = _mm512_reduce_max_ps(most);
    s->factor = s->max == -INFINITY ? 0 : expf((s->max - max) * s->scale);
    s->max = max;
    _mm512_storeu_ps(s->sum, _mm512_mul_ps(_mm512_loadu_ps(s->sum), _mm512_set1_ps(s->factor)));
}

static void update(struct tqk_state_avx512 *s, const struct row *row, uint32_t n_tokens) {
    follow(s, row);
    const __m512 top = _mm512_set1_ps(s->max), factor = _mm512_set1_ps(s->scale * (float)LOG2_E);
    __m512 sum = _mm512_loadu_ps(s->sum);
    uint32_t t = 0;
    for (; t + 16 <= row->visible; t += 16) {
        __m512 x = _mm512_sub_ps(scores_at(row, t, 0xffff), top);
        x = power_of_two(_mm512_mul_ps(x, factor));
        sum = _mm512_add_ps(sum, x);
        _mm512_storeu_ps(row->scores + t, x);
    }
    if (t < row->visible) {
        __mmask16 mask = mask_of(row->visible - t);
        __m512 x = _mm512_sub_ps(scores_at(row, t, mask), top);
        x = _mm512_maskz_mov_ps(mask, power_of_two(_mm512_mul_ps(x, factor)));
        sum = _mm512_add_ps(sum, x);
        _mm512_mask_storeu_ps(row->scores + t, mask_of(n_tokens - t), x);
        t += 16;
    }
    if (t < n_tokens)
        memset(row->scores + t, 0, (n_tokens - t) * sizeof *row->scores);
    _mm512_storeu_ps(s->sum, sum);
}

void tqk_softmax_avx512(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                        const uint32_t *visible, uint32_t n_rows, uint32_t n_tokens, double scale) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx512 *s = (void *)((char *)states + r * state_bytes);
        struct row row = {(float *)scores + (size_t)r * score_stride, visible[r],
                          _mm512_set1_epi32(scale < 0 ? INT32_MIN : 0)};
        if (visible[r] == 0) { /* nothing to take in: keep max and sum, also when empty */
            s->factor = 1;
            memset(row.scores, 0, n_tokens * sizeof *row.scores);
            continue;
        }
        s->scale = (float)(fabs(scale) * TQK_SCORE_UNIT_AVX512);
        update(s, &row, n_tokens);
    }
}
