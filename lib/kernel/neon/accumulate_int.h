/* Stage accumulate, integer formats, for the levels of int_neon.h. A file includes this once. */
#include "kernel/neon/int_neon.h"

/* What all rows share of a block of tokens. */
struct job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    char *states;
    size_t state_bytes;
    uint32_t octet, octets; /* the first of the page, how many */
    bool first;             /* block of the tile: the states are brought to the new maxima */
    uint32_t dim;           /* of the panel */
    const int8_t *panel;
    int8_t *weights; /* by query row, octets in two planes */
    int32_t half[TQK_TILE_ROWS_NEON];
    float scale[TQK_TILE_ROWS_NEON];
};

/* ---- probabilities ------------------------------------------------------------------------ */

/* Gains of the block's tokens as binary32, 0 outside the tile. */
static void read_gains(const struct job *j, float *gain) {
    uint32_t token = j->octet * 8, n = j->octets * 8;
    const uint8_t *at = j->tile->blob + j->v->layout.gains + (size_t)token * 2;
    for (uint32_t t = 0; t < n; t += 4) {
        uint16x4_t half;
        memcpy(&half, at + (size_t)t * 2, sizeof half);
        vst1q_f32(gain + t, vreinterpretq_f32_u32(vshll_n_u16(half, 16)));
    }
    if (token >= j->tile->first && token + n <= j->tile->last)
        return;
    for (uint32_t t = 0; t < n; t++)
        if (token + t < j->tile->first || token + t >= j->tile->last)
            gain[t] = 0;
}

/* probability * gain of the block's tokens; returns the largest. */
static float weigh(const struct job *j, const float *p, const float *gain, float *w) {
    uint32_t token = j->octet * 8, n = j->octets * 8;
    uint32_t from = token < j->tile->first ? j->tile->first - token : 0;
    uint32_t to = token + n > j->tile->last ? j->tile->last - token : n;
    const float *at = p + token + from - j->tile->first;
    float32x4_t most = vdupq_n_f32(0);
    if (from > 0 || to < n) {
        memset(w, 0, n * sizeof *w);
        memcpy(w + from, at, (to - from) * sizeof *w);
        at = w;
    }
    for (uint32_t i = 0; i < n; i += 4) {
        float32x4_t x = vmulq_f32(vld1q_f32(at + i), vld1q_f32(gain + i));
        most = vmaxnmq_f32(most, x);
        vst1q_f32(w + i, x);
    }
    return vmaxvq_f32(most);
}

/* The weights of a row as planes, 8 tokens in the order of the values. */
TQK_INLINE void fill_row(struct job *j, uint32_t bits, uint32_t row, const float *p,
                         const float *gain) {
    const uint8x16_t places = tqk_places_neon(bits, true);
    float w[TQK_BLOCK_NEON];
    int8_t *to = j->weights + (size_t)row * j->octets * 16;
    float top = weigh(j, p, gain, w), up = top < 0x1p-100f ? 0x1p40f : 1;
    float factor = top > 0 ? TQK_MOST_NEON / (top * up) : 0;
    int32x4_t sum = vdupq_n_s32(0);
    for (uint32_t i = 0; up > 1 && i < j->octets * 8; i++)
        w[i] *= up; /* in two steps: the factor would be huge */
    for (uint32_t i = 0; i < j->octets * 8; i += 8) {
        int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(w + i), factor));
        int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(w + i + 4), factor));
        if (bits == 4)
            sum = vaddq_s32(sum, vaddq_s32(a, b));
        tqk_put_step_neon(vcombine_s16(vmovn_s32(a), vmovn_s32(b)), places, to + (size_t)i * 2);
    }
    j->half[row] = bits == 4 ? (vaddvq_s32(sum) + 1) >> 1 : 0;
    /* A NaN probability makes the sum of the state NaN, which spoils the row at its end. */
    j->scale[row] = top * (float)(1 / (TQK_VALUE_UNIT * TQK_MOST_NEON));
}

/* ---- sums --------------------------------------------------------------------------------- */

/* Values of n quads of dims, words x and following of a lane, to their places in a panel. */
TQK_INLINE void unpack_quads(const struct job *j, const struct tqk_codes_neon *c, uint32_t bits,
                             uint32_t lane, uint32_t x, uint32_t n, int8_t *panel) {
    const struct tqi_layout *l = &j->v->layout;
    uint32_t per_lane = l->dim_pad / 32, per_group = l->group / 8, octet = j->octet;
    uint32_t words = per_lane * (bits == 8 ? 2 : 1), word = octet / per_group * words + x;
    uint32_t in_group = octet % per_group;
    for (uint32_t i = 0; i < j->octets; i++, panel += TQK_LINE_NEON) {
        size_t at = ((size_t)lane * per_group + in_group) * 16;
        tqk_put_words_neon(c, bits, word, n, 1, per_lane, at, panel, TQK_PIECE_NEON);
        if (++in_group == per_group) {
            in_group = 0;
            word += words;
        }
    }
}

/* Values of 16 dims from j->dim on to a panel. */
TQK_INLINE void unpack_v(const struct job *j, uint32_t bits, int8_t *panel) {
    const struct tqk_codes_neon c = tqk_codes_of_neon(j->v, j->tile);
    uint32_t per_lane = j->v->layout.dim_pad / 32, n;
    for (uint32_t quad = 0; quad < TQK_QUADS_NEON; quad += n) {
        uint32_t lane = (j->dim / 4 + quad) / per_lane, x = (j->dim / 4 + quad) % per_lane;
        int8_t *to = panel + (size_t)quad * TQK_PIECE_NEON;
        n = per_lane - x < TQK_QUADS_NEON - quad ? per_lane - x : TQK_QUADS_NEON - quad;
        if (n == TQK_QUADS_NEON)
            unpack_quads(j, &c, bits, lane, x, TQK_QUADS_NEON, to);
        else
            unpack_quads(j, &c, bits, lane, x, n, to);
    }
}

TQK_INLINE void sum_block(const struct job *j, uint32_t first_row, uint32_t rows) {
    const uint32_t quads = tqk_quads_neon(rows);
    const char *left[TQK_INT_ROWS_NEON];
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        left[r] = (const char *)j->weights + (size_t)(first_row + r) * j->octets * 16;
    }
    for (uint32_t i = 0; i < TQK_QUADS_NEON; i += quads) {
        int32x4_t sum[TQK_INT_SUMS_NEON];
        tqk_dot_neon(left, j->panel + i * TQK_PIECE_NEON, j->octets, rows, sum);
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            struct tqk_state_neon *s = (void *)(j->states + (first_row + r) * j->state_bytes);
            const float factor = j->first ? s->factor : 1, scale = j->scale[first_row + r];
            const int32x4_t half = vdupq_n_s32(j->half[first_row + r]);
            float *acc = s->acc + j->dim + (size_t)i * 4;
            TQK_UNROLL
            for (uint32_t c = 0; c < quads; c++) {
                float32x4_t x = vcvtq_f32_s32(vaddq_s32(sum[r * quads + c], half));
                float32x4_t old = vmulq_n_f32(vld1q_f32(acc + c * 4), factor);
                vst1q_f32(acc + c * 4, vfmaq_n_f32(old, x, scale));
            }
        }
    }
}
TQK_ROW_BLOCKS_NEON(sum_rows, sum_block, TQK_INT_ROWS_NEON)

/* Weights have 15 bits: tokens are taken in blocks with a scale of their own, so that a heavy
 * token takes precision from few others. */
TQK_INLINE void accumulate(const struct tqi_rows *v, uint32_t bits, const struct tqi_tile *tile,
                           const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                           void *states, size_t state_bytes, int8_t *scratch) {
    struct job j = {.v = v,
                    .tile = tile,
                    .states = states,
                    .state_bytes = state_bytes,
                    .first = true,
                    .panel = scratch,
                    .weights = scratch + TQK_BLOCK_NEON / 8 * TQK_LINE_NEON};
    float gain[TQK_BLOCK_NEON];
    for (j.octet = tile->first / 8; j.octet * 8 < tile->last; j.octet += j.octets) {
        uint32_t end = (j.octet * 8 / TQK_BLOCK_NEON + 1) * TQK_BLOCK_NEON;
        j.octets = ((end < tile->last ? end : tile->last) + 7) / 8 - j.octet;
        read_gains(&j, gain);
        for (uint32_t r = 0; r < n_rows; r++)
            fill_row(&j, bits, r, probabilities + (size_t)r * score_stride, gain);
        for (j.dim = 0; j.dim < v->layout.dim_pad; j.dim += 16) {
            unpack_v(&j, bits, scratch);
            sum_rows(&j, n_rows);
        }
        j.first = false;
    }
}

#define ACCUMULATE(format, bits)                                                                   \
    void TQK_KERNEL(accumulate, format)(                                                           \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, bits, tile, probabilities, n_rows, score_stride, states, state_bytes,        \
                   scratch);                                                                       \
    }
ACCUMULATE(lm4, 4)
ACCUMULATE(lm3, 3)
ACCUMULATE(lm2, 2)
ACCUMULATE(int8, 8)
