/* Stage accumulate, integer formats: weights times decoded values. Written once for AVX2 and
 * AVX-VNNI, see score_codes.h. */
#include "kernel/avx2/dot_avx2.h"

/* What all rows of a block of tokens share. */
struct job {
    struct tqk_weights_avx2 weights;
    const int16_t *values; /* 32 dims */
    char *states;
    size_t state_bytes;
    size_t word;
};

/* Adds sums of 8 dims, 4 of lane 2 `pair` and 4 of the next, to the state of a row. */
TQK_INLINE void add_sums(const struct job *j, uint32_t row, char *state, uint32_t pair,
                         __m256i sum) {
    float *acc = ((struct tqk_state_avx2 *)(void *)state)->acc + (j->word * 4 + pair) * 8;
    __m256i x = _mm256_add_epi32(sum, _mm256_set1_epi32(j->weights.bias[row]));
    __m256 scale = _mm256_set1_ps(j->weights.scale[row]);
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), scale, _mm256_loadu_ps(acc)));
}

/* Rows from `row` on and 32 dims. */
TQK_INLINE void sum_rows(const struct job *j, uint32_t width, uint32_t row, uint32_t rows) {
    const uint32_t steps = j->weights.n_tokens / (width / 2);
    const uint32_t blocks = width == 8 ? 4 : 2;
    const char *weights = (const char *)(j->weights.rows + (size_t)row * TQK_BLOCK_AVX2);
    for (uint32_t b = 0; b < blocks; b++) {
        __m256i sum[TQK_SUMS_AVX2];
        tqk_dot_avx2(j->values + (size_t)b * steps * 32, steps, weights, TQK_BLOCK_AVX2 * 2, width,
                     rows, sum);
        char *state = j->states + row * j->state_bytes;
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++, state += j->state_bytes) {
            if (width == 8) {
                add_sums(j, row + r, state, b, _mm256_hadd_epi32(sum[2 * r], sum[2 * r + 1]));
            } else {
                add_sums(j, row + r, state, 2 * b, sum[2 * r]);
                add_sums(j, row + r, state, 2 * b + 1, sum[2 * r + 1]);
            }
        }
    }
}

typedef void rows_fn(const struct job *j, uint32_t row);
#define ROWS(name, width, rows)                                                              \
    static __attribute__((noinline)) void name##_##rows(const struct job *j, uint32_t row) { \
        sum_rows(j, width, row, rows);                                                       \
    }
TQK_BLOCKS_AVX2(halves, 8)
TQK_BLOCKS_AVX2(whole, 4)

/* Weights have 15 bits: tokens are taken in blocks with a scale of their own, so that a heavy
 * token takes precision from few others. */
static void accumulate(const struct tqi_rows *v, const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, int16_t *scratch,
                       tqk_unpack_v_fn_avx2 *unpack) {
    rows_fn *const *run = tqk_has_half(v) ? halves : whole;
    const struct tqi_layout *l = &v->layout;
    struct job j = {.values = scratch, .states = states, .state_bytes = state_bytes};
    tqk_rescale_states_avx2(l, states, state_bytes, n_rows);
    for (uint32_t token = tile->first / l->group * l->group; token < tile->last;
         token += TQK_BLOCK_AVX2) {
        tqk_weigh_avx2(v, tile, probabilities, n_rows, score_stride, token,
                       scratch + (size_t)32 * TQK_BLOCK_AVX2, &j.weights);
        for (uint32_t word = 0; word < l->dim_pad / 32; word++) {
            j.word = word;
            unpack(v, tile, word, token, j.weights.n_tokens, scratch);
            for (uint32_t r = 0, rows; r < n_rows; r += rows) {
                rows = tqk_rows_together(n_rows - r);
                run[rows](&j, r);
            }
        }
    }
}

#define ACCUMULATE(format)                                                                         \
    void TQK_OF_LEVEL(accumulate_##format)(                                                        \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, tile, probabilities, n_rows, score_stride, states, state_bytes, scratch,     \
                   tqk_unpack_v_##format##_avx2);                                                  \
    }
ACCUMULATE(lm4)
ACCUMULATE(lm3)
ACCUMULATE(lm2)
ACCUMULATE(int8)
