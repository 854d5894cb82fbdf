/* Stages score and accumulate, float formats. */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "kernel/avx2/float_avx2.h"

/* ---- score -------------------------------------------------------------------------------- */

/* Exponent that brings a row of queries so far down that its sums with the largest of keys stay
 * finite; INT_MIN for rows that are not finite. */
static int exponent_of(const float *row, uint32_t dim) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    __m256 most = _mm256_setzero_ps(), bad = most;
    for (uint32_t i = 0; i < dim; i += 8) {
        __m256 x = _mm256_and_ps(_mm256_loadu_ps(row + i), magnitude);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(x, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ));
        most = _mm256_max_ps(most, x);
    }
    float largest = tqk_largest_of_lanes_avx2(most);
    if (_mm256_movemask_ps(bad))
        return INT_MIN;
    int e = largest > 0 ? ilogbf(largest) + 1 + ilogbf((float)dim) + 1 : 0;
    return e > -100 ? e : -100;
}

void tqk_prepare_float_avx2(const struct tqi_rows *k, const float *row, void *query) {
    struct tqk_query_avx2 *q = query;
    float *to = (float *)(void *)q->data;
    int e = exponent_of(row, k->layout.dim);
    memset(to, 0, k->layout.dim_pad * sizeof *to);
    q->scale = NAN; /* the whole row of the output must show it */
    if (e == INT_MIN)
        return;
    q->scale = ldexpf(1 / (float)TQK_SCORE_UNIT, e);
    __m256 factor = _mm256_set1_ps(ldexpf(1, -e));
    for (uint32_t i = 0; i < k->layout.dim; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(row + i), factor);
        _mm256_storeu_ps(to + i, _mm256_permutevar8x32_ps(x, tqk_pairs_avx2(k, false)));
    }
}

/* Rows (1 or 2) of queries against the 16 keys from `token` on. */
TQK_INLINE void score_rows(const struct tqi_rows *k, const struct tqi_tile *tile, const char *query,
                           uint32_t rows, uint32_t stride, float *scores, uint32_t token,
                           const float *keys) {
    const size_t query_bytes = tqk_query_bytes_avx2(k);
    const float *left =
        (const float *)(const void *)(query + offsetof(struct tqk_query_avx2, data));
    float unit = tqk_decoded_unit_avx2(k) * (k->format->kind == TQI_KIND_FP8 ? tile->scale : 1);
    __m256 sum[2][2];
    /* Not over padding dims: they may hold NaN, which 0 does not silence. */
    tqk_dot_float_avx2(keys, k->layout.dim / 2, left, query_bytes / sizeof(float), rows, sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx2 *q = (const void *)(query + r * query_bytes);
        TQK_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            __m256 s = _mm256_mul_ps(_mm256_mul_ps(sum[r][i], _mm256_set1_ps(unit)),
                                     _mm256_set1_ps(q->scale));
            tqk_put_8_scores_avx2(tile, scores + (size_t)r * stride, token + 8 * i, s);
        }
    }
}

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const char *queries,
                  uint32_t n_rows, uint32_t stride, float *scores, float *scratch,
                  tqk_unpack_k_float_fn_avx2 *unpack) {
    size_t query_bytes = tqk_query_bytes_avx2(k);
    for (uint32_t token = tile->first & ~15u; token < tile->last; token += 16) {
        uint32_t r = 0;
        unpack(k, tile, token, scratch);
        for (; r + 2 <= n_rows; r += 2)
            score_rows(k, tile, queries + r * query_bytes, 2, stride, scores + (size_t)r * stride,
                       token, scratch);
        if (r < n_rows)
            score_rows(k, tile, queries + r * query_bytes, 1, stride, scores + (size_t)r * stride,
                       token, scratch);
    }
}

/* ---- accumulate --------------------------------------------------------------------------- */

/* Probabilities of a row for the page's tokens, 8 in `order`; 0 outside the tile. */
static void fill_row(const struct tqi_tile *t, const float *p, uint32_t n_tokens, __m256i order,
                     float *to) {
    memset(to, 0, t->first * sizeof *to);
    memcpy(to + t->first, p, (t->last - t->first) * sizeof *to);
    memset(to + t->last, 0, (n_tokens - t->last) * sizeof *to);
    for (uint32_t i = 0; i < n_tokens; i += 8) {
        __m256 x =
            _mm256_mul_ps(_mm256_loadu_ps(to + i), _mm256_set1_ps(1 / (float)TQK_VALUE_UNIT));
        _mm256_storeu_ps(to + i, _mm256_permutevar8x32_ps(x, order));
    }
}

/* One token of decoded values. */
static void clear_token(const struct tqi_rows *v, uint32_t n_tokens, uint32_t token,
                        float *values) {
    uint32_t place[8], block = n_tokens / 2 * TQK_STEP_AVX2;
    _mm256_storeu_si256((__m256i *)(void *)place, tqk_pairs_avx2(v, true));
    uint32_t at = token / 8 * 8 + place[token % 8];
    for (uint32_t i = 0; i < TQK_STEP_AVX2; i += 2) {
        values[at / 2 * TQK_STEP_AVX2 + i + at % 2] = 0;
        values[block + at / 2 * TQK_STEP_AVX2 + i + at % 2] = 0;
    }
}

/* Tokens outside the tile may hold NaN, which a probability of 0 does not silence. */
static void clear_outside(const struct tqi_rows *v, const struct tqi_tile *t, uint32_t n_tokens,
                          float *values) {
    for (uint32_t i = 0; i < t->first; i++)
        clear_token(v, n_tokens, i, values);
    for (uint32_t i = t->last; i < n_tokens; i++)
        clear_token(v, n_tokens, i, values);
}

/* What the rows share. */
struct job {
    const float *left, *values;
    char *states;
    size_t state_bytes;
    uint32_t n_tokens, lane_dims, dim; /* of a lane of a slab; the first of a word in a lane */
    float scale;
};

/* acc = acc * factor + sum * scale, 4 dims of a lane and 4 of the next. */
TQK_INLINE void add_sums(const struct job *j, uint32_t row, uint32_t lane, __m256 sum) {
    struct tqk_state_avx2 *s = (void *)(j->states + row * j->state_bytes);
    float *first = s->acc + (size_t)lane * j->lane_dims + j->dim, *second = first + j->lane_dims;
    __m256 acc = _mm256_castps128_ps256(_mm_loadu_ps(first));
    acc = _mm256_insertf128_ps(acc, _mm_loadu_ps(second), 1);
    acc = _mm256_mul_ps(acc, _mm256_set1_ps(s->factor));
    acc = _mm256_fmadd_ps(sum, _mm256_set1_ps(j->scale), acc);
    _mm_storeu_ps(first, _mm256_castps256_ps128(acc));
    _mm_storeu_ps(second, _mm256_extractf128_ps(acc, 1));
}

/* Rows (1 or 2) of probabilities times 32 dims. */
TQK_INLINE void sum_rows(const struct job *j, uint32_t row, uint32_t rows) {
    const uint32_t steps = j->n_tokens / 2;
    for (uint32_t b = 0; b < 2; b++) {
        __m256 sum[2][2];
        tqk_dot_float_avx2(j->values + (size_t)b * steps * TQK_STEP_AVX2, steps,
                           j->left + (size_t)row * j->n_tokens, j->n_tokens, rows, sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            add_sums(j, row + r, 4 * b, sum[r][0]);
            add_sums(j, row + r, 4 * b + 2, sum[r][1]);
        }
    }
}

static void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       char *states, size_t state_bytes, float *scratch,
                       tqk_unpack_v_float_fn_avx2 *unpack) {
    const struct tqi_layout *l = &v->layout;
    uint32_t n_tokens = (tile->last + l->group - 1) / l->group * l->group;
    float *left = scratch + (size_t)32 * n_tokens;
    struct job j = {left, scratch, states, state_bytes, n_tokens, l->dim_pad / 8, 0, 0};
    j.scale = tqk_decoded_unit_avx2(v) * (v->format->kind == TQI_KIND_FP8 ? tile->scale : 1);
    for (uint32_t r = 0; r < n_rows; r++)
        fill_row(tile, probabilities + (size_t)r * score_stride, n_tokens, tqk_pairs_avx2(v, true),
                 left + (size_t)r * n_tokens);
    for (uint32_t word = 0; word < l->dim_pad / 32; word++) {
        uint32_t r = 0;
        j.dim = word * 4;
        unpack(v, tile, word, n_tokens, scratch);
        clear_outside(v, tile, n_tokens, scratch);
        for (; r + 2 <= n_rows; r += 2)
            sum_rows(&j, r, 2);
        if (r < n_rows)
            sum_rows(&j, r, 1);
    }
}

#define FLOAT_FORMAT(format)                                                                       \
    void tqk_score_##format##_avx2(const struct tqi_rows *k, const struct tqi_tile *tile,          \
                                   const void *queries, uint32_t n_rows, uint32_t score_stride,    \
                                   void *scores, void *scratch) {                                  \
        score(k, tile, queries, n_rows, score_stride, scores, scratch,                             \
              tqk_unpack_k_##format##_avx2);                                                       \
    }                                                                                              \
    void tqk_accumulate_##format##_avx2(                                                           \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, probabilities, n_rows, score_stride, states, state_bytes, scratch,     \
                   tqk_unpack_v_##format##_avx2);                                                  \
    }
FLOAT_FORMAT(fp8)
FLOAT_FORMAT(bf16)
FLOAT_FORMAT(f16)
