/*
 * Stages of the AVX-512 level (F, BW, DQ, VL, VNNI, VBMI).
 *
 * Attention is two small matrix products per page: queries times keys, probabilities
 * times values. Decoded codes serve all query rows of a block.
 *
 *   integer formats (int8, lm)      bytes for VPDPBUSD, which multiplies unsigned by signed:
 *                                   keys biased to unsigned by 128, values signed; queries
 *                                   and probabilities are 16-bit fixed point in two planes
 *                                   of bytes, value = 256 * high + low, with one scale per
 *                                   row, signed queries and unsigned weights
 *   float formats (bf16, f16, fp8)  binary32 in registers, see float_avx512.h
 *
 * Integer sums are exact and float sums run in a fixed order, so that a row's bits do not
 * depend on its neighbours.
 */
#ifndef TQI_KERNEL_AVX512_H
#define TQI_KERNEL_AVX512_H

#include <immintrin.h>

#include "kernel/simd/simd.h"

enum {
    TQK_FIXED_MAX = 32639,      /* 127 * 256 + 127: largest value of two planes of signed bytes */
    TQK_WEIGHT_MAX = 65535,     /* of two planes of unsigned bytes */
    TQK_BLOCK_AVX512 = 64,      /* tokens whose weights share a scale */
    TQK_TILE_ROWS_AVX512 = 32,  /* rows of a tile at most */
    TQK_DIM_LIMIT_AVX512 = 4096 /* of a row */
};

/* Keeps a loaded operand in its register: compilers else fold the load into each of its
 * uses, and full-width loads are as scarce as multiplies. */
#define TQK_KEEP(x) __asm__("" : "+v"(x))
/* The same for an address: compilers else keep some in vector registers, where they wait behind
 * the arithmetic. */
#define TQK_KEEP_ADDRESS(x) __asm__("" : "+r"(x))

/* A query row. Integer formats: 4 high bytes and 4 low bytes for every 4 dims follow, see
 * score_int_avx512.c. Float formats: operands of
 * binary32 follow, see float_avx512.h. */
struct tqk_query_avx512 {
    float scale;        /* query = integer * scale; NaN spoils the row */
    int32_t bias;       /* joins every integer sum: takes out the bias of the codes */
    float sketch_scale; /* of the sums of a sketch */
    uint8_t pad[52];
    uint8_t data[];
};

/* State of a query row; the accumulator is in the basis of the codes, see
 * tqk_value_unit_avx512(). Probabilities are relative to `max`, which follows the largest score
 * at some distance, so that it seldom moves. */
struct tqk_state_avx512 {
    float max, factor;
    float scale; /* of max: natural score = max * scale */
    float pad[13];
    float sum[16]; /* of probabilities, by lane */
    float acc[];
};

/* A coordinate is acc * this. */
static inline double tqk_value_unit_avx512(const struct tqi_rows *rows) {
    return TQK_VALUE_UNIT * (tqk_is_integer(rows) ? tqk_integer_unit(rows) : 1);
}

/* Largest integer of a query: no sum with dim_pad codes may leave 32 bits. */
static inline float tqk_query_limit_avx512(uint32_t dim_pad) {
    float limit = 0x1p24f / (float)dim_pad - 1; /* 2^31 / 128 */
    return limit < TQK_FIXED_MAX ? limit : TQK_FIXED_MAX;
}

/* What joins an integer sum, given the sum of the left operand. */
static inline int32_t tqk_bias_avx512(const struct tqi_rows *rows, int32_t sum) {
    return -128 * sum + (tqk_has_half(rows) ? (sum + 1) >> 1 : 0);
}

/* rotate: x <- H D x, not normalised, in the order of spec/rotation.h; and D H^T x. */
void tqk_rotate_avx512(const struct tqi_rotation *r, float *x);
void tqk_unrotate_avx512(const struct tqi_rotation *r, float *x);

/* Query rows of the integer formats. */
tqi_prepare_fn tqk_prepare_int_avx512;
/* A rotated query as 256 * high + low. */
struct tqk_fixed_avx512 {
    float rotated[TQK_DIM_LIMIT_AVX512] __attribute__((aligned(64))); /* times 2^-exponent */
    int exponent; /* INT_MIN: the row is not finite, the planes are 0 */
    uint8_t high[TQK_DIM_LIMIT_AVX512], low[TQK_DIM_LIMIT_AVX512]; /* in dim order */
};
/* Also sets the scale of the query; returns the sum of the integers. */
int32_t tqk_split_query_avx512(const struct tqi_rows *k, const float *row,
                               struct tqk_query_avx512 *q, struct tqk_fixed_avx512 *fixed);
/* The dims of a plane in the order in which decoded keys meet them: eight dims of word j of lane t
 * at 8 (4 j + t). */
void tqk_order_plane_avx512(const struct tqi_rows *k, const uint8_t *plane, uint8_t *to);

tqi_load_fn tqk_load_avx512;
tqi_widen_fn tqk_widen_avx512;
tqi_store_fn tqk_store_avx512;
/* Tables of a query by codes of polar keys and by signs of a sketch, see simd/query_tables.h:
 * their bytes; those of a whole query of polar keys; those of the sketch for a rotated row times
 * 2^e, which is destroyed; and the share of the sketch in scores, whose tables are `sketch_at`
 * bytes into the data of a query. */
size_t tqk_table_bytes_avx512(const struct tqi_rows *k);
tqi_prepare_fn tqk_prepare_polar_avx512;
void tqk_prepare_sketch_avx512(const struct tqi_rows *k, float *x, int e, void *query, uint8_t *to);
void tqk_add_sketch_avx512(const struct tqi_rows *k, const struct tqi_tile *tile,
                           const void *queries, uint32_t n_rows, uint32_t score_stride,
                           void *scores, size_t sketch_at);
tqi_prepare_fn tqk_prepare_avx512;
tqi_softcap_fn tqk_softcap_avx512;
tqi_softmax_fn tqk_softmax_avx512;
tqi_state_clear_fn tqk_state_clear_avx512;
tqi_state_merge_fn tqk_state_merge_avx512;
tqi_state_finish_fn tqk_state_finish_avx512;
size_t tqk_query_bytes_avx512(const struct tqi_rows *k);
size_t tqk_state_bytes_avx512(const struct tqi_rows *v);
size_t tqk_encode_scratch_avx512(const struct tqi_rows *rows);
size_t tqk_scratch_bytes_avx512(const struct tqi_rows *rows);

#endif
