/* Stage accumulate, float formats: probabilities times value panels. */
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
    uint8_t *left;     /* probabilities by row */
    size_t left_bytes; /* of a row */
    float scale;
};

static struct tqk_state_avx512 *state_at(const struct job *j, uint32_t row) {
    return (void *)(j->states + row * j->state_bytes);
}

/* ---- the left operand --------------------------------------------------------------------- */

static void float_left(struct job *j, const float *p, uint32_t score_stride) {
    for (uint32_t r = 0; r < j->n_rows; r++)
        for (uint32_t t = 0; t < j->n_tokens; t += 16) {
            __m512 x = tqk_probabilities_at_avx512(j->tile, p + (size_t)r * score_stride, t);
            x = _mm512_mul_ps(x, _mm512_set1_ps(1 / (float)TQK_VALUE_UNIT));
            _mm512_store_ps((float *)(void *)(j->left + r * j->left_bytes) + t, x);
        }
}

/* ---- sums --------------------------------------------------------------------------------- */

TQK_INLINE void sum_float(const struct job *j, uint32_t dim, uint32_t first_row, uint32_t rows) {
    __m512 sum[TQK_ROW_BLOCK_AVX512 * 2];
    const float *panel = (const float *)(const void *)j->panel;
    const float *left = (const float *)(const void *)(j->left + first_row * j->left_bytes);
    uint32_t first = j->tile->first; /* other tokens may hold NaN, which 0 does not silence */
    tqk_dot_float_avx512(panel + (size_t)first * 16, j->panel_bytes, j->tile->last - first,
                         left + first, j->left_bytes, rows, 2, sum);
    __m512 scale = _mm512_set1_ps(j->scale);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        struct tqk_state_avx512 *s = state_at(j, first_row + r);
        TQK_UNROLL
        for (uint32_t c = 0; c < 2; c++) {
            tqk_join_avx512(s, dim + c * 16, sum[r * 2 + c], scale);
        }
    }
}

#define ROWS(name, stage)                                 \
    static void name(const struct job *j, uint32_t dim) { \
        uint32_t r = 0, n_rows = j->n_rows;               \
        for (; r + 4 <= n_rows; r += 4)                   \
            stage(j, dim, r, 4);                          \
        if (n_rows - r == 3)                              \
            stage(j, dim, r, 3);                          \
        else if (n_rows - r == 2)                         \
            stage(j, dim, r, 2);                          \
        else if (n_rows - r == 1)                         \
            stage(j, dim, r, 1);                          \
    }
ROWS(float_rows, sum_float)

static void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, uint8_t *scratch,
                       tqk_unpack_v_fn_avx512 *unpack) {
    const struct tqi_layout *l = &v->layout;
    struct job j = {.v = v,
                    .tile = tile,
                    .states = states,
                    .state_bytes = state_bytes,
                    .n_rows = n_rows,
                    .panel = scratch};
    j.n_tokens = (tile->last + l->group - 1) / l->group * l->group;
    j.panel_bytes = tqk_panel_bytes_avx512(j.n_tokens);
    j.left = scratch + 2 * tqk_panel_bytes_avx512(l->tokens);
    j.left_bytes = j.n_tokens * sizeof(float);
    j.scale = v->format->kind == TQI_KIND_FP8 ? tile->scale : 1;
    float_left(&j, probabilities, score_stride);
    for (uint32_t dim = 0; dim < l->dim_pad; dim += 32) {
        unpack(v, tile, dim, 2, tile->last, scratch);
        float_rows(&j, dim);
    }
}

#define ACCUMULATE(format)                                                                         \
    void tqk_accumulate_##format##_avx512(                                                         \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, probabilities, n_rows, score_stride, states, state_bytes, scratch,     \
                   tqk_unpack_v_##format##_avx512);                                                \
    }
ACCUMULATE(fp8)
ACCUMULATE(bf16)
ACCUMULATE(f16)
