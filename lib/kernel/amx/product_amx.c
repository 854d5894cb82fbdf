/* Products of any number of query rows and decoded codes, and the shapes of the tiles. The sums of
 * one unit are taken while the next one is multiplied. */
#include <string.h>

#include "kernel/amx/tiles_amx.h"

/* The operand of LDTILECFG. */
struct shapes {
    uint8_t palette, start_line, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} __attribute__((aligned(64)));

void tqk_enter_amx(uint32_t n_rows) {
    struct shapes s;
    const uint8_t lines = TQK_TILE_AMX / TQK_LINE_AMX;
    const uint8_t last = (uint8_t)(2 * ((n_rows - 1) % TQK_BLOCK_ROWS_AMX + 1));
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (uint32_t i = 0; i < 8; i++) {
        s.line_bytes[i] = TQK_LINE_AMX;
        s.lines[i] = lines;
    }
    s.lines[3] = s.lines[5] = last;
    if (n_rows <= TQK_BLOCK_ROWS_AMX)
        s.lines[1] = s.lines[2] = last;
    __asm__ volatile("ldtilecfg %0" ::"m"(s));
}

/* Empty tiles cost nothing when the system switches threads. */
void tqk_leave_amx(void) {
    __asm__ volatile("tilerelease");
}

/* What is summed together: a column of up to four blocks of rows. */
struct unit {
    uint32_t column, columns; /* 0 = nothing */
    uint32_t first, rows;
    uint32_t whole; /* blocks in tiles 0 to 2 */
    bool last;      /* one more, in tile 3 */
};

static struct unit unit_at(const struct tqk_product_amx *p, uint32_t column, uint32_t first) {
    struct unit u = {.column = column, .columns = 1, .first = first, .rows = p->n_rows - first};
    u.whole = (u.rows - 1) / TQK_BLOCK_ROWS_AMX;
    u.last = u.whole < TQK_TOGETHER_AMX;
    if (!u.last) {
        u.whole = TQK_TOGETHER_AMX - 1;
        u.rows = u.whole * TQK_BLOCK_ROWS_AMX;
    }
    return u;
}

TQK_INLINE void zero(void) {
    TQK_TILE_ZERO(0);
    TQK_TILE_ZERO(1);
    TQK_TILE_ZERO(2);
    TQK_TILE_ZERO(3);
}

TQK_INLINE void multiply_blocks(const struct tqk_product_amx *p, const struct unit *u,
                                bool is_signed, uint8_t *to) {
    const size_t block = 2 * TQK_BLOCK_ROWS_AMX * p->stride;
    const uint8_t *left = p->left + u->first * 2 * p->stride;
    const uint8_t *right = p->right;
    zero();
    for (uint32_t s = 0; s < p->steps; s++, left += TQK_LINE_AMX, right += TQK_TILE_AMX) {
        const uint8_t *at = left;
        TQK_TILE_LOAD(6, right, TQK_LINE_AMX);
        if (u->whole > 0) {
            TQK_TILE_LOAD(4, at, p->stride);
            TQK_TILE_MULTIPLY(0, 4, 6);
            at += block;
        }
        if (u->whole > 1) {
            TQK_TILE_LOAD(4, at, p->stride);
            TQK_TILE_MULTIPLY(1, 4, 6);
            at += block;
        }
        if (u->whole > 2) {
            TQK_TILE_LOAD(4, at, p->stride);
            TQK_TILE_MULTIPLY(2, 4, 6);
            at += block;
        }
        if (u->last) {
            TQK_TILE_LOAD(5, at, p->stride);
            TQK_TILE_MULTIPLY(3, 5, 6);
        }
    }
    if (u->whole > 0)
        TQK_TILE_STORE(0, to);
    if (u->whole > 1)
        TQK_TILE_STORE(1, to + TQK_TILE_AMX);
    if (u->whole > 2)
        TQK_TILE_STORE(2, to + 2 * TQK_TILE_AMX);
    if (u->last)
        TQK_TILE_STORE(3, to + (size_t)u->whole * TQK_TILE_AMX);
}

TQK_INLINE void product(const struct tqk_product_amx *p, bool is_signed, tqk_make_fn_amx *make,
                        tqk_take_fn_amx *take, const void *job) {
    struct unit u, before = {0};
    const uint32_t blocks = (p->n_rows + TQK_BLOCK_ROWS_AMX - 1) / TQK_BLOCK_ROWS_AMX;
    const uint32_t together = blocks < TQK_TOGETHER_AMX ? blocks : TQK_TOGETHER_AMX;
    uint8_t *now = p->sums, *then = now + (size_t)together * TQK_TILE_AMX;
    for (uint32_t column = 0; column < p->columns; column++) {
        make(job, column, p->right);
        for (uint32_t first = 0; first < p->n_rows; first += u.rows) {
            u = unit_at(p, column, first);
            multiply_blocks(p, &u, is_signed, now);
            if (before.columns)
                take(job, before.column, before.first, before.rows, then);
            uint8_t *other = then;
            then = now;
            now = other;
            before = u;
        }
    }
    take(job, before.column, before.first, before.rows, then);
}

void tqk_product_amx(const struct tqk_product_amx *p, tqk_make_fn_amx *make, tqk_take_fn_amx *take,
                     const void *job) {
    if (p->is_signed)
        product(p, true, make, take, job);
    else
        product(p, false, make, take, job);
}
