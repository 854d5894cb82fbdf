/*
 * Stages of the AVX2 level (AVX2, FMA, F16C).
 *
 * Codes become bytes in the loop that multiplies them (dot_avx2.h); queries and weights are 15-bit
 * fixed point with one scale per row, whose products with codes are summed exactly. Lanes of a sum
 * are tokens (keys) or dims (values), so that no step goes across a register. Codes of keys are
 * biased by 128, those of values as multiplication wants them; the bias joins the sums at their
 * end. Float formats sum rows in binary32, in a fixed order. The AVX-VNNI level
 * (lib/kernel/avxvnni) shares all of it but the multiplication, and the order in which the bytes of
 * a row lie.
 */
#ifndef TQI_KERNEL_AVX2_H
#define TQI_KERNEL_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernel/simd/simd.h"

enum {
    TQK_DIM_LIMIT_AVX2 = 4096, /* of a row */
    TQK_TILE_ROWS_AVX2 = 32,   /* rows of a tile at most */
    TQK_BLOCK_AVX2 = 64        /* tokens whose weights share a scale */
};

/* A query row: 16 bytes for every unit of a sum, see dot_avx2.h; floats in dim order for float
 * formats. */
struct tqk_query_avx2 {
    float scale;        /* query = integer * scale; NaN spoils the row */
    int32_t bias;       /* joins every sum, see tqk_bias_avx2() */
    float sketch_scale; /* of the sums of a sketch */
    uint8_t pad[52];
    int16_t data[];
};

/* State of a query row; the accumulator is in the basis of the codes. Probabilities are relative to
 * `max`, which follows the largest score at some distance. Sums of integer formats lie in the
 * order of the units, see accumulate_avx2.c. */
struct tqk_state_avx2 {
    float max, factor;
    float scale; /* of max: natural score = max * scale */
    float pad[5];
    float sum[8]; /* of probabilities, by lane */
    float acc[];
};

/* The first n of 8 lanes. */
static inline __m256i tqk_first_avx2(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n < 8 ? n : 8)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline float tqk_largest_of_lanes_avx2(__m256 x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

static inline float tqk_sum_of_lanes_avx2(__m256 x) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_shuffle_ps(m, m, 1)));
}

static inline float tqk_sum_of_avx2(const struct tqk_state_avx2 *s) {
    return tqk_sum_of_lanes_avx2(_mm256_loadu_ps(s->sum));
}

/* No token seen. Rows of NaN alone have no maximum either, but a sum. */
static inline bool tqk_is_empty_avx2(const struct tqk_state_avx2 *s) {
    return s->max == -INFINITY && tqk_sum_of_avx2(s) == 0;
}

/* Scores of 4 tokens from `token` on, those in the tile. */
static inline void tqk_put_scores_avx2(const struct tqi_tile *tile, float *to, uint32_t token,
                                       __m128 s) {
    if (token >= tile->first && token + 4 <= tile->last) {
        _mm_storeu_ps(to + (token - tile->first), s);
        return;
    }
    float x[4];
    _mm_storeu_ps(x, s);
    for (uint32_t i = 0; i < 4; i++)
        if (token + i >= tile->first && token + i < tile->last)
            to[token + i - tile->first] = x[i];
}

/* Of 8 tokens. */
void tqk_put_few_scores_avx2(const struct tqi_tile *tile, float *to, uint32_t token, __m256 s);
TQK_INLINE void tqk_put_8_scores_avx2(const struct tqi_tile *tile, float *to, uint32_t token,
                                      __m256 s) {
    if (token >= tile->first && token + 8 <= tile->last)
        _mm256_storeu_ps(to + (token - tile->first), s);
    else
        tqk_put_few_scores_avx2(tile, to, token, s);
}

/* What joins an integer sum, given the sum of the left operand: out with the bias of the codes; lm4
 * stores n for the value n + 1/2. */
static inline int32_t tqk_bias_avx2(const struct tqi_rows *rows, int32_t sum) {
    return -128 * sum + (tqk_has_half(rows) ? (sum + 1) >> 1 : 0);
}

/* A query row as integers in dim order, and all of `query` but them. */
void tqk_round_query_avx2(const struct tqi_rows *k, const float *row, struct tqk_query_avx2 *query,
                          int16_t *integers);

/* Probabilities times gains of a block of tokens as 15-bit fixed point. */
struct tqk_weights_avx2 {
    uint32_t token, n_tokens; /* from the start of the page; whole groups */
    int16_t *rows;            /* TQK_BLOCK_AVX2 apart, 16 bytes for every unit of 8 tokens */
    int32_t bias[TQK_TILE_ROWS_AVX2 + 3];
    float scale[TQK_TILE_ROWS_AVX2 + 3];
};

/* How the level lays them out: the place of every byte of 8 weights; and the bias of its codes. */
struct tqk_weight_form_avx2 {
    __m128i order;
    int32_t code_bias;
};

/* The block of up to TQK_BLOCK_AVX2 tokens from `token` on, into weights->rows; those outside the
 * tile weigh nothing. */
void tqk_weigh_avx2(const struct tqi_rows *v, const struct tqi_tile *tile, const float *p,
                    uint32_t n_rows, uint32_t score_stride, uint32_t token,
                    const struct tqk_weight_form_avx2 *form, struct tqk_weights_avx2 *weights);
/* Applies the factors that the softmax has noted. */
void tqk_rescale_states_avx2(const struct tqi_layout *l, char *states, size_t state_bytes,
                             uint32_t n_rows);
/* The share of the sketch in the scores of the plain codes. */
void tqk_add_codes_sketch_avx2(const struct tqi_rows *k, const struct tqi_tile *tile,
                               const void *queries, uint32_t n_rows, uint32_t score_stride,
                               void *scores);

/* rotate: x <- H D x, not normalised, in the order of spec/rotation.h; and D H^T x. */
void tqk_rotate_avx2(const struct tqi_rotation *r, float *x);
void tqk_unrotate_avx2(const struct tqi_rotation *r, float *x);

tqi_prepare_fn tqk_prepare_avx2, tqk_prepare_float_avx2;
tqi_softcap_fn tqk_softcap_avx2;
tqi_softmax_fn tqk_softmax_avx2;
tqi_state_clear_fn tqk_state_clear_avx2;
tqi_state_merge_fn tqk_state_merge_avx2;
tqi_state_finish_fn tqk_state_finish_avx2;
tqi_load_fn tqk_load_avx2;
tqi_widen_fn tqk_widen_avx2;
tqi_store_fn tqk_store_avx2;
/* Tables of a query by codes of polar keys and by signs of a sketch, see simd/query_tables.h:
 * their bytes; those of a whole query of polar keys; those of the sketch for a rotated row times
 * 2^e, which is destroyed; and the share of the sketch in scores, whose tables are `sketch_at`
 * bytes into the data of a query. */
size_t tqk_table_bytes_avx2(const struct tqi_rows *k);
tqi_prepare_fn tqk_prepare_polar_avx2;
void tqk_prepare_sketch_avx2(const struct tqi_rows *k, float *x, int e, void *query, uint8_t *to);
void tqk_add_sketch_avx2(const struct tqi_rows *k, const struct tqi_tile *tile, const void *queries,
                         uint32_t n_rows, uint32_t score_stride, void *scores, size_t sketch_at);
size_t tqk_encode_scratch_avx2(const struct tqi_rows *rows);
size_t tqk_query_bytes_avx2(const struct tqi_rows *k);
size_t tqk_state_bytes_avx2(const struct tqi_rows *v);
size_t tqk_scratch_bytes_avx2(const struct tqi_rows *rows);

#endif
