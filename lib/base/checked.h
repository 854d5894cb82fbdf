/* Arithmetic on sizes that says when it overflows. */
#ifndef TQI_BASE_CHECKED_H
#define TQI_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool tqi_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool tqi_add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* `to` is a power of two. Callers keep n far below the limit of size_t. */
static inline size_t tqi_align_up(size_t n, size_t to) {
    return (n + to - 1) & ~(to - 1);
}

static inline uint64_t tqi_div_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

#endif
