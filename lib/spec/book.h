/*
 * Codebooks. Scalar books are one table of integers and one step: a code stands for
 * step * v2 / 2 in units in which a rotated coordinate has variance 1. Thresholds,
 * encoders, decoders and the oracle all use these integers; the unrounded centroids
 * appear nowhere (the rounding costs 0.05 % of MSE at 4 bits).
 */
#ifndef TQI_SPEC_BOOK_H
#define TQI_SPEC_BOOK_H

#include <stdint.h>

struct tqi_book {
    uint32_t bits;
    uint32_t levels; /* positive values: 2^(bits-1) */
    double step;
    int16_t v2[8];        /* twice the positive values, in steps, ascending */
    float threshold[7];   /* between levels, compared with |y| */
    int16_t code_v2[16];  /* twice the value of every code, in steps */
    float code_value[16]; /* step * v2 / 2, rounded once */
};

/* Book of `bits` = 2, 3 or 4. */
void tqi_book_make(struct tqi_book *book, uint32_t bits);

/* Code of (level, negative): 4 bits sign and level; fewer bits ascending order. */
static inline uint32_t tqi_book_code(const struct tqi_book *b, uint32_t level, uint32_t negative) {
    if (b->bits == 4)
        return negative << 3 | level;
    return negative ? b->levels - 1 - level : b->levels + level;
}

/*
 * A level of the polar book. A node splits its radius into (cos, sin) by its code.
 * Level 1 has a two-bit first-quadrant code in bits 1:0, the sign of the even dim in
 * bit 2 and of the odd dim in bit 3; levels 2 to 4 lie in the first quadrant anyway.
 * Entries are 8-bit integers times one step, rounded once.
 */
enum { TQI_POLAR_LEVELS = 4, TQI_POLAR_CODES = 4 };
struct tqi_polar_book {
    float cosine[TQI_POLAR_CODES], sine[TQI_POLAR_CODES];
    float bound_cosine[TQI_POLAR_CODES - 1], bound_sine[TQI_POLAR_CODES - 1]; /* between codes */
};
/* All four levels; [0] is level 1. */
void tqi_polar_books_make(struct tqi_polar_book book[TQI_POLAR_LEVELS]);

#endif
