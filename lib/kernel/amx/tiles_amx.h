/* The instructions for tiles, and what each tile is for. The compiler knows no tiles: the order of
 * accesses to memory is held by the clobber.
 *
 *   tile   up to 8 query rows            more
 *   0      second weights of a stack     sums of a block of rows
 *   1, 2   queries of a step             sums of a block of rows
 *   3      sums                          sums of the last block
 *   4      sums of a stack               left side of a block
 *   5      left side                     left side of the last block
 *   6      right side                    right side
 *   7      first weights of a stack
 *
 * A *stack*: to store a tile takes as long as to multiply one, and nothing runs beside it. The sums
 * of up to 4 rows fill but half of a tile; two columns of values share one, by left sides that have
 * zeros where the other's weights stand.
 *
 * Up to 8 rows are a stream of right tiles: while one is decoded the one before is multiplied (a
 * tile that is loaded out of stores on their way costs 13 ns instead of 2), the sums before that
 * leave their tile, and earlier ones are taken. */
#ifndef TQI_KERNEL_AMX_TILES_H
#define TQI_KERNEL_AMX_TILES_H

#include "kernel/amx/amx.h"

#define TQK_TILE_LOAD(tile, at, stride)                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(at), "r"((ptrdiff_t)(stride)) \
                     : "memory")
#define TQK_TILE_STORE(tile, at)                                       \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), \
                     "r"((ptrdiff_t)TQK_LINE_AMX)                      \
                     : "memory")
#define TQK_TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
/* Wants `is_signed`, whether the left side is. */
#define TQK_TILE_MULTIPLY(sum, left, right)                                       \
    do {                                                                          \
        if (is_signed)                                                            \
            __asm__ volatile("tdpbssd %tmm" #right ", %tmm" #left ", %tmm" #sum); \
        else                                                                      \
            __asm__ volatile("tdpbusd %tmm" #right ", %tmm" #left ", %tmm" #sum); \
    } while (0)

/* Lines of zeros round the weights of a stack, which are half of a tile. */
TQK_INLINE void tqk_pad_weights_amx(uint8_t *weights) {
    TQK_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        _mm512_store_si512(weights - (i + 1) * TQK_LINE_AMX, _mm512_setzero_si512());
        _mm512_store_si512(weights + (8 + i) * TQK_LINE_AMX, _mm512_setzero_si512());
    }
}

/* The right side of a multiply: tile `index` of those that are decoded in turn to two places. */
TQK_INLINE void tqk_load_right_amx(const struct tqk_product_amx *p, uint32_t index) {
    TQK_TILE_LOAD(6, p->right + index % 2 * TQK_TILE_AMX, TQK_LINE_AMX);
}

#endif
