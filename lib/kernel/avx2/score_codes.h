/* Stage score, integer formats: prepared queries times decoded keys. Written once for AVX2 and
 * AVX-VNNI, which multiply in their own ways (dot_avx2.h); a file includes this once, with
 * TQK_OF_LEVEL(name) for the names. */
#include "kernel/avx2/dot_avx2.h"

/* ---- queries ------------------------------------------------------------------------------ */

/* Integers of a row to the order of units: for word j of lane t, 8 dims, 16 bytes at 4 j + t. */
static void put_query(const struct tqi_rows *k, const int16_t *integers, char *to) {
    const uint32_t per_lane = k->layout.dim_pad / 32;
    const __m128i order = tqk_order_avx2(k, false);
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t j = 0; j < per_lane; j++, integers += 8) {
            __m128i x = _mm_loadu_si128((const __m128i *)(const void *)integers);
            _mm_storeu_si128((__m128i *)(void *)(to + (size_t)(4 * j + t) * 16),
                             _mm_shuffle_epi8(tqk_signed_planes_avx2(x), order));
        }
}

void TQK_OF_LEVEL(prepare)(const struct tqi_rows *k, const float *row, void *query) {
    struct tqk_query_avx2 *q = query;
    int16_t integers[TQK_DIM_LIMIT_AVX2];
    if (!tqk_is_integer(k)) {
        (tqk_is_polar(k) ? tqk_prepare_polar_avx2 : tqk_prepare_float_avx2)(k, row, query);
        return;
    }
    tqk_round_query_avx2(k, row, q, integers);
    put_query(k, integers, (char *)q->data);
}

/* ---- scores ------------------------------------------------------------------------------- */

enum { KEY_UNITS = 4 }; /* units of a word: those of its four lanes */

/* Up to 32 keys of a group. */
struct block {
    struct tqk_codes_avx2 codes;
    struct tqk_walk_avx2 walk; /* of the first 16 keys */
    const struct tqi_tile *tile;
    const uint8_t *gains;
    uint32_t token, tokens;
    size_t query_bytes;
    uint8_t *kept;
    float *scores;
    uint32_t stride;
};

/* 16 scores of every row, row_stride floats apart. */
TQK_INLINE void scale_scores(const char *queries, size_t query_bytes, uint32_t rows,
                             const uint8_t *gains, const __m256i *acc, float *to,
                             size_t row_stride) {
    TQK_UNROLL
    for (uint32_t c = 0; c < TQK_COLUMNS_AVX2; c++) {
        __m256 gain = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)gains + c));
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const struct tqk_query_avx2 *q = (const void *)(queries + r * query_bytes);
            __m256 x = _mm256_cvtepi32_ps(tqk_sum_avx2(acc, r, c));
            __m256 s = _mm256_mul_ps(x, _mm256_set1_ps(q->scale));
            _mm256_storeu_ps(to + r * row_stride + 8 * c, _mm256_mul_ps(s, gain));
        }
    }
}

/* Those of the 16 tokens from `token` on that are in the tile. */
static __attribute__((noinline)) void put_some(const struct block *b, uint32_t row, uint32_t rows,
                                               uint32_t token, const float *from) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < 16; i++)
            if (token + i >= b->tile->first && token + i < b->tile->last)
                b->scores[(size_t)(row + r) * b->stride + token + i - b->tile->first] =
                    from[16 * r + i];
}

/* Rows from `row` on and all keys of the block. */
TQK_INLINE void score_rows(struct block *b, enum tqk_units_avx2 units, uint32_t inner,
                           uint32_t bits, const char *queries, uint32_t row, uint32_t rows) {
    const char *q = queries + row * b->query_bytes;
    struct tqk_walk_avx2 walk = b->walk;
    uint8_t *kept = b->kept;
    for (uint32_t at = 0; at < b->tokens; at += 16) {
        const uint32_t token = b->token + at;
        const bool whole = token >= b->tile->first && token + 16 <= b->tile->last;
        __m256i acc[TQK_SUMS_AVX2];
        float some[16 * TQK_ROWS_AVX2];
        float *to = b->scores + (size_t)row * b->stride + (whole ? token - b->tile->first : 0);
        tqk_dot_avx2(&b->codes, &walk, inner, units, bits, false, &kept,
                     q + offsetof(struct tqk_query_avx2, data), b->query_bytes,
                     &((const struct tqk_query_avx2 *)(const void *)q)->bias, b->query_bytes, rows,
                     acc);
        scale_scores(q, b->query_bytes, rows, b->gains + (size_t)at * 2, acc, whole ? to : some,
                     whole ? b->stride : 16);
        if (!whole)
            put_some(b, row, rows, token, some);
    }
    if (units != TQK_NEXT)
        b->walk.ahead = walk.ahead;
}

typedef void rows_fn(struct block *b, const char *queries, uint32_t row);
#define ROWS(name, units, inner, bits, rows)                         \
    static __attribute__((noinline)) void name##_##units##_##rows(   \
        struct block *b, const char *queries, uint32_t row) {        \
        score_rows(b, TQK_##units, inner, bits, queries, row, rows); \
    }
TQK_FIRST_AVX2(lm4, KEY_UNITS, 4)
TQK_FIRST_AVX2(lm3, KEY_UNITS, 3)
TQK_FIRST_AVX2(lm2, KEY_UNITS, 2)
TQK_FIRST_AVX2(int8, KEY_UNITS, 8)
TQK_NEXT_AVX2(next, KEY_UNITS)

static void set_tokens(struct block *b, uint32_t token, uint32_t words) {
    const struct tqi_layout *l = b->codes.l;
    const uint32_t group = l->group == 32 ? token / 32 : token / 16;
    b->walk.word = group * words;
    b->walk.at = (size_t)(token - group * l->group) * 16;
    b->token = token;
    b->tokens = token % 32 == 0 && l->group == 32 && token + 16 < b->tile->last ? 32 : 16;
    b->gains = b->tile->blob + l->gains + (size_t)token * 2;
}

static void score(const struct tqi_rows *k, rows_fn *const by_rows[2][TQK_ROWS_AVX2 + 1],
                  const struct tqi_tile *tile, const char *queries, uint32_t n_rows,
                  uint32_t stride, float *scores, void *scratch) {
    const struct tqi_layout *l = &k->layout;
    const uint32_t slabs = l->bits == 8 ? 2 : 1, words = l->dim_pad / 32 * slabs;
    const uint32_t first = tqk_first_rows_avx2(n_rows);
    uint32_t token = tile->first & ~15u;
    struct block b; /* set field by field: clearing it would show */
    b.codes = tqk_codes_of_avx2(k, tile, TQK_KEY_BIAS_AVX2);
    b.walk.word_step = slabs;
    b.walk.second = 1;
    b.walk.outer = l->dim_pad / 32;
    b.walk.ahead = b.codes.at + l->codes_size + (size_t)token * l->dim_pad * l->bits / 8;
    b.walk.far = tqk_far_keys(l, tile);
    b.tile = tile;
    b.query_bytes = tqk_query_bytes_avx2(k);
    b.kept = scratch;
    b.scores = scores;
    b.stride = stride;
    for (; token < tile->last; token += b.tokens) {
        set_tokens(&b, token, words);
        by_rows[first < n_rows][first](&b, queries, 0);
        for (uint32_t r = first, rows; r < n_rows; r += rows) {
            rows = tqk_next_rows_avx2(n_rows - r);
            next[rows](&b, queries, r);
        }
    }
}

/* ---- whole groups ------------------------------------------------------------------------- */

/* See dot_avx2.h. A group is 32 keys. */
enum {
    WHOLE_QUERY = sizeof(struct tqk_query_avx2) + TQK_WHOLE_DIM_AVX2 * 2,
    WHOLE_KEPT = TQK_WHOLE_DIM_AVX2 * TQK_UNIT_AVX2 / 4 /* bytes of 16 keys */
};

struct whole {
    struct tqk_whole_avx2 block;
    const char *queries;
    const uint8_t *gains;
    float *scores;
    size_t stride;
};

/* Rows from `row` on and all keys of a group. */
TQK_INLINE void run_whole(struct whole *w, enum tqk_units_avx2 units, uint32_t bits, uint32_t row,
                          uint32_t rows) {
    const char *query = w->queries + (size_t)row * WHOLE_QUERY;
    const void *bias = query + offsetof(struct tqk_query_avx2, bias);
    const uint8_t *ahead = w->block.ahead;
    float *const to = w->scores + row * w->stride;
#pragma GCC unroll 1
    for (uint32_t at = 0; at < TQK_WHOLE_GROUP_AVX2; at += 16) {
        __m256i acc[TQK_SUMS_AVX2];
        tqk_dot_whole_avx2(&w->block, at * 16, units, bits, false,
                           w->block.kept + at / 16 * WHOLE_KEPT,
                           query + offsetof(struct tqk_query_avx2, data), WHOLE_QUERY, bias,
                           WHOLE_QUERY, rows, &ahead, acc);
        scale_scores(query, WHOLE_QUERY, rows, w->gains + (size_t)at * 2, acc, to + at, w->stride);
    }
    if (units != TQK_NEXT)
        w->block.ahead = ahead;
}

TQK_WHOLES_AVX2

/* (Queries have WHOLE_QUERY bytes where there is no sketch, which 4 and 8 bits never have.) */
static bool is_whole(const struct tqi_rows *k, const struct tqi_tile *tile) {
    return tqk_is_whole_avx2(&k->layout) && tile->first % TQK_WHOLE_GROUP_AVX2 == 0 &&
           tile->last % TQK_WHOLE_GROUP_AVX2 == 0;
}

static void score_groups(const struct tqi_rows *k, whole_fn *const by_rows[2][TQK_ROWS_AVX2 + 1],
                         const struct tqi_tile *tile, const char *queries, uint32_t n_rows,
                         uint32_t stride, float *scores, void *scratch) {
    const struct tqi_layout *l = &k->layout;
    const size_t group = (size_t)TQK_WHOLE_DIM_AVX2 * TQK_WHOLE_GROUP_AVX2 * l->bits / 8;
    struct whole w; /* set field by field: clearing it would show */
    w.block.table = tqk_codes_of_avx2(k, tile, TQK_KEY_BIAS_AVX2).table;
    w.block.codes = tile->blob + l->codes + tile->first / TQK_WHOLE_GROUP_AVX2 * group;
    w.block.ahead = w.block.codes + l->codes_size;
    w.block.far = tqk_far_keys(l, tile);
    w.block.kept = scratch;
    w.queries = queries;
    w.gains = tile->blob + l->gains + (size_t)tile->first * 2;
    w.scores = scores;
    w.stride = stride;
    for (uint32_t token = tile->first; token < tile->last; token += TQK_WHOLE_GROUP_AVX2) {
        run_all_rows(by_rows, &w, n_rows);
        w.block.codes += group;
        w.gains += (size_t)TQK_WHOLE_GROUP_AVX2 * 2;
        w.scores += TQK_WHOLE_GROUP_AVX2;
    }
}

#define SCORE(format)                                                                              \
    void TQK_OF_LEVEL(score_##format)(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                      const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                      void *scores, void *scratch) {                               \
        score(k, format, tile, queries, n_rows, score_stride, scores, scratch);                    \
    }
#define SCORE_WHOLE(format)                                                                        \
    void TQK_OF_LEVEL(score_##format)(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                      const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                      void *scores, void *scratch) {                               \
        if (is_whole(k, tile))                                                                     \
            score_groups(k, whole_##format, tile, queries, n_rows, score_stride, scores, scratch); \
        else                                                                                       \
            score(k, format, tile, queries, n_rows, score_stride, scores, scratch);                \
    }
SCORE_WHOLE(lm4)
SCORE(lm3)
SCORE(lm2)
SCORE_WHOLE(int8)

#define SCORE_SKETCH(format, codes)                                                          \
    void TQK_OF_LEVEL(score_##format)(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                      const void *queries, uint32_t n_rows, uint32_t stride, \
                                      void *scores, void *scratch) {                         \
        TQK_OF_LEVEL(score_##codes)(k, tile, queries, n_rows, stride, scores, scratch);      \
        tqk_add_codes_sketch_avx2(k, tile, queries, n_rows, stride, scores);                 \
    }
SCORE_SKETCH(lm3_qjl, lm3)
SCORE_SKETCH(lm2_qjl, lm2)
