/*
 * The rotation: random signs, then a Hadamard matrix.
 *
 *     y = H D x,  D = diag(signs),  H = H_m (x) H_{2^k},  dim = m * 2^k
 *
 * H_{2^k} is the Walsh-Hadamard matrix in Sylvester's order; H_m is the identity of
 * order 1 or a Paley matrix of order 12, 20, 28 or 36 (hadamard_data.h). Matrices are
 * not normalised: y is sqrt(dim) times the rotation of x. The sum order below is part
 * of the byte format, because codes are cut from these sums:
 *
 *   1. flip the sign bit of x[i] where sign i is set;
 *   2. for stride 1, 2, 4 .. 2^(k-1): (a, b) -> (a + b, a - b) for elements `stride`
 *      apart;
 *   3. if m > 1, for every offset b < 2^k: out[a] = sum over a' = 0, 1 .. m-1, in this
 *      order, of +-in[a'], each at a' * 2^k + b.
 *
 * Every operation is one rounded binary32 addition; none may be contracted.
 */
#ifndef TQI_SPEC_ROTATION_H
#define TQI_SPEC_ROTATION_H

#include <stdint.h>

/* Streams of the random signs; the seed is the cache's. */
enum tqi_sign_stream {
    TQI_STREAM_ROTATION = 0, /* before the Hadamard matrix, keys and values alike */
    TQI_STREAM_SKETCH_1 = 1, /* first round of the sketch's projection */
    TQI_STREAM_SKETCH_2 = 2  /* second round */
};

struct tqi_rotation {
    uint32_t dim;
    uint32_t order;        /* m */
    uint32_t log2_block;   /* k */
    const uint64_t *rows;  /* m rows of H_m, bit j of row i = entry (i,j) is -1; NULL for m = 1 */
    const uint32_t *flips; /* [dim]: 0 or 0x80000000, the sign bit to flip */
};

/* Splits dim into m * 2^k. Returns 0 when there is no such split, else 1. */
int tqi_rotation_split(uint32_t dim, struct tqi_rotation *out);
/* Fills flips[dim] from the random stream. */
void tqi_rotation_signs(uint64_t seed, enum tqi_sign_stream stream, uint32_t dim, uint32_t *flips);

#endif
