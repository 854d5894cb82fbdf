/* Stage score: prepared queries times key panels. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/avx512.h"
#include "kernel/avx512/dot_avx512.h"

size_t tqk_query_bytes_avx512(const struct tqi_rows *k) {
    size_t element = tqk_is_integer_avx512(k) ? 2 : sizeof(float);
    return sizeof(struct tqk_query_avx512) + (k->layout.dim_pad * element + 63) / 64 * 64;
}

/* Panels of either side, then planes of probabilities. */
size_t tqk_scratch_bytes_avx512(const struct tqi_rows *rows) {
    const struct tqi_layout *l = &rows->layout;
    uint32_t elements = l->dim_pad > l->tokens ? l->dim_pad : l->tokens;
    return 2 * tqk_panel_bytes_avx512(rows, elements) +
           (size_t)TQK_TILE_ROWS_AVX512 * l->tokens * sizeof(float);
}

/* ---- queries ------------------------------------------------------------------------------- */

int32_t tqk_split_planes_avx512(const float *x, uint32_t n, float scale, uint8_t *planes) {
    __m512 factor = _mm512_set1_ps(scale);
    __m512i sum = _mm512_setzero_si512(), half = _mm512_set1_epi32(128);
    for (uint32_t i = 0; i < n; i += 16) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
        __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, half), 8);
        sum = _mm512_add_epi32(sum, v);
        _mm_storeu_si128((__m128i *)(planes + i), _mm512_cvtepi32_epi8(high));
        _mm_storeu_si128((__m128i *)(planes + n + i), _mm512_cvtepi32_epi8(v));
    }
    return _mm512_reduce_add_epi32(sum);
}

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

void tqk_prepare_avx512(const struct tqi_rows *k, const float *row, void *query) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_query_avx512 *q = query;
    if (!tqk_is_integer_avx512(k)) {
        float *to = (float *)(void *)q->data;
        memset(to, 0, l->dim_pad * sizeof *to);
        memcpy(to, row, l->dim * sizeof *to);
        return;
    }
    float x[TQK_DIM_LIMIT_AVX512] __attribute__((aligned(64)));
    memset(x + l->dim, 0, (l->dim_pad - l->dim) * sizeof *x);
    memcpy(x, row, l->dim * sizeof *x);
    int e = to_range(x, l->dim);
    if (e == INT_MIN) {
        memset(q->data, 0, (size_t)l->dim_pad * 2);
        q->bias = 0;
        q->scale = NAN;
        return;
    }
    tqk_rotate_avx512(&k->rotation, x);
    float most = largest_of(x, l->dim_pad), limit = tqk_query_limit_avx512(l->dim_pad);
    q->bias = tqk_bias_avx512(k, tqk_split_planes_avx512(x, l->dim_pad, most > 0 ? limit / most : 0,
                                                         q->data));
    q->scale = (float)(ldexp((double)most / (double)limit, e) / sqrt((double)l->dim) *
                       tqk_panel_unit_avx512(k));
}

/* ---- scores -------------------------------------------------------------------------------- */

/* Where a block of 16 tokens goes. */
struct target {
    float *scores; /* of the first token of the tile */
    uint32_t stride;
    uint32_t first, last; /* of the tile */
};

/* Scores of tokens [token, + 16) of one row, those in the tile. */
TQK_INLINE void put(const struct target *t, uint32_t r, uint32_t token, __m512 s) {
    float *to = t->scores + (size_t)r * t->stride;
    if (token >= t->first) {
        uint32_t n = t->last - token;
        __mmask16 mask = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
        _mm512_mask_storeu_ps(to + (token - t->first), mask, s);
        return;
    }
    uint32_t skip = t->first - token, n = t->last - t->first;
    __mmask16 keep = (__mmask16)(0xffffu << skip), mask = (__mmask16)(0xffffu >> skip);
    mask = n >= 16 ? mask : mask & (__mmask16)((1u << n) - 1);
    _mm512_mask_storeu_ps(to, mask, _mm512_maskz_compress_ps(keep, s));
}

/* Everything that a block of rows needs. */
struct block {
    const uint8_t *panel, *queries;
    size_t panel_bytes, query_bytes;
    uint32_t dim, dim_pad, token;
    __m512 gain[2];
};

TQK_INLINE void score_int(const struct block *b, const struct target *t, uint32_t first_row,
                          uint32_t rows, uint32_t columns) {
    __m512i sum[TQK_ROW_BLOCK_AVX512 * 2];
    const uint8_t *q = b->queries + first_row * b->query_bytes;
    tqk_dot_int_avx512(b->panel, b->panel_bytes, b->dim_pad / 4,
                       q + offsetof(struct tqk_query_avx512, data), b->query_bytes, b->dim_pad,
                       rows, columns, sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx512 *query = (const void *)(q + r * b->query_bytes);
        __m512i bias = _mm512_set1_epi32(query->bias);
        __m512 scale = _mm512_set1_ps(query->scale);
        TQK_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            __m512 s = _mm512_cvtepi32_ps(_mm512_add_epi32(sum[r * columns + c], bias));
            s = _mm512_mul_ps(_mm512_mul_ps(s, scale), b->gain[c]);
            put(t, first_row + r, b->token + c * 16, s);
        }
    }
}

TQK_INLINE void score_float(const struct block *b, const struct target *t, uint32_t first_row,
                            uint32_t rows, uint32_t columns) {
    __m512 sum[TQK_ROW_BLOCK_AVX512 * 2];
    const uint8_t *q = b->queries + first_row * b->query_bytes;
    /* Padding dims may hold NaN, which 0 does not silence. */
    tqk_dot_float_avx512((const float *)(const void *)b->panel, b->panel_bytes, b->dim,
                         (const float *)(const void *)(q + offsetof(struct tqk_query_avx512, data)),
                         b->query_bytes, rows, columns, sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        TQK_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            __m512 s = _mm512_mul_ps(sum[r * columns + c], b->gain[c]);
            put(t, first_row + r, b->token + c * 16, s);
        }
    }
}

typedef void block_fn(const struct block *b, const struct target *t, uint32_t n_rows);

/* Rows in blocks of 4, then what is left. */
#define ROWS(name, stage, columns)                                                            \
    static void name(const struct block *b, const struct target *t, uint32_t n_rows) {        \
        uint32_t r = 0;                                                                       \
        for (; r + 4 <= n_rows; r += 4)                                                       \
            stage(b, t, r, 4, columns);                                                       \
        if (n_rows - r == 3)                                                                  \
            stage(b, t, r, 3, columns);                                                       \
        else if (n_rows - r == 2)                                                             \
            stage(b, t, r, 2, columns);                                                       \
        else if (n_rows - r == 1)                                                             \
            stage(b, t, r, 1, columns);                                                       \
    }
ROWS(int_one, score_int, 1)
ROWS(int_two, score_int, 2)
ROWS(float_one, score_float, 1)
ROWS(float_two, score_float, 2)

/* Gains of 16 tokens; those of tokens not in the tile may be anything. */
TQK_INLINE __m512 gains_at(const struct tqi_rows *k, const struct tqi_tile *tile, uint32_t token) {
    if (!tqk_is_integer_avx512(k))
        return _mm512_set1_ps(k->format->kind == TQI_KIND_FP8 ? tile->scale : 1);
    const uint8_t *at = tile->blob + k->layout.gains + (size_t)token * 2;
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const void *queries,
                  uint32_t n_rows, uint32_t score_stride, float *scores, uint8_t *scratch,
                  tqk_unpack_k_fn_avx512 *unpack, block_fn *one, block_fn *two) {
    const struct tqi_layout *l = &k->layout;
    struct target target = {scores, score_stride, tile->first, tile->last};
    struct block b = {.panel = scratch,
                      .queries = queries,
                      .panel_bytes = tqk_panel_bytes_avx512(k, l->dim_pad),
                      .query_bytes = tqk_query_bytes_avx512(k),
                      .dim = l->dim,
                      .dim_pad = l->dim_pad};
    for (uint32_t token = tile->first & ~15u; token < tile->last;) {
        uint32_t panels = token % l->group == 0 && token + 16 < tile->last && l->group == 32 ? 2 : 1;
        unpack(k, tile->blob, token, panels, scratch);
        b.token = token;
        for (uint32_t c = 0; c < panels; c++)
            b.gain[c] = gains_at(k, tile, token + c * 16);
        (panels == 2 ? two : one)(&b, &target, n_rows);
        token += panels * 16;
    }
}

#define SCORE(format, kind)                                                                    \
    void tqk_score_##format##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile,    \
                                     const void *queries, uint32_t n_rows,                     \
                                     uint32_t score_stride, void *scores, void *scratch) {     \
        score(k, tile, queries, n_rows, score_stride, scores, scratch,                         \
              tqk_unpack_k_##format##_avx512, kind##_one, kind##_two);                         \
    }
SCORE(lm4, int)
SCORE(lm3, int)
SCORE(lm2, int)
SCORE(int8, int)
SCORE(fp8, float)
SCORE(bf16, float)
SCORE(f16, float)
