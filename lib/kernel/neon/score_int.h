/* Stage score, integer formats, for the levels of int_neon.h. A file includes this once, behind
 * simd/range.h. */
#include <limits.h>
#include <math.h>

#include "kernel/neon/int_neon.h"

/* ---- queries ------------------------------------------------------------------------------ */

/* x * scale as integers; returns their sum. */
TQK_INLINE int32_t put_integers(const float *x, uint32_t n, float scale, uint8x16_t places,
                                int8_t *to) {
    int32x4_t sum = vdupq_n_s32(0);
    for (uint32_t i = 0; i < n; i += TQK_STEP_NEON) {
        int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), scale));
        int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), scale));
        sum = vaddq_s32(sum, vaddq_s32(a, b));
        tqk_put_step_neon(vcombine_s16(vmovn_s32(a), vmovn_s32(b)), places, to + (size_t)i * 2);
    }
    return vaddvq_s32(sum);
}

/* Largest integer of a query: no sum with dim_pad codes may leave 32 bits. */
static float limit_of(uint32_t dim_pad) {
    float limit = 0x1p24f / (float)dim_pad - 1;
    return limit < TQK_MOST_NEON ? limit : TQK_MOST_NEON;
}

static void clear_sketch(const struct tqi_rows *k, struct tqk_query_neon *q) {
    q->sketch_scale = 0;
    memset((uint8_t *)q->data + tqk_code_bytes_neon(k), 0, tqk_table_bytes_neon(k));
}

void TQK_KERNEL(prepare, int)(const struct tqi_rows *k, const float *row, void *query) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_query_neon *q = query;
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
    int32_t sum = put_integers(x, l->dim_pad, most > 0 ? limit / most : 0,
                               tqk_places_neon(l->bits, false), q->data);
    q->half = tqk_has_half(k) ? (sum + 1) >> 1 : 0;
    q->scale = (float)(ldexp((double)most / (double)limit, e) / sqrt((double)l->dim) *
                       tqk_integer_unit(k) / TQK_SCORE_UNIT);
    if (k->format->sketch)
        tqk_prepare_sketch_neon(k, x, e, q, (uint8_t *)q->data + tqk_code_bytes_neon(k));
}

/* ---- keys --------------------------------------------------------------------------------- */

/* What all rows share of 16 keys. */
struct job {
    const struct tqi_rows *k;
    const struct tqi_tile *tile;
    const char *queries;
    size_t query_bytes;
    uint32_t score_stride;
    float *scores;
    const int8_t *panel;
    uint32_t token; /* the first, a multiple of 16 */
};

/* 16 keys from `token` on to a panel, steps in the order of dims. */
TQK_INLINE void unpack_words(const struct tqk_codes_neon *c, uint32_t bits, uint32_t word,
                             uint32_t per_lane, size_t at, int8_t *panel) {
    for (uint32_t lane = 0; lane < 4; lane++, panel += (size_t)per_lane * TQK_LINE_NEON)
        for (uint32_t quad = 0; quad < TQK_QUADS_NEON; quad++)
            tqk_put_words_neon(c, bits, word, per_lane, 2, 1, at + quad * 64 + lane * 16,
                               panel + (size_t)quad * TQK_PIECE_NEON, TQK_LINE_NEON);
}

TQK_INLINE void unpack_k(const struct tqi_rows *k, uint32_t bits, const struct tqi_tile *tile,
                         uint32_t token, int8_t *panel) {
    const struct tqi_layout *l = &k->layout;
    const struct tqk_codes_neon c = tqk_codes_of_neon(k, tile);
    uint32_t per_lane = l->dim_pad / 32;
    uint32_t word = token / l->group * per_lane * (bits == 8 ? 2 : 1);
    size_t at = (size_t)(token % l->group) * 16;
    if (per_lane == 4)
        unpack_words(&c, bits, word, 4, at, panel);
    else
        unpack_words(&c, bits, word, per_lane, at, panel);
}

/* Scores of n keys from `token` on, those in the tile. */
static void put_some(const struct job *j, uint32_t token, uint32_t first_row, uint32_t rows,
                     uint32_t n, const float *part) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < n; i++)
            if (token + i >= j->tile->first && token + i < j->tile->last)
                j->scores[(size_t)(first_row + r) * j->score_stride + token + i - j->tile->first] =
                    part[r * n + i];
}

TQK_INLINE void score_block(const struct job *j, uint32_t first_row, uint32_t rows) {
    const uint32_t quads = tqk_quads_neon(rows);
    const char *queries = j->queries + first_row * j->query_bytes, *left[TQK_INT_ROWS_NEON];
    const uint8_t *gains = j->tile->blob + j->k->layout.gains;
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        left[r] = queries + r * j->query_bytes + offsetof(struct tqk_query_neon, data);
    }
    for (uint32_t i = 0; i < TQK_QUADS_NEON; i += quads) {
        uint32_t token = j->token + i * 4;
        bool whole = token >= j->tile->first && token + quads * 4 <= j->tile->last;
        float part[TQK_INT_SUMS_NEON * 4];
        float *to = j->scores + (size_t)first_row * j->score_stride + token - j->tile->first;
        size_t stride = whole ? j->score_stride : quads * 4;
        int32x4_t sum[TQK_INT_SUMS_NEON];
        to = whole ? to : part;
        tqk_dot_neon(left, j->panel + i * TQK_PIECE_NEON, j->k->layout.dim_pad / TQK_STEP_NEON,
                     rows, sum);
        float32x4_t gain[TQK_QUADS_NEON];
        TQK_UNROLL
        for (uint32_t c = 0; c < quads; c++) {
            uint16x4_t bits;
            memcpy(&bits, gains + (size_t)(token + c * 4) * 2, sizeof bits);
            gain[c] = vcvt_f32_f16(vreinterpret_f16_u16(bits));
        }
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const struct tqk_query_neon *q = (const void *)(queries + r * j->query_bytes);
            const int32x4_t half = vdupq_n_s32(q->half);
            const float scale = q->scale;
            TQK_UNROLL
            for (uint32_t c = 0; c < quads; c++) {
                float32x4_t s = vcvtq_f32_s32(vaddq_s32(sum[r * quads + c], half));
                vst1q_f32(to + r * stride + c * 4, vmulq_f32(vmulq_n_f32(s, scale), gain[c]));
            }
        }
        if (!whole)
            put_some(j, token, first_row, rows, quads * 4, part);
    }
}
TQK_ROW_BLOCKS_NEON(score_rows, score_block, TQK_INT_ROWS_NEON)

TQK_INLINE void score(const struct tqi_rows *k, uint32_t bits, const struct tqi_tile *tile,
                      const char *queries, uint32_t n_rows, uint32_t score_stride, float *scores,
                      int8_t *scratch) {
    struct job j = {.k = k,
                    .tile = tile,
                    .queries = queries,
                    .query_bytes = tqk_query_bytes_neon(k),
                    .score_stride = score_stride,
                    .scores = scores,
                    .panel = scratch};
    for (j.token = tile->first & ~15u; j.token < tile->last; j.token += 16) {
        unpack_k(k, bits, tile, j.token, scratch);
        score_rows(&j, n_rows);
    }
}

#define SCORE(format, bits)                                                               \
    void TQK_KERNEL(score, format)(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                   const void *queries, uint32_t n_rows, uint32_t stride, \
                                   void *scores, void *scratch) {                         \
        score(k, bits, tile, queries, n_rows, stride, scores, scratch);                   \
    }
SCORE(lm4, 4)
SCORE(lm3, 3)
SCORE(lm2, 2)
SCORE(int8, 8)

#define SCORE_SKETCH(format, codes)                                                            \
    void TQK_KERNEL(score, format)(const struct tqi_rows *k, const struct tqi_tile *tile,      \
                                   const void *queries, uint32_t n_rows, uint32_t stride,      \
                                   void *scores, void *scratch) {                              \
        TQK_KERNEL(score, codes)(k, tile, queries, n_rows, stride, scores, scratch);           \
        tqk_add_sketch_neon(k, tile, queries, n_rows, stride, scores, tqk_code_bytes_neon(k)); \
    }
SCORE_SKETCH(lm3_qjl, lm3)
SCORE_SKETCH(lm2_qjl, lm2)
