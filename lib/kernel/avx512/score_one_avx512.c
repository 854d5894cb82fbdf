/* Stage score, integer formats, one query row: lines of keys as they lie, 4 lanes of dims by 4
 * tokens, since to transpose them would cost half as much as to multiply. The query is spread to
 * match once for a page; sums of four lanes are joined at the end. */
#include "kernel/avx512/one_avx512.h"

/* Registers of a query for a word: of either operand the high and the low plane. */
enum { OPERANDS = 4 };

/* Of word j the four lanes' bytes of each operand, repeated for 4 tokens. */
static void spread_query(const struct tqi_rows *k, const struct tqk_query_avx512 *q, __m512i *to) {
    for (uint32_t j = 0; j < k->layout.dim_pad / 32; j++, to += OPERANDS) {
        const __m512i x = _mm512_loadu_si512(q->data + (size_t)64 * j);
        to[0] = _mm512_shuffle_epi32(x, 0x00);
        to[1] = _mm512_shuffle_epi32(x, 0x55);
        to[2] = _mm512_shuffle_epi32(x, 0xaa);
        to[3] = _mm512_shuffle_epi32(x, 0xff);
    }
}

/* Sums of the 16 tokens from `at` in word `word` on, in four registers of lanes by tokens. */
TQK_INLINE void dot(struct tqk_codes_avx512 codes, const struct tqk_table_avx512 *table,
                    enum tqk_source_avx512 source, const __m512i *query, uint32_t words,
                    uint32_t word, size_t at, __m512i high[4], __m512i low[4]) {
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    codes.at += plain ? at + word * codes.slab : 0;
    for (uint32_t w = 0; w < words; w++) {
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            __m512i x[2];
            __m512i line = plain ? tqk_line_avx512(&codes, 0, i * 64)
                                 : tqk_word_avx512(&codes, source, word + w, at + i * 64);
            if (i < tqk_lines_avx512(source))
                tqk_ahead_line_avx512(codes.ahead, codes.far, i, &line);
            tqk_expand_avx512(table, source, 1, line, x);
            TQK_UNROLL
            for (uint32_t o = 0; o < tqk_operands_avx512(source); o++) {
                high[i] = _mm512_dpbusd_epi32(high[i], x[o], query[2 * o]);
                low[i] = _mm512_dpbusd_epi32(low[i], x[o], query[2 * o + 1]);
            }
        }
        codes.at += plain ? codes.slab : 0;
        codes.ahead += (size_t)64 * tqk_lines_avx512(source);
        query += 2 * tqk_operands_avx512(source); /* a word of int8 is half of eight dims */
    }
}

TQK_INLINE void score_one(const struct tqi_rows *k, enum tqk_source_avx512 source,
                          const struct tqi_tile *tile, const struct tqk_query_avx512 *q,
                          float *scores, __m512i *spread) {
    const struct tqi_layout *l = &k->layout;
    const struct tqk_table_avx512 table = tqk_table_of_avx512(k, 128);
    const uint32_t words = l->dim_pad / (source == TQK_INT8 ? 16 : 32);
    uint32_t token = tile->first & ~15u;
    struct tqk_codes_avx512 codes = tqk_codes_of_k_avx512(l, tile);
    codes.lanes = 0xffff; /* lines of keys are whole */
    codes.ahead += (size_t)(token / 16) * words * tqk_lines_avx512(source) * 64;
    spread_query(k, q, spread);
    for (; token < tile->last; token += 16) {
        const uint32_t group = l->group == 32 ? token / 32 : token / 16;
        const __m256i *gains = (const void *)(tile->blob + l->gains + (size_t)token * 2);
        const struct tqk_target_avx512 target = tqk_target_avx512(tile, scores, 0, token);
        __m512i high[4], low[4];
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            high[i] = low[i] = _mm512_setzero_si512();
        }
        dot(codes, &table, source, spread, words, group * words,
            (size_t)(token - group * l->group) * 16, high, low);
        codes.ahead += (size_t)words * tqk_lines_avx512(source) * 64;
        __m512i x = tqk_join_pieces_avx512(high, low);
        x = _mm512_add_epi32(x, _mm512_set1_epi32(q->bias));
        __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(q->scale));
        s = _mm512_mul_ps(s, _mm512_cvtph_ps(_mm256_loadu_si256(gains)));
        tqk_put_scores_avx512(&target, 0, s);
    }
}

#define SCORE(format, source)                                                                   \
    void tqk_score_one_##format##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                         const void *query, float *scores, __m512i *scratch) {  \
        score_one(k, source, tile, query, scores, scratch);                                     \
    }
SCORE(lm4, TQK_LM4)
SCORE(lm3, TQK_LM3)
SCORE(lm2, TQK_LM2)
SCORE(int8, TQK_INT8)
