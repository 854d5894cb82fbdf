/* Weights of the integer values: probability times gain in 15 bits of the block's largest. */
#include "kernel/avx2/avx2.h"

/* Gains times this: probabilities reach 64 (softmax_avx2.c), and their product with the largest
 * gain must not leave binary32. */
#define ROOM 0x1p-8f

enum { REGISTERS = TQK_BLOCK_AVX2 / 8 };

/* Rows whose largest weights are looked for before any is rounded: the way from one to the other
 * is long, and others can go it meanwhile. */
enum { TOGETHER = 8 };

/* What the rows share. */
struct job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    const float *probabilities;
    size_t stride;
    uint32_t token;
    struct tqk_weights_avx2 *weights;
    __m256 gain[REGISTERS];
    __m256i order;                       /* of 8 weights, twice */
    __m128i minus_bias;                  /* of the codes */
    __m256 product[TOGETHER][REGISTERS]; /* probability times gain */
    float factor[TOGETHER];              /* of a row */
};

/* Gains of 8 tokens as binary32 times ROOM, 0 outside the tile. */
TQK_INLINE __m256 gains_at(const struct job *j, bool whole, uint32_t token) {
    const uint8_t *at = j->tile->blob + j->v->layout.gains + (size_t)token * 2;
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    wide = _mm256_slli_epi32(wide, 16);
    if (whole)
        return _mm256_mul_ps(_mm256_castsi256_ps(wide), _mm256_set1_ps(ROOM));
    __m256i index =
        _mm256_add_epi32(_mm256_set1_epi32((int)token), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i in =
        _mm256_and_si256(_mm256_cmpgt_epi32(index, _mm256_set1_epi32((int)j->tile->first - 1)),
                         _mm256_cmpgt_epi32(_mm256_set1_epi32((int)j->tile->last), index));
    wide = _mm256_and_si256(in, wide);
    return _mm256_mul_ps(_mm256_castsi256_ps(wide), _mm256_set1_ps(ROOM));
}

/* Probabilities of 8 tokens, 0 outside the tile. */
static __attribute__((noinline)) __m256 few_at(const struct tqi_tile *t, const float *p,
                                               uint32_t token) {
    float x[8] = {0};
    if (token >= t->first && token + 8 <= t->last)
        return _mm256_loadu_ps(p + (token - t->first));
    for (uint32_t i = 0; i < 8; i++)
        if (token + i >= t->first && token + i < t->last)
            x[i] = p[token + i - t->first];
    return _mm256_loadu_ps(x);
}

/* The largest of each of 4 registers. */
TQK_INLINE __m128 largest_of_4(const __m256 x[4]) {
    __m256 a = _mm256_max_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    __m256 b = _mm256_max_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    a = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

/* Factors of rows [row, + n), n up to 4, of those that go together from `first` on, and the scales
 * of their sums. A NaN probability makes the sum of the state NaN, which spoils the row at its
 * end. */
TQK_INLINE void find_factors(struct job *j, bool whole, uint32_t first, uint32_t row, uint32_t n) {
    const size_t stride = j->stride;
    const float *p = j->probabilities + (first + row) * stride;
    const uint32_t token = j->token;
    const struct tqi_tile *tile = j->tile;
    __m256 most[4], gain[REGISTERS], *to = j->product[row];
    p += whole ? token - tile->first : 0;
    TQK_UNROLL
    for (uint32_t i = 0; i < REGISTERS; i++) {
        gain[i] = j->gain[i];
    }
    TQK_UNROLL
    for (uint32_t r = 0; r < 4; r++, p += stride) {
        __m256 max[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        TQK_UNROLL
        for (uint32_t i = 0; i < REGISTERS && r < n; i++, to++) {
            __m256 x = whole ? _mm256_loadu_ps(p + 8 * i) : few_at(tile, p, token + 8 * i);
            *to = _mm256_mul_ps(gain[i], x);
            max[i % 2] = _mm256_max_ps(max[i % 2], *to);
        }
        most[r] = _mm256_max_ps(max[0], max[1]);
    }
    __m128 top = largest_of_4(most);
    __m128 small = _mm_cmplt_ps(top, _mm_set1_ps(0x1p-100f)), zero = _mm_setzero_ps();
    __m128 up = _mm_blendv_ps(_mm_set1_ps(1), _mm_set1_ps(0x1p40f), small);
    __m128 factor = _mm_div_ps(_mm_set1_ps(INT16_MAX), _mm_mul_ps(top, up));
    /* In two steps: it may be huge. */
    factor = _mm_mul_ps(_mm_and_ps(factor, _mm_cmpgt_ps(top, zero)), up);
    _mm_store_ps(j->factor + row, factor);
    const float unit = (float)(1 / (TQK_VALUE_UNIT * INT16_MAX * (double)ROOM));
    _mm_storeu_ps(j->weights->scale + first + row, _mm_mul_ps(top, _mm_set1_ps(unit)));
}

/* x * f, not negative, as an integer: plus 2^23, it is in the low bits of the binary32. */
TQK_INLINE __m256i nearest(__m256 x, __m256 f) {
    const __m256 magic = _mm256_set1_ps(0x1p23f);
    return _mm256_xor_si256(_mm256_castps_si256(_mm256_fmadd_ps(x, f, magic)),
                            _mm256_castps_si256(magic));
}

/* Those rows as fixed point, 8 tokens in the order of the form. */
TQK_INLINE void round_rows(const struct job *j, uint32_t first, uint32_t row, uint32_t n) {
    struct tqk_weights_avx2 *to = j->weights;
    const __m256 *from = j->product[row];
    const float *factor = j->factor + row;
    const __m256i order = j->order;
    __m256i *out = (__m256i *)(void *)(to->rows + (size_t)(first + row) * TQK_BLOCK_AVX2);
    __m256i sum[4];
    TQK_UNROLL
    for (uint32_t r = 0; r < 4; r++) {
        const __m256 f = _mm256_broadcast_ss(factor + r);
        sum[r] = _mm256_setzero_si256();
        TQK_UNROLL
        for (uint32_t i = 0; i < REGISTERS && r < n; i += 2, from += 2, out++) {
            __m256i x = nearest(from[0], f), y = nearest(from[1], f);
            sum[r] = _mm256_add_epi32(sum[r], _mm256_add_epi32(x, y));
            __asm__("" : "+x"(sum[r])); /* compilers else keep all x and y until the end */
            __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, y), 0xd8);
            _mm256_storeu_si256(out, _mm256_shuffle_epi8(both, order));
        }
    }
    __m256i all =
        _mm256_hadd_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3]));
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    /* As tqk_bias_avx2(). */
    __m128i bias = _mm_mullo_epi32(x, j->minus_bias);
    if (tqk_has_half(j->v))
        bias = _mm_add_epi32(bias, _mm_srai_epi32(_mm_add_epi32(x, _mm_set1_epi32(1)), 1));
    _mm_storeu_si128((__m128i *)(void *)(to->bias + first + row), bias);
}

/* Functions of their own, so that each has all registers. */
typedef void rows_fn(struct job *j, uint32_t first, uint32_t row);
#define FACTORS(name, whole, n)                                                               \
    static __attribute__((noinline)) void factors_##name##_##n(struct job *j, uint32_t first, \
                                                               uint32_t row) {                \
        find_factors(j, whole, first, row, n);                                                \
    }
#define ROWS(n)                                                                                    \
    FACTORS(all, true, n)                                                                          \
    FACTORS(some, false, n)                                                                        \
    static __attribute__((noinline)) void round_##n(struct job *j, uint32_t first, uint32_t row) { \
        round_rows(j, first, row, n);                                                              \
    }
ROWS(1)
ROWS(2)
ROWS(3)
ROWS(4)

static void weigh(struct job *j, bool whole, uint32_t first, uint32_t n) {
    static rows_fn *const factors[2][4] = {
        {factors_some_1, factors_some_2, factors_some_3, factors_some_4},
        {factors_all_1, factors_all_2, factors_all_3, factors_all_4}};
    static rows_fn *const round[4] = {round_1, round_2, round_3, round_4};
    for (uint32_t r = 0; r < n; r += 4)
        factors[whole][n - r < 4 ? n - r - 1 : 3](j, first, r);
    for (uint32_t r = 0; r < n; r += 4)
        round[n - r < 4 ? n - r - 1 : 3](j, first, r);
}

void tqk_weigh_avx2(const struct tqi_rows *v, const struct tqi_tile *tile, const float *p,
                    uint32_t n_rows, uint32_t score_stride, uint32_t token,
                    const struct tqk_weight_form_avx2 *form, struct tqk_weights_avx2 *weights) {
    const struct tqi_layout *l = &v->layout;
    const uint32_t left = tile->last - token < TQK_BLOCK_AVX2 ? tile->last - token : TQK_BLOCK_AVX2;
    const bool whole = token >= tile->first && left == TQK_BLOCK_AVX2;
    struct job j; /* set field by field: clearing it would show */
    j.v = v;
    j.tile = tile;
    j.probabilities = p;
    j.stride = score_stride;
    j.token = token;
    j.weights = weights;
    j.order = _mm256_broadcastsi128_si256(form->order);
    j.minus_bias = _mm_set1_epi32(-form->code_bias);
    weights->token = token;
    weights->n_tokens = (left + l->group - 1) / l->group * l->group;
    TQK_UNROLL
    for (uint32_t i = 0; i < REGISTERS && whole; i++) {
        j.gain[i] = gains_at(&j, true, token + i * 8);
    }
    for (uint32_t i = 0; i < REGISTERS && !whole; i++) {
        j.gain[i] = _mm256_setzero_ps();
        if (i * 8 < weights->n_tokens)
            j.gain[i] = gains_at(&j, false, token + i * 8);
    }
    for (uint32_t r = 0; r < n_rows; r += TOGETHER)
        weigh(&j, whole, r, n_rows - r < TOGETHER ? n_rows - r : TOGETHER);
}
