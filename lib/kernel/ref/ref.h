/* Stages of the reference level. Each file is one stage and reads like its paper. */
#ifndef TQI_KERNEL_REF_H
#define TQI_KERNEL_REF_H

#include "kernel/stages.h"
#include "spec/codes.h"

/* norm: the sum of f(x[i]) over a full binary tree in natural order. */
float tqk_sum_squares_ref(const float *x, uint32_t n, float *tree);
float tqk_sum_abs_ref(const float *x, uint32_t n, float *tree);
/* Brings a row into the range in which its squares neither overflow nor vanish;
 * returns the exponent e of the 2^-e applied, and the sum of squares. */
int tqk_range_ref(float *x, uint32_t n, float *tree, float *sum_squares);
/* value * 2^e without double rounding in the normal range. */
float tqk_scale_exponent_ref(float value, int e);

/* rotate: x <- H D x (not normalised), in the order of spec/rotation.h; line: m floats. */
void tqk_rotate_ref(const struct tqi_rotation *r, float *x, float *line);
/* The same in double, normalised: orthogonal. */
void tqk_rotate_exact_ref(const struct tqi_rotation *r, double *x, double *line);
/* Its inverse, D H^T x. */
void tqk_unrotate_exact_ref(const struct tqi_rotation *r, double *x, double *line);

/* quantize: rotated row u to codes; both return the sum of squared code values (v2 for
 * lm, code for int8). */
uint32_t tqk_quantize_lm_ref(const struct tqi_book *book, const float *u, uint32_t dim, float inv,
                             uint8_t *codes);
uint32_t tqk_quantize_int8_ref(const float *u, uint32_t dim, int8_t *codes);

/* polar: one block of 16 to angles, and back. */
struct tqi_polar_codes tqk_polar_forward_ref(const struct tqi_polar_book *book, const float *u,
                                             float *radius);
void tqk_polar_inverse_ref(const struct tqi_polar_book *book, struct tqi_polar_codes codes,
                           float radius, float *u);

/* sketch: residual r (destroyed) to signs in the blob; returns the sketch gain. */
float tqk_sketch_ref(const struct tqi_rows *rows, float *r, uint8_t *blob, uint32_t token,
                     float *tree);

/* pack: gains. */
void tqk_put_gain_ref(const struct tqi_layout *l, uint8_t *at, float gain);
float tqk_get_gain_ref(const struct tqi_layout *l, const uint8_t *at);

/* unpack: one token's codes as numbers: rotated coordinate = value * *factor. The
 * sketch, if any, is not included. */
void tqk_unpack_ref(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                    double *values, double *factor);
/* Signs of the sketch as +-1, and their factor. */
void tqk_unpack_sketch_ref(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                           double *signs, double *factor);

/* Floats that a tree over n elements needs. */
static inline uint32_t tqk_tree_floats(uint32_t n) {
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    return size;
}

tqi_prepare_fn tqk_prepare_ref;
tqi_softcap_fn tqk_softcap_ref;
tqi_softmax_fn tqk_softmax_ref;
tqi_state_clear_fn tqk_state_clear_ref;
tqi_state_merge_fn tqk_state_merge_ref;
tqi_state_finish_fn tqk_state_finish_ref;
size_t tqk_query_bytes_ref(const struct tqi_rows *k);
size_t tqk_state_bytes_ref(const struct tqi_rows *v);
size_t tqk_scratch_bytes_ref(const struct tqi_rows *rows);

/* State of a query row; the accumulator follows in memory. */
struct tqk_state_ref {
    double max, sum, factor;
    double acc[];
};

#endif
