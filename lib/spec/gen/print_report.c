/* What the tables are and what they cost, one table a line: keyword, then pairs of a name and its
   numbers, so that a test can compare them with the published ones. */
#include <stdio.h>

#include "gen.h"

static const double degrees = 57.29577951308232;

static void print_list(const char *name, int size, const double *value, int decimals) {
    printf(" %s", name);
    for (int i = 0; i < size; i++) {
        printf(" %.*f", decimals, value[i]);
    }
}

/* Positive half of the Lloyd-Max book and its distortion. */
static bool report_lloyd_max(int bits) {
    gen_half_book book;
    const bool ok = gen_lloyd_max_normal(bits, &book);
    printf("lloyd_max bits %d D %.6f", bits, gen_normal_mse(&book));
    print_list("centroids", book.size, book.value, 6);
    printf("\n");
    return ok;
}

static bool report_int_book(int bits) {
    gen_half_book ideal;
    const bool ok = gen_lloyd_max_normal(bits, &ideal);
    const gen_grid grid = gen_grid_of_bits(bits);
    const gen_int_book book = gen_int_book_search(&ideal, grid);
    printf("int8 bits %d step %.9g", bits, book.step);
    print_list("values", book.in_steps.size, book.in_steps.value, 1);
    printf(" D %.6f increase_percent %.5f better_neighbours %d\n", book.mse,
           100.0 * (book.mse / gen_normal_mse(&ideal) - 1.0),
           gen_int_book_better_neighbours(&book, grid));
    return ok;
}

static bool report_polar_level(int level, gen_polar_level *made) {
    const bool ok = gen_polar_level_make(level, made);
    printf("polar level %d", level);
    print_list("angles", GEN_POLAR_ANGLES, made->angle, 6);
    printf(" angle_mse %.6f step %.9g", made->angle_mse, made->integers.step);
    print_list("cos", GEN_POLAR_ANGLES, made->integers.cos, 0);
    print_list("sin", GEN_POLAR_ANGLES, made->integers.sin, 0);
    printf(" worst_length_percent %.4f worst_angle_degrees %.4f\n", 100.0 * made->worst_length,
           degrees * made->worst_angle);
    return ok;
}

/* Real and integer books code the same blocks: their difference is more exact than either. */
static void report_distortion(const gen_polar_level level[GEN_POLAR_LEVELS]) {
    const gen_polar_book *real[GEN_POLAR_LEVELS];
    const gen_polar_book *integers[GEN_POLAR_LEVELS];
    for (int l = 0; l < GEN_POLAR_LEVELS; l++) {
        real[l] = &level[l].real;
        integers[l] = &level[l].integers;
    }
    const gen_estimate with_real = gen_polar_distortion(real);
    const gen_estimate with_integers = gen_polar_distortion(integers);
    printf("polar_distortion D %.6f standard_error %.6f D_of_real_angles %.6f\n",
           with_integers.mean, with_integers.standard_error, with_real.mean);
}

static bool report_hadamard(int order) {
    gen_hadamard matrix;
    const bool ok = gen_hadamard_make(order, &matrix);
    printf("hadamard order %d construction %s q %d symmetric %s orthogonal %s\n", order,
           matrix.paley_two ? "Paley_II" : "Paley_I", matrix.prime,
           gen_hadamard_is_symmetric(&matrix) ? "yes" : "no", ok ? "yes" : "no");
    return ok;
}

bool gen_print_report(void) {
    bool ok = true;
    gen_polar_level level[GEN_POLAR_LEVELS];
    for (int bits = 1; bits <= GEN_MAX_BITS; bits++) {
        ok = report_lloyd_max(bits) && ok;
    }
    for (int bits = 4; bits >= 2; bits--) {
        ok = report_int_book(bits) && ok;
    }
    for (int l = 0; l < GEN_POLAR_LEVELS; l++) {
        ok = report_polar_level(l + 1, &level[l]) && ok;
    }
    report_distortion(level);
    for (int i = 0; i < GEN_HADAMARD_ORDERS; i++) {
        ok = report_hadamard(gen_hadamard_orders[i]) && ok;
    }
    return ok;
}
