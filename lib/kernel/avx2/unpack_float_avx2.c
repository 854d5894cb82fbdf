/* Stage unpack, float formats: elements to steps of binary32, see float_avx2.h. A piece of 16 bytes
 * is 4 tokens or 4 dims by 2 elements of 16 bits, or by 4 of e4m3. */
#include "kernel/avx2/float_avx2.h"
#include "kernel/simd/ahead.h"

enum source { E4M3, BF16, F16 };

TQK_INLINE uint32_t slabs_of(enum source source) {
    return source == E4M3 ? 2 : 4;
}

TQK_INLINE __m128i piece(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* A piece to a register of a step. */
TQK_INLINE void put_half(float *to, enum source source, __m128i halves) {
    __m256 x = source == F16
                   ? _mm256_cvtph_ps(halves)
                   : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    _mm256_store_ps(to, x);
}

/* 16 halves of e4m3 to registers `apart` floats from each other. The bits land in IEEE halves with
 * an exponent too small by 8: their conversion takes subnormal numbers at full speed, which an
 * operation on subnormal binary32 does not on Intel cores (some 150 cycles each). */
TQK_INLINE void put_e4m3(float *to, size_t apart, __m256i high_bytes) {
    __m256i x = _mm256_srai_epi16(high_bytes, 1);
    x = _mm256_and_si256(x, _mm256_set1_epi16((short)0xbf80));
    _mm256_store_ps(to, _mm256_cvtph_ps(_mm256_castsi256_si128(x)));
    _mm256_store_ps(to + apart, _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}

/* Four pieces, `step` bytes apart, to the four registers of a step; of e4m3 even elements to one
 * step and odd ones to the next. */
TQK_INLINE void put_step(float *to, enum source source, const uint8_t *at, size_t step) {
    TQK_UNROLL
    for (uint32_t i = 0; i < 4; i += 2) {
        __m128i first = piece(at + i * step), second = piece(at + (i + 1) * step);
        if (source == E4M3) {
            __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
            put_e4m3(to + 8 * i, 8, _mm256_slli_epi16(x, 8));
            put_e4m3(to + TQK_STEP_AVX2 + 8 * i, 8, x);
        } else {
            put_half(to + 8 * i, source, first);
            put_half(to + 8 * i + 8, source, second);
        }
    }
}

TQK_INLINE void unpack_k(const struct tqi_rows *k, enum source source, const struct tqi_tile *tile,
                         uint32_t token, float *to) {
    const struct tqi_layout *l = &k->layout;
    const uint32_t per_lane = l->dim_pad / 32, slabs = slabs_of(source);
    uint32_t group = l->group == 32 ? token / 32 : token / 16;
    size_t slab = (size_t)tqi_slab_lanes(l) * 4, in_slab = (size_t)(token - group * l->group) * 16;
    const uint8_t *codes = tile->blob + l->codes;
    const uint8_t *ahead = codes + l->codes_size + (size_t)token * l->dim_pad * l->bits / 8;
    const ptrdiff_t far = tqk_far_keys(l, tile);
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t j = 0; j < per_lane; j++) {
            const uint8_t *at = codes + (group * per_lane + j) * slabs * slab + in_slab + t * 16;
            TQK_UNROLL
            for (uint32_t h = 0; h < slabs; h++) {
                tqk_ahead(ahead, far);
                put_step(to, source, at + h * slab, 64);
                to += TQK_STEP_AVX2 * 4 / slabs;
                ahead += 64;
            }
        }
}

TQK_INLINE void unpack_v(const struct tqi_rows *v, enum source source, const struct tqi_tile *tile,
                         uint32_t word, uint32_t n_tokens, float *to) {
    const struct tqi_layout *l = &v->layout;
    const uint32_t per_lane = l->dim_pad / 32, slabs = slabs_of(source), in_group = l->group / 8;
    const size_t slab = (size_t)tqi_slab_lanes(l) * 4, lane = (size_t)l->group * 2;
    const size_t block = (size_t)n_tokens / 2 * TQK_STEP_AVX2;
    const uint8_t *codes = tile->blob + l->codes + word * slab;
    const uint8_t *ahead =
        (tile->next ? tile->next : tile->blob) + (size_t)word * 32 * n_tokens * l->bits / 8;
    for (uint32_t octet = 0; octet < n_tokens / 8; octet++) {
        const uint8_t *at = codes + (octet & (in_group - 1)) * 16;
        TQK_UNROLL
        for (uint32_t h = 0; h < slabs; h++) {
            tqk_ahead(ahead, (ptrdiff_t)l->codes);
            put_step(to, source, at + h * per_lane * slab, lane);
            tqk_ahead(ahead + 64, (ptrdiff_t)l->codes);
            put_step(to + block, source, at + h * per_lane * slab + 4 * lane, lane);
            to += TQK_STEP_AVX2 * 4 / slabs;
            ahead += 128;
        }
        codes += (octet & (in_group - 1)) == in_group - 1 ? slabs * per_lane * slab : 0;
    }
}

#define UNPACK(name, source)                                                               \
    void tqk_unpack_k_##name##_avx2(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                    uint32_t token, float *to) {                           \
        unpack_k(k, source, tile, token, to);                                              \
    }                                                                                      \
    void tqk_unpack_v_##name##_avx2(const struct tqi_rows *v, const struct tqi_tile *tile, \
                                    uint32_t word, uint32_t n_tokens, float *to) {         \
        unpack_v(v, source, tile, word, n_tokens, to);                                     \
    }
UNPACK(fp8, E4M3)
UNPACK(bf16, BF16)
UNPACK(f16, F16)
