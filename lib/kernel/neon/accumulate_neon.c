/* Stage accumulate: probabilities times decoded values, and the end of a row.
 *
 * A weight is an integer w of 16 bits without sign. The planes hold w - 32768, and 32768 times
 * the plain sum of the values, which all rows share, joins the sums: exact modulo 2^32, and a
 * weight of 0 cancels whatever stands in the slots of other tokens. */
#include <math.h>

#include "kernel/neon/neon.h"

enum { BIAS = 32768, MOST = BIAS + TQK_MOST_NEON };

/* What all rows of a tile share. */
struct job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    char *states;
    size_t state_bytes;
    uint32_t n_tokens; /* from the start of the page, whole groups */
    int8_t *values;    /* 32 rows of dims */
    int8_t *weights;   /* by query row, two planes */
    int32_t half[TQK_TILE_ROWS_NEON];
    float scale[TQK_TILE_ROWS_NEON];
};

/* ---- probabilities ------------------------------------------------------------------------ */

/* Gains of the page's tokens as binary32, 0 outside the tile. */
static void read_gains(const struct job *j, float *gain) {
    const uint8_t *at = j->tile->blob + j->v->layout.gains;
    for (uint32_t t = 0; t < j->n_tokens; t += 4) {
        uint16x4_t half;
        memcpy(&half, at + (size_t)t * 2, sizeof half);
        vst1q_f32(gain + t, vreinterpretq_f32_u32(vshll_n_u16(half, 16)));
    }
    memset(gain, 0, j->tile->first * sizeof *gain);
    memset(gain + j->tile->last, 0, (j->n_tokens - j->tile->last) * sizeof *gain);
}

/* probability * gain of the page's tokens; returns the largest. */
static float weigh(const struct job *j, const float *p, const float *gain, float *w) {
    const struct tqi_tile *t = j->tile;
    float32x4_t most = vdupq_n_f32(0);
    memset(w, 0, t->first * sizeof *w);
    memcpy(w + t->first, p, (t->last - t->first) * sizeof *w);
    memset(w + t->last, 0, (j->n_tokens - t->last) * sizeof *w);
    for (uint32_t i = 0; i < j->n_tokens; i += 4) {
        float32x4_t x = vmulq_f32(vld1q_f32(w + i), vld1q_f32(gain + i));
        most = vmaxnmq_f32(most, x);
        vst1q_f32(w + i, x);
    }
    return vmaxvq_f32(most);
}

/* The weights of a row as planes, 8 tokens in the order of the values. */
static void fill_row(struct job *j, uint32_t row, const float *p, const float *gain) {
    static const uint8_t order[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
    const uint8x16_t places = vld1q_u8(order);
    const uint16x8_t bias = vdupq_n_u16(BIAS);
    float w[TQK_PAGE_LIMIT_NEON];
    int8_t *to = j->weights + (size_t)row * 2 * j->n_tokens;
    float top = weigh(j, p, gain, w), up = top < 0x1p-100f ? 0x1p40f : 1;
    float factor = top > 0 ? MOST / (top * up) : 0;
    uint32x4_t sum = vdupq_n_u32(0);
    for (uint32_t i = 0; i < j->n_tokens; i += 8) {
        uint16x4_t part[2];
        for (uint32_t k = 0; k < 2; k++) { /* in two steps: the factor may be huge */
            float32x4_t x = vmulq_n_f32(vmulq_n_f32(vld1q_f32(w + i + 4 * k), up), factor);
            uint32x4_t y = vminq_u32(vcvtnq_u32_f32(x), vdupq_n_u32(MOST));
            sum = vaddq_u32(sum, y);
            part[k] = vmovn_u32(y);
        }
        uint16x8_t x = vsubq_u16(vcombine_u16(part[0], part[1]), bias);
        x = vreinterpretq_u16_u8(vqtbl1q_u8(vreinterpretq_u8_u16(x), places));
        tqk_split_neon(vreinterpretq_s16_u16(x), to + i, to + j->n_tokens + i);
    }
    j->half[row] = tqk_has_half(j->v) ? (int32_t)((vaddvq_u32(sum) + 1) >> 1) : 0;
    /* A NaN probability makes the sum of the state NaN, which spoils the row at its end. */
    j->scale[row] = top * (float)(1 / (TQK_VALUE_UNIT * MOST));
}

/* ---- sums --------------------------------------------------------------------------------- */

/* BIAS times the sums of 4 rows of values. */
static int32x4_t biased_sums(const int8_t *values, uint32_t n) {
    const int8x16_t one = vdupq_n_s8(1);
    int32x4_t sum[4];
    for (uint32_t c = 0; c < 4; c++) {
        sum[c] = vdupq_n_s32(0);
        for (uint32_t at = 0; at < n; at += 16)
            sum[c] = vdotq_s32(sum[c], vld1q_s8(values + (size_t)c * n + at), one);
    }
    return vshlq_n_s32(tqk_sums_neon(sum), 15);
}

TQK_INLINE void sum_rows(const struct job *j, uint32_t dim, uint32_t row, uint32_t rows,
                         const int32x4_t *biased) {
    uint32_t n = j->n_tokens;
    for (uint32_t i = 0; i < 32; i += 4) {
        int32x4_t sum[2];
        tqk_dot_neon(j->weights + (size_t)row * 2 * n, (size_t)2 * n, j->values + (size_t)i * n, n,
                     n, rows, sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            struct tqk_state_neon *s = (void *)(j->states + (row + r) * j->state_bytes);
            float *acc = s->acc + dim + i;
            int32x4_t all =
                vaddq_s32(vaddq_s32(sum[r], biased[i / 4]), vdupq_n_s32(j->half[row + r]));
            float32x4_t old = vmulq_n_f32(vld1q_f32(acc), s->factor);
            vst1q_f32(acc, vfmaq_n_f32(old, vcvtq_f32_s32(all), j->scale[row + r]));
        }
    }
}

static void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, int8_t *scratch,
                       tqk_unpack_v_fn_neon *unpack) {
    const struct tqi_layout *l = &v->layout;
    struct job j = {.v = v, .tile = tile, .states = states, .state_bytes = state_bytes};
    float gain[TQK_PAGE_LIMIT_NEON];
    j.n_tokens = (tile->last + l->group - 1) / l->group * l->group;
    j.values = scratch;
    j.weights = scratch + (size_t)32 * j.n_tokens;
    read_gains(&j, gain);
    for (uint32_t r = 0; r < n_rows; r++)
        fill_row(&j, r, probabilities + (size_t)r * score_stride, gain);
    for (uint32_t dim = 0; dim < l->dim_pad; dim += 32) {
        uint32_t r = 0;
        int32x4_t biased[8];
        unpack(v, tile, dim, j.n_tokens, j.values);
        for (uint32_t i = 0; i < 8; i++)
            biased[i] = biased_sums(j.values + (size_t)i * 4 * j.n_tokens, j.n_tokens);
        for (; r + 2 <= n_rows; r += 2)
            sum_rows(&j, dim, r, 2, biased);
        if (r < n_rows)
            sum_rows(&j, dim, r, 1, biased);
    }
}

#define ACCUMULATE(format)                                                                         \
    void tqk_accumulate_##format##_neon(                                                           \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, probabilities, n_rows, score_stride, states, state_bytes, scratch,     \
                   tqk_unpack_v_##format##_neon);                                                  \
    }
ACCUMULATE(lm4)
ACCUMULATE(lm3)
ACCUMULATE(lm2)
ACCUMULATE(int8)

/* ---- the end of a row --------------------------------------------------------------------- */

void tqk_state_finish_neon(const struct tqi_rows *v, const void *state, const float *mean,
                           double *out, double *lse, void *scratch) {
    const struct tqk_state_neon *s = state;
    uint32_t dim = v->layout.dim;
    float x[TQK_DIM_LIMIT_NEON];
    (void)scratch;
    if (s->max == -INFINITY) {
        memset(out, 0, dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    double factor = TQK_VALUE_UNIT / (double)s->sum;
    memcpy(x, s->acc, dim * sizeof *x);
    if (tqi_format_rotates(v->format)) {
        tqk_unrotate_neon(&v->rotation, x);
        factor *= (tqk_is_integer(v) ? tqk_integer_unit(v) : 1) / sqrt((double)dim);
    }
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (double)x[i] * factor + (mean ? (double)mean[i] : 0);
    *lse = (double)s->max * (double)s->scale + log((double)s->sum);
}
