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

/* 16 tokens of a page, or 2 x 16. */
struct block {
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    uint32_t word, words; /* the first of a lane, how many */
    size_t at;            /* of the tokens in a slab */
    size_t query_bytes;
    __m512 gain[2];
    struct tqk_target_avx512 target[2];
};

/* One lane of a word: n times 16 tokens by 8 dims (int8: 4). */
TQK_INLINE void multiply(const struct tqk_table_avx512 *table, enum tqk_source_avx512 source,
                         const __m512i *words, const uint8_t *query, size_t query_bytes,
                         uint32_t rows, uint32_t n, __m512i *high, __m512i *low) {
    __m512i x[2][2];
    TQK_UNROLL
    for (uint32_t c = 0; c < n; c++) {
        tqk_expand_avx512(table, source, rows, words[c], x[c]);
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < tqk_operands_avx512(source); i++) {
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *q = query + r * query_bytes + 8 * i;
            const __m512i h = tqk_spread32_avx512(q), l = tqk_spread32_avx512(q + 4);
            TQK_UNROLL
            for (uint32_t c = 0; c < n; c++) {
                high[n * r + c] = _mm512_dpbusd_epi32(high[n * r + c], x[c][i], h);
                low[n * r + c] = _mm512_dpbusd_epi32(low[n * r + c], x[c][i], l);
                if (n == 2) {
                    TQK_KEEP(high[n * r + c]);
                    TQK_KEEP(low[n * r + c]);
                }
            }
        }
    }
}

/* Words of 16 keys, half of their lanes. */
TQK_INLINE void load_half(const uint8_t *at, uint32_t half, __m512i x[2]) {
    const uint8_t *line[4] = {at, at + 64, at + 128, at + 192};
    tqk_load_half_avx512(line, half, x);
}

/* Sums of rows and n times 16 keys, which lie in 4 lines each. Everything the loop needs is a
 * local: the compiler then keeps addresses in general registers. */
TQK_INLINE void dot(const struct block *b, enum tqk_source_avx512 source, const uint8_t *query,
                    uint32_t rows, uint32_t n, __m512i *high, __m512i *low) {
    const struct tqk_table_avx512 table = b->table;
    const size_t query_bytes = b->query_bytes;
    const uint32_t words = b->words, lines = n * tqk_lines_avx512(source);
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    struct tqk_codes_avx512 codes = b->codes;
    codes.lanes = 0xffff; /* lines of keys are whole */
    codes.at += plain ? b->at + b->word * codes.slab : 0;
    for (uint32_t w = 0; w < words; w++) {
        __m512i x[2][4];
        if (!plain)
            TQK_KEEP_ADDRESS(query); /* compilers else keep one for every row and operand */
        if (!plain) {
            TQK_UNROLL
            for (uint32_t i = 0; i < 4 * n; i++) {
                x[i / 4][i % 4] = tqk_word_avx512(&codes, source, b->word + w, b->at + i * 64);
            }
            tqk_transpose_avx512(x[0]);
            if (n == 2)
                tqk_transpose_avx512(x[1]);
        }
        TQK_UNROLL
        for (uint32_t t = 0; t < 4; t++) {
            if (plain && t % 2 == 0) {
                load_half(codes.at, t / 2, x[0] + t);
                if (n == 2)
                    load_half(codes.at + 256, t / 2, x[1] + t);
            }
            __m512i lane[2] = {x[0][t], n == 2 ? x[1][t] : x[0][t]};
            for (uint32_t i = 0; i < n; i++) {
                if (t * n + i < lines)
                    tqk_ahead_rows_avx512(&codes, t * n + i, tqk_lines_avx512(source), &lane[i]);
            }
            multiply(&table, source, lane, query + (size_t)t * 16, query_bytes, rows, n, high, low);
        }
        codes.ahead += codes.ahead_step * n;
        codes.at += plain ? codes.slab : 0;
        /* int8 takes two words for the 8 dims of a query's 16 bytes. */
        query += source != TQK_INT8 ? 64 : w % 2 ? 56 : 8;
    }
}

TQK_INLINE void score_rows(const struct block *b, enum tqk_source_avx512 source,
                           const uint8_t *queries, uint32_t first_row, uint32_t rows, uint32_t n) {
    const uint8_t *q = queries + first_row * b->query_bytes;
    const size_t header = offsetof(struct tqk_query_avx512, data);
    __m512i high[8], low[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * n; i++) {
        high[i] = low[i] = _mm512_setzero_si512();
    }
    dot(b, source, q + header, rows, n, high, low);
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * n; i++) {
        const uint32_t r = i / n, c = i % n;
        const struct tqk_query_avx512 *query = (const void *)(q + r * b->query_bytes);
        __m512i x = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
        x = _mm512_add_epi32(x, _mm512_set1_epi32(query->bias));
        __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(query->scale));
        tqk_put_scores_avx512(&b->target[c], first_row + r, _mm512_mul_ps(s, b->gain[c]));
    }
}

/* Functions of their own, so that each has all registers. */
typedef void rows_fn(const struct block *b, const uint8_t *queries, uint32_t first_row);
#define ROWS(name, source, rows, n)                                      \
    static __attribute__((noinline)) void name##_##rows##_##n(           \
        const struct block *b, const uint8_t *queries, uint32_t first) { \
        score_rows(b, source, queries, first, rows, n);                  \
    }
/* By rows, for 16 tokens and for 2 x 16, as registers allow: a multiply need not wait for the one
 * before then, and queries are loaded less often. */
#define BLOCKS(name, source)                                                                  \
    ROWS(name, source, 1, 1)                                                                  \
    ROWS(name, source, 2, 1)                                                                  \
    ROWS(name, source, 3, 1)                                                                  \
    ROWS(name, source, 4, 1)                                                                  \
    ROWS(name, source, 8, 1)                                                                  \
    ROWS(name, source, 1, 2)                                                                  \
    ROWS(name, source, 2, 2)                                                                  \
    ROWS(name, source, 3, 2)                                                                  \
    ROWS(name, source, 4, 2)                                                                  \
    static rows_fn *const name[2][9] = {                                                      \
        {NULL, name##_1_1, name##_2_1, name##_3_1, name##_4_1, NULL, NULL, NULL, name##_8_1}, \
        {NULL, name##_1_2, name##_2_2, name##_3_2, name##_4_2, NULL, NULL, NULL, NULL}};
BLOCKS(lm4, TQK_LM4)
BLOCKS(lm3, TQK_LM3)
BLOCKS(lm2, TQK_LM2)
BLOCKS(int8, TQK_INT8)

static void set_tokens(struct block *b, const struct tqi_tile *tile, uint32_t token, uint32_t n,
                       float *scores, uint32_t stride) {
    const struct tqi_layout *l = b->codes.l;
    const uint32_t group = l->group == 32 ? token / 32 : token / 16;
    b->word = group * b->words;
    b->at = (size_t)(token - group * l->group) * 16;
    for (uint32_t c = 0; c < n; c++) {
        const __m256i *gains = (const void *)(tile->blob + l->gains + (size_t)(token + 16 * c) * 2);
        b->gain[c] = _mm512_cvtph_ps(_mm256_loadu_si256(gains));
        b->target[c] = tqk_target_avx512(tile, scores, stride, token + 16 * c);
    }
}

static void score(const struct tqi_rows *k, rows_fn *const by_rows[2][9],
                  tqk_score_one_fn_avx512 *one, const struct tqi_tile *tile, const uint8_t *queries,
                  uint32_t n_rows, uint32_t score_stride, float *scores, void *scratch) {
    const struct tqi_layout *l = &k->layout;
    uint32_t token = tile->first & ~15u, n;
    struct block b; /* set field by field: clearing it would show */
    if (n_rows == 1) {
        one(k, tile, queries, scores, scratch);
        return;
    }
    b.codes = tqk_codes_of_k_rows_avx512(l, tile);
    b.table = tqk_table_of_avx512(k, 128);
    b.words = l->dim_pad / (l->bits == 8 ? 16 : 32);
    b.query_bytes = tqk_query_bytes_avx512(k);
    b.codes.ahead += (size_t)token * l->dim_pad / 8 * l->bits;
    for (; token < tile->last; token += 16 * n) {
        n = n_rows < 8 && token % 32 == 0 && token + 16 < tile->last && l->group == 32 ? 2 : 1;
        set_tokens(&b, tile, token, n, scores, score_stride);
        b.codes.ahead_step = (size_t)64 * (l->bits == 8 ? 4 : l->bits);
        for (uint32_t r = 0, rows; r < n_rows; r += rows) {
            rows = tqk_rows_together_avx512(n_rows - r);
            by_rows[n - 1][rows](&b, queries, r);
            b.codes.ahead_step = 0;
        }
        b.codes.ahead += (size_t)2 * l->dim_pad * l->bits * n;
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
