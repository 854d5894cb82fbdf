/* Rows of the caller: queries to binary32 as they are, outputs from doubles to the caller's
 * elements, both as the reference does to the bit. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "check.h"

/* Numbers at the edges of the types that are stored: halfway between two of them, their largest
 * and smallest ones, and what a rounding to binary32 on the way would hide. */
static double edge(void) {
    static const double edges[] = {
        0,        65504,      65519.99,   65520,    0x1p-14,        0x1p-24,   0x1p-25,  0x1.8p-25,
        0x1p-26,  0x1.fep127, 0x1.ffp127, FLT_MAX,  0x1.ffffffp127, 1e39,      1e300,    0x1p-126,
        0x1p-133, 0x1p-134,   0x1p-149,   0x1p-150, 0x1.8p-150,     0x1p-1074, INFINITY, NAN};
    return edges[next_random() % (sizeof edges / sizeof *edges)];
}

static double number(void) {
    const unsigned what = (unsigned)(next_random() % 8);
    double x = what == 0   ? edge()
               : what == 1 ? exp2(340 * uniform() - 170)
               : what == 2 ? exp2(60 * uniform() - 30)
                           : gaussian();
    if (what == 3) /* a tie of 16 bits, or of bf16 */
        x = (double)(float)(1024 + (int)(next_random() % 1024)) + 0.5;
    if (what == 4)
        x = ((double)(int)(next_random() % 128) + 128.5) * 0x1p-20;
    if (next_random() % 4 == 0) /* a little beside it */
        x *= 1 + (next_random() % 2 ? 0x1p-40 : -0x1p-40);
    return next_random() % 2 ? x : -x;
}

static size_t size_of(tq_dtype type) {
    return type == TQ_F32 ? 4 : 2;
}

/* The row ends where memory does; its first byte is at an odd place for vectors. */
static void check_store(struct result *r, const struct tqi_level *level, uint32_t dim,
                        tq_dtype type) {
    const size_t size = size_of(type), bytes = dim * size, room = (bytes + 127) / 64 * 64;
    uint8_t *got = guard_alloc(room), *want = malloc(room);
    double *row = guard_alloc(dim * sizeof *row);
    for (uint32_t i = 0; i < dim; i++)
        row[i] = number();
    memset(got, 0x5a, room);
    memset(want, 0x5a, room);
    const size_t at = next_random() % 2 ? room - bytes : size;
    level->store(row, dim, type, got + at);
    tqi_level_ref()->store(row, dim, type, want + at);
    judge(r, memcmp(got, want, room) == 0, "store, %s, dim %u, type %d", level->name, dim,
          (int)type);
    guard_free(got, room);
    guard_free(row, dim * sizeof *row);
    free(want);
}

static void check_widen(struct result *r, const struct tqi_level *level, uint32_t dim,
                        tq_dtype type) {
    const size_t bytes = dim * size_of(type), room = (bytes + 63) / 64 * 64;
    uint8_t *row = guard_alloc(room), *from = row + room - bytes;
    float *got = guard_alloc(dim * sizeof *got), *want = malloc(dim * sizeof *want);
    for (size_t i = 0; i < bytes; i++)
        from[i] = (uint8_t)next_random();
    level->widen(from, type, dim, got);
    tqi_level_ref()->widen(from, type, dim, want);
    bool same = true;
    for (uint32_t i = 0; i < dim; i++)
        same &= tqi_float_bits(got[i]) == tqi_float_bits(want[i]) ||
                (isnan(got[i]) && isnan(want[i])); /* quiet or not */
    judge(r, same, "widen, %s, dim %u, type %d", level->name, dim, (int)type);
    guard_free(row, room);
    guard_free(got, dim * sizeof *got);
    free(want);
}

void check_caller_rows(struct result *r, const struct tqi_level *level) {
    static const uint32_t dims[] = {16, 48, 64, 80, 128, 272};
    static const tq_dtype types[] = {TQ_F32, TQ_F16, TQ_BF16};
    for (unsigned n = 0; n < 200; n++)
        for (unsigned d = 0; d < sizeof dims / sizeof *dims; d++)
            for (unsigned t = 0; t < 3; t++) {
                check_store(r, level, dims[d], types[t]);
                check_widen(r, level, dims[d], types[t]);
            }
}
