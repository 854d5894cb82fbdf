/* Stage score, integer formats. A line is 4 lanes of dims by 4 tokens; four lines transposed in
 * pieces of 16 bytes give one lane of 16 tokens, whose sums need no step across. A word is
 * decoded once for up to 8 query rows; decoding and multiplying alternate in one loop, so that
 * they run on different ports at the same time.
 *
 * Bound: 4 VPDPBUSD a row for every 64 bytes of 4-bit codes, one a cycle on cores with two
 * 256-bit multipliers (Zen 4), two on cores with 512-bit ones. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernel/avx512/one_avx512.h"
#include "kernel/avx512/vec_avx512.h"

/* ---- queries ------------------------------------------------------------------------------ */

#include "kernel/simd/range.h"

/* x * scale as 256 * high + low, bytes in dim order; returns the sum of the integers. */
static int32_t split_row(const float *x, uint32_t dim_pad, float scale, uint8_t *high,
                         uint8_t *low) {
    __m512 factor = _mm512_set1_ps(scale);
    __m512i sum = _mm512_setzero_si512(), half = _mm512_set1_epi32(128);
    for (uint32_t i = 0; i < dim_pad; i += 16) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
        __m512i h = _mm512_srai_epi32(_mm512_add_epi32(v, half), 8);
        sum = _mm512_add_epi32(sum, v);
        _mm_storeu_si128((__m128i *)(void *)(high + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((__m128i *)(void *)(low + i), _mm512_cvtepi32_epi8(v));
    }
    return _mm512_reduce_add_epi32(sum);
}

static size_t planes_bytes(const struct tqi_rows *k) {
    return ((size_t)k->layout.dim_pad * 2 + 63) / 64 * 64;
}

void tqk_order_plane_avx512(const struct tqi_rows *k, const uint8_t *plane, uint8_t *to) {
    uint32_t per_lane = k->layout.dim_pad / 32;
    const __m128i order =
        _mm_cvtsi64_si128(tqk_splits_nibbles_avx512(k) ? 0x0705030106040200 : 0x0706050403020100);
    for (uint32_t i = 0; i < 4 * per_lane; i++) {
        uint32_t t = i / per_lane, j = i % per_lane;
        __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)(plane + (size_t)i * 8));
        _mm_storel_epi64((__m128i *)(void *)(to + (size_t)(4 * j + t) * 8),
                         _mm_shuffle_epi8(x, order));
    }
}

int32_t tqk_split_query_avx512(const struct tqi_rows *k, const float *row,
                               struct tqk_query_avx512 *q, struct tqk_fixed_avx512 *fixed) {
    const struct tqi_layout *l = &k->layout;
    float *x = fixed->rotated;
    memset(x + l->dim, 0, (l->dim_pad - l->dim) * sizeof *x);
    memcpy(x, row, l->dim * sizeof *x);
    fixed->exponent = to_range(x, l->dim);
    if (fixed->exponent == INT_MIN) {
        memset(fixed->high, 0, l->dim_pad);
        memset(fixed->low, 0, l->dim_pad);
        q->scale = NAN;
        return 0;
    }
    tqk_rotate_avx512(&k->rotation, x);
    float most = largest_of(x, l->dim_pad), limit = tqk_query_limit_avx512(l->dim_pad);
    q->scale = (float)(ldexp((double)most / (double)limit, fixed->exponent) / sqrt((double)l->dim) *
                       tqk_integer_unit(k) / TQK_SCORE_UNIT);
    return split_row(x, l->dim_pad, most > 0 ? limit / most : 0, fixed->high, fixed->low);
}

/* For word j of lane t (8 dims, for int8 two words of 4) 16 bytes at 4 j + t: high and low bytes
 * of the first operand, then of the second. */
static void put_planes(const struct tqi_rows *k, const struct tqk_fixed_avx512 *fixed,
                       uint8_t *to) {
    uint8_t plane[2][TQK_DIM_LIMIT_AVX512];
    tqk_order_plane_avx512(k, fixed->high, plane[0]);
    tqk_order_plane_avx512(k, fixed->low, plane[1]);
    for (uint32_t i = 0; i < k->layout.dim_pad; i += 8) {
        __m128i h = _mm_loadl_epi64((const __m128i *)(const void *)(plane[0] + i));
        __m128i l = _mm_loadl_epi64((const __m128i *)(const void *)(plane[1] + i));
        _mm_storeu_si128((__m128i *)(void *)(to + (size_t)i * 2), _mm_unpacklo_epi32(h, l));
    }
}

static void clear_sketch(const struct tqi_rows *k, struct tqk_query_avx512 *q) {
    q->sketch_scale = 0;
    memset(q->data + planes_bytes(k), 0, tqk_table_bytes_avx512(k));
}

void tqk_prepare_int_avx512(const struct tqi_rows *k, const float *row, void *query) {
    struct tqk_query_avx512 *q = query;
    struct tqk_fixed_avx512 fixed;
    q->bias = tqk_bias_avx512(k, tqk_split_query_avx512(k, row, q, &fixed));
    put_planes(k, &fixed, q->data);
    if (fixed.exponent == INT_MIN)
        clear_sketch(k, q);
    else if (k->format->sketch)
        tqk_prepare_sketch_avx512(k, fixed.rotated, fixed.exponent, q, q->data + planes_bytes(k));
}

/* ---- scores ------------------------------------------------------------------------------- */

/* 16 tokens of a page. */
struct block {
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    uint32_t word, words; /* the first of a lane, how many */
    size_t at;            /* of the tokens in a slab */
    size_t query_bytes;
    __m512 gain;
    struct tqk_target_avx512 target;
};

/* Few rows take a second pair of sums, so that a multiply need not wait for the one before. */
TQK_INLINE uint32_t chains(uint32_t rows) {
    return rows < 3 ? 2 : 1;
}

/* One lane of a word: 16 tokens by 8 dims (int8: 4). */
TQK_INLINE void multiply(const struct tqk_table_avx512 *table, enum tqk_source_avx512 source,
                         __m512i word, const uint8_t *query, size_t query_bytes, uint32_t rows,
                         __m512i *high, __m512i *low) {
    __m512i x[2];
    tqk_expand_avx512(table, source, rows, word, x);
    TQK_UNROLL
    for (uint32_t i = 0; i < tqk_operands_avx512(source); i++) {
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *q = query + r * query_bytes + 8 * i;
            uint32_t to = chains(rows) * r + i % chains(rows);
            high[to] = _mm512_dpbusd_epi32(high[to], x[i], tqk_spread32_avx512(q));
            low[to] = _mm512_dpbusd_epi32(low[to], x[i], tqk_spread32_avx512(q + 4));
        }
    }
}

/* Sums of rows and 16 keys, which lie in 4 lines. Everything the loop needs is a local: the
 * compiler then keeps addresses in general registers. */
TQK_INLINE void dot(const struct block *b, enum tqk_source_avx512 source, const uint8_t *query,
                    uint32_t rows, __m512i *high, __m512i *low) {
    const struct tqk_table_avx512 table = b->table;
    const size_t query_bytes = b->query_bytes;
    const uint32_t words = b->words;
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    struct tqk_codes_avx512 codes = b->codes;
    codes.lanes = 0xffff; /* lines of keys are whole */
    codes.at += plain ? b->at + b->word * codes.slab : 0;
    for (uint32_t w = 0; w < words; w++) {
        __m512i x[4];
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            x[i] = plain ? tqk_line_avx512(&codes, 0, i * 64)
                         : tqk_word_avx512(&codes, source, b->word + w, b->at + i * 64);
        }
        codes.at += plain ? codes.slab : 0;
        tqk_transpose_avx512(x);
        TQK_UNROLL
        for (uint32_t t = 0; t < 4; t++) {
            if (t < tqk_lines_avx512(source))
                tqk_ahead_line_avx512(codes.ahead, codes.far, t, &x[t]);
            multiply(&table, source, x[t], query + (size_t)t * 16, query_bytes, rows, high, low);
        }
        codes.ahead += codes.ahead_step;
        /* int8 takes two words for the 8 dims of a query's 16 bytes. */
        query += source != TQK_INT8 ? 64 : w % 2 ? 56 : 8;
    }
}

TQK_INLINE void score_rows(const struct block *b, enum tqk_source_avx512 source,
                           const uint8_t *queries, uint32_t first_row, uint32_t rows) {
    const uint8_t *q = queries + first_row * b->query_bytes;
    const size_t header = offsetof(struct tqk_query_avx512, data);
    __m512i high[8], low[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * chains(rows); i++) {
        high[i] = low[i] = _mm512_setzero_si512();
    }
    dot(b, source, q + header, rows, high, low);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx512 *query = (const void *)(q + r * b->query_bytes);
        uint32_t c = chains(rows) * r;
        if (chains(rows) == 2) {
            high[c] = _mm512_add_epi32(high[c], high[c + 1]);
            low[c] = _mm512_add_epi32(low[c], low[c + 1]);
        }
        __m512i x = _mm512_add_epi32(_mm512_slli_epi32(high[c], 8), low[c]);
        x = _mm512_add_epi32(x, _mm512_set1_epi32(query->bias));
        __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(query->scale));
        tqk_put_scores_avx512(&b->target, first_row + r, _mm512_mul_ps(s, b->gain));
    }
}

/* Functions of their own, so that each has all registers. */
typedef void rows_fn(const struct block *b, const uint8_t *queries, uint32_t first_row);
#define ROWS(name, source, rows)                                                                  \
    static __attribute__((noinline)) void name##_##rows(const struct block *b,                    \
                                                        const uint8_t *queries, uint32_t first) { \
        score_rows(b, source, queries, first, rows);                                              \
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

static void score(const struct tqi_rows *k, rows_fn *const by_rows[9], tqk_score_one_fn_avx512 *one,
                  const struct tqi_tile *tile, const uint8_t *queries, uint32_t n_rows,
                  uint32_t score_stride, float *scores, void *scratch) {
    const struct tqi_layout *l = &k->layout;
    if (n_rows == 1) {
        one(k, tile, queries, scores, scratch);
        return;
    }
    struct block b; /* set field by field: clearing it would show */
    b.codes = tqk_codes_of_k_avx512(l, tile);
    b.table = tqk_table_of_avx512(k, 128);
    b.words = l->dim_pad / (l->bits == 8 ? 16 : 32);
    b.query_bytes = tqk_query_bytes_avx512(k);
    uint32_t token = tile->first & ~15u;
    b.codes.ahead += (size_t)token * l->dim_pad / 8 * l->bits;
    for (; token < tile->last; token += 16) {
        const uint8_t *gains = tile->blob + l->gains + (size_t)token * 2;
        uint32_t group = l->group == 32 ? token / 32 : token / 16, rows;
        b.gain = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)gains));
        b.target = tqk_target_avx512(tile, scores, score_stride, token);
        b.word = group * b.words;
        b.at = (size_t)(token - group * l->group) * 16;
        b.codes.ahead_step = (size_t)64 * (l->bits == 8 ? 4 : l->bits);
        for (uint32_t r = 0; r < n_rows; r += rows) {
            rows = tqk_rows_together_avx512(n_rows - r);
            by_rows[rows](&b, queries, r);
            b.codes.ahead_step = 0;
        }
        b.codes.ahead += (size_t)2 * l->dim_pad * l->bits;
    }
}

#define SCORE(format)                                                                             \
    void tqk_score_##format##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                     const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                     void *scores, void *scratch) {                               \
        score(k, format, tqk_score_one_##format##_avx512, tile, queries, n_rows, score_stride,    \
              scores, scratch);                                                                   \
    }
SCORE(lm4)
SCORE(lm3)
SCORE(lm2)
SCORE(int8)

#define SCORE_SKETCH(format, codes)                                                         \
    void tqk_score_##format##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                     const void *queries, uint32_t n_rows, uint32_t stride, \
                                     void *scores, void *scratch) {                         \
        tqk_score_##codes##_avx512(k, tile, queries, n_rows, stride, scores, scratch);      \
        tqk_add_sketch_avx512(k, tile, queries, n_rows, stride, scores, planes_bytes(k));   \
    }
SCORE_SKETCH(lm3_qjl, lm3)
SCORE_SKETCH(lm2_qjl, lm2)
