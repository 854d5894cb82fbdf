/* Angles of polar blocks with tokens in lanes, written once for all SIMD levels. A file includes
 * this once, behind the registers of its level (vec_*.h). */
#include "spec/codes.h"

/* The books above level 1, and where codes of a token begin in polar_upper()'s lanes. */
struct polar_books {
    vec cosine[3], sine[3];
    ivec from3, from4;
};

static struct polar_books polar_books_of(const struct tqi_rows *rows) {
    static const uint32_t from3[16] = {8, 12, 8, 12, 8, 12, 8, 12, 8, 12, 8, 12, 8, 12, 8, 12};
    static const uint32_t from4[16] = {16, 18, 20, 22, 16, 18, 20, 22,
                                       16, 18, 20, 22, 16, 18, 20, 22};
    struct polar_books b = {.from3 = i_load(from3), .from4 = i_load(from4)};
    for (uint32_t i = 0; i < 3; i++) {
        b.cosine[i] = v_four(rows->polar[i + 1].cosine);
        b.sine[i] = v_four(rows->polar[i + 1].sine);
    }
    return b;
}

/*
 * Tables of numbers by codes of four bits, eight codes in every lane of `index`. Where a register
 * holds eight numbers only, three bits look up and the fourth, `minus`, is a sign: flipping both
 * signs of a direction, or all signs of four dims, flips the sign of every product with it.
 */
enum { TABLE = 1 << TQK_TABLE_BITS };
struct table_codes {
    ivec index, minus;
};

/* Of level 1: quadrant code, sign of the even dim, sign of the odd dim. */
TQK_INLINE struct table_codes codes_of_directions(ivec words) {
    struct table_codes c = {words, words};
    if (TQK_TABLE_BITS == 3)
        c.index = i_xor(words, i_and(i_down(words, 1), i_all(0x44444444)));
    return c;
}

/* Of the signs of four dims. */
TQK_INLINE struct table_codes codes_of_signs(ivec signs) {
    struct table_codes c = {signs, signs};
    if (TQK_TABLE_BITS == 3) { /* all other bits of four flip with the last */
        ivec last = i_and(signs, i_all(0x88888888));
        c.index = i_xor(signs, i_sub(last, i_down(last, 3)));
    }
    return c;
}

/* x, or -x where code `at / 4` is minus. */
TQK_INLINE vec v_signed(vec x, const struct table_codes *c, uint32_t at) {
    if (TQK_TABLE_BITS == 4)
        return x;
    return i_float(i_xor(v_bits(x), i_and(i_up(c->minus, 28 - at), i_all(0x80000000u))));
}

/* +-cos and +-sin of the 16 codes of level 1. */
static void polar_directions(const struct tqi_polar_book *book, float cosine[16], float sine[16]) {
    for (uint32_t c = 0; c < 16; c++) {
        cosine[c] = c & 4u ? -book->cosine[c & 3u] : book->cosine[c & 3u];
        sine[c] = c & 8u ? -book->sine[c & 3u] : book->sine[c & 3u];
    }
}

/* LANES tokens of up to four blocks. Four tokens of a block are neighbours, then comes the next
 * block (spec/layout.h): at a multiple of four tokens the element is a plain product. */
struct polar_quad {
    const uint8_t *level1, *gains;
    uint32_t lanes, blocks; /* blocks that lie together, and those of them with dims */
    ivec level2, upper;     /* levels 3 and 4, by 16 bytes for four tokens */
    bool bf16;
};

TQK_INLINE struct polar_quad polar_quad_at(const struct tqi_layout *l, const uint8_t *blob,
                                           uint32_t token, uint32_t quad) {
    uint32_t lanes = l->dim_pad / TQI_POLAR_BLOCK - quad * 4;
    uint32_t blocks = l->dim / TQI_POLAR_BLOCK - quad * 4;
    lanes = lanes < 4 ? lanes : 4;
    size_t e = (size_t)quad * 4 * l->tokens + (size_t)token * lanes;
    struct polar_quad q = {.level1 = blob + l->codes + e * 4,
                           .gains = blob + l->gains + e * 2,
                           .lanes = lanes,
                           .blocks = blocks < 4 ? blocks : 4,
                           .bf16 = l->side == TQI_SIDE_V};
    const uint8_t *level3 = blob + l->polar_level3 + e / 2,
                  *level4 = blob + l->polar_level4 + e / 4;
    q.level2 = i_pieces16(blob + l->polar_level2 + e, (size_t)lanes * 4);
    q.upper = i_pieces12(level3, (size_t)lanes * 2, level4, lanes);
    return q;
}

/* Level 1 of a block: eight codes of four bits. */
TQK_INLINE ivec polar_words(const struct polar_quad *q, uint32_t block) {
    return i_pieces16(q->level1 + block * 16, (size_t)q->lanes * 16);
}

TQK_INLINE vec polar_radius(const struct polar_quad *q, uint32_t block) {
    return v_piece_halves(q->gains + (size_t)block * 8, (size_t)q->lanes * 8, q->bf16);
}

/* Level 2 in bits 7..0; the byte with level 3 from bit 8, the one with level 4 from bit 16 on. */
TQK_INLINE ivec polar_upper(const struct polar_quad *q, uint32_t block) {
#define NONE 0x80
#define LEVEL2(b)                                                                                 \
    {                                                                                             \
        b, NONE, NONE, NONE, b + 1, NONE, NONE, NONE, b + 2, NONE, NONE, NONE, b + 3, NONE, NONE, \
            NONE                                                                                  \
    }
#define UPPER(b)                                                                                \
    {                                                                                           \
        NONE, 2 * b, 8 + b, NONE, NONE, 2 * b, 8 + b, NONE, NONE, 2 * b + 1, 8 + b, NONE, NONE, \
            2 * b + 1, 8 + b, NONE                                                              \
    }
    static const uint8_t level2[4][16] = {LEVEL2(0), LEVEL2(4), LEVEL2(8), LEVEL2(12)};
    static const uint8_t upper[4][16] = {UPPER(0), UPPER(1), UPPER(2), UPPER(3)};
#undef NONE
#undef LEVEL2
#undef UPPER
    return i_or(i_choose(q->level2, level2[block]), i_choose(q->upper, upper[block]));
}

/* A radius to the two below it. */
TQK_INLINE void polar_split(const struct polar_books *b, uint32_t level, ivec codes, uint32_t at,
                            vec *from, vec *other) {
    ivec index = i_two_bits(codes, at);
    *other = v_mul(*from, v_of_four(b->sine[level], index));
    *from = v_mul(*from, v_of_four(b->cosine[level], index));
}

/* The radii of the eight pairs of a block with the given one. */
TQK_INLINE void polar_radii(const struct polar_books *b, const struct polar_quad *q, uint32_t block,
                            vec radius, vec w[8]) {
    ivec codes = polar_upper(q, block);
    ivec three = i_down_each(codes, b->from3), four = i_down_each(codes, b->from4);
    w[0] = radius;
    polar_split(b, 2, four, 0, &w[0], &w[4]);
    TQK_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        polar_split(b, 1, three, 2 * i, &w[4 * i], &w[4 * i + 2]);
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        polar_split(b, 0, codes, 2 * i, &w[2 * i], &w[2 * i + 1]);
    }
}
