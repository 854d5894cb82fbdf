/* Stage score, integer formats. A line is 4 lanes of dims by 4 tokens and is multiplied as it
 * lies: the query's planes hold, for every 4 dims of a lane, the 4 lanes repeated for 4
 * tokens. Decoding and multiplying alternate in one loop, so that they run on different
 * ports at the same time. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"

/* ---- queries ------------------------------------------------------------------------------ */

/* Largest magnitude; NaN when there is one. */
static float largest_of(const float *x, uint32_t n) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        bad |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
    }
    return bad ? NAN : _mm512_reduce_max_ps(most);
}

static void scale_row(float *x, uint32_t n, float factor) {
    for (uint32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(factor)));
}

/* Brings a row to a magnitude near 1 by a power of two, so that no sum of the rotation
 * overflows. Returns the exponent, or INT_MIN for rows that are not finite. */
static int to_range(float *x, uint32_t n) {
    float most = largest_of(x, n);
    if (!(most <= FLT_MAX))
        return INT_MIN;
    if (most == 0 || (most > 0x1p-60f && most < 0x1p60f))
        return 0;
    int e = ilogbf(most), first = -e / 2;
    scale_row(x, n, ldexpf(1, first));
    scale_row(x, n, ldexpf(1, -e - first));
    return e;
}

/* Four dims of every lane, given as bytes in dim order, repeated for four tokens. */
static __m512i repeat(const uint8_t *plane, uint32_t lane_dims) {
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    int32_t x[4];
    for (uint32_t t = 0; t < 4; t++)
        memcpy(&x[t], plane + t * lane_dims, sizeof x[t]);
    __m128i four = _mm_setr_epi32(x[0], x[1], x[2], x[3]);
    return _mm512_permutexvar_epi32(order, _mm512_castsi128_si512(four));
}

/* x * scale to the planes of a query; returns the sum of the integers. */
static int32_t put_planes(const float *x, uint32_t dim_pad, float scale, uint8_t *to) {
    uint8_t high[TQK_DIM_LIMIT_AVX512], low[TQK_DIM_LIMIT_AVX512];
    __m512 factor = _mm512_set1_ps(scale);
    __m512i sum = _mm512_setzero_si512(), half = _mm512_set1_epi32(128);
    for (uint32_t i = 0; i < dim_pad; i += 16) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
        __m512i h = _mm512_srai_epi32(_mm512_add_epi32(v, half), 8);
        sum = _mm512_add_epi32(sum, v);
        _mm_storeu_si128((__m128i *)(void *)(high + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((__m128i *)(void *)(low + i), _mm512_cvtepi32_epi8(v));
    }
    for (uint32_t i = 0; i < dim_pad / 16; i++) {
        _mm512_storeu_si512(to + (size_t)i * 128, repeat(high + i * 4, dim_pad / 4));
        _mm512_storeu_si512(to + (size_t)i * 128 + 64, repeat(low + i * 4, dim_pad / 4));
    }
    return _mm512_reduce_add_epi32(sum);
}

void tqk_prepare_int_avx512(const struct tqi_rows *k, const float *row, void *query) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_query_avx512 *q = query;
    float x[TQK_DIM_LIMIT_AVX512] __attribute__((aligned(64)));
    memset(x + l->dim, 0, (l->dim_pad - l->dim) * sizeof *x);
    memcpy(x, row, l->dim * sizeof *x);
    int e = to_range(x, l->dim);
    if (e == INT_MIN) {
        memset(q->data, 0, (size_t)l->dim_pad * 8);
        q->bias = 0;
        q->scale = NAN;
        return;
    }
    tqk_rotate_avx512(&k->rotation, x);
    float most = largest_of(x, l->dim_pad), limit = tqk_query_limit_avx512(l->dim_pad);
    int32_t sum = put_planes(x, l->dim_pad, most > 0 ? limit / most : 0, q->data);
    q->bias = tqk_bias_avx512(k, sum);
    q->scale = (float)(ldexp((double)most / (double)limit, e) / sqrt((double)l->dim) *
                       tqk_panel_unit_avx512(k) / TQK_SCORE_UNIT_AVX512);
}

/* ---- scores ------------------------------------------------------------------------------- */

/* 16 tokens of a page. */
struct block {
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    uint32_t word, words; /* the first of a lane, how many */
    size_t at;            /* of the tokens in a slab */
    size_t query_bytes;
};

/* Sums of 2 x 4 tokens, at `at` in the slab: for every row two registers of 4 lanes by 4
 * tokens. */
TQK_INLINE void dot(struct block *b, enum tqk_source_avx512 source, const uint8_t *query, size_t at,
                    uint32_t rows, __m512i *sum) {
    const uint8_t *ahead = b->codes.ahead;
    __m512i high[8], low[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 2; i++) {
        high[i] = low[i] = _mm512_setzero_si512();
    }
    for (uint32_t w = 0; w < b->words; w++) {
        __m512i x[2], y[2];
        ahead = tqk_ahead_avx512(ahead, tqk_line_step_avx512(source));
        ahead = tqk_ahead_avx512(ahead, tqk_line_step_avx512(source));
        tqk_expand_avx512(&b->table, source, tqk_word_avx512(&b->codes, source, b->word + w, at),
                          x);
        tqk_expand_avx512(&b->table, source,
                          tqk_word_avx512(&b->codes, source, b->word + w, at + 64), y);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *q = query + r * b->query_bytes;
            TQK_UNROLL
            for (uint32_t i = 0; i < tqk_operands_avx512(source); i++) {
                const uint8_t *from = q + (size_t)(w * tqk_operands_avx512(source) + i) * 128;
                __m512i h = _mm512_load_si512(from), l = _mm512_load_si512(from + 64);
                TQK_KEEP(h);
                TQK_KEEP(l);
                high[2 * r] = _mm512_dpbusd_epi32(high[2 * r], x[i], h);
                high[2 * r + 1] = _mm512_dpbusd_epi32(high[2 * r + 1], y[i], h);
                low[2 * r] = _mm512_dpbusd_epi32(low[2 * r], x[i], l);
                low[2 * r + 1] = _mm512_dpbusd_epi32(low[2 * r + 1], y[i], l);
            }
        }
    }
    b->codes.ahead = ahead;
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 2; i++) {
        sum[i / 2 * 4 + i % 2] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
    }
}

/* Adds the 4 lanes of 4 registers: 16 tokens in order. */
TQK_INLINE __m512i add_lanes(const __m512i *x) {
    __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(x[0], x[1], 0x44),
                                 _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(x[2], x[3], 0x44),
                                 _mm512_shuffle_i32x4(x[2], x[3], 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

TQK_INLINE void score_rows(struct block *b, enum tqk_source_avx512 source,
                           const struct tqk_target_avx512 *t, const uint8_t *queries,
                           uint32_t first_row, uint32_t rows, uint32_t token, __m512 gain) {
    __m512i sum[16];
    const uint8_t *q = queries + first_row * b->query_bytes;
    const uint8_t *data = q + offsetof(struct tqk_query_avx512, data);
    dot(b, source, data, b->at, rows, sum);
    dot(b, source, data, b->at + 128, rows, sum + 2);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx512 *query = (const void *)(q + r * b->query_bytes);
        __m512i x = _mm512_add_epi32(add_lanes(sum + r * 4), _mm512_set1_epi32(query->bias));
        __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(query->scale));
        tqk_put_scores_avx512(t, first_row + r, token, _mm512_mul_ps(s, gain));
    }
}

TQK_INLINE void score(const struct tqi_rows *k, enum tqk_source_avx512 source,
                      const struct tqi_tile *tile, const void *queries, uint32_t n_rows,
                      uint32_t score_stride, float *scores) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_target_avx512 target = {scores, score_stride, tile->first, tile->last};
    struct block b = {.codes = tqk_codes_of_k_avx512(l, tile),
                      .table = tqk_table_of_avx512(k, 128),
                      .words = l->dim_pad / (source == TQK_INT8 ? 16 : 32),
                      .query_bytes = tqk_query_bytes_avx512(k)};
    for (uint32_t token = tile->first & ~15u; token < tile->last; token += 16) {
        const uint8_t *gains = tile->blob + l->gains + (size_t)token * 2;
        __m512 gain = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)gains));
        uint32_t group = l->group == 32 ? token / 32 : token / 16;
        b.word = group * b.words;
        b.at = (size_t)(token - group * l->group) * 16;
        uint32_t r = 0;
        b.codes.ahead =
            tile->blob + l->codes + l->codes_size + (size_t)token * l->dim_pad / 8 * l->bits;
        for (; r + 4 <= n_rows; r += 4)
            score_rows(&b, source, &target, queries, r, 4, token, gain);
        if (n_rows - r == 3)
            score_rows(&b, source, &target, queries, r, 3, token, gain);
        else if (n_rows - r == 2)
            score_rows(&b, source, &target, queries, r, 2, token, gain);
        else if (n_rows - r == 1)
            score_rows(&b, source, &target, queries, r, 1, token, gain);
    }
}

#define SCORE(format, source)                                                                     \
    void tqk_score_##format##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                     const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                     void *scores, void *scratch) {                               \
        (void)scratch;                                                                            \
        score(k, source, tile, queries, n_rows, score_stride, scores);                            \
    }
SCORE(lm4, TQK_LM4)
SCORE(lm3, TQK_LM3)
SCORE(lm2, TQK_LM2)
SCORE(int8, TQK_INT8)
