/*
 * Where every bit of a page goes. docs/FORMAT.md is the same in words and pictures.
 *
 * A page holds page_tokens tokens of one kv head as one blob:
 *
 *     K codes | K sketch | V codes | K gains | K sketch gains | V gains
 *
 * Codes stand in the order in which a warp or a SIMD register takes them as operands:
 * tokens in groups of up to 32, in a group 4 consecutive tokens x 8 consecutive dims
 * (keys) or 8 tokens x 1 dim (values) to a 32-bit word for 4-bit codes. The row form
 * of the codec is the key order with a group of one token.
 *
 * Plain C that CUDA can include. All positions are in *elements* of a section whose
 * element width is given beside it.
 */
#ifndef TQI_SPEC_LAYOUT_H
#define TQI_SPEC_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "spec/formats.h"

#ifdef __CUDACC__
#define TQI_HD __host__ __device__
#else
#define TQI_HD
#endif

enum tqi_side { TQI_SIDE_K = 0, TQI_SIDE_V = 1, TQI_SIDE_ROW = 2 };

enum {
    TQI_PAD_DIMS = 32,   /* rows pad their codes to a multiple of this */
    TQI_GROUP_MAX = 32,  /* tokens that share a slab */
    TQI_POLAR_BLOCK = 16 /* dims of a polar block */
};

/* One side (K or V) of a page, or the row form. Offsets count bytes from the start of
 * the blob; a section that a format lacks has size 0. */
struct tqi_layout {
    uint32_t side;       /* enum tqi_side */
    uint32_t kind;       /* enum tqi_kind */
    uint32_t bits;       /* of a code */
    uint32_t dim;        /* of a row */
    uint32_t dim_pad;    /* dim rounded up to TQI_PAD_DIMS */
    uint32_t tokens;     /* of a page; 1 in the row form */
    uint32_t group;      /* tokens that share a slab: min(tokens, 32) */
    uint32_t words;      /* 8-code words of one lane for the whole page: groups * dim_pad / 32 */
    uint32_t codes;      /* offset of the codes */
    uint32_t codes_size; /* bytes */
    uint32_t polar_level2, polar_level3, polar_level4; /* offsets of the polar levels above 1 */
    uint32_t sketch, sketch_size;                      /* signs of the sketch */
    uint32_t gains, gains_size;                        /* 16-bit gains, or radii of polar blocks */
    uint32_t sketch_gains, sketch_gains_size;          /* 16-bit */
};

/* Both sides of a page. */
struct tqi_page_layout {
    struct tqi_layout k, v;
    uint32_t bytes; /* of the blob, a multiple of 128 */
};

/* dim, page_tokens and formats have been checked by the caller. */
void tqi_page_layout_make(struct tqi_page_layout *page, const struct tqi_format *k, uint32_t k_dim,
                          const struct tqi_format *v, uint32_t v_dim, uint32_t page_tokens);
/* The row form; returns its bytes. */
uint32_t tqi_row_layout_make(struct tqi_layout *row, const struct tqi_format *f, uint32_t dim);

/* ---- codes of keys, values and rows ---------------------------------------------- */

/* Place of one dim of one token: word `word` of lane element `lane` in a slab, code
 * `code` (0..7) in that word. Slabs of `lanes` elements follow each other. */
struct tqi_place {
    uint32_t word, lane, code;
};

/* Elements of a slab: 4 lanes of 4 tokens for every 4 tokens (keys), 8 lanes of 4 dims
 * for every 8 tokens (values). */
TQI_HD static inline uint32_t tqi_slab_lanes(const struct tqi_layout *l) {
    return l->group * 4;
}

/* Keys: lane t owns dim_pad/4 consecutive dims; its word j holds 8 of them. */
TQI_HD static inline struct tqi_place tqi_place_k(const struct tqi_layout *l, uint32_t token,
                                                  uint32_t dim) {
    uint32_t per_lane = l->dim_pad / 4, t = dim / per_lane, in_lane = dim % per_lane;
    uint32_t granule = l->group < 4 ? l->group : 4; /* consecutive tokens of a 16-byte piece */
    uint32_t in_group = token % l->group;
    struct tqi_place p;
    p.word = token / l->group * (l->dim_pad / 32) + in_lane / 8;
    p.lane = (in_group / granule * 4 + t) * granule + in_group % granule;
    p.code = in_lane % 8;
    return p;
}

/* Values: lane g owns dim_pad/8 consecutive dims; a word holds 8 tokens of one dim, in
 * the order 0 1 4 5 2 3 6 7 (float formats: see tqi_code_v8). */
TQI_HD static inline struct tqi_place tqi_place_v(const struct tqi_layout *l, uint32_t token,
                                                  uint32_t dim) {
    uint32_t per_lane = l->dim_pad / 8, g = dim / per_lane, in_lane = dim % per_lane;
    uint32_t in_group = token % l->group, e = in_group % 8;
    struct tqi_place p;
    p.word = token / l->group * (l->dim_pad / 32) + in_lane / 4;
    p.lane = (g * (l->group / 8) + in_group / 8) * 4 + in_lane % 4;
    p.code = (e & 1u) | (e >> 2) << 1 | (e >> 1 & 1u) << 2;
    return p;
}

TQI_HD static inline struct tqi_place tqi_place_of(const struct tqi_layout *l, uint32_t token,
                                                   uint32_t dim) {
    return l->side == TQI_SIDE_V ? tqi_place_v(l, token, dim) : tqi_place_k(l, token, dim);
}

/* Elements of 8-bit and 16-bit codes: a word of 8 codes takes 2 or 4 slabs, and `part`
 * (0..7) counts codes from the lowest bits of the first slab. e4m3 values pair tokens
 * 0 4 1 5 | 2 6 3 7, 16-bit values 0 1 | 2 3 | 4 5 | 6 7, as their MMA wants them. */
TQI_HD static inline uint32_t tqi_wide_part(const struct tqi_layout *l, uint32_t token,
                                            struct tqi_place p) {
    uint32_t e = token % 8;
    if (l->side != TQI_SIDE_V || l->kind == TQI_KIND_INT8)
        return p.code;
    return l->kind == TQI_KIND_FP8 ? (e & 3u) * 2 + (e >> 2) : e;
}

/* Element index of an 8-bit or 16-bit code in its section. */
TQI_HD static inline size_t tqi_wide_element(const struct tqi_layout *l, uint32_t token,
                                             uint32_t dim) {
    struct tqi_place p = tqi_place_of(l, token, dim);
    uint32_t part = tqi_wide_part(l, token, p), per_word = 32 / l->bits, slabs = 8 / per_word;
    uint32_t slab, columns = l->dim_pad / 32;
    if (l->side == TQI_SIDE_V) { /* [group][part of 8 tokens][dims] */
        uint32_t group = p.word / columns, x = p.word % columns;
        slab = (group * slabs + part / per_word) * columns + x;
    } else {
        slab = p.word * slabs + part / per_word;
    }
    return ((size_t)slab * tqi_slab_lanes(l) + p.lane) * per_word + part % per_word;
}

/* ---- bit planes of 3-bit and 2-bit codes ------------------------------------------ */

/* 4-bit codes take a slab of 32-bit words per word. Smaller codes share slabs:
 * 3 bits: four words in three slabs; the spare top bit of nibble n in slab p holds bit p
 *         of code n of the fourth word.
 * 2 bits: two words in one slab, the second in the upper two bits of each nibble.
 * Words left over at the end store their last one as byte planes, one bit of every code
 * each, behind the full slabs: no bit is wasted whatever the dim. */
TQI_HD static inline uint32_t tqi_share(uint32_t bits) {
    return bits == 4 ? 1u : bits == 3 ? 4u : 2u;
}

/* ---- sketch ------------------------------------------------------------------------ */

/* The signs of the 8 dims of a key word make a byte; 4 bytes of consecutive words make
 * a word of a slab, bytes left over make a slab of bytes. Byte index of a sign's byte. */
TQI_HD static inline size_t tqi_sketch_byte(const struct tqi_layout *l, struct tqi_place p) {
    uint32_t quad = p.word / 4, lanes = tqi_slab_lanes(l);
    if (quad < l->words / 4)
        return ((size_t)quad * lanes + p.lane) * 4 + p.word % 4;
    return (size_t)(l->words / 4 * 4 + p.word % 4) * lanes + p.lane;
}

/* ---- polar ------------------------------------------------------------------------- */

/* Element of (token, block) in the polar sections: blocks in fours, lane t for block
 * 4q + t, so that a 16-byte piece of level 1 is 4 consecutive tokens of one block. */
TQI_HD static inline uint32_t tqi_polar_element(const struct tqi_layout *l, uint32_t token,
                                                uint32_t block) {
    uint32_t blocks = l->dim_pad / TQI_POLAR_BLOCK, quad = block / 4;
    uint32_t lanes = blocks - quad * 4 < 4 ? blocks - quad * 4 : 4;
    uint32_t granule = l->group < 4 ? l->group : 4;
    return quad * 4 * l->tokens + (token / granule * lanes + block % 4) * granule + token % granule;
}

#endif
