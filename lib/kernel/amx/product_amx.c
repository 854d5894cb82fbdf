/* Products of query rows and decoded codes, and the shapes of the tiles for them. The sums of
 * one unit are taken while the next one is multiplied. */
#include <string.h>

#include "kernel/amx/amx.h"

/* The compiler knows no tiles: the order of accesses to memory is held by the clobber. */
#define LOAD(tile, at, stride)                                                              \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(at), "r"((ptrdiff_t)(stride)) \
                     : "memory")
#define STORE(tile, at)                                                \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), \
                     "r"((ptrdiff_t)TQK_LINE_AMX)                      \
                     : "memory")
#define ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
#define MULTIPLY(sum, left, right)                                                \
    do {                                                                          \
        if (is_signed)                                                            \
            __asm__ volatile("tdpbssd %tmm" #right ", %tmm" #left ", %tmm" #sum); \
        else                                                                      \
            __asm__ volatile("tdpbusd %tmm" #right ", %tmm" #left ", %tmm" #sum); \
    } while (0)

/* The operand of LDTILECFG. */
struct shapes {
    uint8_t palette, start_line, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} __attribute__((aligned(64)));

/* Tiles 0 to 3 are sums, 4 and 5 left sides, 6 and 7 right ones. The last block of rows, which may
 * have fewer than 8, has tiles 3 and 5; where it is the only one, all. */
void tqk_enter_amx(uint32_t n_rows) {
    struct shapes s;
    const uint8_t lines = TQK_TILE_AMX / TQK_LINE_AMX;
    const uint8_t last = (uint8_t)(2 * ((n_rows - 1) % TQK_BLOCK_ROWS_AMX + 1));
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (uint32_t i = 0; i < 8; i++) {
        s.line_bytes[i] = TQK_LINE_AMX;
        s.lines[i] = i < 6 && n_rows <= TQK_BLOCK_ROWS_AMX ? last : lines;
    }
    s.lines[3] = s.lines[5] = last;
    __asm__ volatile("ldtilecfg %0" ::"m"(s));
}

/* Empty tiles cost nothing when the system switches threads. */
void tqk_leave_amx(void) {
    __asm__ volatile("tilerelease");
}

/* What is summed together: up to four columns of the only block of rows, or a column of up to
 * four blocks. */
struct unit {
    uint32_t column, columns;
    uint32_t first, rows;
    uint32_t whole; /* blocks in tiles 0 to 2 */
    bool last;      /* one more, in tile 3 */
};

static struct unit unit_at(const struct tqk_product_amx *p, uint32_t column, uint32_t first) {
    struct unit u = {.column = column, .columns = 1, .first = first, .rows = p->n_rows - first};
    if (p->n_rows <= TQK_BLOCK_ROWS_AMX) {
        u.columns = p->columns - column;
        u.columns = u.columns < TQK_TOGETHER_AMX ? u.columns : TQK_TOGETHER_AMX;
        return u;
    }
    u.whole = (u.rows - 1) / TQK_BLOCK_ROWS_AMX;
    u.last = u.whole < TQK_TOGETHER_AMX;
    if (!u.last) {
        u.whole = TQK_TOGETHER_AMX - 1;
        u.rows = u.whole * TQK_BLOCK_ROWS_AMX;
    }
    return u;
}

/* Bytes from the sums of a column to those of the next: no more than the rows take, because all
 * that a page touches beside itself must stay in the first level while pages run through it. */
static size_t sums_bytes(const struct tqk_product_amx *p) {
    return p->n_rows <= TQK_BLOCK_ROWS_AMX ? (size_t)p->n_rows * 2 * TQK_LINE_AMX : TQK_TILE_AMX;
}

/* n0 .. n3: which; the last ones lie behind `third` others. */
#define STORE_FOUR(n0, n1, n2, n3, third, bytes) \
    do {                                         \
        if (n0)                                  \
            STORE(0, to);                        \
        if (n1)                                  \
            STORE(1, to + (bytes));              \
        if (n2)                                  \
            STORE(2, to + 2 * (bytes));          \
        if (n3)                                  \
            STORE(3, to + (third) * (bytes));    \
    } while (0)

TQK_INLINE void zero(void) {
    ZERO(0);
    ZERO(1);
    ZERO(2);
    ZERO(3);
}

TQK_INLINE void multiply_columns(const struct tqk_product_amx *p, const struct unit *u,
                                 bool is_signed, uint8_t *to) {
    const uint32_t n = u->columns, steps = p->steps;
    const size_t column = (size_t)steps * TQK_TILE_AMX;
    const uint8_t *left = p->left, *right = p->right + u->column * column;
    zero();
    for (uint32_t s = 0; s < steps; s++, left += TQK_LINE_AMX, right += TQK_TILE_AMX) {
        LOAD(4, left, p->stride);
        LOAD(6, right, TQK_LINE_AMX);
        MULTIPLY(0, 4, 6);
        if (n > 1) {
            LOAD(7, right + column, TQK_LINE_AMX);
            MULTIPLY(1, 4, 7);
        }
        if (n > 2) {
            LOAD(6, right + 2 * column, TQK_LINE_AMX);
            MULTIPLY(2, 4, 6);
        }
        if (n > 3) {
            LOAD(7, right + 3 * column, TQK_LINE_AMX);
            MULTIPLY(3, 4, 7);
        }
    }
    STORE_FOUR(n > 0, n > 1, n > 2, n > 3, 3, sums_bytes(p));
}

TQK_INLINE void multiply_blocks(const struct tqk_product_amx *p, const struct unit *u,
                                bool is_signed, uint8_t *to) {
    const size_t block = 2 * TQK_BLOCK_ROWS_AMX * p->stride;
    const uint8_t *left = p->left + u->first * 2 * p->stride;
    const uint8_t *right = p->right + (size_t)u->column * p->steps * TQK_TILE_AMX;
    zero();
    for (uint32_t s = 0; s < p->steps; s++, left += TQK_LINE_AMX, right += TQK_TILE_AMX) {
        const uint8_t *at = left;
        LOAD(6, right, TQK_LINE_AMX);
        if (u->whole > 0) {
            LOAD(4, at, p->stride);
            MULTIPLY(0, 4, 6);
            at += block;
        }
        if (u->whole > 1) {
            LOAD(4, at, p->stride);
            MULTIPLY(1, 4, 6);
            at += block;
        }
        if (u->whole > 2) {
            LOAD(4, at, p->stride);
            MULTIPLY(2, 4, 6);
            at += block;
        }
        if (u->last) {
            LOAD(5, at, p->stride);
            MULTIPLY(3, 5, 6);
        }
    }
    STORE_FOUR(u->whole > 0, u->whole > 1, u->whole > 2, u->last, (size_t)u->whole,
               (size_t)TQK_TILE_AMX);
}

static void take_unit(const struct tqk_product_amx *p, const struct unit *u, tqk_take_fn_amx *take,
                      const void *job, const uint8_t *sums) {
    const size_t bytes = sums_bytes(p);
    for (uint32_t c = 0; c < u->columns; c++)
        take(job, u->column + c, u->first, u->rows, sums + c * bytes);
}

TQK_INLINE void product(const struct tqk_product_amx *p, bool is_signed, tqk_make_fn_amx *make,
                        tqk_take_fn_amx *take, const void *job) {
    struct unit u, before = {0};
    uint8_t *now = p->sums, *then = now + TQK_TOGETHER_AMX * sums_bytes(p);
    for (uint32_t column = 0; column < p->columns; column += u.columns)
        for (uint32_t first = 0; first < p->n_rows; first += u.rows) {
            u = unit_at(p, column, first);
            for (uint32_t c = column; c < column + u.columns && first == 0; c++)
                make(job, c, p->right + (size_t)c * p->steps * TQK_TILE_AMX);
            if (p->n_rows <= TQK_BLOCK_ROWS_AMX)
                multiply_columns(p, &u, is_signed, now);
            else
                multiply_blocks(p, &u, is_signed, now);
            take_unit(p, &before, take, job, then);
            uint8_t *other = then;
            then = now;
            now = other;
            before = u;
        }
    take_unit(p, &before, take, job, then);
}

void tqk_product_amx(const struct tqk_product_amx *p, tqk_make_fn_amx *make, tqk_take_fn_amx *take,
                     const void *job) {
    if (p->is_signed)
        product(p, true, make, take, job);
    else
        product(p, false, make, take, job);
}
