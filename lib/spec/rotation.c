#include "spec/rotation.h"

#include "base/rng.h"
#include "spec/hadamard_data.h"

static const uint64_t rows12[] = TQI_H12_ROWS;
static const uint64_t rows20[] = TQI_H20_ROWS;
static const uint64_t rows28[] = TQI_H28_ROWS;
static const uint64_t rows36[] = TQI_H36_ROWS;

static const struct {
    uint32_t order;
    const uint64_t *rows;
} orders[] = {{1, 0}, {12, rows12}, {20, rows20}, {28, rows28}, {36, rows36}};

/* k for n = 2^k, -1 when n is no power of two. */
static int log2_exact(uint32_t n) {
    int k = 0;
    while (n > 1 && n % 2 == 0) {
        n /= 2;
        k++;
    }
    return n == 1 ? k : -1;
}

int tqi_rotation_split(uint32_t dim, struct tqi_rotation *out) {
    for (uint32_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        if (dim == 0 || dim % orders[i].order != 0)
            continue;
        int k = log2_exact(dim / orders[i].order);
        if (k < 0)
            continue;
        out->dim = dim;
        out->order = orders[i].order;
        out->log2_block = (uint32_t)k;
        out->rows = orders[i].rows;
        return 1;
    }
    return 0;
}

void tqi_rotation_signs(uint64_t seed, enum tqi_sign_stream stream, uint32_t dim, uint32_t *flips) {
    for (uint32_t i = 0; i < dim; i++)
        flips[i] = tqi_philox(seed, (uint64_t)stream, i) & 0x80000000u;
}
