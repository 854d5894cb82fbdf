/* Probabilities times gains as 16-bit fixed point, for the integer values. */
#ifndef TQI_KERNEL_AVX512_WEIGHTS_H
#define TQI_KERNEL_AVX512_WEIGHTS_H

#include "kernel/avx512/avx512.h"

enum { TQK_WEIGHTS_BYTES_AVX512 = 2 * TQK_BLOCK_AVX512 }; /* of a row */

/* Where high and low bytes stand: 8 of each in turn for every octet of tokens, or all high ones
 * of a row in front of its low ones. */
enum tqk_weights_order_avx512 { TQK_WEIGHTS_OCTETS, TQK_WEIGHTS_PLANES };

/* Weights of a block of tokens, in an octet in the order of the operands; rows
 * TQK_WEIGHTS_BYTES_AVX512 apart. */
struct tqk_weights_avx512 {
    enum tqk_weights_order_avx512 order; /* set by who asks for weights */
    const uint8_t *bytes;
    int32_t half[TQK_TILE_ROWS_AVX512]; /* joins every sum: lm4 stores n for n + 1/2 */
    float scale[TQK_TILE_ROWS_AVX512];  /* of a sum */
};

/* What tqk_weigh_avx512() wants of the scratch. */
static inline size_t tqk_weights_scratch_avx512(void) {
    return (size_t)TQK_TILE_ROWS_AVX512 * TQK_BLOCK_AVX512 * (2 + sizeof(float)) +
           (size_t)TQK_TILE_ROWS_AVX512 * 64;
}

/* Tokens [token, + TQK_BLOCK_AVX512) of the page; those outside the tile weigh nothing. */
void tqk_weigh_avx512(const struct tqi_rows *v, const struct tqi_tile *tile,
                      const float *probabilities, uint32_t n_rows, uint32_t score_stride,
                      uint32_t token, void *scratch, struct tqk_weights_avx512 *weights);

/* Applies the factors that the softmax has noted. */
void tqk_rescale_states_avx512(const struct tqi_layout *l, char *states, size_t state_bytes,
                               uint32_t n_rows);

#endif
