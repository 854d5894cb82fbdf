/* Lines asked for before they are read. A line that comes from memory has one of the few places
 * of a core for some 150 ns (16 of them on Intel's), and a request that finds none stops
 * everything behind it. So lines are asked for one at a time, in even steps between
 * arithmetic; and twice, since it is the second level's own prefetcher that keeps many more under
 * way, and it has to see a page of 4 KB begin early enough. */
#ifndef TQI_KERNEL_SIMD_AHEAD_H
#define TQI_KERNEL_SIMD_AHEAD_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/kernel.h"

/* From one place to another of what may be blocks of memory of their own: a number. */
static inline ptrdiff_t tqk_distance(const uint8_t *from, const uint8_t *to) {
    return (ptrdiff_t)((uintptr_t)to - (uintptr_t)from);
}

/* While keys are decoded, the values of the same blob are asked for, and the keys of the next
 * one: its distance from these values. While values are, the keys of the next blob, and its
 * values, l->codes behind them. */
static inline ptrdiff_t tqk_far_keys(const struct tqi_layout *l, const struct tqi_tile *tile) {
    const uint8_t *next = tile->next ? tile->next : tile->blob;
    return tqk_distance(tile->blob + l->codes_size, next);
}

/* The line at `near` into the first level, which a line then enters once, and the one at
 * near + far into the second. */
static inline void tqk_ahead_near(const uint8_t *near) {
    __builtin_prefetch(near, 0, 3);
}
static inline void tqk_ahead_far(const uint8_t *near, ptrdiff_t far) {
    __builtin_prefetch((const void *)((uintptr_t)near + (uintptr_t)far), 0, 2);
}
static inline void tqk_ahead(const uint8_t *near, ptrdiff_t far) {
    tqk_ahead_near(near);
    tqk_ahead_far(near, far);
}

/* Gains of both sides of the next page lie side by side; a late one stalls a whole block. */
static inline void tqk_ahead_gains(const struct tqi_layout *v, const struct tqi_tile *tile) {
    const uint8_t *next = tile->next ? tile->next : tile->blob;
    for (uint32_t i = 0; i < v->tokens * 4; i += 64)
        tqk_ahead_near(next + v->gains - v->tokens * 2 + i);
}

#endif
