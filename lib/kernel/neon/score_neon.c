/* Stage score: sizes, queries, and the integer formats. */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "kernel/neon/vec_neon.h"

#include "kernel/simd/range.h"

#include "kernel/neon/score_int.h"

size_t tqk_query_bytes_neon(const struct tqi_rows *k) {
    size_t floats = ((size_t)k->layout.dim_pad * sizeof(float) + 63) / 64 * 64;
    size_t row = tqk_is_polar(k) ? 0 : tqk_is_integer(k) ? tqk_code_bytes_neon(k) : floats;
    return sizeof(struct tqk_query_neon) + row + tqk_table_bytes_neon(k);
}

/* Decoded rows of either side, then probabilities; of float formats these alone. */
size_t tqk_scratch_bytes_neon(const struct tqi_rows *rows) {
    const struct tqi_layout *l = &rows->layout;
    size_t keys = (size_t)TQK_QUADS_NEON * 4 * l->dim_pad;
    size_t values = TQK_BLOCK_NEON / 8 * (TQK_LINE_NEON + TQK_TILE_ROWS_NEON * 16);
    if (tqk_is_polar(rows))
        return (size_t)(TQI_POLAR_BLOCK + TQK_TILE_ROWS_NEON) * l->tokens * sizeof(float);
    if (!tqk_is_integer(rows))
        return (size_t)TQK_TILE_ROWS_NEON * l->tokens * sizeof(float);
    return keys > values ? keys : values;
}

/* Brought so far down by a power of two that sums with the largest of keys stay finite. */
static void prepare_float(const struct tqi_rows *k, const float *row, struct tqk_query_neon *q) {
    float *to = (float *)(void *)q->data, most = largest_of(row, k->layout.dim);
    memset(to, 0, k->layout.dim_pad * sizeof *to);
    q->scale = NAN; /* the whole row of the output must show it */
    if (!(most <= FLT_MAX))
        return;
    int e = most > 0 ? ilogbf(most) + 1 + ilogbf((float)k->layout.dim) + 1 : 0;
    e = e > -100 ? e : -100;
    q->scale = ldexpf(1 / (float)TQK_SCORE_UNIT, e);
    memcpy(to, row, k->layout.dim * sizeof *to);
    scale_row(to, k->layout.dim, ldexpf(1, -e));
}

void tqk_prepare_neon(const struct tqi_rows *k, const float *row, void *query) {
    if (tqk_is_polar(k))
        tqk_prepare_polar_neon(k, row, query);
    else if (tqk_is_integer(k))
        tqk_prepare_int_neon(k, row, query);
    else
        prepare_float(k, row, query);
}
