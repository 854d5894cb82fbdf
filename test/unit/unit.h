/* What the unit tests share: CMocka with the headers that it asks for, a check that is
 * cheap in long loops, and random numbers made of integers. */
#ifndef TEST_UNIT_UNIT_H
#define TEST_UNIT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Fails with the condition and a formatted message. */
#define CHECK(condition, ...)                                           \
    do {                                                                \
        if (!(condition)) {                                             \
            print_error("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            print_error(__VA_ARGS__);                                   \
            print_error("\n");                                          \
            fail();                                                     \
        }                                                               \
    } while (0)

/* SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t unit_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Below n; n is small. */
static inline uint32_t unit_below(uint64_t *state, uint32_t n) {
    return (uint32_t)((unit_random(state) >> 32) * n >> 32);
}

/* Sum of four 14-bit numbers about 0, in steps of 2^-13: bell shaped, exact in binary32. */
static inline float unit_bell(uint64_t *state) {
    uint64_t bits = unit_random(state);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(bits >> 16 * i & 0x3fff);
    return (float)(sum - 2 * 0x3fff) * 0x1p-13f;
}

/* Any finite number, all exponents alike. */
static inline float unit_wild(uint64_t *state) {
    uint32_t bits;
    float value;
    do
        bits = (uint32_t)unit_random(state);
    while ((bits & 0x7f800000u) == 0x7f800000u);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void unit_bell_row(uint64_t seed, uint32_t n, float *row) {
    for (uint32_t i = 0; i < n; i++)
        row[i] = unit_bell(&seed);
}

#endif
