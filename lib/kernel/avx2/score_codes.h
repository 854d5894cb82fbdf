/* Stage score, integer formats: prepared queries times decoded keys. Written once for AVX2 and
 * AVX-VNNI, which multiply in their own ways (dot_avx2.h); a file includes this once, with
 * TQK_OF_LEVEL(name) for the names. */
#include "kernel/avx2/dot_avx2.h"

/* Sums of 8 keys from `token` + at on: with a width of 8 a row's two registers join, else the i-th
 * of them has these keys. */
TQK_INLINE void put_scores(const struct tqi_rows *k, const struct tqi_tile *tile, uint32_t width,
                           const char *queries, uint32_t rows, uint32_t stride, float *scores,
                           uint32_t token, uint32_t at, uint32_t i, const __m256i *sum) {
    const size_t query_bytes = tqk_query_bytes_avx2(k);
    const uint8_t *gains = tile->blob + k->layout.gains + (size_t)(token + at) * 2;
    __m256 gain = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)gains));
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const struct tqk_query_avx2 *q = (const void *)(queries + r * query_bytes);
        __m256i x = width == 8 ? _mm256_hadd_epi32(sum[2 * r], sum[2 * r + 1]) : sum[2 * r + i];
        __m256 s = _mm256_cvtepi32_ps(_mm256_add_epi32(x, _mm256_set1_epi32(q->bias)));
        s = _mm256_mul_ps(_mm256_mul_ps(s, _mm256_set1_ps(q->scale)), gain);
        tqk_put_8_scores_avx2(tile, scores + (size_t)r * stride, token + at, s);
    }
}

/* Rows and the 16 keys from `token` on. */
TQK_INLINE void score_rows(const struct tqi_rows *k, const struct tqi_tile *tile, uint32_t width,
                           const char *queries, uint32_t rows, uint32_t stride, float *scores,
                           uint32_t token, const int16_t *keys) {
    const size_t query_bytes = tqk_query_bytes_avx2(k);
    const uint32_t steps = k->layout.dim_pad / (width / 2), blocks = width == 8 ? 2 : 1;
    for (uint32_t b = 0; b < blocks; b++) {
        __m256i sum[TQK_SUMS_AVX2];
        tqk_dot_avx2(keys + (size_t)b * steps * 32, steps,
                     queries + offsetof(struct tqk_query_avx2, data), query_bytes, width, rows,
                     sum);
        put_scores(k, tile, width, queries, rows, stride, scores, token, b * 8, 0, sum);
        if (blocks == 1)
            put_scores(k, tile, width, queries, rows, stride, scores, token, 8, 1, sum);
    }
}

typedef void rows_fn(const struct tqi_rows *k, const struct tqi_tile *tile, const char *queries,
                     uint32_t stride, float *scores, uint32_t token, const int16_t *keys);
#define ROWS(name, width, rows)                                                     \
    static __attribute__((noinline)) void name##_##rows(                            \
        const struct tqi_rows *k, const struct tqi_tile *tile, const char *queries, \
        uint32_t stride, float *scores, uint32_t token, const int16_t *keys) {      \
        score_rows(k, tile, width, queries, rows, stride, scores, token, keys);     \
    }
TQK_BLOCKS_AVX2(halves, 8)
TQK_BLOCKS_AVX2(whole, 4)

static void score(const struct tqi_rows *k, const struct tqi_tile *tile, const char *queries,
                  uint32_t n_rows, uint32_t stride, float *scores, int16_t *scratch,
                  tqk_unpack_k_fn_avx2 *unpack) {
    rows_fn *const *run = tqk_has_half(k) ? halves : whole;
    const size_t query_bytes = tqk_query_bytes_avx2(k);
    for (uint32_t token = tile->first & ~15u; token < tile->last; token += 16) {
        unpack(k, tile, token, scratch);
        for (uint32_t r = 0, rows; r < n_rows; r += rows) {
            rows = tqk_rows_together(n_rows - r);
            run[rows](k, tile, queries + r * query_bytes, stride, scores + (size_t)r * stride,
                      token, scratch);
        }
    }
}

#define SCORE(format)                                                                              \
    void TQK_OF_LEVEL(score_##format)(const struct tqi_rows *k, const struct tqi_tile *tile,       \
                                      const void *queries, uint32_t n_rows, uint32_t score_stride, \
                                      void *scores, void *scratch) {                               \
        score(k, tile, queries, n_rows, score_stride, scores, scratch,                             \
              tqk_unpack_k_##format##_avx2);                                                       \
    }
SCORE(lm4)
SCORE(lm3)
SCORE(lm2)
SCORE(int8)

#define SCORE_SKETCH(format, codes)                                                          \
    void TQK_OF_LEVEL(score_##format)(const struct tqi_rows *k, const struct tqi_tile *tile, \
                                      const void *queries, uint32_t n_rows, uint32_t stride, \
                                      void *scores, void *scratch) {                         \
        TQK_OF_LEVEL(score_##codes)(k, tile, queries, n_rows, stride, scores, scratch);      \
        tqk_add_codes_sketch_avx2(k, tile, queries, n_rows, stride, scores);                 \
    }
SCORE_SKETCH(lm3_qjl, lm3)
SCORE_SKETCH(lm2_qjl, lm2)
