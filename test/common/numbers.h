/* 32-bit and 16-bit numbers, written from the definitions of the formats and not from the
 * library's code. */
#ifndef TEST_COMMON_NUMBERS_H
#define TEST_COMMON_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

extern const tq_dtype all_dtypes[3];
const char *dtype_name(tq_dtype dtype);
size_t dtype_size(tq_dtype dtype);
double dtype_largest(tq_dtype dtype); /* finite */

/* Value of one element. */
double value_of(const void *element, tq_dtype dtype);
/* Stores x to nearest even; overflows to infinity, keeps NaN and the sign of zero. */
void store_value(void *element, tq_dtype dtype, double x);
/* Half the distance between neighbours of the type at |x|: what rounding may cost. */
double half_unit(double x, tq_dtype dtype);

/* n f32 numbers as another type; allocated. */
void *convert_rows(const float *rows, size_t n, tq_dtype dtype);
/* And back; allocated. */
float *widen_rows(const void *rows, size_t n, tq_dtype dtype);

#endif
