/* Stage score: prepared queries times decoded keys. */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "kernel/avx2/avx2.h"
#include "kernel/avx2/vec_avx2.h"

size_t tqk_query_bytes_avx2(const struct tqi_rows *k) {
    size_t element = tqk_is_integer(k) ? sizeof(int16_t) : sizeof(float);
    size_t row = tqk_is_polar(k) ? 0 : (k->layout.dim_pad * element + 63) / 64 * 64;
    return sizeof(struct tqk_query_avx2) + row + tqk_table_bytes_avx2(k);
}

/* Decoded codes of either side, then weights; decoded floats. */
size_t tqk_scratch_bytes_avx2(const struct tqi_rows *rows) {
    const struct tqi_layout *l = &rows->layout;
    size_t keys = (size_t)32 * 2 * l->dim_pad,
           values = (size_t)(32 + TQK_TILE_ROWS_AVX2) * 2 * TQK_BLOCK_AVX2;
    if (!tqk_is_integer(rows)) {
        uint32_t block = l->tokens > TQK_BLOCK_AVX2 ? l->tokens : TQK_BLOCK_AVX2;
        keys = 16 * sizeof(float) * l->dim_pad;
        values = (32 + TQK_TILE_ROWS_AVX2) * sizeof(float) * block;
    }
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

/* Largest integer of a query: no sum with dim_pad codes may leave 32 bits, and two bytes with signs
 * must hold it (AVX-VNNI). */
static float limit_of(uint32_t dim_pad) {
    const float most = INT8_MAX * 256 + INT8_MAX;
    float limit = 0x1p24f / (float)dim_pad - 1;
    return limit < most ? limit : most;
}

/* Of the integers of a query. */
static size_t codes_bytes(const struct tqi_rows *k) {
    return ((size_t)k->layout.dim_pad * 2 + 63) / 64 * 64;
}

static void clear_sketch(const struct tqi_rows *k, struct tqk_query_avx2 *q) {
    q->sketch_scale = 0;
    memset((uint8_t *)q->data + codes_bytes(k), 0, tqk_table_bytes_avx2(k));
}

void tqk_round_query_avx2(const struct tqi_rows *k, const float *row, struct tqk_query_avx2 *q,
                          int16_t *integers) {
    const struct tqi_layout *l = &k->layout;
    float x[TQK_DIM_LIMIT_AVX2] __attribute__((aligned(32)));
    memset(x + l->dim, 0, (l->dim_pad - l->dim) * sizeof *x);
    memcpy(x, row, l->dim * sizeof *x);
    int e = to_range(x, l->dim);
    if (e == INT_MIN) {
        memset(integers, 0, l->dim_pad * sizeof *integers);
        q->bias = 0;
        q->scale = NAN;
        clear_sketch(k, q);
        return;
    }
    tqk_rotate_avx2(&k->rotation, x);
    float most = largest_of(x, l->dim_pad), limit = limit_of(l->dim_pad);
    q->bias = tqk_bias_avx2(k, put_integers(x, l->dim_pad, most > 0 ? limit / most : 0, integers));
    q->scale = (float)(ldexp((double)most / (double)limit, e) / sqrt((double)l->dim) *
                       tqk_integer_unit(k) / TQK_SCORE_UNIT);
    if (k->format->sketch)
        tqk_prepare_sketch_avx2(k, x, e, q, (uint8_t *)q->data + codes_bytes(k));
}

void tqk_add_codes_sketch_avx2(const struct tqi_rows *k, const struct tqi_tile *tile,
                               const void *queries, uint32_t n_rows, uint32_t score_stride,
                               void *scores) {
    tqk_add_sketch_avx2(k, tile, queries, n_rows, score_stride, scores, codes_bytes(k));
}

void tqk_put_few_scores_avx2(const struct tqi_tile *tile, float *to, uint32_t token, __m256 s) {
    tqk_put_scores_avx2(tile, to, token, _mm256_castps256_ps128(s));
    tqk_put_scores_avx2(tile, to, token + 4, _mm256_extractf128_ps(s, 1));
}

/* ---- scores ------------------------------------------------------------------------------- */

#define TQK_OF_LEVEL(name) tqk_##name##_avx2
#include "kernel/avx2/score_codes.h"
