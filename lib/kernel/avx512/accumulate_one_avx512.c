/* Stage accumulate, integer formats, one query row: lines of values as they lie, 4 octets of tokens
 * by 4 dims, see score_one_avx512.c. Weights of a block of tokens are spread to match and stay in
 * registers. */
#include "kernel/avx512/one_avx512.h"

/* Groups of tokens in a block; registers of weights for one: of either operand the high and the
 * low plane. */
enum { GROUPS = 2, OPERANDS = 4, REGISTERS = GROUPS * OPERANDS };

/* Of every group the bytes of each of its octets and operand, repeated for 4 dims. */
TQK_INLINE void spread_weights(const uint8_t *bytes, __m512i to[REGISTERS]) {
    const __m512i octet = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    const __m512i high = _mm512_loadu_si512(bytes);
    const __m512i low = _mm512_loadu_si512(bytes + TQK_BLOCK_AVX512);
    TQK_UNROLL
    for (uint32_t i = 0; i < REGISTERS; i++) {
        const __m512i at = _mm512_set1_epi32((int)(i / OPERANDS * 8 + i % OPERANDS / 2));
        to[i] = _mm512_permutexvar_epi32(_mm512_add_epi32(octet, at), i % 2 ? low : high);
    }
}

/* What the dims share. */
struct job {
    struct tqk_codes_avx512 codes;
    uint32_t per_lane, first_group, groups;
};

/* 16 dims in four registers of octets by dims. all: as many groups as there are registers for. */
TQK_INLINE void dot(const struct job *j, const struct tqk_table_avx512 *table,
                    enum tqk_source_avx512 source, bool all, const struct tqk_quads_avx512 *q,
                    const __m512i weights[REGISTERS], __m512i high[4], __m512i low[4]) {
    const uint32_t operands = tqk_operands_avx512(source), halves = 2 / operands;
    const uint32_t groups = halves * (all ? GROUPS : 1), per_lane = j->per_lane;
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    const uint32_t word = j->first_group * halves * per_lane;
    struct tqk_codes_avx512 codes = j->codes;
    const uint8_t *from[4];
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        from[i] = codes.at + q->at[i] + (plain ? (word + q->word[i]) * codes.slab : 0);
        TQK_KEEP_ADDRESS(from[i]);
    }
    TQK_UNROLL
    for (uint32_t g = 0; g < groups; g++) {
        const __m512i *w = weights + g * 2 * operands;
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *at = from[i] + (size_t)g * per_lane * codes.slab;
            __m512i x[2], line = !plain
                                     ? tqk_word_avx512(&codes, source,
                                                       word + g * per_lane + q->word[i], q->at[i])
                                 : all ? _mm512_loadu_si512(at)
                                       : _mm512_maskz_loadu_epi32(codes.lanes, at);
            if (i < tqk_lines_avx512(source))
                tqk_ahead_line_avx512(codes.ahead, codes.far, i, &line);
            tqk_expand_avx512(table, source, 1, line, x);
            TQK_UNROLL
            for (uint32_t o = 0; o < operands; o++) {
                high[i] = _mm512_dpbusd_epi32(high[i], w[2 * o], x[o]);
                low[i] = _mm512_dpbusd_epi32(low[i], w[2 * o + 1], x[o]);
            }
        }
        codes.ahead += codes.ahead_step;
    }
}

TQK_INLINE void accumulate_dims(const struct tqi_rows *v, enum tqk_source_avx512 source, bool all,
                                struct job *j, const struct tqk_weights_avx512 *weights,
                                struct tqk_state_avx512 *s) {
    const struct tqi_layout *l = &v->layout;
    const struct tqk_table_avx512 table = tqk_table_of_avx512(v, 0);
    const __m512 scale = _mm512_set1_ps(weights->scale[0]);
    const __m512i half = _mm512_set1_epi32(weights->half[0]);
    const size_t ahead = (size_t)2 * j->groups * l->group * l->bits;
    struct tqk_quad_walk_avx512 walk = tqk_quad_walk_avx512(l, 0);
    __m512i w[REGISTERS];
    spread_weights(weights->bytes, w);
    for (uint32_t dim = 0; dim < l->dim_pad; dim += 16) {
        const struct tqk_quads_avx512 q = tqk_next_quads_avx512(&walk);
        __m512i high[4], low[4];
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            high[i] = low[i] = _mm512_setzero_si512();
        }
        dot(j, &table, source, all, &q, w, high, low);
        j->codes.ahead += ahead;
        __m512i x = _mm512_add_epi32(tqk_join_pieces_avx512(high, low), half);
        float *acc = s->acc + dim;
        _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), scale, _mm512_loadu_ps(acc)));
    }
}

TQK_INLINE void accumulate_one(const struct tqi_rows *v, enum tqk_source_avx512 source,
                               const struct tqi_tile *tile,
                               const struct tqk_weights_avx512 *weights, uint32_t token,
                               struct tqk_state_avx512 *s) {
    const struct tqi_layout *l = &v->layout;
    const uint32_t left = tile->last - token;
    struct job j; /* set field by field: clearing it would show */
    j.codes = tqk_codes_of_v_avx512(l, tile);
    j.per_lane = l->dim_pad / 32;
    j.first_group = token / l->group;
    j.groups = left > l->group && l->group < TQK_BLOCK_AVX512 ? GROUPS : 1;
    j.codes.ahead += (size_t)token * l->dim_pad / 8 * l->bits;
    j.codes.ahead_step = (size_t)l->group * 2 * (l->bits == 8 ? 4 : l->bits);
    if (j.groups == GROUPS)
        accumulate_dims(v, source, true, &j, weights, s);
    else
        accumulate_dims(v, source, false, &j, weights, s);
}

#define ACCUMULATE(format, source)                                               \
    void tqk_accumulate_one_##format##_avx512(                                   \
        const struct tqi_rows *v, const struct tqi_tile *tile,                   \
        const struct tqk_weights_avx512 *weights, uint32_t token, void *state) { \
        accumulate_one(v, source, tile, weights, token, state);                  \
    }
ACCUMULATE(lm4, TQK_LM4)
ACCUMULATE(lm3, TQK_LM3)
ACCUMULATE(lm2, TQK_LM2)
ACCUMULATE(int8, TQK_INT8)
