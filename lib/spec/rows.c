#include "spec/rows.h"

#include <math.h>
#include <string.h>

/* Rotated int8 codes count in these units of the row's RMS coordinate, which brings
 * the gain near the norm of the row. */
#define INT8_STEP 0.03125

double tqi_mean_abs_coordinate(uint32_t dim) {
    double mean = 0.63661977236758134308; /* 2 / pi, dim 2 */
    for (uint32_t d = 2; d < dim; d += 2)
        mean *= (double)d / (d + 1);
    return mean;
}

const char *tqi_rows_check_dim(const struct tqi_format *f, uint32_t dim, uint32_t max_dim) {
    struct tqi_rotation split;
    if (dim < 32 || dim > max_dim || dim % TQI_POLAR_BLOCK != 0)
        return "must be a multiple of 16, at least 32 and not too large";
    if (tqi_format_rotates(f) && !tqi_rotation_split(dim, &split))
        return "has no Hadamard rotation: it must be 2^k or 12, 20, 28 or 36 times 2^k";
    return 0;
}

static uint32_t rounds_of(const struct tqi_format *f) {
    return !tqi_format_rotates(f) ? 0 : f->sketch ? 3 : 1;
}

size_t tqi_rows_flips(const struct tqi_format *f, uint32_t dim) {
    return (size_t)rounds_of(f) * dim;
}

static void set_rotation(struct tqi_rotation *r, uint32_t dim, uint64_t seed,
                         enum tqi_sign_stream stream, uint32_t *flips) {
    (void)tqi_rotation_split(dim, r);
    tqi_rotation_signs(seed, stream, dim, flips);
    r->flips = flips;
}

void tqi_rows_init(struct tqi_rows *rows, const struct tqi_format *f,
                   const struct tqi_layout *layout, uint64_t seed, uint32_t *flips) {
    uint32_t dim = layout->dim, rounds = rounds_of(f);
    double root = sqrt((double)dim), mean = tqi_mean_abs_coordinate(dim);
    memset(rows, 0, sizeof *rows);
    rows->format = f;
    rows->layout = *layout;
    if (rounds > 0)
        set_rotation(&rows->rotation, dim, seed, TQI_STREAM_ROTATION, flips);
    if (rounds > 1) {
        set_rotation(&rows->sketch[0], dim, seed, TQI_STREAM_SKETCH_1, flips + dim);
        set_rotation(&rows->sketch[1], dim, seed, TQI_STREAM_SKETCH_2, flips + 2 * (size_t)dim);
    }
    rows->sqrt_dim = (float)root;
    rows->inv_sqrt_dim = (float)(1 / root);
    rows->sketch_factor = (float)(mean * root * dim);
    rows->sketch_unit = 1 / (dim * mean);
    if (f->kind == TQI_KIND_LM) {
        tqi_book_make(&rows->book, f->bits);
        rows->gain_factor = (float)(2 * root / rows->book.step);
        rows->unit = rows->book.step / (2 * root);
    } else if (f->kind == TQI_KIND_INT8) {
        rows->gain_factor = (float)(root / INT8_STEP);
        rows->unit = INT8_STEP / root;
    } else if (f->kind == TQI_KIND_POLAR) {
        tqi_polar_books_make(rows->polar);
    }
}
