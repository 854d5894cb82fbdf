/* Stage score: prepared queries times decoded keys. */
#include <float.h>
#include <limits.h>
#include <math.h>

#include "kernel/neon/neon.h"
#include "kernel/neon/vec_neon.h"

size_t tqk_query_bytes_neon(const struct tqi_rows *k) {
    size_t element = tqk_is_integer(k) ? 2 : sizeof(float);
    size_t row = tqk_is_polar(k) ? 0 : (k->layout.dim_pad * element + 63) / 64 * 64;
    return sizeof(struct tqk_query_neon) + row + tqk_table_bytes_neon(k);
}

/* Decoded rows of either side, then probabilities; of float formats these alone. */
size_t tqk_scratch_bytes_neon(const struct tqi_rows *rows) {
    const struct tqi_layout *l = &rows->layout;
    size_t keys = (size_t)16 * l->dim_pad;
    if (tqk_is_polar(rows))
        return (size_t)(TQI_POLAR_BLOCK + TQK_TILE_ROWS_NEON) * l->tokens * sizeof(float);
    if (!tqk_is_integer(rows))
        return (size_t)TQK_TILE_ROWS_NEON * l->tokens * sizeof(float);
    size_t values = (size_t)(32 + 2 * TQK_TILE_ROWS_NEON) * l->tokens;
    return keys > values ? keys : values;
}

/* ---- queries ------------------------------------------------------------------------------ */

#include "kernel/simd/range.h"

/* x * scale as integers in two planes of n bytes; returns their sum. */
static int32_t put_integers(const float *x, uint32_t n, float scale, int8_t *to) {
    int32x4_t sum = vdupq_n_s32(0);
    for (uint32_t i = 0; i < n; i += 8) {
        int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), scale));
        int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), scale));
        sum = vaddq_s32(sum, vaddq_s32(a, b));
        tqk_split_neon(vcombine_s16(vmovn_s32(a), vmovn_s32(b)), to + i, to + n + i);
    }
    return vaddvq_s32(sum);
}

/* Largest integer of a query: no sum with dim_pad codes may leave 32 bits. */
static float limit_of(uint32_t dim_pad) {
    float limit = 0x1p24f / (float)dim_pad - 1;
    return limit < TQK_MOST_NEON ? limit : TQK_MOST_NEON;
}

/* Of the integers of a query. */
static size_t codes_bytes(const struct tqi_rows *k) {
    return ((size_t)k->layout.dim_pad * 2 + 63) / 64 * 64;
}

static void clear_sketch(const struct tqi_rows *k, struct tqk_query_neon *q) {
    q->sketch_scale = 0;
    memset((uint8_t *)q->data + codes_bytes(k), 0, tqk_table_bytes_neon(k));
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
    const struct tqi_layout *l = &k->layout;
    struct tqk_query_neon *q = query;
    if (tqk_is_polar(k)) {
        tqk_prepare_polar_neon(k, row, query);
        return;
    }
    if (!tqk_is_integer(k)) {
        prepare_float(k, row, q);
        return;
    }
    float x[TQK_DIM_LIMIT_NEON];
    memset(x + l->dim, 0, (l->dim_pad - l->dim) * sizeof *x);
    memcpy(x, row, l->dim * sizeof *x);
    int e = to_range(x, l->dim);
    if (e == INT_MIN) {
        memset(q->data, 0, (size_t)l->dim_pad * 2);
        q->half = 0;
        q->scale = NAN;
        clear_sketch(k, q);
        return;
    }
    tqk_rotate_neon(&k->rotation, x);
    float most = largest_of(x, l->dim_pad), limit = limit_of(l->dim_pad);
    int32_t sum = put_integers(x, l->dim_pad, most > 0 ? limit / most : 0, q->data);
    q->half = tqk_has_half(k) ? (sum + 1) >> 1 : 0;
    q->scale = (float)(ldexp((double)most / (double)limit, e) / sqrt((double)l->dim) *
                       tqk_integer_unit(k) / TQK_SCORE_UNIT);
    if (k->format->sketch)
        tqk_prepare_sketch_neon(k, x, e, q, (uint8_t *)q->data + codes_bytes(k));
}

/* ---- scores ------------------------------------------------------------------------------- */

/* Scores of 4 tokens from `token` on, those in the tile. */
static void put_scores(const struct tqi_tile *tile, float *to, uint32_t token, float32x4_t s) {
    if (token >= tile->first && token + 4 <= tile->last) {
        vst1q_f32(to + (token - tile->first), s);
        return;
    }
    float x[4];
    vst1q_f32(x, s);
    for (uint32_t i = 0; i < 4; i++)
        if (token + i >= tile->first && token + i < tile->last)
            to[token + i - tile->first] = x[i];
}

TQK_INLINE void score_rows(const struct tqi_rows *k, const struct tqi_tile *tile,
                           const char *queries, uint32_t rows, uint32_t stride, float *scores,
                           uint32_t token, const int8_t *keys) {
    const struct tqi_layout *l = &k->layout;
    size_t query_bytes = tqk_query_bytes_neon(k);
    const uint8_t *gains = tile->blob + l->gains + (size_t)token * 2;
    const int8_t *left = (const int8_t *)queries + offsetof(struct tqk_query_neon, data);
    for (uint32_t i = 0; i < 16; i += 4) {
        int32x4_t sum[2];
        uint16x4_t half;
        memcpy(&half, gains + (size_t)i * 2, sizeof half);
        float32x4_t gain = vcvt_f32_f16(vreinterpret_f16_u16(half));
        tqk_dot_neon(left, query_bytes, keys + (size_t)i * l->dim_pad, l->dim_pad, l->dim_pad, rows,
                     sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const struct tqk_query_neon *q = (const void *)(queries + r * query_bytes);
            float32x4_t s = vcvtq_f32_s32(vaddq_s32(sum[r], vdupq_n_s32(q->half)));
            s = vmulq_f32(vmulq_n_f32(s, q->scale), gain);
            put_scores(tile, scores + (size_t)r * stride, token + i, s);
        }
    }
}

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const char *queries,
                  uint32_t n_rows, uint32_t stride, float *scores, int8_t *scratch,
                  tqk_unpack_k_fn_neon *unpack) {
    size_t query_bytes = tqk_query_bytes_neon(k);
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
    void tqk_score_##format##_neon(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                   const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                   void *scores, void *scratch) {                               \
        score(k, tile, queries, n_rows, score_stride, scores, scratch,                          \
              tqk_unpack_k_##format##_neon);                                                    \
    }
SCORE(lm4)
SCORE(lm3)
SCORE(lm2)
SCORE(int8)

#define SCORE_SKETCH(format, codes)                                                       \
    void tqk_score_##format##_neon(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                   const void *queries, uint32_t n_rows, uint32_t stride, \
                                   void *scores, void *scratch) {                         \
        tqk_score_##codes##_neon(k, tile, queries, n_rows, stride, scores, scratch);      \
        tqk_add_sketch_neon(k, tile, queries, n_rows, stride, scores, codes_bytes(k));    \
    }
SCORE_SKETCH(lm3_qjl, lm3)
SCORE_SKETCH(lm2_qjl, lm2)
