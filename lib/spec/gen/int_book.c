/* Lloyd-Max books as signed bytes times one step, so that attention can multiply codes with integer
   instructions.

   Criterion: of all books that are roundings of the Lloyd-Max book and fit a signed byte, each
   taken with its best step, the one with the least mean squared error under nearest-neighbour
   thresholds *of the rounded book*. (Thresholds of the unrounded book would cost three times as
   much at 4 bits, +0.13 %.) Where books tie, as multiples of one book do, the one with the smallest
   integers: it leaves the most room in integer sums. */
#include <math.h>

#include "gen.h"

/* Errors nearer than this count as equal: far above the noise of arithmetic and libm. */
static const double distinct = 1.0 - 1e-9;

gen_grid gen_grid_of_bits(int bits) {
    return bits == 4 ? GEN_HALF_INTEGERS : GEN_INTEGERS;
}

static gen_half_book scaled(const gen_half_book *in_steps, double step) {
    gen_half_book book = *in_steps;
    for (int i = 0; i < book.size; i++) {
        book.value[i] *= step;
    }
    return book;
}

/* The best step for the cells which `step` makes: least squares, sum n E[x] / sum n^2 E[1]. */
static double refined_step(const gen_half_book *in_steps, double step) {
    const gen_half_book book = scaled(in_steps, step);
    double product = 0.0;
    double square = 0.0;
    for (int i = 0; i < book.size; i++) {
        const gen_moments m = gen_normal_cell(&book, i);
        product += in_steps->value[i] * m.first;
        square += in_steps->value[i] * in_steps->value[i] * m.mass;
    }
    return product / square;
}

/* The best step is the one that is best for its own cells. Steps too small are refined upwards and
   steps too large downwards, so it is found by halving; iterating the refinement, as Lloyd does,
   converges slowly at 4 bits. */
static gen_int_book with_best_step(const gen_half_book *in_steps, double first_step) {
    double low = 0.5 * first_step;
    double high = 2.0 * first_step;
    for (int n = 0; n < 55; n++) {
        const double middle = 0.5 * (low + high);
        if (refined_step(in_steps, middle) > middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    gen_int_book book = {.in_steps = *in_steps, .step = 0.5 * (low + high)};
    const gen_half_book real = scaled(in_steps, book.step);
    book.mse = gen_normal_mse(&real);
    return book;
}

static double grid_offset(gen_grid grid) {
    return grid == GEN_HALF_INTEGERS ? 0.5 : 0.0;
}

/* Entries are positive and ascending, and n, stored for n or n + 1/2, fits a signed byte. */
static bool is_byte_book(const gen_half_book *in_steps, gen_grid grid) {
    double below = 0.0;
    for (int i = 0; i < in_steps->size; i++) {
        if (in_steps->value[i] <= below) {
            return false;
        }
        below = in_steps->value[i];
    }
    return below <= GEN_INT8_MAX + grid_offset(grid);
}

gen_int_book gen_int_book_search(const gen_half_book *ideal, gen_grid grid) {
    const int top = ideal->size - 1;
    gen_half_book trial = {.size = ideal->size};
    for (int i = 0; i < trial.size; i++) {
        trial.value[i] = grid_offset(grid);
    }
    gen_int_book best = {.mse = HUGE_VAL};
    while (trial.value[top] <= GEN_INT8_MAX + grid_offset(grid)) {
        if (is_byte_book(&trial, grid)) {
            const gen_int_book book = with_best_step(&trial, ideal->value[top] / trial.value[top]);
            if (book.mse < best.mse * distinct) {
                best = book;
            }
        }
        gen_next_rounding(trial.size, ideal->value, trial.value);
    }
    return best;
}

/* The entries moved by the base-3 digits of `move`, each less 1. */
static gen_half_book moved(const gen_half_book *in_steps, int move) {
    gen_half_book book = *in_steps;
    for (int i = 0; i < book.size; i++) {
        book.value[i] += move % 3 - 1;
        move /= 3;
    }
    return book;
}

int gen_int_book_better_neighbours(const gen_int_book *book, gen_grid grid) {
    int moves = 1;
    for (int i = 0; i < book->in_steps.size; i++) {
        moves *= 3;
    }
    int better = 0;
    for (int move = 0; move < moves; move++) {
        const gen_half_book neighbour = moved(&book->in_steps, move);
        if (is_byte_book(&neighbour, grid) &&
            with_best_step(&neighbour, book->step).mse < book->mse * distinct) {
            better++;
        }
    }
    return better;
}
