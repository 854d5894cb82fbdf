/* Weights of the integer values: probability times gain in 16 bits of the block's largest, four
 * rows at a time, so that steps across a register serve four. */
#include "kernel/avx512/codes_avx512.h"
#include "kernel/avx512/dot_avx512.h"
#include "kernel/avx512/weights_avx512.h"

enum { REGISTERS = TQK_BLOCK_AVX512 / 16 };

/* Gains of 16 tokens as binary32, 0 outside the tile. */
/* Gains times this: probabilities reach 64 (softmax_avx512.c), and their product with the largest
 * gain must not leave binary32. */
#define ROOM 0x1p-8f

static __m512 gains_at(const struct tqi_rows *v, const struct tqi_tile *tile, uint32_t token) {
    if (token >= tile->last) /* behind the page, perhaps */
        return _mm512_setzero_ps();
    const uint8_t *at = tile->blob + v->layout.gains + (size_t)token * 2;
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)at);
    __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
    __m512i index =
        _mm512_add_epi32(_mm512_set1_epi32((int)token),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __mmask16 in = _mm512_cmpge_epi32_mask(index, _mm512_set1_epi32((int)tile->first)) &
                   _mm512_cmplt_epi32_mask(index, _mm512_set1_epi32((int)tile->last));
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(in, wide));
}

/* Lane i = the sums over register i's lanes, by position; four registers in, one out. */
#define JOIN(name, type, shuffle, op)                                      \
    TQK_INLINE type name(const type x[4]) {                                \
        type a = op(shuffle(x[0], x[1], 0x44), shuffle(x[0], x[1], 0xee)); \
        type b = op(shuffle(x[2], x[3], 0x44), shuffle(x[2], x[3], 0xee)); \
        return op(shuffle(a, b, 0x88), shuffle(a, b, 0xdd));               \
    }
JOIN(join_largest, __m512, _mm512_shuffle_f32x4, _mm512_max_ps)
JOIN(join_sums, __m512i, _mm512_shuffle_i32x4, _mm512_add_epi32)

/* The largest of each of 4 registers, four times in lane 0..3. */
TQK_INLINE __m512 largest_of_4(const __m512 x[4]) {
    __m512 a = join_largest(x);
    a = _mm512_max_ps(a, _mm512_permute_ps(a, 0x4e));
    return _mm512_max_ps(a, _mm512_permute_ps(a, 0xb1));
}

TQK_INLINE __m512i sum_of_4(const __m512i x[4]) {
    __m512i a = join_sums(x);
    a = _mm512_add_epi32(a, _mm512_shuffle_epi32(a, 0x4e));
    return _mm512_add_epi32(a, _mm512_shuffle_epi32(a, 0xb1));
}

/* 64 weights to their high and low bytes. Packing leaves token 16 i + 4 k + e in byte
 * 16 k + 4 i + e. */
struct placing {
    __m512i first, second; /* halves of a row from (high, low) */
};

/* The bytes of a plane for one octet, in the operand order of words that are split into nibbles,
 * or not. */
#define PLACE(plane, o, t) \
    (plane) + (8 * (o) + (t)) / 4 % 4 * 16 + (8 * (o) + (t)) / 16 * 4 + (t) % 4
#define EIGHT(p, o, t0, t1, t2, t3, t4, t5, t6, t7)                                      \
    PLACE(p, o, t0), PLACE(p, o, t1), PLACE(p, o, t2), PLACE(p, o, t3), PLACE(p, o, t4), \
        PLACE(p, o, t5), PLACE(p, o, t6), PLACE(p, o, t7)
#define WHOLE(p, o) EIGHT(p, o, 0, 1, 4, 5, 2, 3, 6, 7)
#define SPLIT(p, o) EIGHT(p, o, 0, 4, 2, 6, 1, 5, 3, 7)
#define OCTETS(of)                                                                              \
    {                                                                                           \
        of(0, 0), of(64, 0), of(0, 1), of(64, 1), of(0, 2), of(64, 2), of(0, 3), of(64, 3),     \
            of(0, 4), of(64, 4), of(0, 5), of(64, 5), of(0, 6), of(64, 6), of(0, 7), of(64, 7), \
    }
#define PLANES(of)                                                                                 \
    {                                                                                              \
        of(0, 0), of(0, 1), of(0, 2), of(0, 3), of(0, 4), of(0, 5), of(0, 6), of(0, 7), of(64, 0), \
            of(64, 1), of(64, 2), of(64, 3), of(64, 4), of(64, 5), of(64, 6), of(64, 7)            \
    }

static struct placing placing_of(const struct tqi_rows *v, enum tqk_weights_order_avx512 order) {
    static const uint8_t octets[2][128] = {OCTETS(WHOLE), OCTETS(SPLIT)};
    static const uint8_t planes[2][128] = {PLANES(WHOLE), PLANES(SPLIT)};
    const bool split = tqk_splits_nibbles_avx512(v);
    const uint8_t *at = order == TQK_WEIGHTS_PLANES ? planes[split] : octets[split];
    struct placing p = {_mm512_loadu_si512(at), _mm512_loadu_si512(at + 64)};
    return p;
}

TQK_INLINE void put(const struct placing *p, const __m512i x[REGISTERS], uint8_t *to) {
    const __m512i byte = _mm512_set1_epi16(255);
    __m512i a = _mm512_packus_epi32(x[0], x[1]), b = _mm512_packus_epi32(x[2], x[3]);
    __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    __m512i high = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi8(high, p->first, low));
    _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi8(high, p->second, low));
}

/* What the rows share. */
struct job {
    struct placing placing;
    __m512 gain[REGISTERS];
    uint32_t token;
    float *products; /* by row */
    __m512 *largest; /* by row */
    uint8_t *bytes;
};

static void multiply(struct job *j, const struct tqi_tile *tile, uint32_t row, const float *p) {
    __m512 most = _mm512_setzero_ps();
    TQK_UNROLL
    for (uint32_t i = 0; i < REGISTERS; i++) {
        uint32_t at = j->token + i * 16;
        __m512 w = at >= tile->first && at + 16 <= tile->last
                       ? _mm512_loadu_ps(p + (at - tile->first))
                       : tqk_probabilities_at_avx512(tile, p, at);
        w = _mm512_mul_ps(w, j->gain[i]);
        most = _mm512_max_ps(most, w);
        _mm512_store_ps(j->products + (size_t)row * TQK_BLOCK_AVX512 + i * 16, w);
    }
    j->largest[row] = most;
}

/* Rows [row, + n), n up to 4. */
static void round_rows(struct job *j, struct tqk_weights_avx512 *weights, bool has_half,
                       uint32_t row, uint32_t n) {
    __m512 top = largest_of_4(j->largest + row);
    /* The reciprocal must not overflow. */
    __mmask16 small = _mm512_cmp_ps_mask(top, _mm512_set1_ps(0x1p-100f), _CMP_LT_OQ);
    __m512 up = _mm512_mask_mov_ps(_mm512_set1_ps(1), small, _mm512_set1_ps(0x1p40f));
    __m512 factor = _mm512_div_ps(_mm512_set1_ps(TQK_WEIGHT_MAX), _mm512_mul_ps(top, up));
    __mmask16 some = _mm512_cmp_ps_mask(top, _mm512_setzero_ps(), _CMP_GT_OQ);
    factor = _mm512_maskz_mul_ps(some, factor, up);
    __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                      _mm512_setzero_si512()};
    float factors[16];
    _mm512_storeu_ps(factors, factor);
    for (uint32_t r = 0; r < n; r++) {
        const float *from = j->products + (size_t)(row + r) * TQK_BLOCK_AVX512;
        const __m512 f = _mm512_set1_ps(factors[4 * r]);
        __m512i x[REGISTERS];
        TQK_UNROLL
        for (uint32_t i = 0; i < REGISTERS; i++) {
            x[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(from + i * 16), f));
        }
        put(&j->placing, x, j->bytes + (size_t)(row + r) * TQK_WEIGHTS_BYTES_AVX512);
        sum[r] = _mm512_add_epi32(_mm512_add_epi32(x[0], x[1]), _mm512_add_epi32(x[2], x[3]));
    }
    __m512i half = _mm512_setzero_si512();
    if (has_half)
        half = _mm512_srai_epi32(_mm512_add_epi32(sum_of_4(sum), _mm512_set1_epi32(1)), 1);
    /* A NaN probability makes the sum of the state NaN, which spoils the row at its end. */
    const float unit = (float)(1 / (TQK_VALUE_UNIT * TQK_WEIGHT_MAX * ROOM));
    const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512 scale = _mm512_permutexvar_ps(pick, _mm512_mul_ps(top, _mm512_set1_ps(unit)));
    _mm_storeu_ps(weights->scale + row, _mm512_castps512_ps128(scale));
    half = _mm512_permutexvar_epi32(pick, half);
    _mm_storeu_si128((__m128i *)(void *)(weights->half + row), _mm512_castsi512_si128(half));
}

void tqk_weigh_avx512(const struct tqi_rows *v, const struct tqi_tile *tile,
                      const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                      uint32_t token, void *scratch, struct tqk_weights_avx512 *weights) {
    struct job j; /* set field by field: clearing all of it first would show */
    j.placing = placing_of(v, weights->order);
    j.token = token;
    j.largest = scratch;
    j.products = (float *)(void *)((char *)scratch + (size_t)TQK_TILE_ROWS_AVX512 * 64);
    j.bytes = (uint8_t *)(j.products + (size_t)TQK_TILE_ROWS_AVX512 * TQK_BLOCK_AVX512);
    weights->bytes = j.bytes;
    for (uint32_t i = 0; i < REGISTERS; i++)
        j.gain[i] = _mm512_mul_ps(gains_at(v, tile, token + i * 16), _mm512_set1_ps(ROOM));
    for (uint32_t r = 0; r < n_rows; r++)
        multiply(&j, tile, r, probabilities + (size_t)r * score_stride);
    for (uint32_t r = n_rows; r % 4; r++)
        j.largest[r] = _mm512_setzero_ps();
    for (uint32_t r = 0; r < n_rows; r += 4)
        round_rows(&j, weights, tqk_has_half(v), r, n_rows - r < 4 ? n_rows - r : 4);
}

void tqk_rescale_states_avx512(const struct tqi_layout *l, char *states, size_t state_bytes,
                               uint32_t n_rows) {
    for (uint32_t r = 0; r < n_rows; r++) {
        struct tqk_state_avx512 *s = (void *)(states + r * state_bytes);
        const __m512 factor = _mm512_set1_ps(s->factor);
        if (s->factor == 1)
            continue;
        for (uint32_t i = 0; i < l->dim_pad; i += 16)
            _mm512_storeu_ps(s->acc + i, _mm512_mul_ps(_mm512_loadu_ps(s->acc + i), factor));
    }
}
