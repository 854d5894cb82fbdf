/* Stage accumulate for what most calls are: whole blocks of 64 tokens, head dim 128, 3 to 8 query
 * rows. A block takes some thousand instructions, and their number counts as much as their kind, so
 * all addresses here are constants beside a few registers, and nothing is asked twice. Operands and
 * order of sums are those of accumulate_amx.c. */
#include "kernel/amx/tiles_amx.h"
#include "kernel/avx512/weigh_avx512.h"

enum {
    DIM = 128,
    TOKENS = TQK_BLOCK_AVX512,
    COLUMNS = DIM / 16, /* of 16 dims, a right tile each */
    GROUPS = 2,         /* of tokens */
    LANE_WORDS = 4,     /* words of a lane in a group */
    LANE_BYTES = 64,    /* of a word, for a lane */
    SLAB = 512,         /* bytes */
    RIGHT_TILES = 4,    /* columns are multiplied two behind the decoding */
    STACKS = COLUMNS / 2
};

/* What a word needs to know of the layout. */
static const struct tqi_layout block_layout = {.words = GROUPS * LANE_WORDS};

bool tqk_is_blocks_amx(const struct tqi_rows *v, const struct tqi_tile *tile, uint32_t n_rows) {
    const struct tqi_layout *l = &v->layout;
    return l->dim_pad == DIM && l->tokens >= TOKENS && tile->first % TOKENS == 0 &&
           tile->last % TOKENS == 0 && n_rows >= 3 && n_rows <= TQK_BLOCK_ROWS_AMX;
}

/* What stays the same from column to column. */
struct block {
    struct tqk_codes_avx512 codes; /* `ahead` is that of the next column */
    struct tqk_table_avx512 table;
    size_t at; /* of the next column in a slab */
    uint8_t *right, *sums, *left;
};

/* The next 16 dims to a right tile. */
TQK_INLINE void decode(struct block *p, enum tqk_source_avx512 source, uint32_t tile) {
    const bool plain = source == TQK_LM4 || source == TQK_INT8; /* a slab a word */
    const uint32_t halves = 2 / tqk_operands_avx512(source), lines = tqk_lines_avx512(source);
    uint8_t *const to = p->right + tile * TQK_TILE_AMX;
    TQK_UNROLL
    for (uint32_t g = 0; g < GROUPS * halves; g++) {
        __m512i x[4], y[2];
        const uint8_t *line[4];
        TQK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            line[i] = p->codes.at + p->at + (g * LANE_WORDS + i) * SLAB;
            if (!plain)
                x[i] = tqk_word_avx512(&p->codes, source, g * LANE_WORDS + i, p->at);
        }
        if (plain)
            tqk_load_transposed_avx512(line, x);
        else
            tqk_transpose_avx512(x);
        TQK_UNROLL
        for (uint32_t t = 0; t < 4; t++) {
            /* A word of two operands is two rows of the tile; one of one operand half of them. */
            uint32_t row = halves == 1 ? g * 8 + t * 2 : g / 2 * 8 + g % 2 + t * 2;
            if (t < lines)
                tqk_ahead_rows_avx512(&p->codes, t, lines, &x[t]);
            tqk_expand_avx512(&p->table, source, 1, x[t], y);
            _mm512_store_si512(to + row * TQK_LINE_AMX, y[0]);
            if (halves == 1)
                _mm512_store_si512(to + (row + 1) * TQK_LINE_AMX, y[1]);
        }
        p->codes.ahead += (size_t)64 * lines;
    }
    p->at += LANE_BYTES;
}

/* Where sums go, in registers as far as there are some: behind pointers all of it would be loaded
 * again for every row, as states might be what they point to. */
struct into {
    char *acc;     /* of the first row and the next column */
    size_t stride; /* of rows */
    __m512i half[8];
    __m512 scale[8];
};

TQK_INLINE struct into into_of(const struct tqk_weights_avx512 *w, char *states, size_t stride,
                               uint32_t rows) {
    struct tqk_state_avx512 *first = (void *)states;
    struct into to = {.acc = (char *)first->acc, .stride = stride};
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        to.half[r] = _mm512_set1_epi32(w->half[r]);
        to.scale[r] = _mm512_set1_ps(w->scale[r]);
        if (rows <= TQK_STACK_ROWS_AMX) {
            TQK_KEEP(to.half[r]);
            TQK_KEEP(to.scale[r]);
        }
    }
    return to;
}

/* Adds a column to the states of n rows of at most `rows`. */
TQK_INLINE void join(struct into *to, const uint8_t *sums, uint32_t rows, uint32_t n) {
    char *at = to->acc;
    TQK_UNROLL
    for (uint32_t r = 0; r < rows && r < n; r++) {
        TQK_KEEP_ADDRESS(at);
        __m512i x = _mm512_add_epi32(tqk_sums_of_amx(sums, r), to->half[r]);
        __m512 acc = _mm512_loadu_ps(at);
        _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), to->scale[r], acc));
        at += to->stride;
    }
    to->acc += 64;
}

TQK_INLINE void join_stack(struct into *to, const uint8_t *sums, uint32_t rows) {
    join(to, sums, rows, rows);
    join(to, sums + TQK_TILE_AMX / 2, rows, rows);
}

/* Up to four rows: two columns share a tile of sums. */
TQK_INLINE void multiply_stack(const struct block *p, uint32_t stack) {
    const bool is_signed = false;
    const uint8_t *right = p->right + stack % 2 * 2 * TQK_TILE_AMX;
    TQK_TILE_ZERO(4);
    TQK_TILE_LOAD(6, right, TQK_LINE_AMX);
    TQK_TILE_MULTIPLY(4, 7, 6);
    TQK_TILE_LOAD(6, right + TQK_TILE_AMX, TQK_LINE_AMX);
    TQK_TILE_MULTIPLY(4, 0, 6);
}

/* The multiplication of a stack follows the decoding of the next one's first column, its sums
 * become parts of the states a stack later. One loop, though it begins and ends otherwise: copies
 * of the decoding take compilers minutes where every access is checked. */
TQK_INLINE void accumulate_4(struct block b, const struct tqk_weighing_avx512 *weighing,
                             char *states, size_t stride, uint32_t rows,
                             enum tqk_source_avx512 source) {
    struct into to;
    for (uint32_t i = 0; i < STACKS; i++) {
        uint8_t *const sums = b.sums + i % 2 * TQK_TILE_AMX;
        decode(&b, source, i % 2 * 2);
        if (i == 1) {
            to = into_of(weighing->weights, states, stride, rows);
            TQK_TILE_LOAD(7, b.left, TQK_LINE_AMX);
            TQK_TILE_LOAD(0, b.left - TQK_TILE_AMX / 2, TQK_LINE_AMX);
        }
        if (i > 0)
            multiply_stack(&b, i - 1);
        if (i > 1)
            join_stack(&to, sums, rows);
        decode(&b, source, i % 2 * 2 + 1);
        if (i == 0)
            tqk_round_weights_avx512(weighing, true, 0, rows);
        else
            TQK_TILE_STORE(4, b.sums + (i - 1) % 2 * TQK_TILE_AMX);
    }
    multiply_stack(&b, STACKS - 1);
    join_stack(&to, b.sums + STACKS % 2 * TQK_TILE_AMX, rows);
    TQK_TILE_STORE(4, b.sums + (STACKS - 1) % 2 * TQK_TILE_AMX);
    join_stack(&to, b.sums + (STACKS - 1) % 2 * TQK_TILE_AMX, rows);
}

/* More rows: a tile of sums a column. */
TQK_INLINE void multiply_column(const struct block *p, uint32_t column) {
    const bool is_signed = false;
    TQK_TILE_ZERO(3);
    TQK_TILE_LOAD(6, p->right + column % RIGHT_TILES * TQK_TILE_AMX, TQK_LINE_AMX);
    TQK_TILE_MULTIPLY(3, 5, 6);
}

/* n: of five to eight. The last four weigh twice where they overlap the first, to the same. */
TQK_INLINE void accumulate_8(struct block b, const struct tqk_weighing_avx512 *weighing,
                             char *states, size_t stride, uint32_t n,
                             enum tqk_source_avx512 source) {
    struct into to;
    for (uint32_t c = 0; c < COLUMNS; c++) {
        decode(&b, source, c % RIGHT_TILES);
        if (c == 0) {
            tqk_round_weights_avx512(weighing, true, 0, 4);
            tqk_round_weights_avx512(weighing, true, n - 4, 4);
            continue;
        }
        if (c == 1) {
            to = into_of(weighing->weights, states, stride, 8);
            TQK_TILE_LOAD(5, b.left, TQK_LINE_AMX);
        }
        if (c > 2)
            join(&to, b.sums + (c - 3) % 2 * TQK_TILE_AMX, 8, n);
        if (c > 1)
            TQK_TILE_STORE(3, b.sums + (c - 2) % 2 * TQK_TILE_AMX);
        multiply_column(&b, c - 1);
    }
    join(&to, b.sums + (COLUMNS - 3) % 2 * TQK_TILE_AMX, 8, n);
    TQK_TILE_STORE(3, b.sums + (COLUMNS - 2) % 2 * TQK_TILE_AMX);
    multiply_column(&b, COLUMNS - 1);
    join(&to, b.sums + (COLUMNS - 2) % 2 * TQK_TILE_AMX, 8, n);
    TQK_TILE_STORE(3, b.sums + (COLUMNS - 1) % 2 * TQK_TILE_AMX);
    join(&to, b.sums + (COLUMNS - 1) % 2 * TQK_TILE_AMX, 8, n);
}

/* The arguments of the stage. */
struct call {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    const float *probabilities;
    char *states;
    size_t state_bytes;
    uint8_t *scratch;
    uint32_t score_stride, n_rows;
};

/* The block of tokens from `token` on. */
TQK_INLINE void accumulate(const struct call *c, uint32_t token, uint32_t rows, bool stacked,
                           enum tqk_source_avx512 source, int every) {
    const struct tqi_rows *v = c->v;
    const struct tqi_tile *tile = c->tile;
    uint8_t *const scratch = c->scratch;
    const struct tqi_layout *l = &v->layout;
    const size_t bytes = (size_t)COLUMNS * GROUPS * (2 / tqk_operands_avx512(source)) * 64 *
                         tqk_lines_avx512(source); /* of a block */
    const struct tqk_room_amx room = tqk_room_amx(rows, 1);
    const struct tqi_tile whole = {.blob = tile->blob, .last = TOKENS};
    struct tqk_weighing_avx512 weighing;
    struct tqk_weights_avx512 weights; /* set field by field: clearing it would show */
    struct block b = {.codes = tqk_codes_of_v_rows_avx512(l, tile),
                      .table = tqk_table_of_avx512(v, 0),
                      .right = scratch + room.right,
                      .sums = scratch,
                      .left = scratch + room.left + TQK_TILE_AMX / 2};
    b.codes.l = &block_layout;
    b.codes.slab = SLAB;
    b.codes.lanes = 0xffff;
    b.codes.every = every;
    b.codes.at += token / TOKENS * bytes;
    b.codes.ahead += (token - tile->first) / TOKENS * bytes;
    if (token == tile->first) {
        tqk_ahead_gains(l, tile);
        tqk_rescale_states_avx512(l, c->states, c->state_bytes, rows);
    }
    weights.bytes = b.left;
    tqk_set_weighing_avx512(&weighing, v, &whole, c->probabilities + (token - tile->first),
                            c->score_stride, token, true, &weights);
    weighing.token = 0; /* where the probabilities begin */
    if (stacked) {
        tqk_find_factors_avx512(&weighing, true, 0, rows);
        tqk_pad_weights_amx(b.left);
        accumulate_4(b, &weighing, c->states, c->state_bytes, rows, source);
    } else {
        tqk_find_factors_avx512(&weighing, true, 0, 4);
        tqk_find_factors_avx512(&weighing, true, rows - 4, 4);
        accumulate_8(b, &weighing, c->states, c->state_bytes, rows, source);
    }
}

/* Functions of their own, so that each has all registers: for 3, 4, 8, and between them. */
typedef void block_fn(const struct call *c, uint32_t token);
#define BLOCK(name, rows, stacked, source, every)                                      \
    static __attribute__((noinline)) void name(const struct call *c, uint32_t token) { \
        accumulate(c, token, rows, stacked, source, every);                            \
    }
#define ACCUMULATE(format, source, STACKED, PLAIN)                                      \
    STACKED(BLOCK, block_fn, format##_3, 3, true, source)                               \
    STACKED(BLOCK, block_fn, format##_4, 4, true, source)                               \
    PLAIN(BLOCK, block_fn, format##_some, c->n_rows, false, source)                     \
    PLAIN(BLOCK, block_fn, format##_8, 8, false, source)                                \
    TQK_ACCUMULATE_BLOCKS_AMX(format) {                                                 \
        static block_fn *const *const by[TQK_BLOCK_ROWS_AMX + 1] = {NULL,               \
                                                                    NULL,               \
                                                                    NULL,               \
                                                                    by_##format##_3,    \
                                                                    by_##format##_4,    \
                                                                    by_##format##_some, \
                                                                    by_##format##_some, \
                                                                    by_##format##_some, \
                                                                    by_##format##_8};   \
        const struct call c = {v,           tile,    probabilities, states,             \
                               state_bytes, scratch, score_stride,  n_rows};            \
        const bool every = tqk_every_line_amx(&v->layout, tile, n_rows);                \
        for (uint32_t token = tile->first; token < tile->last; token += TOKENS)         \
            by[n_rows][every](&c, token);                                               \
    }
ACCUMULATE(lm4, TQK_LM4, TQK_ALL_AMX, TQK_BOTH_AMX)
ACCUMULATE(lm3, TQK_LM3, TQK_BOTH_AMX, TQK_BOTH_AMX)
ACCUMULATE(lm2, TQK_LM2, TQK_BOTH_AMX, TQK_BOTH_AMX)
ACCUMULATE(int8, TQK_INT8, TQK_ALL_AMX, TQK_ALL_AMX)
