/* Stage unpack, float formats: elements to rows of binary32. Pieces of 16 bytes from all slabs
 * of a word, transposed, give the 8 elements of 4 rows. */
#include "kernel/avx2/float_avx2.h"

enum source { E4M3, BF16, F16 };

TQK_INLINE __m128i piece(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* 8 bytes as e4m3. The bits land in IEEE halves with an exponent too small by 8: their conversion
 * takes subnormal numbers at full speed, which an operation on subnormal binary32 does not on
 * Intel cores (some 150 cycles each). */
TQK_INLINE void put_e4m3(float *to, __m128i bytes) {
    __m128i x = _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
    x = _mm_and_si128(_mm_srai_epi16(x, 1), _mm_set1_epi16((short)0xbf80));
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtph_ps(x), _mm256_set1_ps(256)));
}

TQK_INLINE void put_half(float *to, enum source source, __m128i halves) {
    __m256 x = source == F16
                   ? _mm256_cvtph_ps(halves)
                   : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    _mm256_storeu_ps(to, x);
}

/* One word of 4 rows: its slabs lie `step` bytes apart from `at` on. */
TQK_INLINE void unpack_word(enum source source, bool values, const uint8_t *at, size_t step,
                            float *to, size_t row) {
    if (source == E4M3) {
        /* Values stand in the order 0 4 1 5 2 6 3 7. */
        const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        __m128i a = piece(at), b = piece(at + step);
        __m128i x = _mm_unpacklo_epi32(a, b), y = _mm_unpackhi_epi32(a, b);
        x = values ? _mm_shuffle_epi8(x, order) : x;
        y = values ? _mm_shuffle_epi8(y, order) : y;
        put_e4m3(to, x);
        put_e4m3(to + row, _mm_srli_si128(x, 8));
        put_e4m3(to + 2 * row, y);
        put_e4m3(to + 3 * row, _mm_srli_si128(y, 8));
        return;
    }
    __m128i a = piece(at), b = piece(at + step), c = piece(at + 2 * step), d = piece(at + 3 * step);
    __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    put_half(to, source, _mm_unpacklo_epi64(ab, cd));
    put_half(to + row, source, _mm_unpackhi_epi64(ab, cd));
    ab = _mm_unpackhi_epi32(a, b);
    cd = _mm_unpackhi_epi32(c, d);
    put_half(to + 2 * row, source, _mm_unpacklo_epi64(ab, cd));
    put_half(to + 3 * row, source, _mm_unpackhi_epi64(ab, cd));
}

TQK_INLINE void unpack_k(const struct tqi_rows *k, enum source source, const struct tqi_tile *tile,
                         uint32_t token, float *rows) {
    const struct tqi_layout *l = &k->layout;
    uint32_t per_lane = l->dim_pad / 32, lane_dims = l->dim_pad / 4, row = l->dim_pad;
    uint32_t group = l->group == 32 ? token / 32 : token / 16, slabs = source == E4M3 ? 2 : 4;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, in_slab = (size_t)(token - group * l->group) * 16;
    const uint8_t *codes = tile->blob + l->codes;
    const char *ahead = (const char *)codes + l->codes_size + (size_t)token * row * l->bits / 8;
    for (uint32_t j = 0; j < per_lane; j++)
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t t = 0; t < 4; t++) {
                const uint8_t *at =
                    codes + (group * per_lane + j) * slabs * slab + in_slab + i * 64 + t * 16;
                float *to = rows + (size_t)i * 4 * row + t * lane_dims + j * 8;
                _mm_prefetch(ahead, _MM_HINT_T1);
                ahead += slabs * 16;
                unpack_word(source, false, at, slab, to, row);
            }
}

TQK_INLINE void unpack_v(const struct tqi_rows *v, enum source source, const struct tqi_tile *tile,
                         uint32_t dim, uint32_t n_tokens, float *rows) {
    const struct tqi_layout *l = &v->layout;
    uint32_t per_lane = l->dim_pad / 32, slabs = source == E4M3 ? 2 : 4;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    const char *ahead =
        (const char *)(tile->next ? tile->next : tile->blob) + (size_t)dim * n_tokens * l->bits / 8;
    for (uint32_t quad = 0; quad < 8; quad++) {
        uint32_t lane = (dim / 4 + quad) / per_lane, word = (dim / 4 + quad) % per_lane;
        const uint8_t *codes = tile->blob + l->codes + lane * l->group * 2 + word * slab;
        for (uint32_t octet = 0; octet < n_tokens / 8; octet++) {
            uint32_t group = octet * 8 / l->group, in_group = octet - group * (l->group / 8);
            const uint8_t *at = codes + group * slabs * per_lane * slab + in_group * 16;
            float *to = rows + (size_t)quad * 4 * n_tokens + octet * 8;
            _mm_prefetch(ahead, _MM_HINT_T1);
            ahead += slabs * 16;
            unpack_word(source, true, at, per_lane * slab, to, n_tokens);
        }
    }
}

#define UNPACK(name, source)                                                               \
    void tqk_unpack_k_##name##_avx2(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                    uint32_t token, float *rows) {                         \
        unpack_k(k, source, tile, token, rows);                                            \
    }                                                                                      \
    void tqk_unpack_v_##name##_avx2(const struct tqi_rows *v, const struct tqi_tile *tile, \
                                    uint32_t dim, uint32_t n_tokens, float *rows) {        \
        unpack_v(v, source, tile, dim, n_tokens, rows);                                    \
    }
UNPACK(fp8, E4M3)
UNPACK(bf16, BF16)
UNPACK(f16, F16)
