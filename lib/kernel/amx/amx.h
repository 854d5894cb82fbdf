/*
 * Stages of the AMX level: AVX-512 with tiles of bytes (AMX-TILE, AMX-INT8). Formats without
 * kernels here run those of AVX-512, and so do all stages but score and accumulate: states, scores
 * and weights are the same.
 *
 * A multiply takes a left tile of 16 rows and 64 steps of the sum and a right tile of these
 * steps and 16 columns. Left are query rows (or weights) in two planes of bytes, value = 256 * high
 * + low, a row of the tile each: 8 query rows. Right are decoded codes: 16 tokens by 64 dims of
 * keys, 16 dims by 64 tokens of values. Sums are exact.
 *
 * Tiles keep their shape from tqk_enter_amx() to tqk_leave_amx(): to set it takes a
 * quarter of the time that the scores of a page do.
 */
#ifndef TQI_KERNEL_AMX_H
#define TQI_KERNEL_AMX_H

#include "kernel/avx512/avx512.h"

enum {
    TQK_LINE_AMX = 64,      /* bytes of a row of a tile */
    TQK_TILE_AMX = 1024,    /* bytes of a tile */
    TQK_BLOCK_ROWS_AMX = 8, /* query rows of a left tile */
    TQK_STACK_ROWS_AMX = 4, /* as many as two columns of values can share a tile for */
    TQK_TOGETHER_AMX = 4,   /* blocks of rows whose sums are in use */
    TQK_SUMS_AMX = 2 * TQK_TOGETHER_AMX * TQK_TILE_AMX,
    TQK_FEW_SUMS_AMX = 2 * TQK_TILE_AMX /* up to TQK_BLOCK_ROWS_AMX rows */
};

/* A product of all query rows and some columns. */
struct tqk_product_amx {
    const uint8_t *left; /* the first plane */
    size_t stride;       /* bytes from plane to plane: high, low, high of the next row .. */
    bool is_signed;      /* the left side */
    uint32_t n_rows, steps, columns; /* query rows, tiles along the sum, tiles across it */
    uint8_t *right, *sums;           /* a tile for every step, TQK_SUMS_AMX bytes */
};

/* Decodes a column to a right tile for every step. */
typedef void tqk_make_fn_amx(const void *job, uint32_t column, uint8_t *to);
/* Takes the sums of query rows [first, first + rows) and a tile of columns. */
typedef void tqk_take_fn_amx(const void *job, uint32_t column, uint32_t first, uint32_t rows,
                             const uint8_t *sums);
void tqk_product_amx(const struct tqk_product_amx *p, tqk_make_fn_amx *make, tqk_take_fn_amx *take,
                     const void *job);

/* 256 * high + low of row r of them. */
TQK_INLINE __m512i tqk_sums_of_amx(const uint8_t *sums, uint32_t r) {
    const uint8_t *at = sums + (size_t)r * 2 * TQK_LINE_AMX;
    __m512i high = _mm512_load_si512(at), low = _mm512_load_si512(at + TQK_LINE_AMX);
    return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

/* Formats with kernels of this level for keys and values. */
static inline bool tqk_is_tiled_amx(const struct tqi_rows *rows) {
    return tqk_is_integer(rows) && !rows->format->sketch;
}

/* Tiles that a row of keys takes. */
static inline uint32_t tqk_dim_tiles_amx(const struct tqi_layout *l) {
    return (l->dim_pad + TQK_LINE_AMX - 1) / TQK_LINE_AMX;
}

/* The scratch: sums, right tiles, weights. No more than the rows take, because all that
 * a page touches beside itself must stay in the first level while pages run through it. */
struct tqk_room_amx {
    size_t right, left, end; /* sums come first */
};
static inline struct tqk_room_amx tqk_room_amx(uint32_t n_rows, uint32_t steps) {
    const bool few = n_rows <= TQK_BLOCK_ROWS_AMX;
    struct tqk_room_amx at;
    at.right = few ? TQK_FEW_SUMS_AMX : TQK_SUMS_AMX;
    at.left = at.right + (steps < 4 ? 4 : steps) * TQK_TILE_AMX;
    at.end = at.left + (few ? 2u : TQK_TOGETHER_AMX) * TQK_TILE_AMX;
    return at;
}

/* Bytes between the planes of queries. */
static inline size_t tqk_plane_stride_amx(const struct tqi_rows *k) {
    return sizeof(struct tqk_query_avx512) + (size_t)tqk_dim_tiles_amx(&k->layout) * TQK_LINE_AMX;
}

/* Whether n_rows rows work about as fast as lines come from memory, or faster: then the second
 * level's prefetcher alone is late, and kernels ask for every line themselves, see
 * tqk_codes_of_k_rows_avx512(). Slower ones would wait for places that requests hold. */
static inline bool tqk_every_line_amx(const struct tqi_layout *l, const struct tqi_tile *tile,
                                      uint32_t n_rows) {
    return !tile->after || l->bits == 8 || (l->bits == 4 && n_rows <= TQK_STACK_ROWS_AMX);
}

/* by_<name>[asks for every line], of functions of type `of` that make(name, .., every) makes: ALL
 * where the answer above is always the same, which needs but one. */
#define TQK_ALL_AMX(make, of, name, ...) \
    make(every_##name, __VA_ARGS__, 1) static of *const by_##name[2] = {every_##name, every_##name};
#define TQK_BOTH_AMX(make, of, name, ...)  \
    make(few_##name, __VA_ARGS__, 0) make( \
        every_##name, __VA_ARGS__, 1) static of *const by_##name[2] = {few_##name, every_##name};

/* Accumulate for what most calls are, and whether a call is that. */
bool tqk_is_blocks_amx(const struct tqi_rows *v, const struct tqi_tile *tile, uint32_t n_rows);
#define TQK_ACCUMULATE_BLOCKS_AMX(format)                                                  \
    void tqk_accumulate_blocks_##format##_amx(                                             \
        const struct tqi_rows *v, const struct tqi_tile *tile, const float *probabilities, \
        uint32_t n_rows, uint32_t score_stride, char *states, size_t state_bytes,          \
        uint8_t *scratch)
TQK_ACCUMULATE_BLOCKS_AMX(lm4);
TQK_ACCUMULATE_BLOCKS_AMX(lm3);
TQK_ACCUMULATE_BLOCKS_AMX(lm2);
TQK_ACCUMULATE_BLOCKS_AMX(int8);

tqi_prepare_fn tqk_prepare_amx;
size_t tqk_query_bytes_amx(const struct tqi_rows *k);
size_t tqk_scratch_bytes_amx(const struct tqi_rows *rows);
tqi_enter_fn tqk_enter_amx;
tqi_leave_fn tqk_leave_amx;

#endif
