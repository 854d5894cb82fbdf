/* Stage accumulate: probabilities times value panels, and the end of a row. */
#include <math.h>
#include <string.h>

#include "kernel/avx512/avx512.h"
#include "kernel/avx512/dot_avx512.h"

/* What all rows of a tile share. */
struct job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    char *states;
    size_t state_bytes;
    uint32_t n_rows, n_tokens; /* tokens from the start of the page, whole groups */
    uint8_t *panel;
    size_t panel_bytes;
    uint8_t *left;     /* planes of fixed point, or floats, by row */
    size_t left_bytes; /* of a row */
    int32_t bias[TQK_TILE_ROWS_AVX512];
    float scale[TQK_TILE_ROWS_AVX512];
};

static struct tqk_state_avx512 *state_at(const struct job *j, uint32_t row) {
    return (void *)(j->states + row * j->state_bytes);
}

/* ---- the left operand ------------------------------------------------------------------------ */

/* Probabilities of tokens [token, + 16) of the page; 0 outside the tile. */
static __m512 probabilities_at(const struct tqi_tile *tile, const float *p, uint32_t token) {
    uint32_t n = tile->last - tile->first;
    if (token >= tile->last || token + 16 <= tile->first)
        return _mm512_setzero_ps();
    if (token >= tile->first) {
        uint32_t left = tile->last - token;
        __mmask16 mask = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        return _mm512_maskz_loadu_ps(mask, p + (token - tile->first));
    }
    uint32_t skip = tile->first - token;
    __mmask16 keep = (__mmask16)(0xffffu << skip);
    __mmask16 mask = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    return _mm512_maskz_expand_ps(keep, _mm512_maskz_loadu_ps(mask, p));
}

/* Gains of 16 tokens as binary32, 0 outside the tile. */
static __m512 gains_at(const struct job *j, uint32_t token) {
    const uint8_t *at = j->tile->blob + j->v->layout.gains + (size_t)token * 2;
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)at);
    __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
    __m512i index = _mm512_add_epi32(
        _mm512_set1_epi32((int)token),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 in =
        _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32((int)j->tile->first)) &
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
    uint8_t *planes = j->left + row * j->left_bytes;
    __m512 w[256 / 16], most = _mm512_setzero_ps();
    uint32_t n = j->n_tokens / 16;
    for (uint32_t i = 0; i < n; i++) {
        w[i] = _mm512_mul_ps(probabilities_at(j->tile, p, i * 16), gain[i]);
        most = _mm512_max_ps(most, w[i]);
    }
    float top = _mm512_reduce_max_ps(most), up = 1;
    if (top < 0x1p-100f)
        up = 0x1p40f; /* the reciprocal must not overflow */
    __m512 factor = _mm512_set1_ps(top > 0 ? TQK_FIXED_MAX / (top * up) : 0);
    factor = _mm512_mul_ps(factor, _mm512_set1_ps(up));
    __m512i sum = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i++) {
        __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(w[i], factor));
        sum = _mm512_add_epi32(sum, x);
        put_plane(planes + i * 16, _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8));
        put_plane(planes + j->n_tokens + i * 16, x);
    }
    j->bias[row] = tqk_bias_avx512(j->v, _mm512_reduce_add_epi32(sum));
    /* A NaN probability makes the sum of the state NaN, which spoils the row at its end. */
    j->scale[row] = top * (0x1p-12f / TQK_FIXED_MAX);
}

static void integer_left(struct job *j, const float *p, uint32_t score_stride) {
    __m512 gain[256 / 16];
    for (uint32_t i = 0; i < j->n_tokens / 16; i++)
        gain[i] = gains_at(j, i * 16);
    for (uint32_t r = 0; r < j->n_rows; r++)
        weights(j, r, p + (size_t)r * score_stride, gain);
}

static void float_left(struct job *j, const float *p, uint32_t score_stride) {
    for (uint32_t r = 0; r < j->n_rows; r++)
        for (uint32_t t = 0; t < j->n_tokens; t += 16) {
            __m512 x = probabilities_at(j->tile, p + (size_t)r * score_stride, t);
            _mm512_store_ps((float *)(void *)(j->left + r * j->left_bytes) + t, x);
        }
}

/* ---- sums ------------------------------------------------------------------------------------- */

TQK_INLINE void join(struct tqk_state_avx512 *s, uint32_t dim, __m512 sum, __m512 scale) {
    __m512 acc = _mm512_mul_ps(_mm512_loadu_ps(s->acc + dim), _mm512_set1_ps(s->factor));
    _mm512_storeu_ps(s->acc + dim, _mm512_fmadd_ps(sum, scale, acc));
}

TQK_INLINE void sum_int(const struct job *j, uint32_t dim, uint32_t first_row, uint32_t rows) {
    __m512i sum[TQK_ROW_BLOCK_AVX512 * 2];
    tqk_dot_int_avx512(j->panel, j->panel_bytes, j->n_tokens / 4,
                       j->left + first_row * j->left_bytes, j->left_bytes, j->n_tokens, rows, 2,
                       sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        struct tqk_state_avx512 *s = state_at(j, first_row + r);
        __m512i bias = _mm512_set1_epi32(j->bias[first_row + r]);
        __m512 scale = _mm512_set1_ps(j->scale[first_row + r]);
        TQK_UNROLL
        for (uint32_t c = 0; c < 2; c++) {
            __m512i x = _mm512_add_epi32(sum[r * 2 + c], bias);
            join(s, dim + c * 16, _mm512_cvtepi32_ps(x), scale);
        }
    }
}

TQK_INLINE void sum_float(const struct job *j, uint32_t dim, uint32_t first_row, uint32_t rows) {
    __m512 sum[TQK_ROW_BLOCK_AVX512 * 2];
    const float *panel = (const float *)(const void *)j->panel;
    const float *left = (const float *)(const void *)(j->left + first_row * j->left_bytes);
    uint32_t first = j->tile->first; /* other tokens may hold NaN, which 0 does not silence */
    tqk_dot_float_avx512(panel + (size_t)first * 16, j->panel_bytes, j->tile->last - first,
                         left + first, j->left_bytes, rows, 2, sum);
    __m512 scale = _mm512_set1_ps(j->scale[0]);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        struct tqk_state_avx512 *s = state_at(j, first_row + r);
        TQK_UNROLL
        for (uint32_t c = 0; c < 2; c++) {
            join(s, dim + c * 16, sum[r * 2 + c], scale);
        }
    }
}

#define ROWS(name, stage)                                       \
    static void name(const struct job *j, uint32_t dim) {       \
        uint32_t r = 0, n_rows = j->n_rows;                     \
        for (; r + 4 <= n_rows; r += 4)                         \
            stage(j, dim, r, 4);                                \
        if (n_rows - r == 3)                                    \
            stage(j, dim, r, 3);                                \
        else if (n_rows - r == 2)                               \
            stage(j, dim, r, 2);                                \
        else if (n_rows - r == 1)                               \
            stage(j, dim, r, 1);                                \
    }
ROWS(int_rows, sum_int)
ROWS(float_rows, sum_float)

static void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, uint8_t *scratch,
                       tqk_unpack_v_fn_avx512 *unpack) {
    const struct tqi_layout *l = &v->layout;
    bool integer = tqk_is_integer_avx512(v);
    struct job j = {.v = v, .tile = tile, .states = states, .state_bytes = state_bytes,
                    .n_rows = n_rows, .panel = scratch};
    j.n_tokens = (tile->last + l->group - 1) / l->group * l->group;
    j.panel_bytes = tqk_panel_bytes_avx512(v, j.n_tokens);
    j.left = scratch + 2 * tqk_panel_bytes_avx512(v, l->tokens);
    j.left_bytes = j.n_tokens * (integer ? 2 : sizeof(float));
    j.scale[0] = v->format->kind == TQI_KIND_FP8 ? tile->scale : 1;
    (integer ? integer_left : float_left)(&j, probabilities, score_stride);
    for (uint32_t dim = 0; dim < l->dim_pad; dim += 32) {
        unpack(v, tile->blob, dim, 2, tile->last, scratch);
        (integer ? int_rows : float_rows)(&j, dim);
    }
}

#define ACCUMULATE(format)                                                                         \
    void tqk_accumulate_##format##_avx512(                                                         \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, probabilities, n_rows, score_stride, states, state_bytes, scratch,     \
                   tqk_unpack_v_##format##_avx512);                                                \
    }
ACCUMULATE(lm4)
ACCUMULATE(lm3)
ACCUMULATE(lm2)
ACCUMULATE(int8)
ACCUMULATE(fp8)
ACCUMULATE(bf16)
ACCUMULATE(f16)

/* ---- the end of a row --------------------------------------------------------------------------- */

void tqk_state_finish_avx512(const struct tqi_rows *v, const void *state, const float *mean,
                             double *out, double *lse, void *scratch) {
    const struct tqk_state_avx512 *s = state;
    uint32_t dim = v->layout.dim;
    float x[TQK_DIM_LIMIT_AVX512] __attribute__((aligned(64)));
    (void)scratch;
    if (s->max == -INFINITY) {
        memset(out, 0, dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    double factor = tqk_value_unit_avx512(v) / (double)s->sum;
    memcpy(x, s->acc, dim * sizeof *x);
    if (tqi_format_rotates(v->format)) {
        tqk_unrotate_avx512(&v->rotation, x);
        factor /= sqrt((double)dim);
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (double)x[i] * factor + (mean ? (double)mean[i] : 0);
    *lse = (double)s->max + log((double)s->sum);
}
