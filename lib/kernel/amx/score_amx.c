/* Stage score on tiles, integer formats. Four lines of keys transposed in pieces of 16 bytes and
 * decoded are two rows of a right tile: 4 dims of 16 tokens each. */
#include <limits.h>
#include <string.h>

#include "kernel/amx/tiles_amx.h"
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
};

/* Where the words of 16 tokens are. */
struct walk {
    struct tqk_codes_avx512 codes;
    uint32_t word;
    size_t at; /* of the tokens in a slab */
};

TQK_INLINE struct walk walk_of(const struct job *j, enum tqk_source_avx512 source, uint32_t token) {
    const struct tqi_layout *l = j->codes.l;
    const uint32_t group = l->group == 32 ? token / 32 : token / 16;
    struct walk w = {.codes = j->codes, .word = group * j->words};
    w.at = (size_t)(token - group * l->group) * 16;
    w.codes.lanes = 0xffff; /* lines of keys are whole */
    w.codes.ahead += (size_t)(token / 16) * j->words * tqk_lines_avx512(source) * 64;
    if (source == TQK_LM4 || source == TQK_INT8) /* a slab a word */
        w.codes.at += w.at + w.word * w.codes.slab;
    return w;
}

/* The next words of 16 tokens to a right tile. Rows behind the last dim keep what they hold:
 * queries are 0 there. */
TQK_INLINE void decode(struct walk *at, const struct tqk_table_avx512 *table,
                       enum tqk_source_avx512 source, uint32_t words, uint8_t *to) {
    const bool plain = source == TQK_LM4 || source == TQK_INT8;
    for (uint32_t w = 0; w < words; w++) {
        __m512i x[4], y[2];
        if (plain) {
            const uint8_t *from = at->codes.at;
            const uint8_t *line[4] = {from, from + 64, from + 128, from + 192};
            tqk_load_transposed_avx512(line, x);
            at->codes.at += at->codes.slab;
        } else {
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = tqk_word_avx512(&at->codes, source, at->word, at->at + i * 64);
            }
            tqk_transpose_avx512(x);
            at->word++;
        }
        TQK_UNROLL
        for (uint32_t t = 0; t < 4; t++) {
            if (t < tqk_lines_avx512(source))
                tqk_ahead_rows_avx512(&at->codes, t, tqk_lines_avx512(source), &x[t]);
            tqk_expand_avx512(table, source, 1, x[t], y);
            _mm512_store_si512(to + t * 2 * TQK_LINE_AMX, y[0]);
            if (tqk_operands_avx512(source) == 2)
                _mm512_store_si512(to + (t * 2 + 1) * TQK_LINE_AMX, y[1]);
        }
        at->codes.ahead += (size_t)64 * tqk_lines_avx512(source);
        /* Words of int8 are the first and the second half of eight dims in turn. */
        to += source != TQK_INT8 ? 8 * TQK_LINE_AMX : w % 2 ? 7 * TQK_LINE_AMX : TQK_LINE_AMX;
    }
}

/* Words of a lane in a right tile. */
TQK_INLINE uint32_t words_of_tile(enum tqk_source_avx512 source) {
    return source == TQK_INT8 ? 4 : 2;
}

/* Sums of 16 tokens of row r of a tile, without the gains. */
TQK_INLINE __m512 product_of(const struct tqk_query_avx512 *q, const uint8_t *sums, uint32_t r) {
    __m512i x = _mm512_add_epi32(tqk_sums_of_amx(sums, r), _mm512_set1_epi32(q->bias));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(q->scale));
}

/* The same to scores. */
TQK_INLINE void put_row(const struct tqk_target_avx512 *target, __m512 gain,
                        const struct tqk_query_avx512 *q, const uint8_t *sums, uint32_t r,
                        uint32_t to) {
    tqk_put_scores_avx512(target, to, _mm512_mul_ps(product_of(q, sums, r), gain));
}

static void put(const void *job, uint32_t column, uint32_t first, uint32_t rows,
                const uint8_t *sums) {
    const struct job *j = job;
    const uint32_t token = j->token + column * 16;
    const __m256i *gains = (const void *)(j->gains + (size_t)token * 2);
    const __m512 gain = _mm512_cvtph_ps(_mm256_loadu_si256(gains));
    const struct tqk_target_avx512 target =
        tqk_target_avx512(j->tile, j->scores, j->score_stride, token);
    const uint8_t *queries = j->queries + first * j->query_bytes;
    uint32_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const void *q = queries + (r + i) * j->query_bytes;
            put_row(&target, gain, q, sums, r + i, first + r + i);
        }
    }
    for (; r < rows; r++)
        put_row(&target, gain, (const void *)(queries + r * j->query_bytes), sums, r, first + r);
}

/* ---- up to 8 query rows ------------------------------------------------------------------- */

enum { LEFT_TILES = 3 }; /* steps whose queries stay in tiles */

TQK_INLINE void multiply_step(uint32_t step, const uint8_t *left, size_t stride, bool stay) {
    const bool is_signed = true;
    if (stay && step == 1) {
        TQK_TILE_MULTIPLY(3, 1, 6);
    } else if (stay && step == 2) {
        TQK_TILE_MULTIPLY(3, 2, 6);
    } else {
        if (!stay)
            TQK_TILE_LOAD(5, left + (size_t)step * TQK_LINE_AMX, stride);
        TQK_TILE_MULTIPLY(3, 5, 6);
    }
}

TQK_INLINE void load_queries(const struct tqk_product_amx *p) {
    TQK_TILE_LOAD(5, p->left, p->stride);
    if (p->steps > 1)
        TQK_TILE_LOAD(1, p->left + TQK_LINE_AMX, p->stride);
    if (p->steps > 2)
        TQK_TILE_LOAD(2, p->left + (size_t)2 * TQK_LINE_AMX, p->stride);
}

/* Columns whose sums are complete, have left their tile and have become scores. */
struct progress {
    uint32_t summed, stored, taken;
};

/* What follows when step s of the next column is decoded, which is right tile `index`. */
TQK_INLINE void follow(const struct job *j, const struct tqk_product_amx *p, bool stay,
                       uint32_t steps, uint32_t index, uint32_t s, struct progress *at) {
    const uint32_t before = s ? s - 1 : steps - 1;
    if (s == 0 && at->taken < at->stored) {
        put(j, at->taken, 0, p->n_rows, p->sums + at->taken % 2 * TQK_TILE_AMX);
        at->taken++;
    }
    if ((s == 1 || steps == 1) && at->stored < at->summed)
        TQK_TILE_STORE(3, p->sums + at->stored++ % 2 * TQK_TILE_AMX);
    if (index == 0)
        return;
    if (before == 0)
        TQK_TILE_ZERO(3);
    tqk_load_right_amx(p, index - 1);
    multiply_step(before, p->left, p->stride, stay);
    at->summed += before + 1 == steps;
}

/* steps and words: those of p and j, which most calls know when they are compiled. */
TQK_INLINE void score_few(const struct job *j, const struct tqk_product_amx *p,
                          enum tqk_source_avx512 source, uint32_t steps, uint32_t words) {
    const struct tqk_table_avx512 table = j->table;
    const uint32_t per_tile = words_of_tile(source);
    const uint32_t rest = words - (steps - 1) * per_tile; /* words of the last step */
    const bool stay = steps <= LEFT_TILES;
    struct progress done = {0, 0, 0};
    uint32_t index = 0;
    if (stay)
        load_queries(p);
    for (uint32_t c = 0; c < p->columns; c++) {
        struct walk at = walk_of(j, source, j->token + c * 16);
        for (uint32_t s = 0; s < steps; s++, index++) {
            uint8_t *right = p->right + index % 2 * TQK_TILE_AMX;
            if (s + 1 < steps || rest == per_tile)
                decode(&at, &table, source, per_tile, right);
            else
                decode(&at, &table, source, rest, right);
            follow(j, p, stay, steps, index, s, &done);
        }
    }
    follow(j, p, stay, steps, index, 0, &done);
    for (; done.stored < done.summed; done.stored++)
        TQK_TILE_STORE(3, p->sums + done.stored % 2 * TQK_TILE_AMX);
    for (; done.taken < done.stored; done.taken++)
        put(j, done.taken, 0, p->n_rows, p->sums + done.taken % 2 * TQK_TILE_AMX);
}

/* ---- whole pages of 64 tokens, head dim 128, 3 to 8 rows ------------------------------------ */

enum { PAGE_TOKENS = 64, PAGE_DIM = 128, PAGE_STEPS = PAGE_DIM / TQK_LINE_AMX };

/* All that such a call needs, known when it is compiled or kept in registers: what compilers make
 * of the general form computes addresses of every row again and loses its tables to calls. */
struct page {
    const struct tqi_rows *k;
    const struct tqi_tile *tile;
    const uint8_t *queries;
    float *scores; /* rows PAGE_TOKENS apart */
    uint8_t *scratch;
    uint32_t n_rows;
};

TQK_INLINE const struct tqk_query_avx512 *query_of_page(const void *queries, uint32_t r) {
    const size_t bytes = 2 * (sizeof(struct tqk_query_avx512) + PAGE_DIM);
    return (const void *)((const uint8_t *)queries + r * bytes);
}

/* Scores below 2^31 times a gain times LIMIT need not be kept in binary32. */
static bool is_page(const struct tqi_layout *l, const struct tqi_tile *tile, const void *queries,
                    uint32_t n_rows, uint32_t score_stride) {
    const float limit = 0x1p80f;
    if (l->dim_pad != PAGE_DIM || l->tokens != PAGE_TOKENS || tile->first != 0 ||
        tile->last != PAGE_TOKENS || score_stride != PAGE_TOKENS || n_rows < 3 ||
        n_rows > TQK_BLOCK_ROWS_AMX)
        return false;
    for (uint32_t r = 0; r < n_rows; r++)
        if (!(query_of_page(queries, r)->scale <= limit))
            return false;
    return true;
}

/* put() where nothing has to be kept in binary32. */
TQK_INLINE void put_page(const struct page *p, uint32_t rows, uint32_t column,
                         const uint8_t *sums) {
    const uint8_t *gains = p->tile->blob + p->k->layout.gains + (size_t)column * 32;
    const __m512 gain = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)gains));
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        if (r >= p->n_rows)
            return;
        float *to = p->scores + (size_t)r * PAGE_TOKENS + (size_t)column * 16;
        __m512 s = product_of(query_of_page(p->queries, r), sums, r);
        _mm512_storeu_ps(to, _mm512_mul_ps(s, gain));
    }
}

TQK_INLINE void multiply_page(const uint8_t *right, uint32_t step) {
    const bool is_signed = true;
    TQK_TILE_LOAD(6, right + step * TQK_TILE_AMX, TQK_LINE_AMX);
    if (step == 0) {
        TQK_TILE_ZERO(3);
        TQK_TILE_MULTIPLY(3, 5, 6);
    } else {
        TQK_TILE_MULTIPLY(3, 1, 6);
    }
}

/* The stream of score_few(). every: as in struct tqk_codes_avx512. */
TQK_INLINE void score_page(const struct page *p, enum tqk_source_avx512 source, uint32_t rows,
                           bool every) {
    static const struct tqi_layout layout = {.words = 8}; /* where words of 3 and 2 bits end */
    const struct tqk_table_avx512 table = tqk_table_of_avx512(p->k, 0);
    const uint32_t words = words_of_tile(source), columns = PAGE_TOKENS / 16;
    const struct tqk_query_avx512 *q = (const void *)p->queries;
    const size_t plane = sizeof *q + PAGE_DIM;
    uint8_t *const sums = p->scratch, *const right = sums + tqk_room_amx(rows, PAGE_STEPS).right;
    struct tqk_codes_avx512 codes = tqk_codes_of_k_rows_avx512(&p->k->layout, p->tile);
    codes.l = &layout;
    codes.slab = (size_t)TQI_GROUP_MAX * 16;
    codes.lanes = 0xffff;
    codes.every = every;
    TQK_TILE_LOAD(5, q->data, plane);
    TQK_TILE_LOAD(1, q->data + TQK_LINE_AMX, plane);
    for (uint32_t c = 0; c < columns; c++) {
        struct walk at = {codes, c / 2 * PAGE_STEPS * words, (size_t)(c % 2) * 256};
        at.codes.ahead += (size_t)c * PAGE_STEPS * words * tqk_lines_avx512(source) * 64;
        if (source == TQK_LM4 || source == TQK_INT8)
            at.codes.at += at.at + at.word * codes.slab;
        decode(&at, &table, source, words, right);
        if (c > 1)
            put_page(p, rows, c - 2, sums + c % 2 * TQK_TILE_AMX);
        if (c > 0)
            multiply_page(right, 1);
        decode(&at, &table, source, words, right + TQK_TILE_AMX);
        if (c > 0)
            TQK_TILE_STORE(3, sums + (c - 1) % 2 * TQK_TILE_AMX);
        multiply_page(right, 0);
    }
    put_page(p, rows, columns - 2, sums);
    multiply_page(right, 1);
    TQK_TILE_STORE(3, sums + TQK_TILE_AMX);
    put_page(p, rows, columns - 1, sums + TQK_TILE_AMX);
}

/* Functions of their own, so that each has all registers: for 4, 8, and others. */
typedef void page_fn(const struct page *p);
#define PAGE(name, rows, n, source, every)                                                \
    static __attribute__((noinline)) void name(const struct page *of) {                   \
        const struct page p = {of->k, of->tile, of->queries, of->scores, of->scratch, n}; \
        score_page(&p, source, rows, every);                                              \
    }
#define PAGES(format, source, FOUR, MORE)                                                \
    FOUR(PAGE, page_fn, format##_4, 4, 4, source)                                        \
    MORE(PAGE, page_fn, format##_some, 8, of->n_rows, source)                            \
    MORE(PAGE, page_fn, format##_8, 8, 8, source)                                        \
    static page_fn *const *const page_##format[] = {by_##format##_4, by_##format##_some, \
                                                    by_##format##_8};
PAGES(lm4, TQK_LM4, TQK_ALL_AMX, TQK_BOTH_AMX)
PAGES(lm3, TQK_LM3, TQK_BOTH_AMX, TQK_BOTH_AMX)
PAGES(lm2, TQK_LM2, TQK_BOTH_AMX, TQK_BOTH_AMX)
PAGES(int8, TQK_INT8, TQK_ALL_AMX, TQK_ALL_AMX)

/* ---- any number ---------------------------------------------------------------------------- */

/* The kernels of a format: functions of their own, so that each has all registers. */
struct kernels {
    void (*few)(const struct job *j, const struct tqk_product_amx *p);
    tqk_make_fn_amx *decode;
};

static void score(const struct tqi_rows *k, const struct kernels *by, const struct tqi_tile *tile,
                  const uint8_t *queries, uint32_t n_rows, uint32_t score_stride, float *scores,
                  uint8_t *scratch) {
    const struct tqi_layout *l = &k->layout;
    const struct tqk_room_amx room = tqk_room_amx(n_rows, tqk_dim_tiles_amx(l));
    struct job j; /* set field by field: clearing it would show */
    j.codes = tqk_codes_of_k_rows_avx512(l, tile);
    j.codes.every = tqk_every_line_amx(l, tile, n_rows);
    j.table = tqk_table_of_avx512(k, 0);
    j.words = l->dim_pad / (l->bits == 8 ? 16 : 32);
    j.queries = queries;
    j.query_bytes = tqk_query_bytes_amx(k);
    j.tile = tile;
    j.gains = tile->blob + l->gains;
    j.scores = scores;
    j.score_stride = score_stride;
    j.token = tile->first & ~15u;
    struct tqk_product_amx p = {.left = queries + offsetof(struct tqk_query_avx512, data),
                                .stride = j.query_bytes / 2,
                                .is_signed = true,
                                .n_rows = n_rows,
                                .steps = tqk_dim_tiles_amx(l),
                                .columns = (tile->last - j.token + 15) / 16,
                                .sums = scratch,
                                .right = scratch + room.right};
    if (n_rows <= TQK_BLOCK_ROWS_AMX)
        by->few(&j, &p);
    else
        tqk_product_amx(&p, by->decode, put, &j);
}

#define SCORE(format, source)                                                                  \
    static void few_##format(const struct job *j, const struct tqk_product_amx *p) {           \
        const uint32_t words = 2 * words_of_tile(source); /* of head dim 128 */                \
        if (p->steps == 2 && j->words == words)                                                \
            score_few(j, p, source, 2, words);                                                 \
        else                                                                                   \
            score_few(j, p, source, p->steps, j->words);                                       \
    }                                                                                          \
    static void decode_##format(const void *job, uint32_t column, uint8_t *to) {               \
        const struct job *j = job;                                                             \
        struct walk at = walk_of(j, source, j->token + column * 16);                           \
        decode(&at, &j->table, source, j->words, to);                                          \
    }                                                                                          \
    void tqk_score_##format##_amx(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                  const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                  void *scores, void *scratch) {                               \
        static const struct kernels by = {few_##format, decode_##format};                      \
        const struct page p = {k, tile, queries, scores, scratch, n_rows};                     \
        if (is_page(&k->layout, tile, queries, n_rows, score_stride))                          \
            page_##format[n_rows == 8 ? 2 : n_rows != 4]                                       \
                         [tqk_every_line_amx(&k->layout, tile, n_rows)](&p);                   \
        else                                                                                   \
            score(k, &by, tile, queries, n_rows, score_stride, scores, scratch);               \
    }
SCORE(lm4, TQK_LM4)
SCORE(lm3, TQK_LM3)
SCORE(lm2, TQK_LM2)
SCORE(int8, TQK_INT8)
