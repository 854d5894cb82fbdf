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
    for (uint32_t i = 0; i < k->layout.dim; i += 8)
        _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_loadu_ps(row + i), factor));
}

/* Rows (1 or 2) of queries against the 16 keys from `token` on. */
TQK_INLINE void score_rows(const struct tqi_rows *k, const struct tqi_tile *tile, const char *query,
                           uint32_t rows, uint32_t stride, float *scores, uint32_t token,
                           const float *keys) {
    const float *left =
        (const float *)(const void *)(query + offsetof(struct tqk_query_avx2, data));
    __m128 scale = _mm_set1_ps(k->format->kind == TQI_KIND_FP8 ? tile->scale : 1);
    for (uint32_t i = 0; i < 16; i += 4) {
        __m128 sum[2];
        /* Not over padding dims: they may hold NaN, which 0 does not silence. */
        tqk_dot_float_avx2(left, tqk_query_bytes_avx2(k) / sizeof(float),
                           keys + (size_t)i * k->layout.dim_pad, k->layout.dim_pad, k->layout.dim,
                           rows, sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const struct tqk_query_avx2 *q = (const void *)(query + r * tqk_query_bytes_avx2(k));
            __m128 s = _mm_mul_ps(_mm_mul_ps(sum[r], scale), _mm_set1_ps(q->scale));
            tqk_put_scores_avx2(tile, scores + (size_t)r * stride, token + i, s);
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

/* Probabilities of a row for the page's tokens; 0 outside the tile. */
static void fill_row(const struct tqi_tile *t, const float *p, uint32_t n_tokens, float *to) {
    memset(to, 0, n_tokens * sizeof *to);
    for (uint32_t i = t->first; i < t->last; i++)
        to[i] = p[i - t->first] * (1 / (float)TQK_VALUE_UNIT);
}

/* Tokens outside the tile may hold NaN, which a probability of 0 does not silence. */
static void clear_outside(const struct tqi_tile *t, uint32_t n_tokens, float *values) {
    for (uint32_t i = 0; i < 32; i++) {
        memset(values + (size_t)i * n_tokens, 0, t->first * sizeof *values);
        memset(values + (size_t)i * n_tokens + t->last, 0, (n_tokens - t->last) * sizeof *values);
    }
}

/* Rows (1 or 2) of probabilities times 32 dims from `dim` on. */
TQK_INLINE void sum_rows(const float *left, const float *values, uint32_t n_tokens, uint32_t dim,
                         float scale, uint32_t rows, char *states, size_t state_bytes) {
    for (uint32_t i = 0; i < 32; i += 4) {
        __m128 sum[2];
        tqk_dot_float_avx2(left, n_tokens, values + (size_t)i * n_tokens, n_tokens, n_tokens, rows,
                           sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            struct tqk_state_avx2 *s = (void *)(states + r * state_bytes);
            float *acc = s->acc + dim + i;
            __m128 old = _mm_mul_ps(_mm_loadu_ps(acc), _mm_set1_ps(s->factor));
            _mm_storeu_ps(acc, _mm_fmadd_ps(sum[r], _mm_set1_ps(scale), old));
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
    float scale = v->format->kind == TQI_KIND_FP8 ? tile->scale : 1;
    for (uint32_t r = 0; r < n_rows; r++)
        fill_row(tile, probabilities + (size_t)r * score_stride, n_tokens,
                 left + (size_t)r * n_tokens);
    for (uint32_t dim = 0; dim < l->dim_pad; dim += 32) {
        uint32_t r = 0;
        unpack(v, tile, dim, n_tokens, scratch);
        clear_outside(tile, n_tokens, scratch);
        for (; r + 2 <= n_rows; r += 2)
            sum_rows(left + (size_t)r * n_tokens, scratch, n_tokens, dim, scale, 2,
                     states + r * state_bytes, state_bytes);
        if (r < n_rows)
            sum_rows(left + (size_t)r * n_tokens, scratch, n_tokens, dim, scale, 1,
                     states + r * state_bytes, state_bytes);
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
