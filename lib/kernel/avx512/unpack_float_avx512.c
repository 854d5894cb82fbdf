/* Stage unpack: float formats to panels of binary32. A step is one dim (keys) or one token
 * (values) of 16 columns. */
#include "kernel/avx512/avx512.h"
#include "kernel/avx512/lines_avx512.h"

/* ---- elements ----------------------------------------------------------------------------- */

/* Bytes 0 and 2, or 1 and 3, of every word as e4m3. The bits land in IEEE halves with an exponent
 * too small by 8: their conversion takes subnormal numbers at full speed, which an operation on
 * subnormal binary32 does not on Intel cores (some 150 cycles each). */
TQK_INLINE void e4m3(__m512i word, bool odd, __m512 out[2]) {
    /* The low halves of all words, then the high ones. */
    const __m512i order = _mm512_setr_epi32(
        0x020000, 0x060004, 0x0a0008, 0x0e000c, 0x120010, 0x160014, 0x1a0018, 0x1e001c, 0x030001,
        0x070005, 0x0b0009, 0x0f000d, 0x130011, 0x170015, 0x1b0019, 0x1f001d);
    __m512i x = odd ? word : _mm512_slli_epi16(word, 8);
    x = _mm512_and_si512(_mm512_srai_epi16(x, 1), _mm512_set1_epi16((short)0xbf80));
    x = _mm512_permutexvar_epi16(order, x);
    out[0] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), _mm512_set1_ps(256));
    out[1] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), _mm512_set1_ps(256));
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

/* A slab holds 4 dims (e4m3) or 2 dims of the 8 of a word: so many steps. */
TQK_INLINE void put_steps(float *to, enum source source, __m512i word) {
    if (source == E4M3) {
        __m512 even[2], odd[2];
        e4m3(word, false, even);
        e4m3(word, true, odd);
        _mm512_store_ps(to, even[0]);
        _mm512_store_ps(to + 16, odd[0]);
        _mm512_store_ps(to + 32, even[1]);
        _mm512_store_ps(to + 48, odd[1]);
        return;
    }
    _mm512_store_ps(to, half(word, 0, source == BF16));
    _mm512_store_ps(to + 16, half(word, 1, source == BF16));
}

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
                put_steps(to, source, x[t]);
            }
        }
    }
}

/* ---- values ------------------------------------------------------------------------------- */

/* A slab holds 4 tokens (e4m3: 0 4 1 5, then 2 6 3 7) or 2 tokens of an octet. */
TQK_INLINE void put_tokens(float *to, enum source source, uint32_t slab, __m512i word) {
    if (source == E4M3) {
        __m512 first[2], second[2];
        e4m3(word, false, first);
        e4m3(word, true, second);
        _mm512_store_ps(to + (slab * 2 + 0) * 16, first[0]);
        _mm512_store_ps(to + (slab * 2 + 4) * 16, second[0]);
        _mm512_store_ps(to + (slab * 2 + 1) * 16, first[1]);
        _mm512_store_ps(to + (slab * 2 + 5) * 16, second[1]);
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
