/* Stage accumulate, integer formats. Four lines of 4 dims by 4 octets of tokens transposed in
 * pieces of 16 bytes give 16 dims of one octet; its words are decoded once for up to 8 query rows
 * and multiplied in the same loop.
 *
 * Tokens are taken in blocks of 64 whose weights share a scale, see weights_avx512.c. */
#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

/* What all rows of a block share. */
struct job {
    const struct tqi_layout *l;
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    struct tqk_weights_avx512 weights;
    char *states;
    size_t state_bytes;
    uint32_t first_group, groups; /* of tokens */
};

/* 16 dims of a token group, by octet. */
TQK_INLINE void load_group(const struct job *j, enum tqk_source_avx512 source,
                           const struct tqk_quads_avx512 *q, uint32_t word, __m512i x[4]) {
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = tqk_word_avx512(&j->codes, source, word + q->word[i], q->at[i]);
    }
    tqk_transpose_avx512(x);
}

/* Pairs of 16 dims that are summed together: with few rows, so that weights are loaded less often
 * and a multiply need not wait for the one before. */
TQK_INLINE uint32_t columns(uint32_t rows) {
    return rows < 3 ? 2 : 1;
}

/* An octet (int8: half of one) of 16 dims or 2 x 16. */
TQK_INLINE void multiply(const struct job *j, enum tqk_source_avx512 source, const __m512i *words,
                         const uint8_t *weights, uint32_t rows, __m512i *high, __m512i *low) {
    const uint32_t n = columns(rows);
    __m512i x[2][2];
    TQK_UNROLL
    for (uint32_t c = 0; c < n; c++) {
        tqk_expand_avx512(&j->table, source, words[c], x[c]);
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < tqk_operands_avx512(source); i++) {
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *from = weights + (size_t)r * TQK_WEIGHTS_BYTES_AVX512 + 4 * i;
            __m512i h = tqk_spread32_avx512(from);
            __m512i l = tqk_spread32_avx512(from + 8);
            TQK_UNROLL
            for (uint32_t c = 0; c < n; c++) {
                high[n * r + c] = _mm512_dpbusd_epi32(high[n * r + c], h, x[c][i]);
                low[n * r + c] = _mm512_dpbusd_epi32(low[n * r + c], l, x[c][i]);
            }
        }
    }
}

/* Sums of rows and 16 or 2 x 16 dims. */
TQK_INLINE void dot(struct job *j, enum tqk_source_avx512 source, const struct tqk_quads_avx512 *q,
                    uint32_t first_row, uint32_t rows, __m512i *sum) {
    const uint32_t n = columns(rows), halves = 2 / tqk_operands_avx512(source);
    const uint8_t *weights = j->weights.bytes + (size_t)first_row * TQK_WEIGHTS_BYTES_AVX512;
    const uint8_t *ahead = j->codes.ahead;
    uint32_t per_lane = j->l->dim_pad / 32, octets = j->l->group / 8;
    __m512i high[8], low[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * n; i++) {
        high[i] = _mm512_setzero_si512();
        low[i] = _mm512_set1_epi32(j->weights.half[first_row + i / n]);
    }
    for (uint32_t g = 0; g < j->groups * halves; g++) {
        uint32_t word = (j->first_group * halves + g) * per_lane;
        __m512i x[2][4];
        TQK_UNROLL
        for (uint32_t c = 0; c < n; c++) {
            TQK_UNROLL
            for (uint32_t i = 0; i < 4 && first_row == 0; i++) {
                ahead = tqk_ahead_avx512(ahead, tqk_line_step_avx512(source));
            }
            load_group(j, source, &q[c], word, x[c]);
        }
        TQK_UNROLL
        for (uint32_t t = 0; t < 4; t++) {
            __m512i words[2] = {x[0][t], n == 2 ? x[1][t] : x[0][t]};
            size_t octet = (size_t)(g / halves) * octets + t;
            if (t < octets)
                multiply(j, source, words, weights + octet * 16 + g % halves * 4, rows, high, low);
        }
    }
    j->codes.ahead = ahead;
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * n; i++) {
        sum[i] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
    }
}

/* Adds the sums of `rows` rows to their states, 16 dims from `dim` on, or 2 x 16. */
TQK_INLINE void sum_rows(struct job *j, enum tqk_source_avx512 source, uint32_t dim,
                         const struct tqk_quads_avx512 *q, uint32_t first_row, uint32_t rows) {
    const uint32_t n = columns(rows);
    __m512i sum[8];
    dot(j, source, q, first_row, rows, sum);
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * n; i++) {
        uint32_t r = first_row + i / n;
        struct tqk_state_avx512 *s = (void *)(j->states + r * j->state_bytes);
        float *acc = s->acc + dim + i % n * 16;
        __m512 scale = _mm512_set1_ps(j->weights.scale[r]);
        __m512 x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i]), scale, _mm512_loadu_ps(acc));
        _mm512_storeu_ps(acc, x);
    }
}

/* 32 dims of all rows. */
TQK_INLINE void sum_dims(struct job *j, enum tqk_source_avx512 source, uint32_t dim,
                         const struct tqk_quads_avx512 q[2], uint32_t n_rows) {
    for (uint32_t r = 0; r < n_rows;) {
        uint32_t left = n_rows - r;
        if (left == 1) {
            sum_rows(j, source, dim, q, r, 1);
            r += 1;
        } else if (left == 2) {
            sum_rows(j, source, dim, q, r, 2);
            r += 2;
        } else if (left == 3) {
            sum_rows(j, source, dim, q, r, 3);
            sum_rows(j, source, dim + 16, q + 1, r, 3);
            r += 3;
        } else if (left < 8) {
            sum_rows(j, source, dim, q, r, 4);
            sum_rows(j, source, dim + 16, q + 1, r, 4);
            r += 4;
        } else {
            sum_rows(j, source, dim, q, r, 8);
            sum_rows(j, source, dim + 16, q + 1, r, 8);
            r += 8;
        }
    }
}

TQK_INLINE void accumulate(const struct tqi_rows *v, enum tqk_source_avx512 source,
                           const struct tqi_tile *tile, const float *probabilities, uint32_t n_rows,
                           uint32_t score_stride, void *states, size_t state_bytes, void *scratch) {
    const struct tqi_layout *l = &v->layout;
    struct job j = {.l = l,
                    .codes = tqk_codes_of_v_avx512(l, tile),
                    .table = tqk_table_of_avx512(v, 0),
                    .states = states,
                    .state_bytes = state_bytes};
    tqk_prefetch_gains_avx512(l, tile);
    tqk_rescale_states_avx512(l, states, state_bytes, n_rows);
    for (uint32_t token = tile->first / l->group * l->group; token < tile->last;
         token += TQK_BLOCK_AVX512) {
        uint32_t left = tile->last - token;
        left = left < TQK_BLOCK_AVX512 ? left : TQK_BLOCK_AVX512;
        j.first_group = token / l->group;
        j.groups = (left + l->group - 1) / l->group;
        tqk_weigh_avx512(v, tile, probabilities, n_rows, score_stride, token, scratch, &j.weights);
        struct tqk_quad_walk_avx512 walk = tqk_quad_walk_avx512(l, 0);
        for (uint32_t dim = 0; dim < l->dim_pad; dim += 32) {
            struct tqk_quads_avx512 q[2];
            q[0] = tqk_next_quads_avx512(&walk);
            q[1] = tqk_next_quads_avx512(&walk);
            sum_dims(&j, source, dim, q, n_rows);
        }
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
