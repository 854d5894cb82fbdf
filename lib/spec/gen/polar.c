/* Angle books of PolarQuant (arXiv 2502.02617) and their integer pictures.

   Level 1 turns a pair of coordinates into radius and angle; level l turns a pair of radii of level
   l - 1 into one radius and an angle in [0, pi/2]. For Gaussian input the angles are independent:
   level 1 is uniform, and level l >= 2 has the density f_l(psi) proportional to sin(2 psi)^(2^(l-1)
   - 1), symmetric about pi/4.

   Decoding multiplies a radius by (cos, sin), so what is stored is directions, not angles. */
#include <math.h>

#include "gen.h"

static const double pi = 3.141592653589793;

/* ---- angles in real numbers ---- */

/* Level 1: 16 uniform cells with centres (k + 1/2) 2 pi / 16, the best for a uniform density. */
static void uniform_angles(gen_polar_level *out) {
    const double width = pi / 8.0;
    for (int k = 0; k < GEN_POLAR_ANGLES; k++) {
        out->angle[k] = (k + 0.5) * width;
    }
    out->angle_mse = width * width / 12.0;
}

/* f_l without its constant factor, which cancels wherever it is used. */
static double angle_density(int level, double psi) {
    return pow(sin(2.0 * psi), (double)((1 << (level - 1)) - 1));
}

/* Moments of the density about `centre` over [a, b], by Simpson's rule: the integrands are smooth,
   and 256 intervals leave an error below 1e-12. */
static gen_moments angle_moments(int level, double a, double b, double centre) {
    enum { intervals = 256 };
    const double h = (b - a) / intervals;
    gen_moments m = {0.0, 0.0, 0.0};
    for (int i = 0; i <= intervals; i++) {
        const double psi = a + i * h;
        const double simpson = (i == 0 || i == intervals) ? 1.0 : (i % 2 == 1) ? 4.0 : 2.0;
        const double weight = simpson * h / 3.0 * angle_density(level, psi);
        m.mass += weight;
        m.first += weight * (psi - centre);
        m.second += weight * (psi - centre) * (psi - centre);
    }
    return m;
}

static double cell_mean(int level, double a, double b) {
    const gen_moments m = angle_moments(level, a, b, 0.0);
    return m.first / m.mass;
}

/* Lloyd-Max with four angles. By symmetry two angles below pi/4 and one boundary between them are
 * all the unknowns. */
static bool lloyd_angles(int level, gen_polar_level *out) {
    const double middle = pi / 4.0;
    double low = 0.3 * middle;
    double high = 0.8 * middle;
    double move = HUGE_VAL;
    for (int n = 0; n < 1000 && move > 1e-14; n++) {
        const double bound = 0.5 * (low + high);
        const double next_low = cell_mean(level, 0.0, bound);
        const double next_high = cell_mean(level, bound, middle);
        move = fmax(fabs(next_low - low), fabs(next_high - high));
        low = next_low;
        high = next_high;
    }
    const double bound = 0.5 * (low + high);
    const gen_moments outer = angle_moments(level, 0.0, bound, low);
    const gen_moments inner = angle_moments(level, bound, middle, high);
    out->angle_mse = (outer.second + inner.second) / (outer.mass + inner.mass);
    out->angle[0] = low;
    out->angle[1] = high;
    out->angle[2] = pi / 2.0 - high;
    out->angle[3] = pi / 2.0 - low;
    return move <= 1e-14;
}

/* ---- directions ---- */

/* Fills the upper two directions from the lower two: theta -> pi/2 - theta exchanges cos and sin,
 * exactly. */
static void mirror_directions(gen_polar_book *book) {
    for (int k = 0; k < GEN_POLAR_ANGLES / 2; k++) {
        book->cos[GEN_POLAR_ANGLES - 1 - k] = book->sin[k];
        book->sin[GEN_POLAR_ANGLES - 1 - k] = book->cos[k];
    }
}

/* Boundaries from the angle of the lowest; the middle one is pi/4 and the other two mirror each
 * other, exactly. */
static void set_bounds(gen_polar_book *book, double lowest) {
    book->bound_cos[0] = book->bound_sin[2] = cos(lowest);
    book->bound_sin[0] = book->bound_cos[2] = sin(lowest);
    book->bound_cos[1] = book->bound_sin[1] = sqrt(0.5);
}

static double book_angle(const gen_polar_book *book, int k) {
    return atan2(book->sin[k], book->cos[k]);
}

static double book_length(const gen_polar_book *book, int k) {
    return book->step * hypot(book->cos[k], book->sin[k]);
}

static gen_polar_book real_directions(const double angle[GEN_POLAR_ANGLES]) {
    gen_polar_book book = {.step = 1.0};
    for (int k = 0; k < GEN_POLAR_ANGLES / 2; k++) {
        book.cos[k] = cos(angle[k]);
        book.sin[k] = sin(angle[k]);
    }
    mirror_directions(&book);
    set_bounds(&book, 0.5 * (angle[0] + angle[1]));
    return book;
}

/* ---- integer directions ---- */

/* Largest distance between a decoded direction and the one meant. It weighs an error of the length
   and one of the angle alike, which is how both enter the decoded vector. */
static double worst_distance(const gen_polar_book *book, const gen_polar_book *real) {
    double worst = 0.0;
    for (int k = 0; k < GEN_POLAR_ANGLES / 2; k++) {
        const double dx = book->step * book->cos[k] - real->cos[k];
        const double dy = book->step * book->sin[k] - real->sin[k];
        worst = fmax(worst, hypot(dx, dy));
    }
    return worst;
}

/* The book with the lower two directions given as (cos, sin, cos, sin), and a step such that their
 * mean squared length is 1. */
static gen_polar_book integer_directions(const double lower[GEN_POLAR_ANGLES]) {
    gen_polar_book book = {.step = 0.0};
    double squares = 0.0;
    for (int k = 0; k < GEN_POLAR_ANGLES / 2; k++) {
        book.cos[k] = lower[2 * k];
        book.sin[k] = lower[2 * k + 1];
        squares += book.cos[k] * book.cos[k] + book.sin[k] * book.sin[k];
    }
    mirror_directions(&book);
    book.step = 1.0 / sqrt(squares / (GEN_POLAR_ANGLES / 2));
    return book;
}

/* Criterion: of all roundings of R (cos, sin), over all radii R whose entries fit a signed byte,
   the one with the least worst distance. The lower two directions are searched (four numbers), the
   upper two mirror them. */
static gen_polar_book search_integers(const gen_polar_book *real) {
    const double ideal[GEN_POLAR_ANGLES] = {real->cos[0], real->sin[0], real->cos[1], real->sin[1]};
    double trial[GEN_POLAR_ANGLES] = {0.0, 0.0, 0.0, 0.0};
    gen_polar_book best = {.step = 0.0};
    double least = HUGE_VAL;
    for (;;) {
        gen_next_rounding(GEN_POLAR_ANGLES, ideal, trial);
        if (fmax(trial[0], trial[2]) > GEN_INT8_MAX) {
            return best;
        }
        const gen_polar_book book = integer_directions(trial);
        const double distance = worst_distance(&book, real);
        if (distance < least * (1.0 - 1e-9)) {
            least = distance;
            best = book;
        }
    }
}

bool gen_polar_level_make(int level, gen_polar_level *out) {
    bool converged = true;
    if (level == 1) {
        uniform_angles(out);
    } else {
        converged = lloyd_angles(level, out);
    }
    out->real = real_directions(out->angle);
    out->integers = search_integers(&out->real);
    /* Neighbours are parted by the bisectors of the integer directions; level 1 keeps its 16 equal
     * cells. */
    const double bisector = 0.5 * (book_angle(&out->integers, 0) + book_angle(&out->integers, 1));
    set_bounds(&out->integers, level == 1 ? pi / 8.0 : bisector);
    out->worst_length = 0.0;
    out->worst_angle = 0.0;
    for (int k = 0; k < GEN_POLAR_ANGLES; k++) {
        out->worst_length = fmax(out->worst_length, fabs(book_length(&out->integers, k) - 1.0));
        out->worst_angle =
            fmax(out->worst_angle, fabs(book_angle(&out->integers, k) - out->angle[k]));
    }
    return converged;
}
