/*
 * Test of the oracle against published and derived numbers. "Table" numbers are
 * those of the papers and of the design notes; formulas stand
 * where they are used. Everything is seeded: a run always gives the same result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "test_oracle.h"

#include <math.h>

void check(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("%s: got %.9g, want %.9g +- %.3g", what, got, want, tolerance);
    }
}

void report(const char *what, double got, double want, double tolerance) {
    print_message("  %-36s %.6g (want %.6g +- %.2g)\n", what, got, want, tolerance);
    check(what, got, want, tolerance);
}

void measure(const orc_format *f, size_t n, uint64_t seed, orc_stat *distortion, orc_stat *score) {
    double x[ORC_MAX_DIM], decoded[ORC_MAX_DIM];
    double cos2 = 0.64 / 3, d = (double)f->d;
    *distortion = *score = (orc_stat){0};
    for (size_t r = 0; r < n; r++) {
        orc_gaussian_row(f->d, seed, r, x);
        orc_roundtrip(f, x, decoded);
        double norm2 = orc_dot(f->d, x, x), along = orc_dot(f->d, x, decoded) / norm2 - 1.0;
        double error = orc_relative_l2(f->d, decoded, x);
        double across2 = error * error - along * along;
        orc_stat_add(distortion, error * error);
        orc_stat_add(score, d * (cos2 * along * along + (1 - cos2) * across2 / (d - 1)));
    }
}

int main(void) {
    int failures = run_number_tests();
    failures += run_format_tests();
    failures += run_sketch_tests();
    failures += run_attention_tests();
    return failures == 0 ? 0 : 1;
}
