/* Weights of the integer values for kernels of any number of rows. */
#include "kernel/avx512/weigh_avx512.h"

/* Calls one(j, whole, row, n) with a constant n, up to 4 of the rows that are left. */
#define UP_TO_FOUR(one, j, whole, row, left) \
    do {                                     \
        if ((left) >= 4)                     \
            one(j, whole, row, 4);           \
        else if ((left) == 3)                \
            one(j, whole, row, 3);           \
        else if ((left) == 2)                \
            one(j, whole, row, 2);           \
        else                                 \
            one(j, whole, row, 1);           \
    } while (0)
/* The same for all rows. */
#define FOR_ROWS(one, j)                                  \
    for (uint32_t row = 0; row < (j)->n_rows; row += 4) { \
        const uint32_t left = (j)->n_rows - row;          \
        if ((j)->whole)                                   \
            UP_TO_FOUR(one, j, true, row, left);          \
        else                                              \
            one##_some(j, row, left);                     \
    }
/* Where tokens are outside the tile. */
#define SOME(one, job)                                                                     \
    static __attribute__((noinline)) void one##_some(job j, uint32_t row, uint32_t left) { \
        UP_TO_FOUR(one, j, false, row, left);                                              \
    }
SOME(tqk_find_factors_avx512, struct tqk_weighing_avx512 *)
SOME(tqk_round_weights_avx512, const struct tqk_weighing_avx512 *)

void tqk_start_weights_avx512(struct tqk_weighing_avx512 *j, const struct tqi_rows *v,
                              const struct tqi_tile *tile, const float *probabilities,
                              uint32_t n_rows, uint32_t score_stride, uint32_t token,
                              struct tqk_weights_avx512 *weights) {
    const bool whole = tile->first <= token && tile->last >= token + TQK_BLOCK_AVX512;
    j->n_rows = n_rows;
    tqk_set_weighing_avx512(j, v, tile, probabilities, score_stride, token, whole, weights);
    FOR_ROWS(tqk_find_factors_avx512, j)
}

void tqk_end_weights_avx512(const struct tqk_weighing_avx512 *j) {
    FOR_ROWS(tqk_round_weights_avx512, j)
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
