/*
 * Stages of the AVX2 level (AVX2, FMA, F16C).
 *
 * Codes of a tile are decoded once into rows of 16-bit integers in cache, keys [token][dim],
 * values [dim][token]; queries and probabilities are 16-bit fixed point with one scale per
 * row, and VPMADDWD sums products of pairs exactly. Float formats do the same in binary32, in a
 * fixed order.
 */
#ifndef TQI_KERNEL_AVX2_H
#define TQI_KERNEL_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "kernel/simd/simd.h"

enum {
    TQK_DIM_LIMIT_AVX2 = 4096, /* of a row */
    TQK_TILE_ROWS_AVX2 = 32,   /* rows of a tile at most */
    TQK_BLOCK_AVX2 = 64        /* tokens whose weights share a scale */
};

/* A query row in dim order; floats for float formats. */
struct tqk_query_avx2 {
    float scale;        /* query = integer * scale; NaN spoils the row */
    int32_t half;       /* joins every sum: lm4 stores n for the value n + 1/2 */
    float sketch_scale; /* of the sums of a sketch */
    uint8_t pad[52];
    int16_t data[];
};

/* State of a query row; the accumulator is in the basis of the codes. */
struct tqk_state_avx2 {
    float max, sum, factor;
    float scale; /* of max: natural score = max * scale */
    float pad[12];
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

/* unpack: 16 keys from `token` (a multiple of 16) on to rows of dim_pad integers. */
typedef void tqk_unpack_k_fn_avx2(const struct tqi_rows *k, const struct tqi_tile *tile,
                                  uint32_t token, int16_t *rows);
/* Values of 32 dims from `dim` on and n_tokens tokens from `token` on, whole groups, to rows; 8
 * tokens stand in the order 0 1 4 5 2 3 6 7. */
typedef void tqk_unpack_v_fn_avx2(const struct tqi_rows *v, const struct tqi_tile *tile,
                                  uint32_t dim, uint32_t token, uint32_t n_tokens, int16_t *rows);
tqk_unpack_k_fn_avx2 tqk_unpack_k_lm4_avx2, tqk_unpack_k_lm3_avx2, tqk_unpack_k_lm2_avx2,
    tqk_unpack_k_int8_avx2;
tqk_unpack_v_fn_avx2 tqk_unpack_v_lm4_avx2, tqk_unpack_v_lm3_avx2, tqk_unpack_v_lm2_avx2,
    tqk_unpack_v_int8_avx2;

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
