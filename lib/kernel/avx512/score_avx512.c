/* Stage score, float formats: queries times key panels. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

size_t tqk_query_bytes_avx512(const struct tqi_rows *k) {
    size_t element = tqk_is_integer(k) ? 2 : sizeof(float);
    size_t row = tqk_is_polar(k) ? 0 : (k->layout.dim_pad * element + 63) / 64 * 64;
    return sizeof(struct tqk_query_avx512) + row + tqk_table_bytes_avx512(k);
}

/* Panels of either side, then probabilities; or weights. */
size_t tqk_scratch_bytes_avx512(const struct tqi_rows *rows) {
    const struct tqi_layout *l = &rows->layout;
    uint32_t elements = l->dim_pad > l->tokens ? l->dim_pad : l->tokens;
    size_t panels = 2 * tqk_panel_bytes_avx512(elements) +
                    (size_t)TQK_TILE_ROWS_AVX512 * l->tokens * sizeof(float);
    return tqk_is_integer(rows) ? tqk_weights_scratch_avx512() : panels;
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

void tqk_prepare_avx512(const struct tqi_rows *k, const float *row, void *query) {
    struct tqk_query_avx512 *q = query;
    float *to = (float *)(void *)q->data;
    if (tqk_is_integer(k) || tqk_is_polar(k)) {
        (tqk_is_polar(k) ? tqk_prepare_polar_avx512 : tqk_prepare_int_avx512)(k, row, query);
        return;
    }
    int e = exponent_of(row, k->layout.dim);
    memset(to, 0, k->layout.dim_pad * sizeof *to);
    q->scale = NAN; /* the whole row of the output must show it */
    if (e == INT_MIN)
        return;
    q->scale = ldexpf(1 / (float)TQK_SCORE_UNIT, e);
    __m512 factor = _mm512_set1_ps(ldexpf(1, -e));
    for (uint32_t i = 0; i < k->layout.dim; i += 16)
        _mm512_storeu_ps(to + i, _mm512_mul_ps(_mm512_loadu_ps(row + i), factor));
}

/* ---- scores ------------------------------------------------------------------------------- */

/* Everything that a block of rows needs. */
struct block {
    const uint8_t *panel, *queries;
    size_t panel_bytes, query_bytes;
    uint32_t dim, dim_pad;
    __m512 gain[2];
    struct tqk_target_avx512 target[2];
};

TQK_INLINE void score_float(const struct block *b, uint32_t first_row, uint32_t rows,
                            uint32_t columns) {
    __m512 sum[TQK_ROW_BLOCK_AVX512 * 2];
    const uint8_t *q = b->queries + first_row * b->query_bytes;
    /* Padding dims may hold NaN, which 0 does not silence. */
    tqk_dot_float_avx512((const float *)(const void *)b->panel, b->panel_bytes, b->dim,
                         (const float *)(const void *)(q + offsetof(struct tqk_query_avx512, data)),
                         b->query_bytes, rows, columns, sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx512 *query = (const void *)(q + r * b->query_bytes);
        __m512 scale = _mm512_set1_ps(query->scale);
        TQK_UNROLL
        for (uint32_t c = 0; c < columns; c++) {
            __m512 s = _mm512_mul_ps(_mm512_mul_ps(sum[r * columns + c], b->gain[c]), scale);
            tqk_put_scores_avx512(&b->target[c], first_row + r, s);
        }
    }
}

typedef void block_fn(const struct block *b, uint32_t n_rows);

/* Rows in blocks of 4, then what is left. */
#define ROWS(name, stage, columns)                             \
    static void name(const struct block *b, uint32_t n_rows) { \
        uint32_t r = 0;                                        \
        for (; r + 4 <= n_rows; r += 4)                        \
            stage(b, r, 4, columns);                           \
        if (n_rows - r == 3)                                   \
            stage(b, r, 3, columns);                           \
        else if (n_rows - r == 2)                              \
            stage(b, r, 2, columns);                           \
        else if (n_rows - r == 1)                              \
            stage(b, r, 1, columns);                           \
    }
ROWS(float_one, score_float, 1)
ROWS(float_two, score_float, 2)

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const void *queries,
                  uint32_t n_rows, uint32_t score_stride, float *scores, uint8_t *scratch,
                  tqk_unpack_k_fn_avx512 *unpack, block_fn *one, block_fn *two) {
    const struct tqi_layout *l = &k->layout;
    struct block b = {.panel = scratch,
                      .queries = queries,
                      .panel_bytes = tqk_panel_bytes_avx512(l->dim_pad),
                      .query_bytes = tqk_query_bytes_avx512(k),
                      .dim = l->dim,
                      .dim_pad = l->dim_pad};
    for (uint32_t token = tile->first & ~15u; token < tile->last;) {
        uint32_t panels =
            token % l->group == 0 && token + 16 < tile->last && l->group == 32 ? 2 : 1;
        unpack(k, tile, token, panels, scratch);
        for (uint32_t c = 0; c < panels; c++) {
            b.target[c] = tqk_target_avx512(tile, scores, score_stride, token + c * 16);
            b.gain[c] = _mm512_set1_ps(k->format->kind == TQI_KIND_FP8 ? tile->scale : 1);
        }
        (panels == 2 ? two : one)(&b, n_rows);
        token += panels * 16;
    }
}

#define SCORE(format)                                                                             \
    void tqk_score_##format##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                     const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                     void *scores, void *scratch) {                               \
        score(k, tile, queries, n_rows, score_stride, scores, scratch,                            \
              tqk_unpack_k_##format##_avx512, float_one, float_two);                              \
    }
SCORE(fp8)
SCORE(bf16)
SCORE(f16)
