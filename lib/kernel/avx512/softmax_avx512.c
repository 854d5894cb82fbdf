/* Stage softmax: scores to probabilities relative to the running maximum of a query row (online
 * softmax, Milakov and Gimelshein 2018). The maximum of a state follows the scores only when
 * they leave it behind by more than LEAD, so that most pages neither look for theirs nor rescale
 * anything. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/exp_avx512.h"

/* Probabilities reach 2^LEAD at most. */
enum { LEAD = 6 };

struct row {
    float *scores;
    struct tqi_sight span;
};

/* Lanes of 16 tokens from t on that are in the span. */
TQK_INLINE __mmask16 seen(struct tqi_sight span, uint32_t t) {
    __mmask16 last = tqk_first_avx512(t < span.last ? span.last - t : 0);
    return (__mmask16)(last & ~tqk_first_avx512(t < span.first ? span.first - t : 0));
}

TQK_INLINE __m512 scores_at(const struct row *row, uint32_t t, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, row->scores + t);
}

/* Moves the maximum of a state if the row leaves it behind. NaN is above nothing: it stays in
 * its probability, and so in the sum. */
static void follow(struct tqk_state_avx512 *s, const struct row *row) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t t = row->span.first & ~15u; t < row->span.last; t += 16) {
        if (t >= row->span.first && t + 16 <= row->span.last) {
            most = _mm512_max_ps(scores_at(row, t, 0xffff), most);
            continue;
        }
        __mmask16 mask = seen(row->span, t);
        most = _mm512_mask_max_ps(most, mask, scores_at(row, t, mask), most);
    }
    float lead = LEAD / (s->scale * (float)TQK_LOG2_E);
    float limit = s->max + (lead <= FLT_MAX ? lead : 0);
    s->factor = 1;
    if (_mm512_cmp_ps_mask(most, _mm512_set1_ps(limit), _CMP_GT_OQ) == 0)
        return;
    float max = _mm512_reduce_max_ps(most);
    s->factor = s->max == -INFINITY ? 0 : expf((s->max - max) * s->scale);
    s->max = max;
    _mm512_storeu_ps(s->sum, _mm512_mul_ps(_mm512_loadu_ps(s->sum), _mm512_set1_ps(s->factor)));
}

/* 16 scores to probabilities. */
TQK_INLINE __m512 probabilities(const struct row *row, uint32_t t, __mmask16 mask, __m512 top,
                                __m512 factor) {
    return tqk_exp2_avx512(_mm512_mul_ps(_mm512_sub_ps(scores_at(row, t, mask), top), factor));
}

static void update(struct tqk_state_avx512 *s, const struct row *row, uint32_t n_tokens) {
    follow(s, row);
    const __m512 top = _mm512_set1_ps(s->max),
                 factor = _mm512_set1_ps(s->scale * (float)TQK_LOG2_E);
    __m512 sum = _mm512_loadu_ps(s->sum);
    for (uint32_t t = 0; t < n_tokens; t += 16) {
        if (t >= row->span.first && t + 16 <= row->span.last) {
            __m512 x = probabilities(row, t, 0xffff, top, factor);
            sum = _mm512_add_ps(sum, x);
            _mm512_storeu_ps(row->scores + t, x);
            continue;
        }
        __mmask16 mask = seen(row->span, t);
        __m512 x = _mm512_maskz_mov_ps(mask, probabilities(row, t, mask, top, factor));
        sum = _mm512_add_ps(sum, x);
        _mm512_mask_storeu_ps(row->scores + t, tqk_first_avx512(n_tokens - t), x);
    }
    _mm512_storeu_ps(s->sum, sum);
}

void tqk_softmax_avx512(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                        const struct tqi_sight *spans, uint32_t n_rows, uint32_t n_tokens,
                        double scale) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx512 *s = (void *)((char *)states + r * state_bytes);
        struct row row = {(float *)scores + (size_t)r * score_stride, spans[r]};
        if (tqi_sight_empty(spans[r])) { /* nothing to take in: keep max and sum, also when empty */
            s->factor = 1;
            memset(row.scores, 0, n_tokens * sizeof *row.scores);
            continue;
        }
        s->scale = (float)(scale * TQK_SCORE_UNIT);
        update(s, &row, n_tokens);
    }
}
