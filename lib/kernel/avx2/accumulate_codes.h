/* Stage accumulate, integer formats: weights times decoded values. Written once for AVX2 and
 * AVX-VNNI, see score_codes.h. */
#include "kernel/avx2/dot_avx2.h"

/* A block of tokens and 32 dims, four of each lane. */
struct job {
    struct tqk_codes_avx2 codes;
    struct tqk_walk_avx2 walk; /* of lanes 0 to 3 */
    struct tqk_weights_avx2 weights;
    uint8_t *kept;
    char *states;
    size_t state_bytes;
    uint32_t dim; /* of the states, see put_in_order() */
};

/* Adds sums of 8 dims to the states of rows. */
TQK_INLINE void add_sums(const struct job *j, uint32_t row, uint32_t rows, uint32_t dim,
                         uint32_t column, const __m256i *acc) {
    char *state = j->states + row * j->state_bytes;
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++, state += j->state_bytes) {
        float *to = ((struct tqk_state_avx2 *)(void *)state)->acc + dim;
        __m256 x = _mm256_cvtepi32_ps(tqk_sum_avx2(acc, r, column));
        __m256 scale = _mm256_set1_ps(j->weights.scale[row + r]);
        _mm256_storeu_ps(to, _mm256_fmadd_ps(x, scale, _mm256_loadu_ps(to)));
    }
}

/* Rows from `row` on and 32 dims. */
TQK_INLINE void sum_rows(struct job *j, enum tqk_units_avx2 units, uint32_t inner, uint32_t bits,
                         uint32_t row, uint32_t rows) {
    const char *weights = (const char *)(j->weights.rows + (size_t)row * TQK_BLOCK_AVX2);
    struct tqk_walk_avx2 walk = j->walk;
    uint8_t *kept = j->kept;
    for (uint32_t pair = 0; pair < 4; pair += 2) {
        __m256i acc[TQK_SUMS_AVX2];
        tqk_dot_avx2(&j->codes, &walk, inner, units, bits, true, &kept, weights, TQK_BLOCK_AVX2 * 2,
                     &j->weights.bias[row], sizeof(int32_t), rows, acc);
        add_sums(j, row, rows, j->dim + 8 * pair, 0, acc);
        add_sums(j, row, rows, j->dim + 8 * pair + 8, 1, acc);
    }
    if (units != TQK_NEXT)
        j->walk.ahead = walk.ahead;
}

typedef void rows_fn(struct job *j, uint32_t row);
#define ROWS(name, units, inner, bits, rows)                                                     \
    static __attribute__((noinline)) void name##_##units##_##rows(struct job *j, uint32_t row) { \
        sum_rows(j, TQK_##units, inner, bits, row, rows);                                        \
    }
/* Units of a word: the octets of tokens of a group, which are 2 in pages of 16 tokens. */
#define FIRST(name, bits)             \
    TQK_FIRST_AVX2(name##_2, 2, bits) \
    TQK_FIRST_AVX2(name##_4, 4, bits)
FIRST(lm4, 4)
FIRST(lm3, 3)
FIRST(lm2, 2)
FIRST(int8, 8)
TQK_NEXT_AVX2(next_2, 2)
TQK_NEXT_AVX2(next_4, 4)

/* All dims of a block of tokens. */
static void accumulate_block(struct job *j, rows_fn *const by_rows[2][TQK_ROWS_AVX2 + 1],
                             uint32_t n_rows, uint32_t first_word) {
    const struct tqi_layout *l = j->codes.l;
    rows_fn *const *next = l->group == 32 ? next_4 : next_2;
    const uint32_t first = tqk_first_rows_avx2(n_rows);
    for (uint32_t word = 0; word < l->dim_pad / 32; word++) {
        j->walk.word = first_word + word;
        j->dim = word * 32;
        by_rows[first < n_rows][first](j, 0);
        for (uint32_t r = first, rows; r < n_rows; r += rows) {
            rows = tqk_next_rows_avx2(n_rows - r);
            next[rows](j, r);
        }
    }
}

/* ---- whole blocks ------------------------------------------------------------------------- */

/* See dot_avx2.h. */
enum { WHOLE_KEPT = TQK_BLOCK_AVX2 * TQK_UNIT_AVX2 / 4 /* bytes of 16 dims */ };

struct whole {
    struct tqk_whole_avx2 block;
    const struct tqk_weights_avx2 *weights;
    char *sums; /* of the first row and the next dims */
    size_t state_bytes;
};

/* Rows from `row` on and 32 dims. */
TQK_INLINE void run_whole(struct whole *w, enum tqk_units_avx2 units, uint32_t bits, uint32_t row,
                          uint32_t rows) {
    const char *weights = (const char *)(w->weights->rows + (size_t)row * TQK_BLOCK_AVX2);
    const int32_t *bias = w->weights->bias + row;
    const float *scale = w->weights->scale + row;
    const size_t state_bytes = w->state_bytes;
    const uint8_t *ahead = w->block.ahead;
    char *const sums = w->sums + row * state_bytes;
#pragma GCC unroll 1
    for (uint32_t half = 0; half < 2; half++) { /* of the dims */
        __m256i acc[TQK_SUMS_AVX2];
        tqk_dot_whole_avx2(&w->block, half * TQK_WHOLE_SLAB_AVX2 / 2, units, bits, true,
                           w->block.kept + half * WHOLE_KEPT, weights, TQK_BLOCK_AVX2 * 2, bias,
                           sizeof *bias, rows, &ahead, acc);
        TQK_UNROLL
        for (uint32_t i = 0; i < rows * TQK_COLUMNS_AVX2; i++) {
            const uint32_t r = i / TQK_COLUMNS_AVX2, column = i % TQK_COLUMNS_AVX2;
            void *at = sums + r * state_bytes + (half * TQK_COLUMNS_AVX2 + column) * 32;
            __m256 x = _mm256_cvtepi32_ps(tqk_sum_avx2(acc, r, column));
            x = _mm256_fmadd_ps(x, _mm256_set1_ps(scale[r]), _mm256_loadu_ps(at));
            _mm256_storeu_ps(at, x);
        }
    }
    if (units != TQK_NEXT)
        w->block.ahead = ahead;
}

TQK_WHOLES_AVX2

/* All dims of a block of tokens. */
static void accumulate_whole(const struct job *j, whole_fn *const by_rows[2][TQK_ROWS_AVX2 + 1],
                             uint32_t n_rows, uint32_t first_word) {
    struct whole w; /* set field by field: clearing it would show */
    w.block.table = j->codes.table;
    w.block.codes = j->codes.at + (size_t)first_word * TQK_WHOLE_SLAB_AVX2;
    w.block.ahead = j->walk.ahead;
    w.block.far = j->walk.far;
    w.block.kept = j->kept;
    w.weights = &j->weights;
    w.sums = j->states + offsetof(struct tqk_state_avx2, acc);
    w.state_bytes = j->state_bytes;
    for (uint32_t word = 0; word < TQK_WHOLE_WORDS_AVX2; word++) {
        run_all_rows(by_rows, &w, n_rows);
        w.block.codes += TQK_WHOLE_SLAB_AVX2;
        w.sums += 32 * sizeof(float);
    }
}

/* ---- all ---------------------------------------------------------------------------------- */

/* Weights have 15 bits: tokens are taken in blocks with a scale of their own, so that a heavy
 * token takes precision from few others. */
static void accumulate(const struct tqi_rows *v, rows_fn *const by_rows[2][TQK_ROWS_AVX2 + 1],
                       whole_fn *const whole[2][TQK_ROWS_AVX2 + 1], const struct tqi_tile *tile,
                       const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                       void *states, size_t state_bytes, uint8_t *scratch) {
    const struct tqi_layout *l = &v->layout;
    const uint32_t group_words = l->dim_pad / 32 * (l->bits == 8 ? 2 : 1);
    const struct tqk_weight_form_avx2 form = {tqk_order_avx2(v, true), TQK_VALUE_BIAS_AVX2};
    struct job j; /* set field by field: clearing it would show */
    j.codes = tqk_codes_of_avx2(v, tile, TQK_VALUE_BIAS_AVX2);
    j.walk.word_step = group_words;
    j.walk.second = l->dim_pad / 32;
    j.walk.at = 0;
    j.walk.far = (ptrdiff_t)l->codes;
    tqk_ahead_gains(l, tile);
    j.kept = scratch;
    j.weights.rows = (int16_t *)(void *)(scratch + (size_t)4 * TQK_UNIT_AVX2 * TQK_BLOCK_AVX2 / 8);
    j.states = states;
    j.state_bytes = state_bytes;
    tqk_rescale_states_avx2(l, states, state_bytes, n_rows);
    for (uint32_t token = tile->first / l->group * l->group; token < tile->last;
         token += TQK_BLOCK_AVX2) {
        const uint8_t *ahead = tile->next ? tile->next : tile->blob;
        tqk_weigh_avx2(v, tile, probabilities, n_rows, score_stride, token, &form, &j.weights);
        j.walk.outer = j.weights.n_tokens / l->group;
        j.walk.ahead = ahead + (size_t)token * l->dim_pad * l->bits / 8;
        const uint32_t word = token / l->group * group_words;
        if (whole && tqk_is_whole_avx2(l) && j.weights.n_tokens == TQK_BLOCK_AVX2)
            accumulate_whole(&j, whole, n_rows, word);
        else
            accumulate_block(&j, by_rows, n_rows, word);
    }
}

#define ACCUMULATE(format, whole)                                                                  \
    void TQK_OF_LEVEL(accumulate_##format)(                                                        \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, v->layout.group == 32 ? format##_4 : format##_2, whole, tile, probabilities, \
                   n_rows, score_stride, states, state_bytes, scratch);                            \
    }
ACCUMULATE(lm4, whole_lm4)
ACCUMULATE(lm3, NULL)
ACCUMULATE(lm2, NULL)
ACCUMULATE(int8, whole_int8)
