/* Stage accumulate on tiles, integer formats. Four lines of 4 dims by 4 octets of tokens
 * transposed in pieces of 16 bytes and decoded are rows of a right tile: 4 tokens of 16 dims
 * each. Weights are those of AVX-512, with a scale for every 64 tokens, which are the steps of a
 * tile. */
#include "kernel/amx/amx.h"
#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

/* What the dims of a block of tokens share. */
struct job {
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    const struct tqk_weights_avx512 *weights;
    char *states;
    size_t state_bytes;
    uint32_t per_lane;                 /* words of a lane */
    uint32_t first_group, groups;      /* of tokens */
    size_t ahead_bytes;                /* of 16 dims of them */
    struct tqk_quad_walk_avx512 *walk; /* to the dims of the next column */
};

/* 16 dims to a right tile. Rows of groups that a short page lacks keep what they hold: their
 * weights are 0. whole: all pages but those of 16 tokens. */
TQK_INLINE void decode(const struct job *j, enum tqk_source_avx512 source, bool whole,
                       uint32_t column, uint8_t *to) {
    const struct tqk_table_avx512 table = j->table;
    const struct tqk_quads_avx512 q = tqk_next_quads_avx512(j->walk);
    const uint32_t halves = 2 / tqk_operands_avx512(source), octets = whole ? 4 : 2;
    const uint32_t per_lane = j->per_lane, groups = j->groups * halves;
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    struct tqk_codes_avx512 codes = j->codes;
    uint32_t word = j->first_group * halves * per_lane;
    const size_t step = plain ? per_lane * codes.slab : 0;
    size_t at[4];
    codes.lanes = whole ? 0xffff : 0x00ff;
    const uint8_t *ahead = codes.ahead + column * j->ahead_bytes;
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        at[i] = q.at[i] + (plain ? (word + q.word[i]) * codes.slab : 0);
        TQK_KEEP_ADDRESS(at[i]);
    }
    for (uint32_t g = 0; g < groups; g++) {
        __m512i x[4], y[2];
        if (plain && whole) {
            const uint8_t *line[4] = {codes.at + at[0], codes.at + at[1], codes.at + at[2],
                                      codes.at + at[3]};
            tqk_load_transposed_avx512(line, x);
        } else {
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = plain ? tqk_line_avx512(&codes, 0, at[i])
                             : tqk_word_avx512(&codes, source, word + q.word[i], at[i]);
            }
            tqk_transpose_avx512(x);
        }
        TQK_UNROLL
        for (uint32_t t = 0; t < octets; t++) {
            if (t < tqk_lines_avx512(source))
                tqk_ahead_line_avx512(ahead, codes.far, t, &x[t]);
            tqk_expand_avx512(&table, source, 1, x[t], y);
            _mm512_store_si512(to + t * 2 * TQK_LINE_AMX, y[0]);
            if (halves == 1)
                _mm512_store_si512(to + (t * 2 + 1) * TQK_LINE_AMX, y[1]);
        }
        ahead += (size_t)64 * tqk_lines_avx512(source);
        word += per_lane;
        codes.at += step;
        to += halves == 1 ? octets * 2 * TQK_LINE_AMX
              : g % 2     ? (octets * 2 - 1) * TQK_LINE_AMX
                          : TQK_LINE_AMX;
    }
}

#define DECODE(name, source)                                          \
    static void name(const void *job, uint32_t column, uint8_t *to) { \
        const struct job *j = job;                                    \
        if (j->codes.lanes == 0xffff)                                 \
            decode(j, source, true, column, to);                      \
        else                                                          \
            decode(j, source, false, column, to);                     \
    }
DECODE(lm4, TQK_LM4)
DECODE(lm3, TQK_LM3)
DECODE(lm2, TQK_LM2)
DECODE(int8, TQK_INT8)

/* Adds the sums of 16 dims to the states. */
static void join(const void *job, uint32_t column, uint32_t first, uint32_t rows,
                 const uint8_t *sums) {
    const struct job *j = job;
    for (uint32_t r = 0; r < rows; r++) {
        struct tqk_state_avx512 *s = (void *)(j->states + (first + r) * j->state_bytes);
        float *acc = s->acc + (size_t)column * 16;
        __m512i half = _mm512_set1_epi32(j->weights->half[first + r]);
        __m512 x = _mm512_cvtepi32_ps(_mm512_add_epi32(tqk_sums_of_amx(sums, r), half));
        __m512 scale = _mm512_set1_ps(j->weights->scale[first + r]);
        _mm512_storeu_ps(acc, _mm512_fmadd_ps(x, scale, _mm512_loadu_ps(acc)));
    }
}

static void accumulate(const struct tqi_rows *v, tqk_make_fn_amx *to_tile,
                       const struct tqi_tile *tile, const float *probabilities, uint32_t n_rows,
                       uint32_t score_stride, void *states, size_t state_bytes, uint8_t *scratch) {
    const struct tqi_layout *l = &v->layout;
    struct tqk_quad_walk_avx512 walk;
    struct tqk_weights_avx512 weights;
    struct job j = {.codes = tqk_codes_of_v_avx512(l, tile),
                    .table = tqk_table_of_avx512(v, 0),
                    .weights = &weights,
                    .states = states,
                    .state_bytes = state_bytes,
                    .per_lane = l->dim_pad / 32,
                    .walk = &walk};
    uint8_t *right = scratch + TQK_SUMS_AMX;
    uint8_t *room = right + (size_t)tqk_dim_tiles_amx(l) * TQK_TOGETHER_AMX * TQK_TILE_AMX;
    struct tqk_product_amx p = {.stride = TQK_WEIGHTS_BYTES_AVX512 / 2,
                                .n_rows = n_rows,
                                .steps = 1,
                                .columns = l->dim_pad / 16,
                                .right = right,
                                .sums = scratch};
    weights.order = TQK_WEIGHTS_PLANES;
    tqk_prefetch_gains_avx512(l, tile);
    tqk_rescale_states_avx512(l, states, state_bytes, n_rows);
    for (uint32_t token = tile->first / l->group * l->group; token < tile->last;
         token += TQK_BLOCK_AVX512) {
        uint32_t left = tile->last - token;
        left = left < TQK_BLOCK_AVX512 ? left : TQK_BLOCK_AVX512;
        j.first_group = token / l->group;
        j.groups = (left + l->group - 1) / l->group;
        tqk_weigh_avx512(v, tile, probabilities, n_rows, score_stride, token, room, &weights);
        j.ahead_bytes = (size_t)2 * j.groups * l->group * l->bits;
        p.left = weights.bytes;
        walk = tqk_quad_walk_avx512(l, 0);
        tqk_product_amx(&p, to_tile, join, &j);
        j.codes.ahead += p.columns * j.ahead_bytes;
    }
}

#define ACCUMULATE(format)                                                                         \
    void tqk_accumulate_##format##_amx(                                                            \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, format, tile, probabilities, n_rows, score_stride, states, state_bytes,      \
                   scratch);                                                                       \
    }
ACCUMULATE(lm4)
ACCUMULATE(lm3)
ACCUMULATE(lm2)
ACCUMULATE(int8)
