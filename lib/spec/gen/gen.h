/* The generator of the library's numeric tables: shared declarations. main.c says how it is run. */
#ifndef GEN_H
#define GEN_H

#include <stdbool.h>
#include <stdint.h>

/* The largest integer that a signed byte holds on both sides of 0. */
#define GEN_INT8_MAX 127

/* ---- normal.c: Lloyd-Max books of the normal density ---- */

#define GEN_MAX_BITS 5
#define GEN_MAX_HALF (1 << (GEN_MAX_BITS - 1))

/* The positive half, ascending, of a book that is symmetric about 0. */
typedef struct {
    int size;
    double value[GEN_MAX_HALF];
} gen_half_book;

/* Moments of the density over one cell: integral of 1, of x and of x^2. */
typedef struct {
    double mass;
    double first;
    double second;
} gen_moments;

/* Moments of N(0,1) over the cell of entry i: the points x >= 0 that are nearest to it. */
gen_moments gen_normal_cell(const gen_half_book *book, int i);

/* Mean squared error of nearest-neighbour quantization of N(0,1). */
double gen_normal_mse(const gen_half_book *book);

/* Returns false where the iteration did not converge. */
bool gen_lloyd_max_normal(int bits, gen_half_book *book);

/* ---- rounding.c: all roundings of a scaled vector ---- */

/* Steps `rounded` to the next rounding of scale * ideal as the scale grows. */
void gen_next_rounding(int size, const double *ideal, double *rounded);

/* ---- int_book.c: the same books on a grid of small integers ---- */

typedef enum {
    GEN_INTEGERS,     /* entries n */
    GEN_HALF_INTEGERS /* entries n + 1/2 */
} gen_grid;

typedef struct {
    gen_half_book in_steps; /* entries in units of the step */
    double step;            /* the best one for these entries */
    double mse;
} gen_int_book;

/* The grid a bit width uses. 16 entries of 4 bits are looked up as 8 and complemented for the sign,
   which maps n to -1 - n: exact for n + 1/2. The 8 and 4 signed entries of 3 and 2 bits are looked
   up directly. */
gen_grid gen_grid_of_bits(int bits);

/* The rounded book of least mean squared error. */
gen_int_book gen_int_book_search(const gen_half_book *ideal, gen_grid grid);

/* How many books with every entry moved by -1, 0 or +1 have a smaller error: none is expected. */
int gen_int_book_better_neighbours(const gen_int_book *book, gen_grid grid);

/* ---- polar.c: angle books ---- */

#define GEN_POLAR_LEVELS 4
#define GEN_POLAR_ANGLES 4 /* in the first quadrant, at every level */
#define GEN_POLAR_BOUNDS (GEN_POLAR_ANGLES - 1)

typedef struct {
    double cos[GEN_POLAR_ANGLES]; /* directions, by ascending angle */
    double sin[GEN_POLAR_ANGLES];
    double step; /* what one unit of cos and sin is worth */
    double bound_cos[GEN_POLAR_BOUNDS];
    double bound_sin[GEN_POLAR_BOUNDS];
} gen_polar_book;

typedef struct {
    double angle[GEN_POLAR_ANGLES]; /* the optimum in real numbers */
    double angle_mse;
    gen_polar_book real;     /* the directions of these angles, step 1 */
    gen_polar_book integers; /* the same as pairs of small integers */
    double worst_length;     /* largest |length - 1| of the integer pairs */
    double worst_angle;      /* largest angle, in radians, between a pair and its optimum */
} gen_polar_level;

/* Level 1..GEN_POLAR_LEVELS. Returns false where the iteration did not converge. */
bool gen_polar_level_make(int level, gen_polar_level *out);

/* ---- polar_trial.c ---- */

typedef struct {
    double mean;
    double standard_error;
} gen_estimate;

/* Relative squared error of Gaussian blocks coded with these books, one a level. */
gen_estimate gen_polar_distortion(const gen_polar_book *const books[GEN_POLAR_LEVELS]);

/* ---- hadamard.c ---- */

#define GEN_HADAMARD_ORDERS 4
#define GEN_HADAMARD_MAX 36

typedef struct {
    int order;
    int prime; /* the q of the construction */
    bool paley_two;
    signed char entry[GEN_HADAMARD_MAX][GEN_HADAMARD_MAX]; /* +1 or -1 */
} gen_hadamard;

extern const int gen_hadamard_orders[GEN_HADAMARD_ORDERS];

/* Order 12, 20, 28 or 36. Returns false where the result is not a Hadamard matrix. */
bool gen_hadamard_make(int order, gen_hadamard *out);
bool gen_hadamard_is_symmetric(const gen_hadamard *matrix);
/* Bit j is set where entry (row, j) is -1. */
uint64_t gen_hadamard_row_mask(const gen_hadamard *matrix, int row);

/* ---- print_headers.c, print_report.c: to stdout; false where a table could not be made ---- */

bool gen_print_codebook_header(void);
bool gen_print_hadamard_header(void);
bool gen_print_report(void);

#endif
