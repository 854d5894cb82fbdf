/* Stage softmax: the running maximum and sum of a query row (online softmax, Milakov and
 * Gimelshein 2018), and the join of two states over disjoint tokens. */
#include <float.h>
#include <math.h>

#include "kernel/avx2/avx2.h"

#define LOG2_E 1.44269504088896340736

/* Probabilities reach 2^LEAD at most: a maximum follows the scores only when they leave it behind
 * by more, so that most pages neither look for theirs nor rescale anything. */
enum { LEAD = 6 };

/* A maximum above minus and below this is far from where scores saturate. */
#define FAR 0x1p100f

size_t tqk_state_bytes_avx2(const struct tqi_rows *v) {
    return sizeof(struct tqk_state_avx2) + v->layout.dim_pad * sizeof(float);
}

void tqk_state_clear_avx2(const struct tqi_rows *v, void *state) {
    struct tqk_state_avx2 *s = state;
    memset(s, 0, tqk_state_bytes_avx2(v));
    s->max = -INFINITY;
    s->factor = 1;
}

/* Lanes of 8 tokens from t on that are in the span. */
static __m256i seen(struct tqi_sight span, uint32_t t) {
    __m256i last = tqk_first_avx2(t < span.last ? span.last - t : 0);
    return _mm256_andnot_si256(tqk_first_avx2(t < span.first ? span.first - t : 0), last);
}

/* Plus this, the nearest integer of a small number is in the low bits: additions have a port that
 * rounding and converting have not. */
#define MAGIC 0x1.8p23f

/* 2^(f + n), f within [-1/2, 1/2] and n in the low bits of `n`, relative error below 3e-7. (NaN has
 * none set there: all come from shorter formats, or from NAN.) */
TQK_INLINE __m256 power_of_two(__m256 f, __m256 n) {
    __m256 p = _mm256_set1_ps(1.33908634e-3f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.67603192e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.55035711e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.40221075e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.93147188e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1));
    /* p is within [0.7, 1.5]: its exponent has room for n. */
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

/* 2^y, y <= 0 or small; NaN stays NaN. Below 2^-100 it is 0, so that no product with a gain is
 * subnormal: a small number in its place would be heard from values of 10^38. */
TQK_INLINE __m256 exponential2(__m256 y) {
    const __m256 magic = _mm256_set1_ps(MAGIC);
    const __m256 above = _mm256_cmp_ps(y, _mm256_set1_ps(-100), _CMP_NLT_UQ);
    __m256 n = _mm256_add_ps(y, magic);
    return _mm256_and_ps(above, power_of_two(_mm256_sub_ps(y, _mm256_sub_ps(n, magic)), n));
}

/* tanh(x), relative error below 3e-7; NaN stays NaN. */
TQK_INLINE __m256 hyperbolic_tangent(__m256 x) {
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
    __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps(-6.09671417e-3f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(2.0997179e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-5.38509096e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(1.33327697e-1f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-3.33333289e-1f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = exponential2(_mm256_mul_ps(size, _mm256_set1_ps(-2 * (float)LOG2_E)));
    __m256 far = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    far = _mm256_or_ps(far, sign);
    return _mm256_blendv_ps(p, far, _mm256_cmp_ps(size, _mm256_set1_ps(0.625f), _CMP_GT_OQ));
}

/* exp of the distance of two maxima. */
static float rescale(float from, float to, float scale) {
    return from == -INFINITY ? 0 : expf((from - to) * scale);
}

/* Scores that leave binary32 saturate, so that finite rows stay finite; NaN stays. */
TQK_INLINE __m256 saturated(__m256 scores) {
    __m256 s = _mm256_max_ps(_mm256_set1_ps(-FLT_MAX), scores);
    return _mm256_min_ps(_mm256_set1_ps(FLT_MAX), s);
}

/* Nearest finite number of binary32; NaN stays. */
static float finite(double x) {
    const double most = FLT_MAX;
    return (float)(x > most ? most : x < -most ? -most : x);
}

/* Arguments are brought to where tanh is 1 within binary32, so that nothing overflows. */
void tqk_softcap_avx2(void *scores, uint32_t score_stride, const double *shift, uint32_t n_rows,
                      uint32_t n_tokens, double scale, double cap) {
    const __m256 factor = _mm256_set1_ps(finite(scale * TQK_SCORE_UNIT / cap));
    const __m256 unit = _mm256_set1_ps((float)(cap / TQK_SCORE_UNIT));
    const __m256 end = _mm256_set1_ps(10), start = _mm256_set1_ps(-10);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = (float *)scores + (size_t)r * score_stride;
        __m256 before = _mm256_set1_ps(finite(shift[r] / cap));
        for (uint32_t t = 0; t < n_tokens; t += 8) {
            __m256i mask = tqk_first_avx2(n_tokens - t);
            __m256 x =
                _mm256_fmadd_ps(saturated(_mm256_maskload_ps(row + t, mask)), factor, before);
            x = _mm256_min_ps(end, _mm256_max_ps(start, x));
            x = _mm256_mul_ps(hyperbolic_tangent(x), unit);
            _mm256_maskstore_ps(row + t, mask, x);
        }
    }
}

/* What all rows share. */
struct job {
    uint32_t n_tokens;
    float scale; /* natural score = score * scale */
    float lead;  /* LEAD in scores */
    __m256 factor;
    __m256 least; /* what factor takes to -100, if that is finite */
    bool plain;   /* infinite scores weigh as little as saturated ones */
};

/* Moves the maximum of a state to the largest score, by lane `most`. */
static __attribute__((noinline)) void follow(struct tqk_state_avx2 *s, __m256 most) {
    float max = tqk_largest_of_lanes_avx2(most);
    s->factor = rescale(s->max, max, s->scale);
    s->max = max;
    _mm256_storeu_ps(s->sum, _mm256_mul_ps(_mm256_loadu_ps(s->sum), _mm256_set1_ps(s->factor)));
}

/* Moves the maximum if the row leaves it behind. NaN is above nothing: it stays in its probability,
 * and so in the sum. */
TQK_INLINE void look(const struct job *j, struct tqk_state_avx2 *s, __m256 most) {
    const __m256 limit = _mm256_set1_ps(s->max + j->lead);
    s->factor = 1;
    if (_mm256_movemask_ps(_mm256_cmp_ps(most, limit, _CMP_GT_OQ)))
        follow(s, most);
}

/* 8 scores, not above any number, to probabilities: 2^((score - top) * factor). */
TQK_INLINE __m256 probabilities(const struct job *j, __m256 score, __m256 top) {
    const __m256 magic = _mm256_set1_ps(MAGIC);
    __m256 y = _mm256_sub_ps(score, top), above = _mm256_cmp_ps(y, j->least, _CMP_NLT_UQ);
    __m256 n = _mm256_fmadd_ps(y, j->factor, magic);
    return _mm256_and_ps(above,
                         power_of_two(_mm256_fmsub_ps(y, j->factor, _mm256_sub_ps(n, magic)), n));
}

/* A row that sees all of 64 tokens. Nothing saturates: false, and nothing done, if the maximum has
 * to move, or might have to at infinite scores. */
TQK_INLINE bool update_64(const struct job *j, struct tqk_state_avx2 *s, float *scores) {
    const __m256 limit = _mm256_set1_ps(s->max + j->lead);
    __m256 most = _mm256_set1_ps(-INFINITY);
    TQK_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        /* The second operand is the result where there is a NaN: none hides another score. */
        most = _mm256_max_ps(_mm256_loadu_ps(scores + (size_t)8 * i), most);
    }
    if (_mm256_movemask_ps(_mm256_cmp_ps(most, limit, _CMP_GT_OQ)) || !(s->max > -FAR) ||
        !(s->max < FAR) || !j->plain)
        return false;
    s->factor = 1;
    const __m256 top = _mm256_set1_ps(s->max);
    __m256 sum = _mm256_loadu_ps(s->sum); /* in the order of update() */
    __asm__("" : "+r"(scores));           /* loaded again: registers hold the constants */
    TQK_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        __m256 x = probabilities(j, _mm256_loadu_ps(scores + (size_t)8 * i), top);
        sum = _mm256_add_ps(sum, x);
        _mm256_storeu_ps(scores + (size_t)8 * i, x);
    }
    _mm256_storeu_ps(s->sum, sum);
    return true;
}

static bool is_whole(struct tqi_sight span, uint32_t t) {
    return t >= span.first && t + 8 <= span.last;
}

static __attribute__((noinline)) void update(const struct job *j, struct tqk_state_avx2 *s,
                                             float *scores, struct tqi_sight span) {
    __m256 most = _mm256_set1_ps(-INFINITY);
    for (uint32_t t = span.first / 8 * 8; t < span.last; t += 8) {
        if (is_whole(span, t)) {
            most = _mm256_max_ps(saturated(_mm256_loadu_ps(scores + t)), most);
            continue;
        }
        __m256i mask = seen(span, t);
        __m256 x = _mm256_max_ps(saturated(_mm256_maskload_ps(scores + t, mask)), most);
        most = _mm256_blendv_ps(most, x, _mm256_castsi256_ps(mask));
    }
    look(j, s, most);
    const __m256 top = _mm256_set1_ps(s->max);
    __m256 sum = _mm256_loadu_ps(s->sum);
    for (uint32_t t = 0; t < j->n_tokens; t += 8) {
        if (is_whole(span, t)) {
            __m256 x = probabilities(j, saturated(_mm256_loadu_ps(scores + t)), top);
            sum = _mm256_add_ps(sum, x);
            _mm256_storeu_ps(scores + t, x);
            continue;
        }
        __m256i mask = seen(span, t);
        __m256 x = probabilities(j, saturated(_mm256_maskload_ps(scores + t, mask)), top);
        x = _mm256_and_ps(x, _mm256_castsi256_ps(mask));
        sum = _mm256_add_ps(sum, x);
        _mm256_maskstore_ps(scores + t, tqk_first_avx2(j->n_tokens - t), x);
    }
    _mm256_storeu_ps(s->sum, sum);
}

void tqk_softmax_avx2(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                      const struct tqi_sight *spans, uint32_t n_rows, uint32_t n_tokens,
                      double scale) {
    struct job j; /* set field by field: clearing it would show */
    j.n_tokens = n_tokens;
    j.scale = (float)(scale * TQK_SCORE_UNIT);
    const float factor = j.scale * (float)LOG2_E;
    j.factor = _mm256_set1_ps(factor);
    j.least = _mm256_set1_ps(factor > 100 / FLT_MAX ? -100 / factor : -FLT_MAX);
    j.plain = factor > 0x1p-20f;
    j.lead = LEAD / factor;
    j.lead = j.lead <= FLT_MAX ? j.lead : 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx2 *s = (void *)((char *)states + r * state_bytes);
        float *row = (float *)scores + (size_t)r * score_stride;
        if (tqi_sight_empty(spans[r])) { /* nothing to take in: keep max and sum, also when empty */
            s->factor = 1;
            memset(row, 0, n_tokens * sizeof *row);
            continue;
        }
        s->scale = j.scale;
        const bool whole = n_tokens == 64 && spans[r].first == 0 && spans[r].last == 64;
        if (!whole || !update_64(&j, s, row))
            update(&j, s, row, spans[r]);
    }
}

void tqk_state_merge_avx2(const struct tqi_rows *v, void *into, const void *from) {
    struct tqk_state_avx2 *a = into;
    const struct tqk_state_avx2 *b = from;
    if (tqk_is_empty_avx2(b))
        return;
    float max = a->max > b->max ? a->max : b->max;
    float fa = rescale(a->max, max, b->scale), fb = rescale(b->max, max, b->scale);
    __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(a->sum), _mm256_set1_ps(fa));
    _mm256_storeu_ps(a->sum, _mm256_fmadd_ps(_mm256_loadu_ps(b->sum), _mm256_set1_ps(fb), sum));
    for (uint32_t i = 0; i < v->layout.dim_pad; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(a->acc + i), _mm256_set1_ps(fa));
        x = _mm256_fmadd_ps(_mm256_loadu_ps(b->acc + i), _mm256_set1_ps(fb), x);
        _mm256_storeu_ps(a->acc + i, x);
    }
    a->max = max;
    a->scale = b->scale;
}
