/* Stage accumulate on tiles, integer formats. Four lines of 4 dims by 4 octets of tokens
 * transposed in pieces of 16 bytes and decoded are rows of a right tile: 4 tokens of 16 dims
 * each. Weights are those of AVX-512, with a scale for every 64 tokens, which are the steps of a
 * tile. */
#include "kernel/amx/tiles_amx.h"
#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

/* What the dims of a block of tokens share. */
struct job {
    struct tqk_codes_avx512 codes;
    struct tqk_table_avx512 table;
    const struct tqk_weighing_avx512 *weighing;
    const struct tqk_weights_avx512 *weights;
    char *states;
    size_t state_bytes;
    uint32_t per_lane;                 /* words of a lane */
    uint32_t first_group, groups;      /* of tokens */
    struct tqk_quad_walk_avx512 *walk; /* to the dims of the next column */
};

/* The next 16 dims to a right tile. Rows of groups that a short page lacks keep what they hold:
 * their weights are 0. whole: all pages but those of 16 tokens. */
TQK_INLINE void decode(const struct job *j, const struct tqk_table_avx512 *table,
                       enum tqk_source_avx512 source, bool whole, struct tqk_codes_avx512 codes,
                       struct tqk_quad_walk_avx512 *walk, uint8_t *to) {
    const struct tqk_quads_avx512 q = tqk_next_quads_avx512(walk);
    const uint32_t halves = 2 / tqk_operands_avx512(source), octets = whole ? 4 : 2;
    const uint32_t per_lane = j->per_lane, groups = j->groups * halves;
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    uint32_t word = j->first_group * halves * per_lane;
    const uint8_t *from[4];
    size_t on = 0;
    codes.lanes = whole ? 0xffff : 0x00ff;
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        from[i] = codes.at + q.at[i] + (plain ? (word + q.word[i]) * codes.slab : 0);
        TQK_KEEP_ADDRESS(from[i]);
    }
    for (uint32_t g = 0; g < groups; g++) {
        __m512i x[4], y[2];
        if (plain && whole) {
            const uint8_t *line[4] = {from[0] + on, from[1] + on, from[2] + on, from[3] + on};
            tqk_load_transposed_avx512(line, x);
        } else {
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = plain ? _mm512_maskz_loadu_epi32(0x00ff, from[i] + on)
                             : tqk_word_avx512(&codes, source, word + q.word[i], q.at[i]);
            }
            tqk_transpose_avx512(x);
        }
        TQK_UNROLL
        for (uint32_t t = 0; t < octets; t++) {
            if (t < tqk_lines_avx512(source))
                tqk_ahead_rows_avx512(&codes, t, tqk_lines_avx512(source), &x[t]);
            tqk_expand_avx512(table, source, 1, x[t], y);
            _mm512_store_si512(to + t * 2 * TQK_LINE_AMX, y[0]);
            if (halves == 1)
                _mm512_store_si512(to + (t * 2 + 1) * TQK_LINE_AMX, y[1]);
        }
        codes.ahead += codes.ahead_step;
        word += per_lane;
        on += per_lane * codes.slab;
        to += halves == 1 ? octets * 2 * TQK_LINE_AMX
              : g % 2     ? (octets * 2 - 1) * TQK_LINE_AMX
                          : TQK_LINE_AMX;
    }
}

/* Adds the sums of 16 dims of row r of a tile to the state of row `to`. */
TQK_INLINE void join_row(const struct job *j, uint32_t column, const uint8_t *sums, uint32_t r,
                         uint32_t to) {
    struct tqk_state_avx512 *s = (void *)(j->states + to * j->state_bytes);
    float *acc = s->acc + (size_t)column * 16;
    __m512i half = _mm512_set1_epi32(j->weights->half[to]);
    __m512 x = _mm512_cvtepi32_ps(_mm512_add_epi32(tqk_sums_of_amx(sums, r), half));
    __m512 scale = _mm512_set1_ps(j->weights->scale[to]);
    _mm512_storeu_ps(acc, _mm512_fmadd_ps(x, scale, _mm512_loadu_ps(acc)));
}

TQK_INLINE void join(const void *job, uint32_t column, uint32_t first, uint32_t rows,
                     const uint8_t *sums) {
    uint32_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            join_row(job, column, sums, r + i, first + r + i);
        }
    }
    for (; r < rows; r++)
        join_row(job, column, sums, r, first + r);
}

/* ---- up to 8 query rows ------------------------------------------------------------------- */

/* What the stream of a block needs: the codes of the next column. */
struct stream {
    struct tqk_codes_avx512 codes;
    struct tqk_quad_walk_avx512 walk;
    size_t ahead_bytes; /* of a column */
};

TQK_INLINE struct stream stream_of(const struct job *j, enum tqk_source_avx512 source) {
    struct stream s = {.codes = j->codes, .walk = *j->walk};
    s.ahead_bytes = j->groups * 2 / tqk_operands_avx512(source) * j->codes.ahead_step;
    return s;
}

TQK_INLINE void next_column(const struct job *j, const struct tqk_product_amx *p,
                            const struct tqk_table_avx512 *table, enum tqk_source_avx512 source,
                            struct stream *s, uint32_t column) {
    decode(j, table, source, true, s->codes, &s->walk, p->right + column % 2 * TQK_TILE_AMX);
    s->codes.ahead += s->ahead_bytes;
}

/* Five to eight rows: a tile of sums a column. The weights are loaded as late as can be, since
 * their stores must have ended. */
TQK_INLINE void accumulate_plain(const struct job *j, const struct tqk_product_amx *p,
                                 enum tqk_source_avx512 source) {
    const struct tqk_table_avx512 table = j->table;
    const bool is_signed = false;
    const uint32_t n = p->columns, rows = p->n_rows;
    uint8_t *const sums = p->sums;
    struct stream s = stream_of(j, source);
    for (uint32_t c = 0; c < n + 1; c++) {
        if (c < n)
            next_column(j, p, &table, source, &s, c);
        if (c == 0)
            tqk_end_weights_avx512(j->weighing);
        if (c > 2)
            join(j, c - 3, 0, rows, sums + (c - 3) % 2 * TQK_TILE_AMX);
        if (c > 1)
            TQK_TILE_STORE(3, sums + c % 2 * TQK_TILE_AMX);
        if (c == 1)
            TQK_TILE_LOAD(5, p->left, TQK_LINE_AMX);
        if (c > 0) {
            TQK_TILE_ZERO(3);
            tqk_load_right_amx(p, c - 1);
            TQK_TILE_MULTIPLY(3, 5, 6);
        }
    }
    join(j, n - 2, 0, rows, sums + n % 2 * TQK_TILE_AMX);
    TQK_TILE_STORE(3, sums + (n - 1) % 2 * TQK_TILE_AMX);
    join(j, n - 1, 0, rows, sums + (n - 1) % 2 * TQK_TILE_AMX);
}

/* Both columns of a stack. */
TQK_INLINE void join_stack(const struct job *j, const struct tqk_product_amx *p, uint32_t stack) {
    const uint8_t *sums = p->sums + stack % 2 * TQK_TILE_AMX;
    join(j, 2 * stack, 0, p->n_rows, sums);
    join(j, 2 * stack + 1, 0, p->n_rows, sums + TQK_TILE_AMX / 2);
}

/* Up to four. The number of columns is even. */
TQK_INLINE void accumulate_stacked(const struct job *j, const struct tqk_product_amx *p,
                                   enum tqk_source_avx512 source) {
    const struct tqk_table_avx512 table = j->table;
    const bool is_signed = false;
    const uint32_t n = p->columns / 2;
    struct stream s = stream_of(j, source);
    for (uint32_t i = 0; i < n; i++) {
        next_column(j, p, &table, source, &s, 0);
        if (i > 0) {
            tqk_load_right_amx(p, 1);
            TQK_TILE_MULTIPLY(4, 0, 6);
        } else {
            tqk_end_weights_avx512(j->weighing);
        }
        if (i > 1)
            join_stack(j, p, i - 2);
        next_column(j, p, &table, source, &s, 1);
        if (i > 0) {
            TQK_TILE_STORE(4, p->sums + (i - 1) % 2 * TQK_TILE_AMX);
        } else {
            TQK_TILE_LOAD(7, p->left, TQK_LINE_AMX);
            TQK_TILE_LOAD(0, p->left - TQK_TILE_AMX / 2, TQK_LINE_AMX);
        }
        TQK_TILE_ZERO(4);
        tqk_load_right_amx(p, 0);
        TQK_TILE_MULTIPLY(4, 7, 6);
    }
    tqk_load_right_amx(p, 1);
    TQK_TILE_MULTIPLY(4, 0, 6);
    if (n > 1)
        join_stack(j, p, n - 2);
    TQK_TILE_STORE(4, p->sums + (n - 1) % 2 * TQK_TILE_AMX);
    join_stack(j, p, n - 1);
}

/* ---- any number ---------------------------------------------------------------------------- */

static void join_block(const void *job, uint32_t column, uint32_t first, uint32_t rows,
                       const uint8_t *sums) {
    join(job, column, first, rows, sums);
}

/* The kernels of a format: functions of their own, so that each has all registers. */
struct kernels {
    void (*few)(const struct job *j, const struct tqk_product_amx *p);
    tqk_make_fn_amx *decode;
};

static void accumulate(const struct tqi_rows *v, const struct kernels *by,
                       const struct tqi_tile *tile, const float *probabilities, uint32_t n_rows,
                       uint32_t score_stride, void *states, size_t state_bytes, uint8_t *scratch) {
    const struct tqi_layout *l = &v->layout;
    const struct tqk_room_amx room = tqk_room_amx(n_rows, 1);
    const bool few = n_rows <= TQK_BLOCK_ROWS_AMX && l->group == 32;
    struct tqk_quad_walk_avx512 walk;
    struct tqk_weighing_avx512 weighing;
    struct tqk_weights_avx512 weights; /* set field by field: clearing it would show */
    struct job j;                      /* set field by field: clearing it would show */
    j.codes = tqk_codes_of_v_rows_avx512(l, tile);
    j.codes.every = tqk_every_line_amx(l, tile, n_rows);
    j.table = tqk_table_of_avx512(v, 0);
    j.weighing = &weighing;
    j.weights = &weights;
    j.states = states;
    j.state_bytes = state_bytes;
    j.per_lane = l->dim_pad / 32;
    j.walk = &walk;
    struct tqk_product_amx p = {.stride = TQK_LINE_AMX,
                                .n_rows = n_rows,
                                .steps = 1,
                                .columns = l->dim_pad / 16,
                                .right = scratch + room.right,
                                .sums = scratch};
    weights.bytes = scratch + room.left;
    if (few && n_rows <= TQK_STACK_ROWS_AMX) {
        weights.bytes += TQK_TILE_AMX / 2;
        tqk_pad_weights_amx(weights.bytes);
    }
    p.left = weights.bytes;
    j.codes.ahead_step = (size_t)l->group * 2 * (l->bits == 8 ? 4 : l->bits);
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
        if (!few)
            tqk_end_weights_avx512(&weighing);
        walk = tqk_quad_walk_avx512(l, 0);
        if (few)
            by->few(&j, &p);
        else
            tqk_product_amx(&p, by->decode, join_block, &j);
        j.codes.ahead += (size_t)2 * p.columns * j.groups * l->group * l->bits;
    }
}

#define ACCUMULATE(format, source)                                                                 \
    static void few_##format(const struct job *j, const struct tqk_product_amx *p) {               \
        if (p->n_rows <= TQK_STACK_ROWS_AMX)                                                       \
            accumulate_stacked(j, p, source);                                                      \
        else                                                                                       \
            accumulate_plain(j, p, source);                                                        \
    }                                                                                              \
    static void decode_##format(const void *job, uint32_t column, uint8_t *to) {                   \
        const struct job *j = job;                                                                 \
        struct tqk_codes_avx512 codes = j->codes;                                                  \
        codes.ahead += (size_t)2 * column * j->groups * codes.l->group * codes.l->bits;            \
        if (codes.lanes == 0xffff)                                                                 \
            decode(j, &j->table, source, true, codes, j->walk, to);                                \
        else                                                                                       \
            decode(j, &j->table, source, false, codes, j->walk, to);                               \
    }                                                                                              \
    void tqk_accumulate_##format##_amx(                                                            \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        static const struct kernels by = {few_##format, decode_##format};                          \
        if (tqk_is_blocks_amx(v, tile, n_rows))                                                    \
            tqk_accumulate_blocks_##format##_amx(v, tile, probabilities, n_rows, score_stride,     \
                                                 states, state_bytes, scratch);                    \
        else                                                                                       \
            accumulate(v, &by, tile, probabilities, n_rows, score_stride, states, state_bytes,     \
                       scratch);                                                                   \
    }
ACCUMULATE(lm4, TQK_LM4)
ACCUMULATE(lm3, TQK_LM3)
ACCUMULATE(lm2, TQK_LM2)
ACCUMULATE(int8, TQK_INT8)
