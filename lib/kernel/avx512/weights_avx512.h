/* Probabilities times gains as 16-bit fixed point, for the integer values. */
#ifndef TQI_KERNEL_AVX512_WEIGHTS_H
#define TQI_KERNEL_AVX512_WEIGHTS_H

#include "kernel/avx512/avx512.h"

enum {
    TQK_WEIGHTS_BYTES_AVX512 = 2 * TQK_BLOCK_AVX512, /* of a row */
    TQK_WEIGHT_REGISTERS_AVX512 = TQK_BLOCK_AVX512 / 16
};

/* Weights of a block of tokens: all high bytes of a row in front of its low ones, in an octet in
 * the order of the operands; rows TQK_WEIGHTS_BYTES_AVX512 apart. */
struct tqk_weights_avx512 {
    uint8_t *bytes;                         /* where they go, set by who asks for weights */
    int32_t half[TQK_TILE_ROWS_AVX512 + 3]; /* joins every sum: lm4 stores n for n + 1/2 */
    float scale[TQK_TILE_ROWS_AVX512 + 3];  /* of a sum */
};

/* Weights in the making. Set field by field: clearing all of it first would show. */
struct tqk_weighing_avx512 {
    const struct tqi_rows *v;
    const struct tqi_tile *tile;
    const float *probabilities;
    size_t stride; /* of the rows of probabilities */
    uint32_t n_rows, token;
    bool whole; /* all tokens are in the tile */
    struct tqk_weights_avx512 *weights;
    __m512i place;
    __m512 gain[TQK_WEIGHT_REGISTERS_AVX512];
    float factor[4 * TQK_TILE_ROWS_AVX512] __attribute__((aligned(64))); /* of a row, four times */
};

/* Tokens [token, + TQK_BLOCK_AVX512) of the page; those outside the tile weigh nothing. First the
 * largest weights are found, then all rounded: between the two is a chain of steps that wait for
 * each other, during which others can run. */
void tqk_start_weights_avx512(struct tqk_weighing_avx512 *j, const struct tqi_rows *v,
                              const struct tqi_tile *tile, const float *probabilities,
                              uint32_t n_rows, uint32_t score_stride, uint32_t token,
                              struct tqk_weights_avx512 *weights);
void tqk_end_weights_avx512(const struct tqk_weighing_avx512 *j);

/* Applies the factors that the softmax has noted. */
void tqk_rescale_states_avx512(const struct tqi_layout *l, char *states, size_t state_bytes,
                               uint32_t n_rows);

#endif
