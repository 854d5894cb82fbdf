/* Stage accumulate: probabilities times decoded values, and the end of a row. */
#include <math.h>

#include "kernel/avx2/avx2.h"
#include "kernel/avx2/dot_avx2.h"

/* What all rows of a tile share. */
struct job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    char *states;
    size_t state_bytes;
    uint32_t token, n_tokens; /* of a block, from the start of the page; whole groups */
    int16_t *values;          /* 32 rows of dims */
    int16_t *weights;         /* by query row */
    int32_t half[TQK_TILE_ROWS_AVX2];
    float scale[TQK_TILE_ROWS_AVX2];
};

/* ---- probabilities ------------------------------------------------------------------------ */

/* Gains of 8 tokens as binary32, 0 outside the tile. */
static __m256 gains_at(const struct job *j, uint32_t token) {
    const uint8_t *at = j->tile->blob + j->v->layout.gains + (size_t)token * 2;
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    __m256i index =
        _mm256_add_epi32(_mm256_set1_epi32((int)token), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i in =
        _mm256_and_si256(_mm256_cmpgt_epi32(index, _mm256_set1_epi32((int)j->tile->first - 1)),
                         _mm256_cmpgt_epi32(_mm256_set1_epi32((int)j->tile->last), index));
    return _mm256_castsi256_ps(_mm256_and_si256(in, _mm256_slli_epi32(wide, 16)));
}

/* probability * gain of the block's tokens, 0 outside the tile; returns the largest. */
static float weigh(const struct job *j, const float *p, const __m256 *gain, float *w) {
    const struct tqi_tile *t = j->tile;
    uint32_t from = j->token < t->first ? t->first - j->token : 0, left = t->last - j->token;
    uint32_t to = left < j->n_tokens ? left : j->n_tokens;
    __m256 most = _mm256_setzero_ps();
    memset(w, 0, j->n_tokens * sizeof *w);
    if (from < to)
        memcpy(w + from, p + (j->token + from - t->first), (to - from) * sizeof *w);
    for (uint32_t i = 0; i < j->n_tokens; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(w + i), gain[i / 8]);
        most = _mm256_max_ps(most, x);
        _mm256_storeu_ps(w + i, x);
    }
    return tqk_largest_of_lanes_avx2(most);
}

/* The weights of a row as fixed point, 8 tokens in the order of the values. */
static void fill_row(struct job *j, uint32_t row, const float *p, const __m256 *gain) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    float w[TQK_BLOCK_AVX2];
    int16_t *to = j->weights + (size_t)row * j->n_tokens;
    float top = weigh(j, p, gain, w), up = top < 0x1p-100f ? 0x1p40f : 1;
    __m256 factor = _mm256_set1_ps(top > 0 ? INT16_MAX / (top * up) : 0);
    __m256i sum = _mm256_setzero_si256();
    factor = _mm256_mul_ps(factor, _mm256_set1_ps(up)); /* in two steps: it may be huge */
    for (uint32_t i = 0; i < j->n_tokens; i += 8) {
        __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(w + i), factor));
        sum = _mm256_add_epi32(sum, x);
        __m128i y = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm_shuffle_epi8(y, order));
    }
    __m128i all = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    all = _mm_hadd_epi32(all, all);
    int32_t total = _mm_cvtsi128_si32(_mm_hadd_epi32(all, all));
    j->half[row] = tqk_has_half(j->v) ? (total + 1) >> 1 : 0;
    /* A NaN probability makes the sum of the state NaN, which spoils the row at its end. */
    j->scale[row] = top * (float)(1 / (TQK_VALUE_UNIT * INT16_MAX));
}

/* ---- sums --------------------------------------------------------------------------------- */

TQK_INLINE void sum_rows(const struct job *j, uint32_t dim, uint32_t row, uint32_t rows) {
    size_t row_bytes = (size_t)j->n_tokens * 2;
    for (uint32_t i = 0; i < 32; i += 4) {
        __m128i sum[2];
        tqk_dot_avx2((const char *)j->weights + row * row_bytes, row_bytes,
                     (const char *)j->values + i * row_bytes, row_bytes, j->n_tokens, rows, sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            struct tqk_state_avx2 *s = (void *)(j->states + (row + r) * j->state_bytes);
            float *acc = s->acc + dim + i;
            __m128 x = _mm_cvtepi32_ps(_mm_add_epi32(sum[r], _mm_set1_epi32(j->half[row + r])));
            x = _mm_fmadd_ps(x, _mm_set1_ps(j->scale[row + r]), _mm_loadu_ps(acc));
            _mm_storeu_ps(acc, x);
        }
    }
}

/* Applies the factors that the softmax has noted. */
static void rescale_states(const struct job *j, uint32_t n_rows) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx2 *s = (void *)(j->states + r * j->state_bytes);
        const __m256 factor = _mm256_set1_ps(s->factor);
        for (uint32_t i = 0; s->factor != 1 && i < j->v->layout.dim_pad; i += 8)
            _mm256_storeu_ps(s->acc + i, _mm256_mul_ps(_mm256_loadu_ps(s->acc + i), factor));
    }
}

static void sum_block(struct job *j, uint32_t n_rows, tqk_unpack_v_fn_avx2 *unpack) {
    for (uint32_t dim = 0; dim < j->v->layout.dim_pad; dim += 32) {
        uint32_t r = 0;
        unpack(j->v, j->tile, dim, j->token, j->n_tokens, j->values);
        for (; r + 2 <= n_rows; r += 2)
            sum_rows(j, dim, r, 2);
        if (r < n_rows)
            sum_rows(j, dim, r, 1);
    }
}

/* Weights have 15 bits: tokens are taken in blocks with a scale of their own, so that a heavy
 * token takes precision from few others. */
static void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, int16_t *scratch,
                       tqk_unpack_v_fn_avx2 *unpack) {
    const struct tqi_layout *l = &v->layout;
    struct job j = {.v = v, .tile = tile, .states = states, .state_bytes = state_bytes};
    __m256 gain[TQK_BLOCK_AVX2 / 8];
    rescale_states(&j, n_rows);
    j.token = tile->first / l->group * l->group;
    for (; j.token < tile->last; j.token += TQK_BLOCK_AVX2) {
        uint32_t left = tile->last - j.token;
        left = left < TQK_BLOCK_AVX2 ? left : TQK_BLOCK_AVX2;
        j.n_tokens = (left + l->group - 1) / l->group * l->group;
        j.values = scratch;
        j.weights = scratch + (size_t)32 * j.n_tokens;
        for (uint32_t i = 0; i < j.n_tokens; i += 8)
            gain[i / 8] = gains_at(&j, j.token + i);
        for (uint32_t r = 0; r < n_rows; r++)
            fill_row(&j, r, probabilities + (size_t)r * score_stride, gain);
        sum_block(&j, n_rows, unpack);
    }
}

#define ACCUMULATE(format)                                                                         \
    void tqk_accumulate_##format##_avx2(                                                           \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, probabilities, n_rows, score_stride, states, state_bytes, scratch,     \
                   tqk_unpack_v_##format##_avx2);                                                  \
    }
ACCUMULATE(lm4)
ACCUMULATE(lm3)
ACCUMULATE(lm2)
ACCUMULATE(int8)

/* ---- the end of a row --------------------------------------------------------------------- */

void tqk_state_finish_avx2(const struct tqi_rows *v, const void *state, const float *mean,
                           double *out, double *lse, void *scratch) {
    const struct tqk_state_avx2 *s = state;
    uint32_t dim = v->layout.dim;
    float x[TQK_DIM_LIMIT_AVX2] __attribute__((aligned(32)));
    (void)scratch;
    if (s->max == -INFINITY) {
        memset(out, 0, dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    double factor = TQK_VALUE_UNIT / (double)s->sum;
    memcpy(x, s->acc, dim * sizeof *x);
    if (tqi_format_rotates(v->format)) {
        tqk_unrotate_avx2(&v->rotation, x);
        factor *= (tqk_is_integer(v) ? tqk_integer_unit(v) : 1) / sqrt((double)dim);
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (double)x[i] * factor + (mean ? (double)mean[i] : 0);
    *lse = (double)s->max * (double)s->scale + log((double)s->sum);
}
