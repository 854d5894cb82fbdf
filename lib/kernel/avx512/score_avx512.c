/* Stage score, float formats: queries times lines of keys, see float_avx512.h. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/avx512.h"
#include "kernel/avx512/float_avx512.h"
#include "kernel/avx512/one_avx512.h"

static enum tqk_float_avx512 source_of(const struct tqi_rows *rows) {
    if (rows->format->kind == TQI_KIND_FP8)
        return TQK_E4M3;
    return rows->format->id == TQ_FORMAT_F16 ? TQK_F16 : TQK_BF16;
}

/* A float is spread to four lanes. */
size_t tqk_query_bytes_avx512(const struct tqi_rows *k) {
    size_t element = tqk_is_integer(k) ? 2 : 4 * sizeof(float);
    size_t row = tqk_is_polar(k) ? 0 : (k->layout.dim_pad * element + 63) / 64 * 64;
    return sizeof(struct tqk_query_avx512) + row + tqk_table_bytes_avx512(k);
}

/* Weights of either kind: of float formats 8 registers for every group of tokens. Of integers also
 * a spread query. */
size_t tqk_scratch_bytes_avx512(const struct tqi_rows *rows) {
    const struct tqi_layout *l = &rows->layout;
    size_t row = (size_t)l->tokens / l->group * 8 * sizeof(__m512);
    size_t weights = TQK_TILE_ROWS_AVX512 * TQK_WEIGHTS_BYTES_AVX512;
    size_t queries = tqk_one_scratch_avx512(rows);
    if (!tqk_is_integer(rows))
        return TQK_TILE_ROWS_AVX512 * row;
    return queries > weights ? queries : weights;
}

/* Exponent that brings a row of queries so far down that its sums with the largest of keys stay
 * finite; INT_MIN for rows that are not finite. */
static int exponent_of(const float *row, uint32_t dim) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 bad = 0;
    for (uint32_t i = 0; i < dim; i += 16) {
        __m512 x = _mm512_abs_ps(_mm512_loadu_ps(row + i));
        bad |= _mm512_cmp_ps_mask(x, _mm512_set1_ps(FLT_MAX), _CMP_NLE_UQ);
        most = _mm512_max_ps(most, x);
    }
    float largest = _mm512_reduce_max_ps(most);
    if (bad)
        return INT_MIN;
    int e = largest > 0 ? ilogbf(largest) + 1 + ilogbf((float)dim) + 1 : 0;
    return e > -100 ? e : -100;
}

/* Operands of all words of a row whose 4 lanes of dims are the pieces. */
TQK_INLINE void spread_row(enum tqk_float_avx512 source, const float *row, uint32_t dim_pad,
                           __m512 *to) {
    const uint32_t per_lane = dim_pad / 32, lane = dim_pad / 4;
    for (uint32_t j = 0; j < per_lane; j++) {
        const float *at = row + 8 * (size_t)j;
        __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(at));
        __m512 high = _mm512_castps256_ps512(_mm256_loadu_ps(at + 2 * lane));
        low = _mm512_insertf32x8(low, _mm256_loadu_ps(at + lane), 1);
        high = _mm512_insertf32x8(high, _mm256_loadu_ps(at + 3 * (size_t)lane), 1);
        TQK_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            to[8 * j + i] = tqk_spread_avx512(source, false, i, low, high);
        }
    }
}

static void spread(enum tqk_float_avx512 source, const float *row, uint32_t dim_pad, __m512 *to) {
    if (source == TQK_BF16)
        spread_row(TQK_BF16, row, dim_pad, to);
    else if (source == TQK_F16)
        spread_row(TQK_F16, row, dim_pad, to);
    else
        spread_row(TQK_E4M3, row, dim_pad, to);
}

void tqk_prepare_avx512(const struct tqi_rows *k, const float *row, void *query) {
    struct tqk_query_avx512 *q = query;
    float *to = (float *)(void *)q->data;
    if (tqk_is_integer(k) || tqk_is_polar(k)) {
        (tqk_is_polar(k) ? tqk_prepare_polar_avx512 : tqk_prepare_int_avx512)(k, row, query);
        return;
    }
    int e = exponent_of(row, k->layout.dim);
    memset(to, 0, (size_t)k->layout.dim_pad * 4 * sizeof *to);
    q->scale = NAN; /* the whole row of the output must show it */
    if (e == INT_MIN)
        return;
    q->scale = ldexpf(1 / (float)TQK_SCORE_UNIT, e);
    float x[TQK_DIM_LIMIT_AVX512] __attribute__((aligned(64)));
    __m512 factor = _mm512_set1_ps(ldexpf(1, -e));
    memset(x + k->layout.dim, 0, (k->layout.dim_pad - k->layout.dim) * sizeof *x);
    for (uint32_t i = 0; i < k->layout.dim; i += 16)
        _mm512_store_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(row + i), factor));
    spread(source_of(k), x, k->layout.dim_pad, (__m512 *)(void *)to);
}

/* ---- scores ------------------------------------------------------------------------------- */

/* 16 tokens of a page and all rows. */
struct block {
    struct tqk_float_job_avx512 lines;
    const uint8_t *queries;
    size_t query_bytes;
    float unit;
    struct tqk_target_avx512 target;
};

TQK_INLINE void score_rows(const struct block *b, enum tqk_float_avx512 source, uint32_t first_row,
                           uint32_t rows) {
    const uint8_t *q = b->queries + first_row * b->query_bytes;
    const float *data = (const float *)(const void *)(q + offsetof(struct tqk_query_avx512, data));
    const size_t stride = b->query_bytes / sizeof(float);
    __m512 sum[4];
    if (b->lines.valid)
        tqk_dot_lines_avx512(source, true, &b->lines, data, stride, rows, sum);
    else
        tqk_dot_lines_avx512(source, false, &b->lines, data, stride, rows, sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx512 *query = (const void *)(q + r * b->query_bytes);
        __m512 s = _mm512_mul_ps(sum[r], _mm512_set1_ps(b->unit));
        s = _mm512_mul_ps(s, _mm512_set1_ps(query->scale));
        tqk_put_scores_avx512(&b->target, first_row + r, s);
    }
}

/* Functions of their own, so that each has all registers. */
typedef void rows_fn(const struct block *b, uint32_t first_row);
#define ROWS(name, source, rows)                                                               \
    static __attribute__((noinline)) void name##_##rows(const struct block *b, uint32_t row) { \
        score_rows(b, source, row, rows);                                                      \
    }
#define BLOCKS(name, source) \
    ROWS(name, source, 1)    \
    ROWS(name, source, 2)    \
    ROWS(name, source, 3)    \
    ROWS(name, source, 4)    \
    static rows_fn *const name[5] = {NULL, name##_1, name##_2, name##_3, name##_4};
BLOCKS(fp8, TQK_E4M3)
BLOCKS(bf16, TQK_BF16)
BLOCKS(f16, TQK_F16)

/* Padding dims may hold NaN, which 0 does not silence: lanes of all operands that hold others. */
TQK_INLINE void find_valid(enum tqk_float_avx512 source, const struct tqi_layout *l,
                           __mmask16 *valid) {
    const uint32_t per_lane = l->dim_pad / 32, lane = l->dim_pad / 4;
    for (uint32_t j = 0; j < per_lane; j++) {
        float x[32];
        for (uint32_t i = 0; i < 32; i++)
            x[i] = i / 8 * lane + 8 * j + i % 8 < l->dim ? 1.0f : 0.0f;
        for (uint32_t i = 0; i < 8; i++) {
            __m512 y =
                tqk_spread_avx512(source, false, i, _mm512_loadu_ps(x), _mm512_loadu_ps(x + 16));
            valid[8 * j + i] = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NEQ_OQ);
        }
    }
}

TQK_INLINE void score(const struct tqi_rows *k, enum tqk_float_avx512 source,
                      rows_fn *const by_rows[5], const struct tqi_tile *tile,
                      const uint8_t *queries, uint32_t n_rows, uint32_t score_stride,
                      float *scores) {
    const struct tqi_layout *l = &k->layout;
    const uint32_t per_lane = l->dim_pad / 32, slabs = tqk_slabs_avx512(source);
    __mmask16 valid[TQK_DIM_LIMIT_AVX512 / 4];
    struct block b = {.queries = queries, .query_bytes = tqk_query_bytes_avx512(k)};
    b.lines = (struct tqk_float_job_avx512){.stride = (size_t)tqi_slab_lanes(l) * 4,
                                            .steps = per_lane * slabs,
                                            .far = tqk_far_keys(l, tile),
                                            .lanes = 0xffff};
    b.unit = tqk_decoded_unit_avx512(source) * (source == TQK_E4M3 ? tile->scale : 1);
    if (l->dim != l->dim_pad) {
        find_valid(source, l, valid);
        b.lines.valid = valid;
    }
    for (uint32_t token = tile->first & ~15u; token < tile->last; token += 16) {
        uint32_t group = l->group == 32 ? token / 32 : token / 16;
        const uint8_t *at = tile->blob + l->codes + (size_t)(token - group * l->group) * 16 +
                            (size_t)group * per_lane * slabs * b.lines.stride;
        for (uint32_t i = 0; i < 4; i++)
            b.lines.at[i] = at + (size_t)i * 64;
        b.lines.ahead =
            tile->blob + l->codes + l->codes_size + (size_t)token * l->dim_pad / 8 * l->bits;
        b.lines.ahead_step = 256;
        b.target = tqk_target_avx512(tile, scores, score_stride, token);
        for (uint32_t r = 0, rows; r < n_rows; r += rows) {
            rows = n_rows - r < 4 ? n_rows - r : 4;
            by_rows[rows](&b, r);
            b.lines.ahead_step = 0;
        }
    }
}

#define SCORE(format, source)                                                                     \
    void tqk_score_##format##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                     const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                     void *scores, void *scratch) {                               \
        (void)scratch;                                                                            \
        score(k, source, format, tile, queries, n_rows, score_stride, scores);                    \
    }
SCORE(fp8, TQK_E4M3)
SCORE(bf16, TQK_BF16)
SCORE(f16, TQK_F16)
