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

/* What all rows share. */
struct job {
    uint32_t n_tokens;
    float scale;  /* natural score = score * scale */
    float lead;   /* LEAD in scores */
    float factor; /* to exponents of 2 */
};

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

/* Moves the maximum of a state to the largest score, by lane `most`. */
static __attribute__((noinline)) void follow(struct tqk_state_avx512 *s, __m512 most) {
    float max = _mm512_reduce_max_ps(most);
    s->factor = s->max == -INFINITY ? 0 : expf((s->max - max) * s->scale);
    s->max = max;
    _mm512_storeu_ps(s->sum, _mm512_mul_ps(_mm512_loadu_ps(s->sum), _mm512_set1_ps(s->factor)));
}

/* Moves the maximum if the row leaves it behind. NaN is above nothing: it stays in its probability,
 * and so in the sum. */
TQK_INLINE void look(const struct job *j, struct tqk_state_avx512 *s, __m512 most) {
    s->factor = 1;
    if (_mm512_cmp_ps_mask(most, _mm512_set1_ps(s->max + j->lead), _CMP_GT_OQ))
        follow(s, most);
}

/* 16 scores to probabilities. */
TQK_INLINE __m512 probabilities(__m512 score, __m512 top, __m512 factor) {
    return tqk_exp2_avx512(_mm512_mul_ps(_mm512_sub_ps(score, top), factor));
}

/* A row that sees all of 64 tokens: they stay in registers. */
TQK_INLINE void update_64(const struct job *j, struct tqk_state_avx512 *s, float *scores) {
    __m512 x[4];
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = _mm512_loadu_ps(scores + (size_t)16 * i);
    }
    /* The second operand is the result where there is a NaN: none hides another score. */
    __m512 most = _mm512_max_ps(x[0], _mm512_set1_ps(-INFINITY));
    TQK_UNROLL
    for (uint32_t i = 1; i < 4; i++) {
        most = _mm512_max_ps(x[i], most);
    }
    look(j, s, most);
    const __m512 top = _mm512_set1_ps(s->max), factor = _mm512_set1_ps(j->factor);
    __m512 sum = _mm512_loadu_ps(s->sum); /* in the order of update() */
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = probabilities(x[i], top, factor);
        sum = _mm512_add_ps(sum, x[i]);
        _mm512_storeu_ps(scores + (size_t)16 * i, x[i]);
    }
    _mm512_storeu_ps(s->sum, sum);
}

static void update(const struct job *j, struct tqk_state_avx512 *s, const struct row *row) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (uint32_t t = row->span.first & ~15u; t < row->span.last; t += 16) {
        __mmask16 mask = seen(row->span, t);
        most = _mm512_mask_max_ps(most, mask, scores_at(row, t, mask), most);
    }
    look(j, s, most);
    const __m512 top = _mm512_set1_ps(s->max), factor = _mm512_set1_ps(j->factor);
    __m512 sum = _mm512_loadu_ps(s->sum);
    for (uint32_t t = 0; t < j->n_tokens; t += 16) {
        if (t >= row->span.first && t + 16 <= row->span.last) { /* masked stores are slow */
            __m512 x = probabilities(_mm512_loadu_ps(row->scores + t), top, factor);
            sum = _mm512_add_ps(sum, x);
            _mm512_storeu_ps(row->scores + t, x);
            continue;
        }
        __mmask16 mask = seen(row->span, t);
        __m512 x = probabilities(scores_at(row, t, mask), top, factor);
        x = _mm512_maskz_mov_ps(mask, x);
        sum = _mm512_add_ps(sum, x);
        _mm512_mask_storeu_ps(row->scores + t, tqk_first_avx512(j->n_tokens - t), x);
    }
    _mm512_storeu_ps(s->sum, sum);
}

void tqk_softmax_avx512(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                        const struct tqi_sight *spans, uint32_t n_rows, uint32_t n_tokens,
                        double scale) {
    struct job j = {.n_tokens = n_tokens, .scale = (float)(scale * TQK_SCORE_UNIT)};
    j.factor = j.scale * (float)TQK_LOG2_E;
    j.lead = LEAD / j.factor;
    j.lead = j.lead <= FLT_MAX ? j.lead : 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx512 *s = (void *)((char *)states + r * state_bytes);
        struct row row = {(float *)scores + (size_t)r * score_stride, spans[r]};
        if (tqi_sight_empty(spans[r])) { /* nothing to take in: keep max and sum, also when empty */
            s->factor = 1;
            memset(row.scores, 0, n_tokens * sizeof *row.scores);
            continue;
        }
        s->scale = j.scale;
        if (n_tokens == 64 && spans[r].first == 0 && spans[r].last == 64)
            update_64(&j, s, row.scores);
        else
            update(&j, s, &row);
    }
}
