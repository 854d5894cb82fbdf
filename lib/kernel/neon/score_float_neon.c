/* Stage score, float formats. */
#include "kernel/neon/float_neon.h"

/* What all rows share of 16 keys. */
struct job {
    const struct tqi_layout *l;
    const struct tqi_tile *tile;
    const char *queries;
    size_t query_bytes;
    uint32_t score_stride;
    float *scores;
    float scale;
    uint32_t token; /* the first, a multiple of 16 */
};

/* A block of rows and `columns` times 4 keys from `token` on. Padding dims are left out: they may
 * hold NaN, which 0 does not silence. */
TQK_INLINE void sum_keys(const struct job *j, enum tqk_source_neon source, uint32_t token,
                         const char *const *left, uint32_t rows, float32x4_t *sum) {
    const struct tqi_layout *l = j->l;
    uint32_t per_lane = l->dim_pad / 32, lane_dims = l->dim_pad / 4, half = tqk_slabs_neon(source);
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    const uint8_t *at[4], *codes = j->tile->blob + l->codes + (size_t)(token % l->group) * 16;
    codes += (size_t)(token / l->group) * per_lane * 2 * half * slab;
    for (uint32_t c = 0; c < tqk_columns_neon(rows); c++)
        at[c] = codes + (size_t)c * 64;
    for (uint32_t word = 0; word < per_lane; word++)
        for (uint32_t lane = 0; lane < 4; lane++) {
            uint32_t dim = lane * lane_dims + word * 8;
            size_t offset = (size_t)word * 2 * half * slab + lane * 16;
            size_t step = dim * sizeof(float);
            if (dim >= l->dim)
                break;
            tqk_multiply_neon(source, at, offset, slab, left, step, rows, sum);
            tqk_multiply_neon(source, at, offset + half * slab, slab, left, step + 16, rows, sum);
        }
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

TQK_INLINE void score_block(const struct job *j, enum tqk_source_neon source, uint32_t first_row,
                            uint32_t rows) {
    const uint32_t columns = tqk_columns_neon(rows);
    const char *queries = j->queries + first_row * j->query_bytes;
    const char *left[TQK_ROWS_NEON];
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        left[r] = queries + r * j->query_bytes + offsetof(struct tqk_query_neon, data);
    }
    for (uint32_t token = j->token; token < j->token + 16; token += columns * 4) {
        float32x4_t sum[TQK_SUMS_NEON];
        TQK_UNROLL
        for (uint32_t i = 0; i < rows * columns; i++) {
            sum[i] = vdupq_n_f32(0);
        }
        sum_keys(j, source, token, left, rows, sum);
        bool whole = token >= j->tile->first && token + columns * 4 <= j->tile->last;
        float part[TQK_SUMS_NEON * 4];
        float *to = j->scores + (size_t)first_row * j->score_stride + token - j->tile->first;
        const float of_fp8 = j->scale;
        size_t stride = whole ? j->score_stride : columns * 4;
        to = whole ? to : part;
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const struct tqk_query_neon *q = (const void *)(queries + r * j->query_bytes);
            const float scale = q->scale;
            TQK_UNROLL
            for (uint32_t c = 0; c < columns; c++) {
                float32x4_t s = vmulq_n_f32(sum[r * columns + c], tqk_missing_neon(source));
                s = vmulq_n_f32(vmulq_n_f32(s, of_fp8), scale);
                vst1q_f32(to + r * stride + c * 4, s);
            }
        }
        if (!whole)
            put_some(j, token, first_row, rows, columns * 4, part);
    }
}

typedef void rows_fn(const struct job *j, uint32_t n_rows);

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const char *queries,
                  uint32_t n_rows, uint32_t score_stride, float *scores, rows_fn *rows) {
    struct job j = {.l = &k->layout,
                    .tile = tile,
                    .queries = queries,
                    .query_bytes = tqk_query_bytes_neon(k),
                    .score_stride = score_stride,
                    .scores = scores,
                    .scale = k->format->kind == TQI_KIND_FP8 ? tile->scale : 1};
    for (j.token = tile->first & ~15u; j.token < tile->last; j.token += 16)
        rows(&j, n_rows);
}

#define SCORE(format, source)                                                                   \
    TQK_INLINE void block_##format(const struct job *j, uint32_t first_row, uint32_t rows) {    \
        score_block(j, source, first_row, rows);                                                \
    }                                                                                           \
    TQK_ROW_BLOCKS_NEON(rows_##format, block_##format, TQK_ROWS_NEON)                           \
    void tqk_score_##format##_neon(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                   const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                   void *scores, void *scratch) {                               \
        (void)scratch;                                                                          \
        score(k, tile, queries, n_rows, score_stride, scores, rows_##format);                   \
    }
SCORE(fp8, TQK_E4M3_NEON)
SCORE(bf16, TQK_BF16_NEON)
SCORE(f16, TQK_F16_NEON)
