/* Lines of slabs: 64 bytes, 4 x 4 words; and their transposition in pieces of 16 bytes. */
#ifndef TQI_KERNEL_AVX512_LINES_H
#define TQI_KERNEL_AVX512_LINES_H

#include "kernel/avx512/avx512.h"
#include "kernel/simd/ahead.h"

/* Where words of the codes are, and what will be read next: while keys are decoded, the values
 * of the same page and behind them the keys of the next one; while values are, the keys and then
 * the values of the next page. */
struct tqk_codes_avx512 {
    const struct tqi_layout *l;
    const uint8_t *at, *ahead;
    ptrdiff_t far;     /* from `ahead` to what is read after that */
    int every;         /* kernels of several rows ask for all of that themselves */
    size_t ahead_step; /* bytes of a step of a loop, 0 where others have asked for them already */
    size_t slab;       /* bytes */
    __mmask16 lanes;   /* of a line: pages of 16 tokens have half lines of values */
};

static inline struct tqk_codes_avx512 tqk_codes_of_k_avx512(const struct tqi_layout *l,
                                                            const struct tqi_tile *tile) {
    const uint8_t *at = tile->blob + l->codes;
    struct tqk_codes_avx512 c = {.l = l, .at = at, .ahead = at + l->codes_size};
    c.far = tqk_far_keys(l, tile);
    c.slab = (size_t)tqi_slab_lanes(l) * 4;
    c.lanes = 0xffff;
    return c;
}

static inline struct tqk_codes_avx512 tqk_codes_of_v_avx512(const struct tqi_layout *l,
                                                            const struct tqi_tile *tile) {
    struct tqk_codes_avx512 c = {.l = l, .at = tile->blob + l->codes};
    c.ahead = tile->next ? tile->next : tile->blob;
    c.far = (ptrdiff_t)l->codes;
    c.slab = (size_t)tqi_slab_lanes(l) * 4;
    c.lanes = l->group == 16 ? 0x00ff : 0xffff;
    return c;
}

/* For kernels of several rows. They work longer on a line than memory takes to bring it, and wait
 * for every place of the core that a request holds. So they leave most lines to the second level's
 * prefetcher, and show it one of each word, a page ahead of the first level: from values to
 * values, from keys to keys, and half of the gains between them with each. Only where both sides
 * are alike, else the other side's kernel goes its own way and lines would be left out. Codes of 8
 * bits come as fast as they are worked on: every line of them is asked for. */
static inline struct tqk_codes_avx512 tqk_codes_of_k_rows_avx512(const struct tqi_layout *l,
                                                                 const struct tqi_tile *tile) {
    struct tqk_codes_avx512 c = tqk_codes_of_k_avx512(l, tile);
    if (tile->after)
        c.far = tqk_distance(tile->blob, tile->next) + (ptrdiff_t)l->tokens * 2;
    c.every = !tile->after || l->bits == 8;
    return c;
}

static inline struct tqk_codes_avx512 tqk_codes_of_v_rows_avx512(const struct tqi_layout *l,
                                                                 const struct tqi_tile *tile) {
    struct tqk_codes_avx512 c = tqk_codes_of_v_avx512(l, tile);
    if (tile->after)
        c.far = tqk_distance(tile->next, tile->after) - (ptrdiff_t)l->tokens * 2;
    c.every = !tile->after || l->bits == 8;
    return c;
}

/* tqk_ahead() for line i of those that a step of a loop takes, held at its place: compilers
 * move prefetches to the head of a loop. Volatile alone would not do, so `before`, what is worked
 * on next, goes through it. */
TQK_INLINE void tqk_ahead_line_avx512(const uint8_t *ahead, ptrdiff_t far, uint32_t i,
                                      __m512i *before) {
    const uint8_t *line = ahead + (size_t)64 * i;
    const uint8_t *next = (const uint8_t *)((uintptr_t)line + (uintptr_t)far);
    __asm__ volatile("prefetcht0 %1\n\tprefetcht1 %2" : "+v"(*before) : "m"(*line), "m"(*next));
}

/* The same for kernels of several rows, whose words are `lines` lines each. */
TQK_INLINE void tqk_ahead_rows_avx512(const struct tqk_codes_avx512 *c, uint32_t i, uint32_t lines,
                                      __m512i *before) {
    const uint8_t *line = c->ahead + (size_t)64 * i;
    if (i % lines == lines - 1 || c->every)
        tqk_ahead_line_avx512(c->ahead, c->far, i, before);
    else
        __asm__ volatile("prefetcht0 %1" : "+v"(*before) : "m"(*line));
}

TQK_INLINE __m512i tqk_line_avx512(const struct tqk_codes_avx512 *c, uint32_t slab, size_t at) {
    size_t from = slab * c->slab + at;
    return c->lanes == 0xffff ? _mm512_loadu_si512(c->at + from)
                              : _mm512_maskz_loadu_epi32(c->lanes, c->at + from);
}

/* 4 x 4 pieces of 16 bytes. */
TQK_INLINE void tqk_transpose_avx512(__m512i x[4]) {
    __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    __m512i c = _mm512_shuffle_i32x4(x[0], x[1], 0xee), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* The same from memory: half of it by the load ports, since the one port of shuffles is what
 * decoding waits for on cores with 512-bit multipliers. First or second half of the result. */
TQK_INLINE void tqk_load_half_avx512(const uint8_t *const line[4], uint32_t half, __m512i x[2]) {
    __m256i piece[4];
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        piece[i] = _mm256_loadu_si256((const __m256i *)(const void *)(line[i] + half * 32));
    }
    __m512i a = _mm512_inserti64x4(_mm512_castsi256_si512(piece[0]), piece[1], 1);
    __m512i b = _mm512_inserti64x4(_mm512_castsi256_si512(piece[2]), piece[3], 1);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
}

TQK_INLINE void tqk_load_transposed_avx512(const uint8_t *const line[4], __m512i x[4]) {
    tqk_load_half_avx512(line, 0, x);
    tqk_load_half_avx512(line, 1, x + 2);
}

/* Words of four quads of dims (values): word in the token group and byte in the slab. */
struct tqk_quads_avx512 {
    uint32_t word[4];
    size_t at[4];
};

/* Steps from quad to quad through the lanes of a slab: divisions would cost as much as the
 * decoding. */
struct tqk_quad_walk_avx512 {
    uint32_t word, per_lane;
    size_t at, lane_bytes;
};

static inline struct tqk_quad_walk_avx512 tqk_quad_walk_avx512(const struct tqi_layout *l,
                                                               uint32_t dim) {
    uint32_t per_lane = l->dim_pad / 32;
    size_t lane_bytes = (size_t)l->group * 2;
    struct tqk_quad_walk_avx512 w = {dim / 4 % per_lane, per_lane, dim / 4 / per_lane * lane_bytes,
                                     lane_bytes};
    return w;
}

TQK_INLINE struct tqk_quads_avx512 tqk_next_quads_avx512(struct tqk_quad_walk_avx512 *w) {
    struct tqk_quads_avx512 q;
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        q.word[i] = w->word;
        q.at[i] = w->at;
        bool wrap = ++w->word == w->per_lane;
        w->word = wrap ? 0 : w->word;
        w->at += wrap ? w->lane_bytes : 0;
    }
    return q;
}

#endif
