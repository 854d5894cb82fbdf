/* Stage score on tiles, integer formats. Four lines of keys transposed in pieces of 16 bytes and
 * decoded are two rows of a right tile: 4 dims of 16 tokens each. */
#include <limits.h>
#include <string.h>

#include "kernel/amx/amx.h"
#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

/* ---- queries ------------------------------------------------------------------------------ */

/* A high and a low plane, each behind 64 bytes, so that planes of all rows of a tile lie at equal
 * distances. */
size_t tqk_query_bytes_amx(const struct tqi_rows *k) {
    return tqk_is_tiled_amx(k) ? 2 * tqk_plane_stride_amx(k) : tqk_query_bytes_avx512(k);
}

void tqk_prepare_amx(const struct tqi_rows *k, const float *row, void *query) {
    struct tqk_query_avx512 *q = query;
    struct tqk_fixed_avx512 fixed;
    if (!tqk_is_tiled_amx(k)) {
        tqk_prepare_avx512(k, row, query);
        return;
    }
    memset(q, 0, tqk_query_bytes_amx(k));
    int32_t sum = tqk_split_query_avx512(k, row, q, &fixed);
    q->bias = tqk_has_half(k) ? (sum + 1) >> 1 : 0;
    tqk_order_plane_avx512(k, fixed.high, q->data);
    tqk_order_plane_avx512(k, fixed.low, q->data + tqk_plane_stride_amx(k));
}

/* ---- keys --------------------------------------------------------------------------------- */

/* What the tokens of a page share. */
struct job {
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    uint32_t words; /* of a lane, in a group */
    const uint8_t *queries;
    size_t query_bytes;
    const struct tqi_tile *tile;
    const uint8_t *gains;
    float *scores;
    uint32_t score_stride, token; /* the first of the columns */
    size_t ahead_bytes;           /* of the codes of a token */
};

/* 16 tokens to right tiles. Rows behind the last dim keep what they hold: queries are 0 there. */
TQK_INLINE void decode(const struct job *j, enum tqk_source_avx512 source, uint32_t token,
                       uint8_t *to) {
    const struct tqk_table_avx512 table = j->table;
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    struct tqk_codes_avx512 codes = j->codes;
    const uint32_t group = codes.l->group == 32 ? token / 32 : token / 16, word = group * j->words,
                   words = j->words;
    const size_t at = (size_t)(token - group * codes.l->group) * 16;
    codes.lanes = 0xffff; /* lines of keys are whole */
    codes.at += plain ? at + word * codes.slab : 0;
    const uint8_t *ahead = codes.ahead + (size_t)token * j->ahead_bytes;
    for (uint32_t w = 0; w < words; w++) {
        __m512i x[4], y[2];
        if (plain) {
            const uint8_t *line[4] = {codes.at, codes.at + 64, codes.at + 128, codes.at + 192};
            tqk_load_transposed_avx512(line, x);
            codes.at += codes.slab;
        } else {
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = tqk_word_avx512(&codes, source, word + w, at + i * 64);
            }
            tqk_transpose_avx512(x);
        }
        TQK_UNROLL
        for (uint32_t t = 0; t < 4; t++) {
            if (t < tqk_lines_avx512(source))
                tqk_ahead_line_avx512(ahead, codes.far, t, &x[t]);
            tqk_expand_avx512(&table, source, 1, x[t], y);
            _mm512_store_si512(to + t * 2 * TQK_LINE_AMX, y[0]);
            if (tqk_operands_avx512(source) == 2)
                _mm512_store_si512(to + (t * 2 + 1) * TQK_LINE_AMX, y[1]);
        }
        ahead += (size_t)64 * tqk_lines_avx512(source);
        /* Words of int8 are the first and the second half of eight dims in turn. */
        to += source != TQK_INT8 ? 8 * TQK_LINE_AMX : w % 2 ? 7 * TQK_LINE_AMX : TQK_LINE_AMX;
    }
}

#define DECODE(name, source)                                          \
    static void name(const void *job, uint32_t column, uint8_t *to) { \
        const struct job *j = job;                                    \
        decode(j, source, j->token + column * 16, to);                \
    }
DECODE(lm4, TQK_LM4)
DECODE(lm3, TQK_LM3)
DECODE(lm2, TQK_LM2)
DECODE(int8, TQK_INT8)

/* Sums of 16 tokens to scores. */
static void put(const void *job, uint32_t column, uint32_t first, uint32_t rows,
                const uint8_t *sums) {
    const struct job *j = job;
    const uint32_t token = j->token + column * 16;
    const __m256i *gains = (const void *)(j->gains + (size_t)token * 2);
    const __m512 gain = _mm512_cvtph_ps(_mm256_loadu_si256(gains));
    const struct tqk_target_avx512 target =
        tqk_target_avx512(j->tile, j->scores, j->score_stride, token);
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx512 *q =
            (const void *)(j->queries + (first + r) * j->query_bytes);
        __m512i x = _mm512_add_epi32(tqk_sums_of_amx(sums, r), _mm512_set1_epi32(q->bias));
        __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(q->scale));
        tqk_put_scores_avx512(&target, first + r, _mm512_mul_ps(s, gain));
    }
}

static void score(const struct tqi_rows *k, tqk_make_fn_amx *to_tiles, const struct tqi_tile *tile,
                  const uint8_t *queries, uint32_t n_rows, uint32_t score_stride, float *scores,
                  uint8_t *scratch) {
    const struct tqi_layout *l = &k->layout;
    struct job j = {.codes = tqk_codes_of_k_avx512(l, tile),
                    .table = tqk_table_of_avx512(k, 0),
                    .words = l->dim_pad / (l->bits == 8 ? 16 : 32),
                    .queries = queries,
                    .query_bytes = tqk_query_bytes_amx(k),
                    .tile = tile,
                    .gains = tile->blob + l->gains,
                    .scores = scores,
                    .score_stride = score_stride,
                    .ahead_bytes = l->dim_pad / 8 * l->bits};
    struct tqk_product_amx p = {.left = queries + offsetof(struct tqk_query_avx512, data),
                                .stride = j.query_bytes / 2,
                                .is_signed = true,
                                .n_rows = n_rows,
                                .steps = tqk_dim_tiles_amx(l),
                                .sums = scratch,
                                .right = scratch + TQK_SUMS_AMX};
    const uint32_t together = TQK_TOGETHER_AMX * 16;
    for (j.token = tile->first & ~15u; j.token < tile->last; j.token += together) {
        uint32_t left = tile->last - j.token;
        p.columns = ((left < together ? left : together) + 15) / 16;
        tqk_product_amx(&p, to_tiles, put, &j);
    }
}

#define SCORE(format)                                                                          \
    void tqk_score_##format##_amx(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                  const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                  void *scores, void *scratch) {                               \
        score(k, format, tile, queries, n_rows, score_stride, scores, scratch);                \
    }
SCORE(lm4)
SCORE(lm3)
SCORE(lm2)
SCORE(int8)
