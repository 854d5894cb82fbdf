/* Weights of the integer values: probability times gain in 15 bits of the block's largest. */
#include "kernel/avx2/avx2.h"

/* What the rows share. */
struct job {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    struct tqk_weights_avx2 *weights;
    __m256 gain[TQK_BLOCK_AVX2 / 8];
    __m128i order;
};

/* Gains of 8 tokens as binary32, 0 outside the tile. */
static __m256 gains_at(const struct job *j, uint32_t token) {
    const uint8_t *at = j->tile->blob + j->v->layout.gains + (size_t)token * 2;
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    __m256i index =
        _mm256_add_epi32(_mm256_set1_epi32((int)token), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i in =
        _mm256_and_si256(_mm256_cmpgt_epi32(index, _mm256_set1_epi32((int)j->tile->first - 1)),
                         _mm256_cmpgt_epi32(_mm256_set1_epi32((int)j->tile->last), index));
    return _mm256_castsi256_ps(_mm256_and_si256(in, _mm256_slli_epi32(wide, 16)));
}

/* Probabilities of 8 tokens, 0 outside the tile. */
static __m256 few_at(const struct tqi_tile *t, const float *p, uint32_t token) {
    float x[8] = {0};
    for (uint32_t i = 0; i < 8; i++)
        if (token + i >= t->first && token + i < t->last)
            x[i] = p[token + i - t->first];
    return _mm256_loadu_ps(x);
}

/* The weights of a row as fixed point, n registers. */
TQK_INLINE void fill_row(const struct job *j, uint32_t row, uint32_t n, const float *p) {
    struct tqk_weights_avx2 *to = j->weights;
    const struct tqi_tile *tile = j->tile;
    int16_t *out = to->rows + (size_t)row * TQK_BLOCK_AVX2;
    __m256 w[TQK_BLOCK_AVX2 / 8], most = _mm256_setzero_ps();
    __m256i sum = _mm256_setzero_si256();
    TQK_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = to->token + i * 8;
        w[i] = at >= tile->first && at + 8 <= tile->last ? _mm256_loadu_ps(p + (at - tile->first))
                                                         : few_at(tile, p, at);
        w[i] = _mm256_mul_ps(w[i], j->gain[i]);
        most = _mm256_max_ps(most, w[i]);
    }
    float top = tqk_largest_of_lanes_avx2(most), up = top < 0x1p-100f ? 0x1p40f : 1;
    __m256 factor = _mm256_set1_ps(top > 0 ? INT16_MAX / (top * up) : 0);
    factor = _mm256_mul_ps(factor, _mm256_set1_ps(up)); /* in two steps: it may be huge */
    TQK_UNROLL
    for (uint32_t i = 0; i < n; i++) {
        __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(w[i], factor));
        sum = _mm256_add_epi32(sum, x);
        __m128i y = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_store_si128((__m128i *)(void *)(out + i * 8), _mm_shuffle_epi8(y, j->order));
    }
    __m128i all = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    all = _mm_hadd_epi32(all, all);
    to->bias[row] = tqk_bias_avx2(j->v, _mm_cvtsi128_si32(_mm_hadd_epi32(all, all)));
    /* A NaN probability makes the sum of the state NaN, which spoils the row at its end. */
    to->scale[row] = top * (float)(1 / (TQK_VALUE_UNIT * INT16_MAX));
}

void tqk_weigh_avx2(const struct tqi_rows *v, const struct tqi_tile *tile, const float *p,
                    uint32_t n_rows, uint32_t score_stride, uint32_t token, int16_t *rows,
                    struct tqk_weights_avx2 *weights) {
    const struct tqi_layout *l = &v->layout;
    struct job j = {.v = v, .tile = tile, .weights = weights, .order = tqk_order_avx2(v, true)};
    memset(j.gain, 0, sizeof j.gain);
    uint32_t left = tile->last - token;
    left = left < TQK_BLOCK_AVX2 ? left : TQK_BLOCK_AVX2;
    weights->token = token;
    weights->n_tokens = (left + l->group - 1) / l->group * l->group;
    weights->rows = rows;
    for (uint32_t i = 0; i < weights->n_tokens; i += 8)
        j.gain[i / 8] = gains_at(&j, token + i);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (weights->n_tokens == 16)
            fill_row(&j, r, 2, p + (size_t)r * score_stride);
        else
            fill_row(&j, r, TQK_BLOCK_AVX2 / 8, p + (size_t)r * score_stride);
    }
}
