/* Weights of the integer values in the making: probability times gain in 16 bits of the block's
 * largest, up to four rows at a time, so that steps across a register serve four. */
#ifndef TQI_KERNEL_AVX512_WEIGH_H
#define TQI_KERNEL_AVX512_WEIGH_H

#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

/* Gains times this: probabilities reach 64 (softmax_avx512.c), and their product with the largest
 * gain must not leave binary32. */
#define TQK_GAIN_ROOM_AVX512 0x1p-8f

/* Gains of 16 tokens as binary32, 0 outside the tile. */
static inline __m512 tqk_gains_avx512(const struct tqi_rows *v, const struct tqi_tile *tile,
                                      uint32_t token, bool whole) {
    if (!whole && token >= tile->last) /* behind the page, perhaps */
        return _mm512_setzero_ps();
    const uint8_t *at = tile->blob + v->layout.gains + (size_t)token * 2;
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)at);
    __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
    if (whole)
        return _mm512_castsi512_ps(wide);
    __m512i index =
        _mm512_add_epi32(_mm512_set1_epi32((int)token),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 in = _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32((int)tile->first)) &
                   _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32((int)tile->last));
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(in, wide));
}

/* Lane i = the sums over register i's lanes, by position; four registers in, one out. */
#define TQK_JOIN_AVX512(name, type, shuffle, op)                           \
    TQK_INLINE type name(const type x[4]) {                                \
        type a = op(shuffle(x[0], x[1], 0x44), shuffle(x[0], x[1], 0xee)); \
        type b = op(shuffle(x[2], x[3], 0x44), shuffle(x[2], x[3], 0xee)); \
        return op(shuffle(a, b, 0x88), shuffle(a, b, 0xdd));               \
    }
TQK_JOIN_AVX512(tqk_join_largest_avx512, __m512, _mm512_shuffle_f32x4, _mm512_max_ps)
TQK_JOIN_AVX512(tqk_join_sums_avx512, __m512i, _mm512_shuffle_i32x4, _mm512_add_epi32)

/* The largest of each of 4 registers, four times in lane 0..3. */
TQK_INLINE __m512 tqk_largest_of_4_avx512(const __m512 x[4]) {
    __m512 a = tqk_join_largest_avx512(x);
    a = _mm512_max_ps(a, _mm512_permute_ps(a, 0x4e));
    return _mm512_max_ps(a, _mm512_permute_ps(a, 0xb1));
}

TQK_INLINE __m512i tqk_sum_of_4_avx512(const __m512i x[4]) {
    __m512i a = tqk_join_sums_avx512(x);
    a = _mm512_add_epi32(a, _mm512_shuffle_epi32(a, 0x4e));
    return _mm512_add_epi32(a, _mm512_shuffle_epi32(a, 0xb1));
}

/* Bytes of 64 weights: in word k of a register of either plane stand tokens k, 32 + k, 16 + k and
 * 48 + k. */
#define TQK_PLACE_AVX512(o, t) \
    (8 * (o) + (t)) % 16 * 4 + (8 * (o) + (t)) / 16 % 2 * 2 + (8 * (o) + (t)) / 32
#define TQK_EIGHT_AVX512(o, t0, t1, t2, t3, t4, t5, t6, t7)                        \
    TQK_PLACE_AVX512(o, t0), TQK_PLACE_AVX512(o, t1), TQK_PLACE_AVX512(o, t2),     \
        TQK_PLACE_AVX512(o, t3), TQK_PLACE_AVX512(o, t4), TQK_PLACE_AVX512(o, t5), \
        TQK_PLACE_AVX512(o, t6), TQK_PLACE_AVX512(o, t7)
#define TQK_WHOLE_AVX512(o) TQK_EIGHT_AVX512(o, 0, 1, 4, 5, 2, 3, 6, 7)
#define TQK_SPLIT_AVX512(o) TQK_EIGHT_AVX512(o, 0, 4, 2, 6, 1, 5, 3, 7)
#define TQK_OCTETS_AVX512(of) \
    { of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7) }

/* From there to the operand order of words that are split into nibbles, or not. */
static inline __m512i tqk_weight_places_avx512(const struct tqi_rows *v) {
    static const uint8_t order[2][64] = {TQK_OCTETS_AVX512(TQK_WHOLE_AVX512),
                                         TQK_OCTETS_AVX512(TQK_SPLIT_AVX512)};
    return _mm512_loadu_si512(order[tqk_splits_nibbles_avx512(v)]);
}

/* Probabilities times gains of a row. */
TQK_INLINE void tqk_weigh_avx512(const struct tqk_weighing_avx512 *j, bool whole, uint32_t row,
                                 __m512 w[TQK_WEIGHT_REGISTERS_AVX512]) {
    const float *p = j->probabilities + row * j->stride;
    TQK_KEEP_ADDRESS(p);
    TQK_UNROLL
    for (uint32_t i = 0; i < TQK_WEIGHT_REGISTERS_AVX512; i++) {
        uint32_t at = j->token + i * 16;
        w[i] = whole ? _mm512_loadu_ps(p + (at - j->tile->first))
                     : tqk_probabilities_at_avx512(j->tile, p, at);
        w[i] = _mm512_mul_ps(w[i], j->gain[i]);
    }
}

/* TQK_WEIGHT_MAX over the largest, or a little less. The reciprocal, which is off by 2^-14, must
 * not overflow. */
TQK_INLINE __m512 tqk_factor_of_avx512(__m512 top) {
    __mmask16 small = _mm512_cmp_ps_mask(top, _mm512_set1_ps(0x1p-100f), _CMP_LT_OQ);
    __mmask16 some = _mm512_cmp_ps_mask(top, _mm512_setzero_ps(), _CMP_GT_OQ);
    __m512 up = _mm512_mask_mov_ps(_mm512_set1_ps(1), small, _mm512_set1_ps(0x1p40f));
    __m512 most = _mm512_set1_ps((float)(TQK_WEIGHT_MAX * (1 - 0x1p-13)));
    __m512 x = _mm512_maskz_mul_ps(some, _mm512_rcp14_ps(_mm512_mul_ps(top, up)), most);
    return _mm512_min_ps(_mm512_mul_ps(x, up), _mm512_set1_ps(0x1p126f));
}

/* Factors of rows [row, + n), n up to 4, four times each. */
TQK_INLINE void tqk_find_factors_avx512(struct tqk_weighing_avx512 *j, bool whole, uint32_t row,
                                        uint32_t n) {
    __m512 most[4];
    TQK_UNROLL
    for (uint32_t r = 0; r < n; r++) {
        __m512 w[TQK_WEIGHT_REGISTERS_AVX512];
        tqk_weigh_avx512(j, whole, row + r, w);
        most[r] = _mm512_max_ps(_mm512_max_ps(w[0], w[1]), _mm512_max_ps(w[2], w[3]));
    }
    TQK_UNROLL
    for (uint32_t r = n; r < 4; r++) {
        most[r] = most[r % n];
    }
    _mm512_storeu_ps(j->factor + (size_t)4 * row,
                     tqk_factor_of_avx512(tqk_largest_of_4_avx512(most)));
}

/* Weights as the low 16 bits of words, in two planes of bytes; without shuffles up to the last,
 * since these have but one port. */
TQK_INLINE void tqk_put_weights_avx512(const __m512i x[TQK_WEIGHT_REGISTERS_AVX512], __m512i place,
                                       uint8_t *to) {
    const __m512i half = _mm512_set1_epi32(0xffff), byte = _mm512_set1_epi16(0xff);
    /* 0xe4: third operand ? first : second, bit by bit. */
    __m512i a = _mm512_ternarylogic_epi32(x[0], _mm512_slli_epi32(x[1], 16), half, 0xe4);
    __m512i b = _mm512_ternarylogic_epi32(x[2], _mm512_slli_epi32(x[3], 16), half, 0xe4);
    __m512i high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(a, 8), b, byte, 0xe4);
    __m512i low = _mm512_ternarylogic_epi32(a, _mm512_slli_epi16(b, 8), byte, 0xe4);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi8(place, high));
    _mm512_storeu_si512(to + TQK_BLOCK_AVX512, _mm512_permutexvar_epi8(place, low));
}

/* What rows [row, + 4) add to and multiply sums with. A NaN probability makes the sum of the state
 * NaN, which spoils the row at its end. */
TQK_INLINE void tqk_put_scales_avx512(const struct tqk_weighing_avx512 *j, uint32_t row,
                                      const __m512i sum[4]) {
    const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128 unit = _mm_set1_ps((float)(1 / (TQK_VALUE_UNIT * (double)TQK_GAIN_ROOM_AVX512)));
    struct tqk_weights_avx512 *to = j->weights;
    __m512 factors = _mm512_loadu_ps(j->factor + (size_t)4 * row);
    __m128 factor = _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, factors));
    __mmask8 some = _mm_cmp_ps_mask(factor, _mm_setzero_ps(), _CMP_GT_OQ);
    _mm_storeu_ps(to->scale + row, _mm_maskz_div_ps(some, unit, factor));
    __m512i half = _mm512_setzero_si512();
    if (tqk_has_half(j->v)) { /* (sum + 1) / 2, without the bits of the magic number */
        const __m512i bits = _mm512_set1_epi32((int)(0x4b000000u * TQK_BLOCK_AVX512 - 1u));
        half = _mm512_srai_epi32(_mm512_sub_epi32(tqk_sum_of_4_avx512(sum), bits), 1);
        half = _mm512_permutexvar_epi32(pick, half);
    }
    _mm_storeu_si128((__m128i *)(void *)(to->half + row), _mm512_castsi512_si128(half));
}

/* Rows [row, + n), n up to 4. */
TQK_INLINE void tqk_round_weights_avx512(const struct tqk_weighing_avx512 *j, bool whole,
                                         uint32_t row, uint32_t n) {
    const __m512 magic = _mm512_set1_ps(0x1p23f); /* plus this, an integer is in the low bits */
    uint8_t *to = j->weights->bytes + (size_t)row * TQK_WEIGHTS_BYTES_AVX512;
    __m512i sum[4];
    TQK_UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m512 f = _mm512_set1_ps(j->factor[4 * (row + r)]);
        __m512 w[TQK_WEIGHT_REGISTERS_AVX512];
        __m512i x[TQK_WEIGHT_REGISTERS_AVX512];
        tqk_weigh_avx512(j, whole, row + r, w);
        TQK_UNROLL
        for (uint32_t i = 0; i < TQK_WEIGHT_REGISTERS_AVX512; i++) {
            x[i] = _mm512_castps_si512(_mm512_fmadd_ps(w[i], f, magic));
        }
        tqk_put_weights_avx512(x, j->place, to + (size_t)r * TQK_WEIGHTS_BYTES_AVX512);
        sum[r] = _mm512_add_epi32(_mm512_add_epi32(x[0], x[1]), _mm512_add_epi32(x[2], x[3]));
    }
    TQK_UNROLL
    for (uint32_t r = n; r < 4; r++) {
        sum[r] = sum[r % n];
    }
    tqk_put_scales_avx512(j, row, sum);
}

/* What all rows share. */
TQK_INLINE void tqk_set_weighing_avx512(struct tqk_weighing_avx512 *j, const struct tqi_rows *v,
                                        const struct tqi_tile *tile, const float *probabilities,
                                        uint32_t score_stride, uint32_t token, bool whole,
                                        struct tqk_weights_avx512 *weights) {
    j->v = v;
    j->tile = tile;
    j->probabilities = probabilities;
    j->stride = score_stride;
    j->token = token;
    j->whole = whole;
    j->place = tqk_weight_places_avx512(v);
    j->weights = weights;
    TQK_UNROLL
    for (uint32_t i = 0; i < TQK_WEIGHT_REGISTERS_AVX512; i++) {
        j->gain[i] = _mm512_mul_ps(tqk_gains_avx512(v, tile, token + i * 16, whole),
                                   _mm512_set1_ps(TQK_GAIN_ROOM_AVX512));
    }
}

#endif
