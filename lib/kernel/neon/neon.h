/*
 * Stages of the NEON level (Advanced SIMD with the dot product instructions).
 *
 * Codes of a tile are decoded once into panels in cache; queries and probabilities are 16-bit fixed
 * point with one scale per row, in two planes of bytes, x = 256 * high + low, and SDOT sums
 * products of four exactly, see int_neon.h. Float formats are decoded to binary32 in registers and
 * summed in a fixed order, see float_neon.h.
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
    TQK_BLOCK_NEON = 64,       /* tokens whose weights share a scale */
    TQK_MOST_NEON = 32639      /* largest integer whose high plane is a byte */
};

/* A query row: steps of 8 dims in two planes, see int_neon.h; floats in dim order for float
 * formats. */
struct tqk_query_neon {
    float scale;        /* query = integer * scale; NaN spoils the row */
    int32_t half;       /* joins every sum: lm4 stores n for the value n + 1/2 */
    float sketch_scale; /* of the sums of a sketch */
    uint8_t pad[52];
    int8_t data[];
};

/* Of the planes of a query. */
static inline size_t tqk_code_bytes_neon(const struct tqi_rows *k) {
    return ((size_t)k->layout.dim_pad * 2 + 63) / 64 * 64;
}

/* State of a query row; the accumulator is in the basis of the codes. */
struct tqk_state_neon {
    float max, sum, factor;
    float scale; /* of max: natural score = max * scale */
    float pad[12];
    float acc[];
};

/* `stage` over blocks of `most` (4 or 8) rows, then what is left, as functions of constants. */
#define TQK_ROW_BLOCKS_NEON(name, stage, most)               \
    static void name(const struct job *j, uint32_t n_rows) { \
        uint32_t r = 0;                                      \
        for (; r + (most) <= n_rows; r += (most))            \
            stage(j, r, most);                               \
        if ((most) > 4 && r + 4 <= n_rows) {                 \
            stage(j, r, 4);                                  \
            r += 4;                                          \
        }                                                    \
        if (n_rows - r == 3)                                 \
            stage(j, r, 3);                                  \
        else if (n_rows - r == 2)                            \
            stage(j, r, 2);                                  \
        else if (n_rows - r == 1)                            \
            stage(j, r, 1);                                  \
    }

/* rotate: x <- H D x, not normalised, in the order of spec/rotation.h; and D H^T x. */
void tqk_rotate_neon(const struct tqi_rotation *r, float *x);
void tqk_unrotate_neon(const struct tqi_rotation *r, float *x);

tqi_prepare_fn tqk_prepare_neon, tqk_prepare_int_neon;
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
