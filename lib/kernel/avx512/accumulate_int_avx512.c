/* Stage accumulate, integer formats. Four lines of 4 dims by 4 octets of tokens transposed in
 * pieces of 16 bytes give 16 dims of one octet; its words are decoded once for up to 8 query rows
 * and multiplied in the same loop.
 *
 * Tokens are taken in blocks of 64 whose weights share a scale, see weights_avx512.c. */
#include "kernel/avx512/one_avx512.h"

/* What all rows of a block share. */
struct job {
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    const struct tqk_weights_avx512 *weights;
    char *states;
    size_t state_bytes;
    uint32_t per_lane;            /* words of a lane */
    uint32_t first_group, groups; /* of tokens */
};

/* Pairs of 16 dims that are summed together, as registers allow: weights are loaded less often, and
 * a multiply need not wait for the one before. */
TQK_INLINE uint32_t columns(uint32_t rows) {
    return rows < 5 ? 2 : 1;
}

/* An octet (int8: half of one) of 16 dims or 2 x 16. */
TQK_INLINE void multiply(const struct tqk_table_avx512 *table, enum tqk_source_avx512 source,
                         const __m512i *words, const uint8_t *weights, uint32_t rows, __m512i *high,
                         __m512i *low) {
    const uint32_t n = columns(rows);
    __m512i x[2][2];
    TQK_UNROLL
    for (uint32_t c = 0; c < n; c++) {
        tqk_expand_avx512(table, source, rows, words[c], x[c]);
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < tqk_operands_avx512(source); i++) {
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *from = weights + (size_t)r * TQK_WEIGHTS_BYTES_AVX512 + 4 * i;
            __m512i h = tqk_spread32_avx512(from);
            __m512i l = tqk_spread32_avx512(from + TQK_BLOCK_AVX512);
            TQK_UNROLL
            for (uint32_t c = 0; c < n; c++) {
                high[n * r + c] = _mm512_dpbusd_epi32(high[n * r + c], h, x[c][i]);
                low[n * r + c] = _mm512_dpbusd_epi32(low[n * r + c], l, x[c][i]);
                TQK_KEEP(high[n * r + c]);
                TQK_KEEP(low[n * r + c]);
            }
        }
    }
}

/* Two octets of 16 dims. */
TQK_INLINE void load_half(const uint8_t *codes, const size_t at[4], uint32_t half, __m512i x[2]) {
    const uint8_t *line[4] = {codes + at[0], codes + at[1], codes + at[2], codes + at[3]};
    tqk_load_half_avx512(line, half, x);
}

/* Sums of rows and 16 or 2 x 16 dims. As in score_int_avx512.c, the loop has locals only, and
 * what does not change is known to the compiler: whether a word has a slab of its own, and
 * whether lines are whole, as in all pages but those of 16 tokens. */
TQK_INLINE void dot(const struct job *j, enum tqk_source_avx512 source, bool whole,
                    const struct tqk_quads_avx512 *q, const uint8_t *weights, uint32_t rows,
                    uint32_t dim, __m512i *high, __m512i *low) {
    const uint32_t n = columns(rows), halves = 2 / tqk_operands_avx512(source);
    const bool plain = source == TQK_LM4 || source == TQK_INT8;
    const uint32_t octets = whole ? 4 : 2, groups = j->groups * halves, per_lane = j->per_lane;
    uint32_t word = j->first_group * halves * per_lane;
    const struct tqk_table_avx512 table = j->table;
    struct tqk_codes_avx512 codes = j->codes;
    const size_t step = plain ? per_lane * codes.slab : 0;
    size_t at[8];
    codes.lanes = whole ? 0xffff : 0x00ff;
    codes.ahead += dim / 16 % 2 * groups * codes.ahead_step;
    TQK_UNROLL
    for (uint32_t i = 0; i < 4 * n; i++) {
        at[i] = q[i / 4].at[i % 4] + (plain ? (word + q[i / 4].word[i % 4]) * codes.slab : 0);
        TQK_KEEP_ADDRESS(at[i]);
    }
    for (uint32_t g = 0; g < groups; g++) {
        __m512i x[2][4];
        if (!plain || !whole) {
            TQK_UNROLL
            for (uint32_t i = 0; i < 4 * n; i++) {
                x[i / 4][i % 4] =
                    plain ? tqk_line_avx512(&codes, 0, at[i])
                          : tqk_word_avx512(&codes, source, word + q[i / 4].word[i % 4], at[i]);
            }
            tqk_transpose_avx512(x[0]);
            if (n == 2)
                tqk_transpose_avx512(x[1]);
        }
        TQK_UNROLL
        for (uint32_t t = 0; t < octets; t++) {
            if (plain && whole && t % 2 == 0) {
                load_half(codes.at, at, t / 2, x[0] + t);
                if (n == 2)
                    load_half(codes.at, at + 4, t / 2, x[1] + t);
            }
            __m512i words[2] = {x[0][t], n == 2 ? x[1][t] : x[0][t]};
            for (uint32_t i = 0; i < n; i++) {
                if (t * n + i < n * tqk_lines_avx512(source))
                    tqk_ahead_rows_avx512(&codes, t * n + i, tqk_lines_avx512(source), &words[i]);
            }
            multiply(&table, source, words, weights + (size_t)t * 8, rows, high, low);
        }
        word += per_lane;
        codes.at += step;
        codes.ahead += n * codes.ahead_step;
        if (source == TQK_INT8) /* the other half of the octets */
            weights += g % 2 ? octets * 8 - 4 : 4;
        else
            weights += octets * 8;
    }
}

/* Adds the sums of `rows` rows to their states, 16 dims from `dim` on, or 2 x 16. */
TQK_INLINE void sum_rows(const struct job *j, enum tqk_source_avx512 source, uint32_t dim,
                         const struct tqk_quads_avx512 *q, uint32_t first_row, uint32_t rows) {
    const uint32_t n = columns(rows);
    __m512i high[8], low[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * n; i++) {
        high[i] = _mm512_setzero_si512();
        low[i] = _mm512_set1_epi32(j->weights->half[first_row + i / n]);
    }
    const uint8_t *weights = j->weights->bytes + (size_t)first_row * TQK_WEIGHTS_BYTES_AVX512;
    if (j->codes.lanes == 0xffff)
        dot(j, source, true, q, weights, rows, dim, high, low);
    else
        dot(j, source, false, q, weights, rows, dim, high, low);
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * n; i++) {
        uint32_t r = first_row + i / n;
        struct tqk_state_avx512 *s = (void *)(j->states + r * j->state_bytes);
        float *acc = s->acc + dim + i % n * 16;
        __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]));
        __m512 scale = _mm512_set1_ps(j->weights->scale[r]);
        _mm512_storeu_ps(acc, _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(acc)));
    }
}

/* 32 dims of some rows, in functions of their own, so that each has all registers. */
typedef void rows_fn(const struct job *j, uint32_t dim, const struct tqk_quads_avx512 q[2],
                     uint32_t first_row);
#define ROWS(name, source, rows)                                                             \
    static __attribute__((noinline)) void name##_##rows(                                     \
        const struct job *j, uint32_t dim, const struct tqk_quads_avx512 q[2], uint32_t r) { \
        sum_rows(j, source, dim, q, r, rows);                                                \
        if (columns(rows) == 1)                                                              \
            sum_rows(j, source, dim + 16, q + 1, r, rows);                                   \
    }
#define BLOCKS(name, source)                                                       \
    ROWS(name, source, 1)                                                          \
    ROWS(name, source, 2)                                                          \
    ROWS(name, source, 3)                                                          \
    ROWS(name, source, 4)                                                          \
    ROWS(name, source, 8)                                                          \
    static rows_fn *const name[9] = {NULL, name##_1, name##_2, name##_3, name##_4, \
                                     NULL, NULL,     NULL,     name##_8};
BLOCKS(lm4, TQK_LM4)
BLOCKS(lm3, TQK_LM3)
BLOCKS(lm2, TQK_LM2)
BLOCKS(int8, TQK_INT8)

static void accumulate(const struct tqi_rows *v, rows_fn *const by_rows[9],
                       tqk_accumulate_one_fn_avx512 *one, const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, void *scratch) {
    const struct tqi_layout *l = &v->layout;
    struct tqk_weighing_avx512 weighing;
    struct tqk_weights_avx512 weights; /* set field by field: clearing it would show */
    struct job j;                      /* set field by field: clearing it would show */
    j.codes = tqk_codes_of_v_rows_avx512(l, tile);
    j.table = tqk_table_of_avx512(v, 0);
    j.weights = &weights;
    j.states = states;
    j.state_bytes = state_bytes;
    j.per_lane = l->dim_pad / 32;
    weights.bytes = scratch;
    tqk_ahead_gains(l, tile);
    tqk_rescale_states_avx512(l, states, state_bytes, n_rows);
    for (uint32_t token = tile->first / l->group * l->group; token < tile->last;
         token += TQK_BLOCK_AVX512) {
        uint32_t left = tile->last - token;
        left = left < TQK_BLOCK_AVX512 ? left : TQK_BLOCK_AVX512;
        j.first_group = token / l->group;
        j.groups = (left + l->group - 1) / l->group;
        tqk_start_weights_avx512(&weighing, v, tile, probabilities, n_rows, score_stride, token,
                                 &weights);
        tqk_end_weights_avx512(&weighing);
        if (n_rows == 1) {
            one(v, tile, &weights, token, states);
            continue;
        }
        struct tqk_quad_walk_avx512 walk = tqk_quad_walk_avx512(l, 0);
        for (uint32_t dim = 0; dim < l->dim_pad; dim += 32) {
            struct tqk_quads_avx512 q[2];
            q[0] = tqk_next_quads_avx512(&walk);
            q[1] = tqk_next_quads_avx512(&walk);
            j.codes.ahead_step = (size_t)l->group * 2 * (l->bits == 8 ? 4 : l->bits);
            for (uint32_t r = 0, rows; r < n_rows; r += rows) {
                rows = tqk_rows_together_avx512(n_rows - r);
                by_rows[rows](&j, dim, q, r);
                j.codes.ahead_step = 0;
            }
            j.codes.ahead += (size_t)4 * j.groups * l->group * l->bits;
        }
    }
}

#define ACCUMULATE(format)                                                                         \
    void tqk_accumulate_##format##_avx512(                                                         \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, format, tqk_accumulate_one_##format##_avx512, tile, probabilities, n_rows,   \
                   score_stride, states, state_bytes, scratch);                                    \
    }
ACCUMULATE(lm4)
ACCUMULATE(lm3)
ACCUMULATE(lm2)
ACCUMULATE(int8)
