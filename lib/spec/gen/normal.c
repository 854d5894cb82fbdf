/* Lloyd-Max books of N(0,1): after the rotation every coordinate of a unit vector of d dims tends
   to N(0, 1/d) (TurboQuant, arXiv 2504.19874, Lemma 1), so one book a bit width serves all head
   dims. Everything is done on x >= 0 only: density and books are symmetric. */
#include <math.h>

#include "gen.h"

static const double two_pi = 6.283185307179586;

static double density(double x) {
    return exp(-0.5 * x * x) / sqrt(two_pi);
}

/* P(X > x): erfc keeps full precision in the tail, where 1 - P(X < x) would not. */
static double upper_tail(double x) {
    return 0.5 * erfc(x / sqrt(2.0));
}

/* x * density(x), also at infinity. */
static double weighted_density(double x) {
    return isinf(x) ? 0.0 : x * density(x);
}

static double lower_bound(const gen_half_book *book, int i) {
    return i == 0 ? 0.0 : 0.5 * (book->value[i - 1] + book->value[i]);
}

static double upper_bound(const gen_half_book *book, int i) {
    return i == book->size - 1 ? HUGE_VAL : lower_bound(book, i + 1);
}

gen_moments gen_normal_cell(const gen_half_book *book, int i) {
    const double a = lower_bound(book, i);
    const double b = upper_bound(book, i);
    gen_moments m;
    m.mass = upper_tail(a) - upper_tail(b);
    m.first = density(a) - density(b);
    m.second = m.mass + weighted_density(a) - weighted_density(b);
    return m;
}

double gen_normal_mse(const gen_half_book *book) {
    double half = 0.0;
    for (int i = 0; i < book->size; i++) {
        const double v = book->value[i];
        const gen_moments m = gen_normal_cell(book, i);
        half += m.second - 2.0 * v * m.first + v * v * m.mass;
    }
    return 2.0 * half;
}

/* One Lloyd iteration: every entry moves to the mean of its cell. Returns the largest move. */
static double lloyd_step(gen_half_book *book) {
    const gen_half_book old = *book;
    double largest = 0.0;
    for (int i = 0; i < book->size; i++) {
        const gen_moments m = gen_normal_cell(&old, i);
        book->value[i] = m.first / m.mass;
        largest = fmax(largest, fabs(book->value[i] - old.value[i]));
    }
    return largest;
}

bool gen_lloyd_max_normal(int bits, gen_half_book *book) {
    book->size = 1 << (bits - 1);
    for (int i = 0; i < book->size; i++) {
        book->value[i] = 3.0 * (i + 0.5) / book->size;
    }
    /* The density is log-concave, so there is one fixed point and any start finds it. 5 bits need
     * some thousand steps. */
    for (int n = 0; n < 100000; n++) {
        if (lloyd_step(book) < 1e-13) {
            return true;
        }
    }
    return false;
}
