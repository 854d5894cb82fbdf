/* Stage score: prepared queries times decoded keys. */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "kernel/avx2/avx2.h"
#include "kernel/avx2/dot_avx2.h"
#include "kernel/avx2/vec_avx2.h"

size_t tqk_query_bytes_avx2(const struct tqi_rows *k) {
    size_t element = tqk_is_integer(k) ? sizeof(int16_t) : sizeof(float);
    size_t row = tqk_is_polar(k) ? 0 : (k->layout.dim_pad * element + 63) / 64 * 64;
    return sizeof(struct tqk_query_avx2) + row + tqk_table_bytes_avx2(k);
}

/* Decoded rows of either side, then probabilities. */
size_t tqk_scratch_bytes_avx2(const struct tqi_rows *rows) {
    const struct tqi_layout *l = &rows->layout;
    size_t element = tqk_is_integer(rows) ? sizeof(int16_t) : sizeof(float);
    size_t keys = 16 * element * l->dim_pad;
    size_t values = (32 + TQK_TILE_ROWS_AVX2) * element * l->tokens;
    return keys > values ? keys : values;
}

/* ---- queries ------------------------------------------------------------------------------ */

#include "kernel/simd/range.h"

/* x * scale as integers; returns their sum. */
static int32_t put_integers(const float *x, uint32_t n, float scale, int16_t *to) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale));
        __m256i y = _mm256_cvtps_epi32(v);
        __m128i low = _mm256_castsi256_si128(y), high = _mm256_extracti128_si256(y, 1);
        __m128i all = _mm_add_epi32(low, high);
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm_packs_epi32(low, high));
        all = _mm_hadd_epi32(all, all);
        sum += _mm_cvtsi128_si32(_mm_hadd_epi32(all, all));
    }
    return sum;
}

/* Largest integer of a query: no sum with dim_pad codes may leave 32 bits. */
static float limit_of(uint32_t dim_pad) {
    float limit = 0x1p24f / (float)dim_pad - 1;
    return limit < INT16_MAX ? limit : INT16_MAX;
}

/* Of the integers of a query. */
static size_t codes_bytes(const struct tqi_rows *k) {
    return ((size_t)k->layout.dim_pad * 2 + 63) / 64 * 64;
}

static void clear_sketch(const struct tqi_rows *k, struct tqk_query_avx2 *q) {
    q->sketch_scale = 0;
    memset((uint8_t *)q->data + codes_bytes(k), 0, tqk_table_bytes_avx2(k));
}

void tqk_prepare_avx2(const struct tqi_rows *k, const float *row, void *query) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_query_avx2 *q = query;
    if (!tqk_is_integer(k)) {
        (tqk_is_polar(k) ? tqk_prepare_polar_avx2 : tqk_prepare_float_avx2)(k, row, query);
        return;
    }
    float x[TQK_DIM_LIMIT_AVX2] __attribute__((aligned(32)));
    memset(x + l->dim, 0, (l->dim_pad - l->dim) * sizeof *x);
    memcpy(x, row, l->dim * sizeof *x);
    int e = to_range(x, l->dim);
    if (e == INT_MIN) {
        memset(q->data, 0, l->dim_pad * sizeof *q->data);
        q->half = 0;
        q->scale = NAN;
        clear_sketch(k, q);
        return;
    }
    tqk_rotate_avx2(&k->rotation, x);
    float most = largest_of(x, l->dim_pad), limit = limit_of(l->dim_pad);
    int32_t sum = put_integers(x, l->dim_pad, most > 0 ? limit / most : 0, q->data);
    q->half = tqk_has_half(k) ? (sum + 1) >> 1 : 0;
    q->scale = (float)(ldexp((double)most / (double)limit, e) / sqrt((double)l->dim) *
                       tqk_integer_unit(k) / TQK_SCORE_UNIT);
    if (k->format->sketch)
        tqk_prepare_sketch_avx2(k, x, e, q, (uint8_t *)q->data + codes_bytes(k));
}

/* ---- scores ------------------------------------------------------------------------------- */

TQK_INLINE void score_rows(const struct tqi_rows *k, const struct tqi_tile *tile,
                           const char *queries, uint32_t rows, uint32_t stride, float *scores,
                           uint32_t token, const int16_t *keys) {
    const struct tqi_layout *l = &k->layout;
    size_t query_bytes = tqk_query_bytes_avx2(k), key_bytes = (size_t)l->dim_pad * 2;
    const uint8_t *gains = tile->blob + l->gains + (size_t)token * 2;
    for (uint32_t i = 0; i < 16; i += 4) {
        __m128i sum[2];
        tqk_dot_avx2(queries + offsetof(struct tqk_query_avx2, data), query_bytes,
                     (const char *)keys + i * key_bytes, key_bytes, l->dim_pad, rows, sum);
        __m128 gain = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)(gains + i * 2)));
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const struct tqk_query_avx2 *q = (const void *)(queries + r * query_bytes);
            __m128 s = _mm_cvtepi32_ps(_mm_add_epi32(sum[r], _mm_set1_epi32(q->half)));
            s = _mm_mul_ps(_mm_mul_ps(s, _mm_set1_ps(q->scale)), gain);
            tqk_put_scores_avx2(tile, scores + (size_t)r * stride, token + i, s);
        }
    }
}

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const char *queries,
                  uint32_t n_rows, uint32_t stride, float *scores, int16_t *scratch,
                  tqk_unpack_k_fn_avx2 *unpack) {
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

#define SCORE(format)                                                                           \
    void tqk_score_##format##_avx2(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                   const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                   void *scores, void *scratch) {                               \
        score(k, tile, queries, n_rows, score_stride, scores, scratch,                          \
              tqk_unpack_k_##format##_avx2);                                                    \
    }
SCORE(lm4)
SCORE(lm3)
SCORE(lm2)
SCORE(int8)

#define SCORE_SKETCH(format, codes)                                                       \
    void tqk_score_##format##_avx2(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                   const void *queries, uint32_t n_rows, uint32_t stride, \
                                   void *scores, void *scratch) {                         \
        tqk_score_##codes##_avx2(k, tile, queries, n_rows, stride, scores, scratch);      \
        tqk_add_sketch_avx2(k, tile, queries, n_rows, stride, scores, codes_bytes(k));    \
    }
SCORE_SKETCH(lm3_qjl, lm3)
SCORE_SKETCH(lm2_qjl, lm2)
