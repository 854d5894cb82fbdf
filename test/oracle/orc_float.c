/*
 * Oracle: fp16, bf16 and e4m3 from their definitions.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "oracle.h"

#include <math.h>

/* A format with a sign, exponent bits and mantissa bits. */
typedef struct {
    int exponent_bits, mantissa_bits;
} minifloat;

static const minifloat F16 = {5, 10};
static const minifloat BF16 = {8, 7};
static const minifloat E4M3 = {4, 3};

/* Value of a code without sign bit, read as if no code meant infinity or NaN. */
static double magnitude(minifloat f, unsigned code) {
    unsigned one = 1u << f.mantissa_bits;
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    int exponent = (int)(code / one);
    unsigned mantissa = code % one;
    if (exponent == 0) {
        return ldexp((double)mantissa, 1 - bias - f.mantissa_bits);
    }
    return ldexp((double)(one + mantissa), exponent - bias - f.mantissa_bits);
}

/* Nearest of the codes 0..last, ties to even. Values ascend with the codes. */
static unsigned nearest_code(minifloat f, unsigned last, double x) {
    unsigned low = 0, high = last; /* magnitude(low) <= x <= magnitude(high) */
    if (x >= magnitude(f, last)) {
        return last;
    }
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (magnitude(f, middle) <= x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = x - magnitude(f, low), above = magnitude(f, high) - x;
    if (below == above) {
        return low % 2 == 0 ? low : high;
    }
    return below < above ? low : high;
}

/* `last` is the code of infinity, which rounding reaches as if it were a number. */
static uint16_t ieee_bits(minifloat f, unsigned last, double x) {
    unsigned sign = signbit(x) ? 0x8000u : 0u;
    if (isnan(x)) {
        return (uint16_t)(last + (1u << (f.mantissa_bits - 1)));
    }
    return (uint16_t)(sign | nearest_code(f, last, fabs(x)));
}

static double ieee_value(minifloat f, unsigned last, uint16_t bits) {
    unsigned code = bits & 0x7fffu;
    double value = code < last ? magnitude(f, code) : code == last ? (double)INFINITY : (double)NAN;
    return bits & 0x8000u ? -value : value;
}

uint16_t orc_f16_bits(double x) {
    return ieee_bits(F16, 0x7c00, x);
}

uint16_t orc_bf16_bits(double x) {
    return ieee_bits(BF16, 0x7f80, x);
}

double orc_f16_value(uint16_t bits) {
    return ieee_value(F16, 0x7c00, bits);
}

double orc_bf16_value(uint16_t bits) {
    return ieee_value(BF16, 0x7f80, bits);
}

/* e4m3 has no infinity; 0x7f is its only NaN, 0x7e its largest value, 448. */
uint8_t orc_e4m3_bits(double x) {
    unsigned sign = signbit(x) ? 0x80u : 0u;
    if (isnan(x)) {
        return 0x7f;
    }
    return (uint8_t)(sign | nearest_code(E4M3, 0x7e, fabs(x)));
}

double orc_e4m3_value(uint8_t bits) {
    unsigned code = bits & 0x7fu;
    double value = code == 0x7f ? (double)NAN : magnitude(E4M3, code);
    return bits & 0x80u ? -value : value;
}

double orc_round(orc_rounding rounding, double x) {
    double limit = rounding == ORC_F16 ? orc_f16_value(0x7bff) : orc_bf16_value(0x7f7f);
    double clamped = fmax(-limit, fmin(limit, x));
    switch (rounding) {
    case ORC_F16:
        return orc_f16_value(orc_f16_bits(clamped));
    case ORC_BF16:
        return orc_bf16_value(orc_bf16_bits(clamped));
    case ORC_KEEP:
        break;
    }
    return x;
}
