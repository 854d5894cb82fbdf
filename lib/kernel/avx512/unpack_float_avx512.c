/* Stage unpack: float formats to panels of binary32. A step is one dim (keys) or one token
 * (values) of 16 columns. */
#include "kernel/avx512/avx512.h"
#include "kernel/avx512/lines_avx512.h"

/* ---- elements ----------------------------------------------------------------------------- */

/* Byte b of every word as e4m3. The bits land in binary32 with an exponent too small by
 * 120; subnormals come out right by the multiplication. */
TQK_INLINE __m512 e4m3(__m512i word, int b) {
    __m512i x = _mm512_srai_epi32(_mm512_sll_epi32(word, _mm_cvtsi32_si128(24 - 8 * b)), 4);
    x = _mm512_and_si512(x, _mm512_set1_epi32((int)0x87f00000u));
    return _mm512_mul_ps(_mm512_castsi512_ps(x), _mm512_set1_ps(0x1p120f));
}

/* Half h of every word as bf16 or f16. */
TQK_INLINE __m512 half(__m512i word, int h, bool bf16) {
    if (bf16)
        return _mm512_castsi512_ps(h ? _mm512_and_si512(word, _mm512_set1_epi32((int)0xffff0000u))
                                     : _mm512_slli_epi32(word, 16));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(h ? _mm512_srli_epi32(word, 16) : word));
}

/* ---- keys --------------------------------------------------------------------------------- */

enum source { E4M3, BF16, F16 };

/* A slab holds 4 dims (e4m3) or 2 dims of the 8 of a word. */
TQK_INLINE void unpack_k(const struct tqi_rows *k, enum source source, const struct tqi_tile *tile,
                         uint32_t token, uint32_t panels, float *panel) {
    const struct tqi_layout *l = &k->layout;
    struct tqk_codes_avx512 c = tqk_codes_of_k_avx512(l, tile);
    uint32_t per_slab = source == E4M3 ? 4 : 2, lane_dims = l->dim_pad / 4;
    uint32_t slabs = lane_dims / per_slab, first = token / l->group * slabs;
    const uint8_t *ahead = c.ahead + (size_t)token * l->dim_pad * l->bits / 8;
    for (uint32_t p = 0; p < panels; p++) {
        size_t at = (token % l->group + p * 16) * 16;
        for (uint32_t s = 0; s < slabs; s++) {
            __m512i x[4];
            TQK_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                ahead = tqk_ahead_avx512(ahead, 64);
                x[i] = tqk_line_avx512(&c, first + s, at + i * 64);
            }
            tqk_transpose_avx512(x);
            TQK_UNROLL
            for (uint32_t t = 0; t < 4; t++) {
                float *to = panel + (size_t)(p * l->dim_pad + t * lane_dims + s * per_slab) * 16;
                TQK_UNROLL
                for (uint32_t i = 0; i < per_slab; i++) {
                    _mm512_store_ps(to + i * 16, source == E4M3
                                                     ? e4m3(x[t], (int)i)
                                                     : half(x[t], (int)i, source == BF16));
                }
            }
        }
    }
}

/* ---- values ------------------------------------------------------------------------------- */

/* A slab holds 4 tokens (e4m3: 0 4 1 5, then 2 6 3 7) or 2 tokens of an octet. */
TQK_INLINE void put_tokens(float *to, enum source source, uint32_t slab, __m512i word) {
    if (source == E4M3) {
        _mm512_store_ps(to + (slab * 2 + 0) * 16, e4m3(word, 0));
        _mm512_store_ps(to + (slab * 2 + 4) * 16, e4m3(word, 1));
        _mm512_store_ps(to + (slab * 2 + 1) * 16, e4m3(word, 2));
        _mm512_store_ps(to + (slab * 2 + 5) * 16, e4m3(word, 3));
    } else {
        _mm512_store_ps(to + (slab * 2 + 0) * 16, half(word, 0, source == BF16));
        _mm512_store_ps(to + (slab * 2 + 1) * 16, half(word, 1, source == BF16));
    }
}

TQK_INLINE void unpack_v(const struct tqi_rows *v, enum source source, const struct tqi_tile *tile,
                         uint32_t dim, uint32_t panels, uint32_t n_tokens, float *panel) {
    const struct tqi_layout *l = &v->layout;
    struct tqk_codes_avx512 c = tqk_codes_of_v_avx512(l, tile);
    uint32_t per_lane = l->dim_pad / 32, groups = (n_tokens + l->group - 1) / l->group;
    uint32_t octets = l->group / 8, slabs = source == E4M3 ? 2 : 4;
    struct tqk_quad_walk_avx512 walk = tqk_quad_walk_avx512(l, dim);
    const uint8_t *ahead = c.ahead + (size_t)dim * groups * l->group * l->bits / 8;
    for (uint32_t p = 0; p < panels; p++) {
        struct tqk_quads_avx512 q = tqk_next_quads_avx512(&walk);
        for (uint32_t g = 0; g < groups; g++) {
            float *to = panel + (size_t)(p * groups + g) * l->group * 16;
            TQK_UNROLL
            for (uint32_t s = 0; s < slabs; s++) {
                __m512i x[4];
                TQK_UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    ahead = tqk_ahead_avx512(ahead, 64);
                    x[i] = tqk_line_avx512(&c, (g * slabs + s) * per_lane + q.word[i], q.at[i]);
                }
                tqk_transpose_avx512(x);
                TQK_UNROLL
                for (uint32_t o = 0; o < 4; o++) {
                    if (o < octets)
                        put_tokens(to + o * 128, source, s, x[o]);
                }
            }
        }
    }
}

#define UNPACK(name, source)                                                                 \
    void tqk_unpack_k_##name##_avx512(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                      uint32_t token, uint32_t panels, void *panel) {        \
        unpack_k(k, source, tile, token, panels, panel);                                     \
    }                                                                                        \
    void tqk_unpack_v_##name##_avx512(const struct tqi_rows *v, const struct tqi_tile *tile, \
                                      uint32_t dim, uint32_t panels, uint32_t n_tokens,      \
                                      void *panel) {                                         \
        unpack_v(v, source, tile, dim, panels, n_tokens, panel);                             \
    }
UNPACK(fp8, E4M3)
UNPACK(bf16, BF16)
UNPACK(f16, F16)
