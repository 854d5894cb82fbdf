/* Stage rotate: random signs and a Hadamard matrix (spec/rotation.h). */
#include <math.h>

#include "base/half.h"
#include "kernel/ref/ref.h"

static int negative(const struct tqi_rotation *r, uint32_t row, uint32_t column) {
    return (int)(r->rows[row] >> column & 1u);
}

/* Step 2: the Walsh-Hadamard part, blocks of 2^k. */
static void butterflies(const struct tqi_rotation *r, float *x) {
    uint32_t block = 1u << r->log2_block;
    for (uint32_t stride = 1; stride < block; stride *= 2)
        for (uint32_t i = 0; i < r->dim; i++) {
            if (i & stride)
                continue;
            float a = x[i], b = x[i + stride];
            x[i] = a + b;
            x[i + stride] = a - b;
        }
}

/* Step 3: the Paley part across blocks. */
static void mix_blocks(const struct tqi_rotation *r, float *x, float *line) {
    uint32_t block = 1u << r->log2_block;
    for (uint32_t b = 0; b < block; b++) {
        for (uint32_t a = 0; a < r->order; a++)
            line[a] = x[a * block + b];
        for (uint32_t row = 0; row < r->order; row++) {
            float sum = negative(r, row, 0) ? -line[0] : line[0];
            for (uint32_t a = 1; a < r->order; a++)
                sum = negative(r, row, a) ? sum - line[a] : sum + line[a];
            x[row * block + b] = sum;
        }
    }
}

void tqk_rotate_ref(const struct tqi_rotation *r, float *x, float *line) {
    for (uint32_t i = 0; i < r->dim; i++)
        x[i] = tqi_bits_float(tqi_float_bits(x[i]) ^ r->flips[i]);
    butterflies(r, x);
    if (r->order > 1)
        mix_blocks(r, x, line);
}

/* ---- double, for queries and outputs ------------------------------------------------ */

static void butterflies_exact(const struct tqi_rotation *r, double *x) {
    uint32_t block = 1u << r->log2_block;
    for (uint32_t stride = 1; stride < block; stride *= 2)
        for (uint32_t i = 0; i < r->dim; i++) {
            if (i & stride)
                continue;
            double a = x[i], b = x[i + stride];
            x[i] = a + b;
            x[i + stride] = a - b;
        }
}

/* H_m across blocks, or its transpose. */
static void mix_blocks_exact(const struct tqi_rotation *r, double *x, double *line, int transpose) {
    uint32_t block = 1u << r->log2_block;
    for (uint32_t b = 0; b < block; b++) {
        for (uint32_t a = 0; a < r->order; a++)
            line[a] = x[a * block + b];
        for (uint32_t row = 0; row < r->order; row++) {
            double sum = 0;
            for (uint32_t a = 0; a < r->order; a++) {
                int minus = transpose ? negative(r, a, row) : negative(r, row, a);
                sum += minus ? -line[a] : line[a];
            }
            x[row * block + b] = sum;
        }
    }
}

static void scale_signs(const struct tqi_rotation *r, double *x, double factor) {
    for (uint32_t i = 0; i < r->dim; i++)
        x[i] *= r->flips[i] ? -factor : factor;
}

void tqk_rotate_exact_ref(const struct tqi_rotation *r, double *x, double *line) {
    scale_signs(r, x, 1 / sqrt((double)r->dim));
    butterflies_exact(r, x);
    if (r->order > 1)
        mix_blocks_exact(r, x, line, 0);
}

void tqk_unrotate_exact_ref(const struct tqi_rotation *r, double *x, double *line) {
    if (r->order > 1)
        mix_blocks_exact(r, x, line, 1);
    butterflies_exact(r, x);
    scale_signs(r, x, 1 / sqrt((double)r->dim));
}
