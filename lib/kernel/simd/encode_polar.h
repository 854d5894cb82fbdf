/* The write path of polar rows, written once for all SIMD levels: all pairs of a level at a time,
 * with the cross products and the order of spec/rows.h.
 *
 * A file includes this once, last, behind encode_sketch.h and encode_rows.h, which has put the
 * range of a row and the scratch. */

#include "spec/polar_codes.h"

/* Codes of a row, by level, one a byte. Stages write whole registers. */
struct polar_row {
    uint8_t code1[4096 / 2], code2[4096 / 4], code3[4096 / 8], code4[4096 / 16 + 16];
};

/* n pairs of `from` to first-quadrant codes and radii; `to` may be `from`. The first level has
 * signs. */
TQK_INLINE void polar_level(const struct tqi_polar_book *book, bool first, const float *from,
                            uint32_t n, uint8_t *codes, float *to) {
    for (uint32_t i = 0; i < n; i += LANES) {
        vec a, b, x, y;
        ivec code = i_all(0);
        v_load_pairs(from + 2 * (size_t)i, &a, &b);
        x = i_float(i_and(v_bits(a), i_all(0x7fffffff)));
        y = i_float(i_and(v_bits(b), i_all(0x7fffffff)));
        TQK_UNROLL
        for (uint32_t c = 0; c < TQI_POLAR_CODES - 1; c++) {
            code = i_count_greater(code, v_mul(y, v_all(book->bound_cosine[c])),
                                   v_mul(x, v_all(book->bound_sine[c])));
        }
        if (first) { /* bit 2: the even dim is negative, bit 3: the odd one */
            code = i_or(code, i_up(i_down(v_bits(a), 31), 2));
            code = i_or(code, i_up(i_down(v_bits(b), 31), 3));
        }
        i_put_bytes(codes + i, code);
        v_store(to + i, v_sqrt(v_add(v_mul(a, a), v_mul(b, b))));
    }
}

/* n radii to 2n, from the end: in place. With `x`, the residual x - coordinate instead. */
TQK_INLINE void polar_back(const struct tqi_polar_book *book, const uint8_t *codes, uint32_t n,
                           float *r, const float *x) {
    vec cosine = v_four(book->cosine), sine = v_four(book->sine);
    for (uint32_t i = (n + LANES - 1) / LANES * LANES; i > 0;) {
        i -= LANES;
        ivec code = i_bytes(codes + i), index = i_two_bits(code, 0);
        vec radius = v_load(r + i);
        vec a = v_mul(radius, v_of_four(cosine, index)), b = v_mul(radius, v_of_four(sine, index));
        if (x) {
            ivec minus = i_all(0x80000000u);
            vec even, odd;
            a = i_float(i_xor(v_bits(a), i_and(i_up(code, 29), minus)));
            b = i_float(i_xor(v_bits(b), i_and(i_up(code, 28), minus)));
            v_load_pairs(x + 2 * (size_t)i, &even, &odd);
            a = v_sub(even, a);
            b = v_sub(odd, b);
        }
        v_store_pairs(r + 2 * (size_t)i, a, b);
    }
}

/* Eight bytes of four bits to a word, four bytes of two bits to a byte. */
static uint32_t join_nibbles(const uint8_t *codes) {
    uint64_t x;
    memcpy(&x, codes, sizeof x);
    x = (x | x >> 4) & 0x00ff00ff00ff00ffu;
    x = (x | x >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(x | x >> 16);
}

static uint8_t join_pairs(const uint8_t *codes) {
    uint32_t x = tqi_load32(codes);
    x = (x | x >> 6) & 0x000f000fu;
    return (uint8_t)(x | x >> 12);
}

/* Element of a block of a token, as tqi_polar_element(), without its divisions. */
struct polar_slot {
    uint32_t piece, in_piece, granule, blocks, tokens;
};

static struct polar_slot polar_slot_of(const struct tqi_layout *l, uint32_t token) {
    uint32_t granule = l->group < 4 ? 1 : 4; /* one token, or 16 and more */
    struct polar_slot s = {token / granule, token % granule, granule, l->dim_pad / TQI_POLAR_BLOCK,
                           l->tokens};
    return s;
}

static uint32_t polar_element(const struct polar_slot *s, uint32_t block) {
    uint32_t quad = block / 4, left = s->blocks - quad * 4, lanes = left < 4 ? left : 4;
    return quad * 4 * s->tokens + (s->piece * lanes + block % 4) * s->granule + s->in_piece;
}

/* Gains of radii; padding blocks are zero. */
static void put_polar_row(const struct tqi_rows *rows, const struct polar_row *p,
                          const float *radius, const struct polar_slot *slot, uint8_t *blob) {
    const struct tqi_layout *l = &rows->layout;
    for (uint32_t b = 0; b < l->dim_pad / TQI_POLAR_BLOCK; b++) {
        struct tqi_polar_codes codes = {0, 0, 0, 0};
        float gain = 0;
        if (b < l->dim / TQI_POLAR_BLOCK) {
            codes.level1 = join_nibbles(p->code1 + 8 * (size_t)b);
            codes.level2 = join_pairs(p->code2 + 4 * (size_t)b);
            codes.level3 = (uint8_t)(p->code3[2 * b] | p->code3[2 * b + 1] << 2);
            codes.level4 = p->code4[b];
            gain = radius[b] * rows->inv_sqrt_dim;
        }
        tqi_put_polar_at(l, blob, polar_element(slot, b), codes);
        put_gain(l, blob, polar_element(slot, b), gain);
    }
}

static void encode_polar(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                         uint32_t token) {
    const struct tqi_layout *l = &rows->layout;
    const struct tqi_polar_book *book = rows->polar;
    struct scratch s = split(rows, x);
    struct polar_row p;
    uint32_t dim = l->dim;
    float *r = x + dim;
    if (!in_range(sum_squares(x, dim, s.tree))) {
        tqi_level_ref()->encode[rows->format->id].run(rows, inv_scale, x, blob, token);
        return;
    }
    TQK_OF(rotate)(&rows->rotation, x);
    polar_level(&book[0], true, x, dim / 2, p.code1, r);
    polar_level(&book[1], false, r, dim / 4, p.code2, r);
    polar_level(&book[2], false, r, dim / 8, p.code3, r);
    polar_level(&book[3], false, r, dim / 16, p.code4, r);
    const struct polar_slot slot = polar_slot_of(l, token);
    put_polar_row(rows, &p, r, &slot, blob);
    if (!rows->format->sketch)
        return;
    for (uint32_t b = 0; b < dim / TQI_POLAR_BLOCK; b++)
        r[b] = stored_gain(l, blob, polar_element(&slot, b)) * rows->sqrt_dim;
    polar_back(&book[3], p.code4, dim / 16, r, NULL);
    polar_back(&book[2], p.code3, dim / 8, r, NULL);
    polar_back(&book[1], p.code2, dim / 4, r, NULL);
    polar_back(&book[0], p.code1, dim / 2, r, x);
    encode_sketch(rows, r, s.tree, blob, token);
}

#define ENCODE(format)                                                                   \
    void TQK_OF(encode_##format)(const struct tqi_rows *rows, float inv_scale, float *x, \
                                 uint8_t *blob, uint32_t token) {                        \
        encode_polar(rows, inv_scale, x, blob, token);                                   \
    }
ENCODE(polar)
ENCODE(polar_qjl)
#undef ENCODE
