/* Stage accumulate, float formats: probabilities times lines of values, see float_avx512.h. */
#include "kernel/avx512/avx512.h"
#include "kernel/avx512/float_avx512.h"

/* What all rows of a tile share. */
struct job {
    struct tqk_float_job_avx512 lines;
    char *states;
    size_t state_bytes;
    const float *left; /* spread probabilities */
    size_t left_stride;
    float scale;
};

/* ---- the left operand --------------------------------------------------------------------- */

/* Probabilities of the tokens of all groups; pieces are octets of tokens. Groups of 16 tokens have
 * two. */
TQK_INLINE void spread_row(enum tqk_float_avx512 source, const struct tqi_layout *l,
                           const struct tqi_tile *tile, uint32_t groups, const float *p,
                           __m512 *to) {
    const __m512 unit = _mm512_set1_ps(1 / (float)TQK_VALUE_UNIT);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t token = g * l->group;
        __m512 low = _mm512_mul_ps(tqk_probabilities_at_avx512(tile, p, token), unit), high;
        high = l->group == 32
                   ? _mm512_mul_ps(tqk_probabilities_at_avx512(tile, p, token + 16), unit)
                   : _mm512_setzero_ps();
        TQK_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            to[8 * g + i] = tqk_spread_avx512(source, true, i, low, high);
        }
    }
}

enum { VALID_LIMIT = 256 / 16 * 8 }; /* operands of a page of 256 tokens in groups of 16 or 32 */

/* Tokens outside the tile may hold NaN, which 0 does not silence: lanes of all operands that hold
 * others. */
TQK_INLINE void find_valid(enum tqk_float_avx512 source, const struct tqi_layout *l,
                           const struct tqi_tile *tile, uint32_t groups, __mmask16 *valid) {
    float ones[256];
    __m512 x[VALID_LIMIT];
    for (uint32_t i = 0; i < 256; i++)
        ones[i] = 0x1p30f;
    spread_row(source, l, tile, groups, ones, x);
    for (uint32_t i = 0; i < groups * 8; i++)
        valid[i] = _mm512_cmp_ps_mask(x[i], _mm512_setzero_ps(), _CMP_NEQ_OQ);
}

/* ---- sums --------------------------------------------------------------------------------- */

TQK_INLINE void sum_rows(const struct job *j, enum tqk_float_avx512 source, uint32_t dim,
                         uint32_t first_row, uint32_t rows) {
    const float *left = j->left + first_row * j->left_stride;
    __m512 sum[4];
    if (j->lines.valid)
        tqk_dot_lines_avx512(source, true, &j->lines, left, j->left_stride, rows, sum);
    else
        tqk_dot_lines_avx512(source, false, &j->lines, left, j->left_stride, rows, sum);
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        struct tqk_state_avx512 *s = (void *)(j->states + (first_row + r) * j->state_bytes);
        tqk_join_avx512(s, dim, sum[r], _mm512_set1_ps(j->scale));
    }
}

/* Functions of their own, so that each has all registers. */
typedef void rows_fn(const struct job *j, uint32_t dim, uint32_t first_row);
#define ROWS(name, source, rows)                                                           \
    static __attribute__((noinline)) void name##_##rows(const struct job *j, uint32_t dim, \
                                                        uint32_t row) {                    \
        sum_rows(j, source, dim, row, rows);                                               \
    }
#define BLOCKS(name, source) \
    ROWS(name, source, 1)    \
    ROWS(name, source, 2)    \
    ROWS(name, source, 3)    \
    ROWS(name, source, 4)    \
    static rows_fn *const name[5] = {NULL, name##_1, name##_2, name##_3, name##_4};
BLOCKS(fp8, TQK_E4M3)
BLOCKS(bf16, TQK_BF16)
BLOCKS(f16, TQK_F16)

TQK_INLINE void accumulate(const struct tqi_rows *v, enum tqk_float_avx512 source,
                           rows_fn *const by_rows[5], const struct tqi_tile *tile,
                           const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                           void *states, size_t state_bytes, void *scratch) {
    const struct tqi_layout *l = &v->layout;
    const uint32_t per_lane = l->dim_pad / 32, slabs = tqk_slabs_avx512(source);
    const size_t slab = (size_t)tqi_slab_lanes(l) * 4;
    const uint32_t groups = (tile->last + l->group - 1) / l->group;
    const uint8_t *next = tile->next ? tile->next : tile->blob;
    __mmask16 valid[VALID_LIMIT];
    struct job j = {.states = states, .state_bytes = state_bytes, .left = scratch};
    j.left_stride = (size_t)groups * 8 * 16;
    j.scale = tqk_decoded_unit_avx512(source) * (source == TQK_E4M3 ? tile->scale : 1);
    j.lines = (struct tqk_float_job_avx512){.stride = per_lane * slab,
                                            .steps = groups * slabs,
                                            .far = (ptrdiff_t)l->codes,
                                            .lanes = l->group == 16 ? 0x00ff : 0xffff};
    for (uint32_t r = 0; r < n_rows; r++)
        spread_row(source, l, tile, groups, probabilities + (size_t)r * score_stride,
                   (__m512 *)scratch + (size_t)r * groups * 8);
    if (tile->first > 0 || tile->last < groups * 32) {
        find_valid(source, l, tile, groups, valid);
        j.lines.valid = valid;
    }
    struct tqk_quad_walk_avx512 walk = tqk_quad_walk_avx512(l, 0);
    for (uint32_t dim = 0; dim < l->dim_pad; dim += 16) {
        struct tqk_quads_avx512 q = tqk_next_quads_avx512(&walk);
        for (uint32_t i = 0; i < 4; i++)
            j.lines.at[i] = tile->blob + l->codes + q.word[i] * slab + q.at[i];
        j.lines.ahead = next + (size_t)dim * groups * l->group / 8 * l->bits;
        j.lines.ahead_step = 256;
        for (uint32_t r = 0, rows; r < n_rows; r += rows) {
            rows = n_rows - r < 4 ? n_rows - r : 4;
            by_rows[rows](&j, dim, r);
            j.lines.ahead_step = 0;
        }
    }
}

#define ACCUMULATE(format, source)                                                                 \
    void tqk_accumulate_##format##_avx512(                                                         \
        const struct tqi_rows *v, const struct tqi_tile *tile, const void *probabilities,          \
        uint32_t n_rows, uint32_t score_stride, void *states, size_t state_bytes, void *scratch) { \
        accumulate(v, source, format, tile, probabilities, n_rows, score_stride, states,           \
                   state_bytes, scratch);                                                          \
    }
ACCUMULATE(fp8, TQK_E4M3)
ACCUMULATE(bf16, TQK_BF16)
ACCUMULATE(f16, TQK_F16)
