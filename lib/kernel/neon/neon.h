/*
 * Stages of the NEON level (Advanced SIMD with the dot product instructions).
 *
 * Codes of a tile are decoded once into rows of bytes in cache, keys [token][dim], values
 * [dim][token]; queries and probabilities are 16-bit fixed point with one scale per row, in
 * two planes of bytes, x = 256 * high + low, and SDOT sums products of four exactly. Float formats
 * are decoded to binary32 in registers and summed in a fixed order, see float_neon.h.
 */
#ifndef TQI_KERNEL_NEON_H
#define TQI_KERNEL_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "kernel/simd/simd.h"

enum {
    TQK_DIM_LIMIT_NEON = 4096, /* of a row */
    TQK_TILE_ROWS_NEON = 32,   /* rows of a tile at most */
    TQK_PAGE_LIMIT_NEON = 256, /* tokens of a page at most */
    TQK_MOST_NEON = 32639      /* largest integer whose high plane is a byte */
};

/* A query row in dim order: high plane, low plane; floats for float formats. */
struct tqk_query_neon {
    float scale;        /* query = integer * scale; NaN spoils the row */
    int32_t half;       /* joins every sum: lm4 stores n for the value n + 1/2 */
    float sketch_scale; /* of the sums of a sketch */
    uint8_t pad[52];
    int8_t data[];
};

/* State of a query row; the accumulator is in the basis of the codes. */
struct tqk_state_neon {
    float max, sum, factor;
    float scale; /* of max: natural score = max * scale */
    float pad[12];
    float acc[];
};

/* Integers of at most TQK_MOST_NEON in magnitude, 8 of them, to the two planes. */
TQK_INLINE void tqk_split_neon(int16x8_t x, int8_t *high, int8_t *low) {
    int16x8_t up = vshrq_n_s16(vaddq_s16(x, vdupq_n_s16(128)), 8);
    vst1_s8(high, vmovn_s16(up));
    vst1_s8(low, vmovn_s16(vsubq_s16(x, vshlq_n_s16(up, 8))));
}

/* The sums of four vectors as lanes. */
TQK_INLINE int32x4_t tqk_sums_neon(const int32x4_t x[4]) {
    return vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]));
}

/* sum[r] lane c = left row r . right row c over n, a multiple of 16: bytes on the right, two
 * planes of n bytes on the left; rows (1 or 2) left rows lie left_bytes apart, 4 right rows
 * right_bytes. Sums are modulo 2^32. */
TQK_INLINE void tqk_dot_neon(const int8_t *left, size_t left_bytes, const int8_t *right,
                             size_t right_bytes, uint32_t n, uint32_t rows, int32x4_t *sum) {
    int32x4_t high[8], low[8];
    TQK_UNROLL
    for (uint32_t i = 0; i < rows * 4; i++) {
        high[i] = low[i] = vdupq_n_s32(0);
    }
    for (uint32_t at = 0; at < n; at += 16) {
        int8x16_t b[4];
        TQK_UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            b[c] = vld1q_s8(right + c * right_bytes + at);
        }
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            int8x16_t h = vld1q_s8(left + r * left_bytes + at);
            int8x16_t l = vld1q_s8(left + r * left_bytes + n + at);
            TQK_UNROLL
            for (uint32_t c = 0; c < 4; c++) {
                high[r * 4 + c] = vdotq_s32(high[r * 4 + c], h, b[c]);
                low[r * 4 + c] = vdotq_s32(low[r * 4 + c], l, b[c]);
            }
        }
    }
    TQK_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        sum[r] = vaddq_s32(vshlq_n_s32(tqk_sums_neon(high + r * 4), 8), tqk_sums_neon(low + r * 4));
    }
}

/* unpack: 16 keys from `token` (a multiple of 16) on to rows of dim_pad bytes. */
typedef void tqk_unpack_k_fn_neon(const struct tqi_rows *k, const struct tqi_tile *tile,
                                  uint32_t token, int8_t *rows);
/* Values of 32 dims from `dim` on to rows of n_tokens bytes, whole groups; 8 tokens stand in
 * the order 0 1 4 5 2 3 6 7. */
typedef void tqk_unpack_v_fn_neon(const struct tqi_rows *v, const struct tqi_tile *tile,
                                  uint32_t dim, uint32_t n_tokens, int8_t *rows);
tqk_unpack_k_fn_neon tqk_unpack_k_lm4_neon, tqk_unpack_k_lm3_neon, tqk_unpack_k_lm2_neon,
    tqk_unpack_k_int8_neon;
tqk_unpack_v_fn_neon tqk_unpack_v_lm4_neon, tqk_unpack_v_lm3_neon, tqk_unpack_v_lm2_neon,
    tqk_unpack_v_int8_neon;

/* rotate: x <- H D x, not normalised, in the order of spec/rotation.h; and D H^T x. */
void tqk_rotate_neon(const struct tqi_rotation *r, float *x);
void tqk_unrotate_neon(const struct tqi_rotation *r, float *x);

tqi_prepare_fn tqk_prepare_neon;
tqi_softcap_fn tqk_softcap_neon;
tqi_softmax_fn tqk_softmax_neon;
tqi_state_clear_fn tqk_state_clear_neon;
tqi_state_merge_fn tqk_state_merge_neon;
tqi_state_finish_fn tqk_state_finish_neon;
tqi_load_fn tqk_load_neon;
/* Tables of a query by codes of polar keys and by signs of a sketch, see simd/query_tables.h:
 * their bytes; those of a whole query of polar keys; those of the sketch for a rotated row times
 * 2^e, which is destroyed; and the share of the sketch in scores, whose tables are `sketch_at`
 * bytes into the data of a query. */
size_t tqk_table_bytes_neon(const struct tqi_rows *k);
tqi_prepare_fn tqk_prepare_polar_neon;
void tqk_prepare_sketch_neon(const struct tqi_rows *k, float *x, int e, void *query, uint8_t *to);
void tqk_add_sketch_neon(const struct tqi_rows *k, const struct tqi_tile *tile, const void *queries,
                         uint32_t n_rows, uint32_t score_stride, void *scores, size_t sketch_at);
size_t tqk_encode_scratch_neon(const struct tqi_rows *rows);
size_t tqk_query_bytes_neon(const struct tqi_rows *k);
size_t tqk_state_bytes_neon(const struct tqi_rows *v);
size_t tqk_scratch_bytes_neon(const struct tqi_rows *rows);

#endif
