/* Lines of slabs: 64 bytes, 4 x 4 words; and their transposition in pieces of 16 bytes. */
#ifndef TQI_KERNEL_AVX512_LINES_H
#define TQI_KERNEL_AVX512_LINES_H

#include "kernel/avx512/avx512.h"

/* Where words of the codes are. */
struct tqk_codes_avx512 {
    const struct tqi_layout *l;
    const uint8_t *at; /* of the codes */
    size_t slab;       /* bytes */
    __mmask16 lanes;   /* of a line: pages of 16 tokens have half lines of values */
};

static inline struct tqk_codes_avx512 tqk_codes_of_avx512(const struct tqi_layout *l,
                                                          const uint8_t *blob) {
    struct tqk_codes_avx512 c = {l, blob + l->codes, (size_t)tqi_slab_lanes(l) * 4, 0xffff};
    return c;
}

static inline struct tqk_codes_avx512 tqk_codes_of_v_avx512(const struct tqi_layout *l,
                                                            const uint8_t *blob) {
    struct tqk_codes_avx512 c = tqk_codes_of_avx512(l, blob);
    c.lanes = l->group == 16 ? 0x00ff : 0xffff;
    return c;
}

TQK_INLINE __m512i tqk_line_avx512(const struct tqk_codes_avx512 *c, uint32_t slab, size_t at) {
    const uint8_t *from = c->at + slab * c->slab + at;
    /* The other side of the page, or the codes of the next page's head, comes next. */
    _mm_prefetch((const char *)from + c->l->codes_size, _MM_HINT_T0);
    return c->lanes == 0xffff ? _mm512_loadu_si512(from)
                              : _mm512_maskz_loadu_epi32(c->lanes, from);
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

/* Words of four quads of dims (values): word in the token group and byte in the slab. */
struct tqk_quads_avx512 {
    uint32_t word[4];
    size_t at[4];
};

TQK_INLINE struct tqk_quads_avx512 tqk_quads_of_avx512(const struct tqi_layout *l, uint32_t dim) {
    struct tqk_quads_avx512 q;
    uint32_t per_lane = l->dim_pad / 32;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t quad = dim / 4 + i;
        q.word[i] = quad % per_lane;
        q.at[i] = (size_t)(quad / per_lane) * l->group * 2;
    }
    return q;
}

#endif
