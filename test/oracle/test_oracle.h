/*
 * Test of the oracle: what its files share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef ORC_TEST_ORACLE_H
#define ORC_TEST_ORACLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "oracle.h"

#define LENGTH(a) (sizeof(a) / sizeof(a)[0])
#define INF ((double)INFINITY)
#define D 128 /* the row length of the statistics */

/* Fails unless |got - want| <= tolerance; report also prints the numbers. */
void check(const char *what, double got, double want, double tolerance);
void report(const char *what, double got, double want, double tolerance);

/* Over n Gaussian rows: the distortion, and d E[e^2] / ||x||^2 of the inner
 * product with a unit query whose cosine to x is uniform in [0, 0.8], otherwise
 * isotropic (design notes 1.5). The mean over queries is exact. */
void measure(const orc_format *f, size_t n, uint64_t seed, orc_stat *distortion, orc_stat *score);

/* The groups; each returns its number of failures. */
int run_number_tests(void);
int run_format_tests(void);
int run_sketch_tests(void);
int run_attention_tests(void);

#endif
