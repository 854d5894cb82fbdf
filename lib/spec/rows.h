/*
 * What it takes to code rows of one side of a layer: layout, rotation, books and the
 * constants of the encode contract. Kernels get this and raw pointers, nothing else.
 *
 * The encode contract, in binary32 without contraction, the same on every device. x is
 * the row after conversion, replacement of NaN and infinities, and subtraction of the
 * mean; "tree" is the sum over a full binary tree in natural dim order, the row padded
 * with zeros to a power of two.
 *
 *   range    n2 = tree(x^2). Outside [2^-80, 2^100], unless x is all 0: x *= 2^-e with
 *            2^e <= max |x| < 2^(e+1), rounded once where it becomes subnormal, and n2
 *            again; gains are multiplied by 2^e at the end.
 *   padding  bits of dims from dim to dim_pad are written as zero.
 *   rotate   rotation.h, gives u.
 *   lm       inv = 1 / sqrt(n2), 0 for a zero row; y = u * inv; level = thresholds
 *            below |y|; negative = sign bit of y; S = sum of v2^2;
 *            gain = sqrt(n2) * gain_factor / sqrt(S).
 *   int8     inv = 127 / max |u|, 0 for a zero row; code = u * inv to the nearest
 *            integer, ties to even; S = sum of code^2; gain as above, 0 for S = 0.
 *   polar    levels from pairs (a, b) of neighbours: code = bounds with
 *            |b| * cos < |a| * sin violated, i.e. |b| * bound_cos > |a| * bound_sin;
 *            radius = sqrt(a*a + b*b) goes up a level; after four levels
 *            radius * inv_sqrt_dim is the gain of the block.
 *   sketch   r = u - decoded u (stored gain, times 2^-e); E = tree(r^2);
 *            f = H D2 H D1 r; sign bits of f; L = tree(|f|);
 *            sketch gain = E * sketch_factor / L, 0 for L = 0.
 *   gains    of keys and rows fp16, of values bf16, nearest even, clamped to the
 *            largest finite value.
 */
#ifndef TQI_SPEC_ROWS_H
#define TQI_SPEC_ROWS_H

#include "spec/book.h"
#include "spec/layout.h"
#include "spec/rotation.h"

struct tqi_rows {
    const struct tqi_format *format;
    struct tqi_layout layout;
    struct tqi_rotation rotation;  /* of formats that rotate */
    struct tqi_rotation sketch[2]; /* rounds of the projection, first and second */
    struct tqi_book book;          /* of lm */
    struct tqi_polar_book polar[TQI_POLAR_LEVELS];
    float gain_factor; /* 2 sqrt(dim) / step (lm), sqrt(dim) / int8 step */
    float sqrt_dim, inv_sqrt_dim;
    float sketch_factor; /* E|u1| dim^1.5: makes the sketch gain ||r|| on average */
    double unit;         /* a stored integer times gain times this is a rotated coordinate */
    double sketch_unit;  /* 1 / (dim E|u1|): the paper's constant for orthonormal rows */
};

/* Flip words that tqi_rows_init() wants room for. */
size_t tqi_rows_flips(const struct tqi_format *f, uint32_t dim);
/* layout is one of tqi_page_layout or the row form; flips has room for
 * tqi_rows_flips() words, is filled here and must live as long as `rows`. dim has been
 * checked with tqi_rows_check_dim(). */
void tqi_rows_init(struct tqi_rows *rows, const struct tqi_format *f,
                   const struct tqi_layout *layout, uint64_t seed, uint32_t *flips);
/* NULL when rows of that length can be coded, else why not. */
const char *tqi_rows_check_dim(const struct tqi_format *f, uint32_t dim, uint32_t max_dim);

/* Mean of |u1| for a random unit vector of even length: Gamma(d/2) / (sqrt(pi)
 * Gamma((d+1)/2)), by its recurrence, so that every machine gets the same bits. */
double tqi_mean_abs_coordinate(uint32_t dim);

#endif
