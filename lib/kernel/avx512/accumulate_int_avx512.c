/* Stage accumulate, integer formats. Four lines of 4 dims by 4 octets of tokens transposed in
 * pieces of 16 bytes give 16 dims of one octet; its words are decoded and multiplied in the
 * same loop. */
#include <string.h>

#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"

/* What all rows of a tile share. */
struct job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    char *states;
    size_t state_bytes;
    uint32_t n_rows, groups, octets;
    uint32_t n_tokens; /* from the start of the page, whole groups */
    uint8_t *planes;   /* by row: 2 * n_tokens bytes */
    int32_t half[TQK_TILE_ROWS_AVX512];
    float scale[TQK_TILE_ROWS_AVX512];
};

/* ---- probabilities ------------------------------------------------------------------------ */

/* Gains of 16 tokens as binary32, 0 outside the tile. */
static __m512 gains_at(const struct job *j, uint32_t token) {
    const uint8_t *at = j->tile->blob + j->v->layout.gains + (size_t)token * 2;
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)at);
    __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
    __m512i index =
        _mm512_add_epi32(_mm512_set1_epi32((int)token),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 in = _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32((int)j->tile->first)) &
                   _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32((int)j->tile->last));
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(in, wide));
}

/* 16 integers to bytes in the order of the panels. */
TQK_INLINE void put_plane(uint8_t *to, __m512i x) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x), order));
}

/* probability * gain of a row as fixed point. */
static void weights(struct job *j, uint32_t row, const float *p, const __m512 *gain) {
    uint8_t *planes = j->planes + (size_t)row * 2 * j->n_tokens;
    __m512 w[256 / 16], most = _mm512_setzero_ps();
    uint32_t n = j->n_tokens / 16;
    for (uint32_t i = 0; i < n; i++) {
        w[i] = _mm512_mul_ps(tqk_probabilities_at_avx512(j->tile, p, i * 16), gain[i]);
        most = _mm512_max_ps(most, w[i]);
    }
    float top = _mm512_reduce_max_ps(most), up = 1;
    if (top < 0x1p-100f)
        up = 0x1p40f; /* the reciprocal must not overflow */
    __m512 factor = _mm512_set1_ps(top > 0 ? TQK_WEIGHT_MAX / (top * up) : 0);
    factor = _mm512_mul_ps(factor, _mm512_set1_ps(up));
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i++) {
        __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(w[i], factor));
        sum = _mm512_add_epi32(sum, x);
        put_plane(planes + i * 16, _mm512_srli_epi32(x, 8));
        put_plane(planes + j->n_tokens + i * 16, x);
    }
    j->half[row] = tqk_has_half_avx512(j->v) ? (_mm512_reduce_add_epi32(sum) + 1) >> 1 : 0;
    /* A NaN probability makes the sum of the state NaN, which spoils the row at its end. */
    j->scale[row] = top * (float)(1 / (TQK_VALUE_UNIT_AVX512 * TQK_WEIGHT_MAX));
}

static void fill_planes(struct job *j, const float *p, uint32_t score_stride) {
    __m512 gain[256 / 16];
    for (uint32_t i = 0; i < j->n_tokens / 16; i++)
        gain[i] = gains_at(j, i * 16);
    for (uint32_t r = 0; r < j->n_rows; r++)
        weights(j, r, p + (size_t)r * score_stride, gain);
}

/* ---- sums --------------------------------------------------------------------------------- */

/* 32 dims of a token group as lines of 16 dims by octet. */
TQK_INLINE void load_group(const struct job *j, enum tqk_source_avx512 source,
                           const struct tqk_quads_avx512 *q, uint32_t word, __m512i x[4]) {
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = tqk_word_avx512(&j->codes, source, word + q->word[i], q->at[i]);
    }
    tqk_transpose_avx512(x);
}

/* Sums of rows and 2 x 16 dims. */
TQK_INLINE void dot(struct job *j, enum tqk_source_avx512 source,
                    const struct tqk_quads_avx512 q[2], uint32_t first_row, uint32_t rows,
                    __m512i *sum) {
    const uint8_t *planes = j->planes + (size_t)first_row * 2 * j->n_tokens;
    uint32_t per_lane = j->v->layout.dim_pad / 32, halves = 2 / tqk_operands_avx512(source);
    __m512i high[8], low[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 2; i++) {
        high[i] = low[i] = _mm512_setzero_si512();
    }
    for (uint32_t g = 0; g < j->groups * halves; g++) {
        uint32_t word = g * per_lane;
        __m512i x[4], y[4];
        if (first_row == 0) {
            TQK_UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                j->codes.ahead = tqk_ahead_avx512(j->codes.ahead, tqk_line_step_avx512(source));
            }
        }
        load_group(j, source, &q[0], word, x);
        load_group(j, source, &q[1], word, y);
        TQK_UNROLL
        for (uint32_t o = 0; o < 4; o++) {
            __m512i a[2], b[2];
            if (o >= j->octets)
                break;
            tqk_expand_avx512(&j->table, source, x[o], a);
            tqk_expand_avx512(&j->table, source, y[o], b);
            const uint8_t *p = planes + (size_t)((g / halves * j->octets + o) * 8 + g % halves * 4);
            TQK_UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                const uint8_t *from = p + (size_t)r * 2 * j->n_tokens;
                TQK_UNROLL
                for (uint32_t i = 0; i < tqk_operands_avx512(source); i++) {
                    __m512i h = tqk_spread32_avx512(from + 4 * i);
                    __m512i s = tqk_spread32_avx512(from + j->n_tokens + 4 * i);
                    TQK_KEEP(h);
                    TQK_KEEP(s);
                    high[2 * r] = _mm512_dpbusd_epi32(high[2 * r], h, a[i]);
                    high[2 * r + 1] = _mm512_dpbusd_epi32(high[2 * r + 1], h, b[i]);
                    low[2 * r] = _mm512_dpbusd_epi32(low[2 * r], s, a[i]);
                    low[2 * r + 1] = _mm512_dpbusd_epi32(low[2 * r + 1], s, b[i]);
                }
            }
        }
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 2; i++) {
        sum[i] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
    }
}

TQK_INLINE void sum_rows(struct job *j, enum tqk_source_avx512 source, uint32_t dim,
                         const struct tqk_quads_avx512 q[2], uint32_t first_row, uint32_t rows) {
    __m512i sum[8];
    dot(j, source, q, first_row, rows, sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        struct tqk_state_avx512 *s = (void *)(j->states + (first_row + r) * j->state_bytes);
        __m512i half = _mm512_set1_epi32(j->half[first_row + r]);
        __m512 scale = _mm512_set1_ps(j->scale[first_row + r]);
        TQK_UNROLL
        for (uint32_t c = 0; c < 2; c++) {
            __m512i x = _mm512_add_epi32(sum[r * 2 + c], half);
            tqk_join_avx512(s, dim + c * 16, _mm512_cvtepi32_ps(x), scale);
        }
    }
}

TQK_INLINE void accumulate(const struct tqi_rows *v, enum tqk_source_avx512 source,
                           const struct tqi_tile *tile, const float *probabilities, uint32_t n_rows,
                           uint32_t score_stride, void *states, size_t state_bytes,
                           uint8_t *scratch) {
    const struct tqi_layout *l = &v->layout;
    struct job j = {.v = v,
                    .tile = tile,
                    .states = states,
                    .state_bytes = state_bytes,
                    .n_rows = n_rows,
                    .planes = scratch,
                    .octets = l->group / 8};
    j.codes = tqk_codes_of_v_avx512(l, tile);
    j.table = tqk_table_of_avx512(v, 0);
    j.groups = (tile->last + l->group - 1) / l->group;
    j.n_tokens = j.groups * l->group;
    tqk_prefetch_gains_avx512(l, tile);
    fill_planes(&j, probabilities, score_stride);
    struct tqk_quad_walk_avx512 walk = tqk_quad_walk_avx512(l, 0);
    for (uint32_t dim = 0; dim < l->dim_pad; dim += 32) {
        uint32_t r = 0;
        struct tqk_quads_avx512 q[2];
        q[0] = tqk_next_quads_avx512(&walk);
        q[1] = tqk_next_quads_avx512(&walk);
        for (; r + 4 <= n_rows; r += 4)
            sum_rows(&j, source, dim, q, r, 4);
        if (n_rows - r == 3)
            sum_rows(&j, source, dim, q, r, 3);
        else if (n_rows - r == 2)
            sum_rows(&j, source, dim, q, r, 2);
        else if (n_rows - r == 1)
            sum_rows(&j, source, dim, q, r, 1);
    }
}

#define ACCUMULATE(format, source)                                                                 \
    void tqk_accumulate_##format##_avx512(                                                         \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, source, tile, probabilities, n_rows, score_stride, states, state_bytes,      \
                   scratch);                                                                       \
    }
ACCUMULATE(lm4, TQK_LM4)
ACCUMULATE(lm3, TQK_LM3)
ACCUMULATE(lm2, TQK_LM2)
ACCUMULATE(int8, TQK_INT8)
