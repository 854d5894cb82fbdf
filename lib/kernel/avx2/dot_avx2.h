/* Sums of products of rows and codes. A *unit* is 8 codes along the sum of 8 tokens (keys) or 8
 * dims (values), in the lanes of 32 bits of two registers, and 16 bytes of a row. Units are
 * decoded, kept for the rows to come, and multiplied in one loop, so that all ports have work; no
 * step goes across a register. AVX2 widens codes to 16 bits for VPMADDWD, AVX-VNNI takes bytes and
 * rows in two planes of bytes; the sums are the same integers. */
#ifndef TQI_KERNEL_AVX2_DOT_H
#define TQI_KERNEL_AVX2_DOT_H

#include "kernel/avx2/codes_avx2.h"
#include "kernel/simd/ahead.h"

/* Planes of a row, and biases of codes: VPDPBUSD wants one operand without signs, keys or weights;
 * AVX2 widens bytes without sign. */
#ifdef __AVXVNNI__
enum { TQK_PLANES_AVX2 = 2, TQK_VALUE_BIAS_AVX2 = 0 };
#else
enum { TQK_PLANES_AVX2 = 1, TQK_VALUE_BIAS_AVX2 = 128 };
#endif
enum {
    TQK_KEY_BIAS_AVX2 = 128,
    TQK_PARTS_AVX2 = 4 / TQK_PLANES_AVX2, /* registers of a unit, as they are multiplied */
    TQK_UNIT_AVX2 = 32 * TQK_PARTS_AVX2
};

/* For VPSHUFB: the bytes of 8 integers of a row, of the 8 dims of a word or of 8 tokens in order,
 * as tqk_multiply_avx2() takes them, beside the codes that stand in a lane of either register. */
static inline __m128i tqk_order_avx2(const struct tqi_rows *rows, bool values) {
#ifdef __AVXVNNI__ /* high bytes, low bytes */
#define TQK_HALF(a, b, c, d) 2 * a + 1, 2 * b + 1, 2 * c + 1, 2 * d + 1, 2 * a, 2 * b, 2 * c, 2 * d
#else /* bytes 0 and 2 of a lane, 1 and 3 */
#define TQK_HALF(a, b, c, d) 2 * a, 2 * a + 1, 2 * c, 2 * c + 1, 2 * b, 2 * b + 1, 2 * d, 2 * d + 1
#endif
#define TQK_ORDER(a, b, c, d, e, f, g, h) _mm_setr_epi8(TQK_HALF(a, b, c, d), TQK_HALF(e, f, g, h))
    if (rows->format->kind == TQI_KIND_INT8)
        return values ? TQK_ORDER(0, 1, 4, 5, 2, 3, 6, 7) : TQK_ORDER(0, 1, 2, 3, 4, 5, 6, 7);
    return values ? TQK_ORDER(0, 4, 2, 6, 1, 5, 3, 7) : TQK_ORDER(0, 2, 4, 6, 1, 3, 5, 7);
#undef TQK_ORDER
#undef TQK_HALF
}

/* Integers whose bytes are the planes of a row with signs: both bytes have one then. */
static inline __m128i tqk_signed_planes_avx2(__m128i x) {
    if (TQK_PLANES_AVX2 == 1)
        return x;
    const __m128i half = _mm_set1_epi16(128);
    return _mm_xor_si128(_mm_add_epi16(x, half), half);
}

/* Two columns of 8 tokens or dims are summed together, so that what is loaded of a row serves two
 * multiplies: cores load two registers a cycle, which is what they multiply. */
enum { TQK_COLUMNS_AVX2 = 2, TQK_SUMS_AVX2 = 12, TQK_ROWS_AVX2 = 4 };

/* Where the sums of a row and plane are. */
TQK_INLINE uint32_t tqk_place_avx2(uint32_t row, uint32_t plane) {
    return (row * TQK_PLANES_AVX2 + plane) * TQK_COLUMNS_AVX2;
}

/* Keeps a sum in its register: compilers else go round the loop with a copy of it, or add up
 * products first, which they have no registers for. And an address, or they keep one for every row
 * and operand. */
#define TQK_KEEP_AVX2(x) __asm__("" : "+x"(x))
#define TQK_KEEP_ADDRESS(x) __asm__("" : "+r"(x))
/* What an address is used for comes behind `x`: compilers else put all prefetches of a loop at its
 * start, where they wait for each other. */
#define TQK_BEHIND_AVX2(address, x) __asm__ volatile("" : "+r"(address), "+x"(x))

/* 4 bytes over a register, by the load port. */
TQK_INLINE __m256i tqk_spread_avx2(const char *at) {
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)at));
}

/* Adds products of x[column] and an element of a row to acc[column]. */
TQK_INLINE void tqk_add_products_avx2(__m256i *acc, const __m256i x[TQK_COLUMNS_AVX2], __m256i y,
                                      bool values) {
    TQK_UNROLL
    for (uint32_t c = 0; c < TQK_COLUMNS_AVX2; c++) {
#ifdef __AVXVNNI__ /* the first operand has no signs */
        acc[c] = values ? _mm256_dpbusd_avx_epi32(acc[c], y, x[c])
                        : _mm256_dpbusd_avx_epi32(acc[c], x[c], y);
#else
        (void)values;
        acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(x[c], y));
#endif
        TQK_KEEP_AVX2(acc[c]);
    }
}

/* Part of a unit of both columns, and its bytes of all rows, whose unit is at `at`. */
TQK_INLINE void tqk_multiply_avx2(const __m256i x[TQK_COLUMNS_AVX2], uint32_t part, bool values,
                                  const char *const *row, size_t at, uint32_t rows, __m256i *acc) {
    TQK_UNROLL
    for (uint32_t p = 0; p < TQK_PLANES_AVX2; p++) {
        TQK_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m256i y = tqk_spread_avx2(row[r] + at + 4 * (part * TQK_PLANES_AVX2 + p));
            tqk_add_products_avx2(acc + tqk_place_avx2(r, p), x, y, values);
        }
    }
}

/* The sum of a row and column. */
TQK_INLINE __m256i tqk_sum_avx2(const __m256i *acc, uint32_t row, uint32_t column) {
    __m256i high = acc[tqk_place_avx2(row, 0) + column];
    if (TQK_PLANES_AVX2 == 1)
        return high;
    return _mm256_add_epi32(_mm256_slli_epi32(high, 8), acc[tqk_place_avx2(row, 1) + column]);
}

/* The units of a sum, in the order of rows: `inner` times 16 bytes on, which functions know when
 * they are compiled, then `outer` times to the word word_step on. */
struct tqk_walk_avx2 {
    uint32_t word, word_step, second; /* see tqk_decode_avx2() */
    uint32_t outer;
    size_t at;
    const uint8_t *ahead; /* lines that will be read, see simd/ahead.h */
    ptrdiff_t far;
};

/* What a function does with units: it decodes them, for no other rows or for those to come, or
 * takes kept ones. */
enum tqk_units_avx2 { TQK_ALONE, TQK_FIRST, TQK_NEXT };

/* Where the units of both columns are, and where decoded ones are kept. */
struct tqk_at_avx2 {
    struct tqk_codes_avx2 codes;
    size_t at, column; /* bytes to the second column */
    uint32_t word, inner;
    uint8_t *kept;
    const char *row[TQK_ROWS_AVX2];
};

/* Part of decoded bytes. */
TQK_INLINE __m256i tqk_part_avx2(const struct tqk_masks_avx2 *masks, const __m256i bytes[2],
                                 uint32_t part) {
    if (TQK_PARTS_AVX2 == 2)
        return bytes[part];
    return part % 2 ? _mm256_srli_epi16(bytes[part / 2], 8)
                    : _mm256_and_si256(bytes[part / 2], tqk_mask_avx2(masks->low));
}

/* Unit i of a word, of both columns, a part at a time: sums leave few registers. */
TQK_INLINE void tqk_unit_avx2(const struct tqk_at_avx2 *p, const struct tqk_walk_avx2 *w,
                              enum tqk_units_avx2 units, uint32_t bits, bool values, uint32_t i,
                              uint32_t rows, __m256i *acc, const uint8_t **ahead) {
    __m256i *const kept = (__m256i *)(void *)p->kept + i * TQK_PARTS_AVX2 * TQK_COLUMNS_AVX2;
    __m256i bytes[TQK_COLUMNS_AVX2][2], x[TQK_COLUMNS_AVX2];
    const struct tqk_masks_avx2 *masks = &tqk_masks_avx2;
    TQK_UNROLL
    for (uint32_t c = 0; c < TQK_COLUMNS_AVX2 && units != TQK_NEXT; c++) {
        if (rows * TQK_PLANES_AVX2 >= 4)
            TQK_KEEP_ADDRESS(masks);
        tqk_decode_avx2(&p->codes, masks, bits, p->word, w->second, p->at + 16 * i + c * p->column,
                        bytes[c]);
    }
    if (units != TQK_NEXT) {
        TQK_BEHIND_AVX2(*ahead, bytes[1][0]);
        tqk_ahead_near(*ahead + i * bits * 16);
    }
    TQK_UNROLL
    for (uint32_t part = 0; part < TQK_PARTS_AVX2; part++) {
        TQK_UNROLL
        for (uint32_t c = 0; c < TQK_COLUMNS_AVX2; c++) {
            __m256i *at = kept + part * TQK_COLUMNS_AVX2 + c;
            x[c] = units == TQK_NEXT ? _mm256_load_si256(at) : tqk_part_avx2(masks, bytes[c], part);
            if (units == TQK_FIRST)
                _mm256_store_si256(at, x[c]);
        }
        tqk_multiply_avx2(x, part, values, p->row, 16 * i, rows, acc);
        if (units != TQK_NEXT && part == 0) {
            TQK_BEHIND_AVX2(*ahead, acc[0]);
            tqk_ahead_far(*ahead + i * bits * 16, w->far);
        }
    }
}

/* Whether every word has a slab of its own. */
TQK_INLINE bool tqk_is_plain_avx2(uint32_t bits) {
    return bits == 4 || bits == 8;
}

/* Columns of keys lie 128 bytes apart, those of values as far as their group is wide, and so do
 * the halves of a register. */
TQK_INLINE struct tqk_at_avx2 tqk_start_avx2(const struct tqk_codes_avx2 *codes,
                                             const struct tqk_walk_avx2 *w, uint32_t inner,
                                             uint32_t bits, uint8_t *kept, const char *row,
                                             size_t row_bytes, uint32_t rows) {
    struct tqk_at_avx2 p;
    p.codes = *codes;
    p.codes.apart = 16 * inner;
    p.column = 32 * inner;
    p.at = w->at;
    p.word = w->word;
    p.inner = inner;
    p.kept = kept;
    if (tqk_is_plain_avx2(bits)) {
        p.codes.at += w->at + w->word * p.codes.slab;
        p.at = p.word = 0;
    }
    TQK_UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        p.row[i] = row + i * row_bytes;
    }
    return p;
}

/* To the next word. */
TQK_INLINE void tqk_step_avx2(struct tqk_at_avx2 *p, const struct tqk_walk_avx2 *w,
                              enum tqk_units_avx2 units, uint32_t bits, uint32_t rows) {
    TQK_UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        p->row[i] += 16 * p->inner;
        TQK_KEEP_ADDRESS(p->row[i]);
    }
    if (units != TQK_ALONE) {
        p->kept += (size_t)TQK_COLUMNS_AVX2 * TQK_UNIT_AVX2 * p->inner;
        TQK_KEEP_ADDRESS(p->kept);
    }
    if (units != TQK_NEXT && tqk_is_plain_avx2(bits))
        p->codes.at += w->word_step * p->codes.slab;
    else
        p->word += w->word_step;
}

/* What joins the sums of rows, bias_bytes apart: they begin with it. */
TQK_INLINE void tqk_begin_sums_avx2(const int32_t *bias, size_t bias_bytes, uint32_t rows,
                                    __m256i *acc) {
    TQK_UNROLL
    for (uint32_t i = 0; i < tqk_place_avx2(rows, 0); i++) {
        const uint32_t r = i / TQK_COLUMNS_AVX2 / TQK_PLANES_AVX2;
        const bool last = i / TQK_COLUMNS_AVX2 % TQK_PLANES_AVX2 == TQK_PLANES_AVX2 - 1;
        const void *at = (const char *)bias + r * bias_bytes;
        acc[i] = last ? tqk_spread_avx2(at) : _mm256_setzero_si256();
    }
}

/* acc[] of `rows` rows, row_bytes apart, and both columns over all units of a walk. What joins the
 * sums of the rows is bias_bytes apart: they begin with it. */
TQK_INLINE void tqk_dot_avx2(const struct tqk_codes_avx2 *codes, struct tqk_walk_avx2 *w,
                             uint32_t inner, enum tqk_units_avx2 units, uint32_t bits, bool values,
                             uint8_t **kept, const char *row, size_t row_bytes, const int32_t *bias,
                             size_t bias_bytes, uint32_t rows, __m256i *acc) {
    struct tqk_at_avx2 p = tqk_start_avx2(codes, w, inner, bits, *kept, row, row_bytes, rows);
    const uint8_t *ahead = w->ahead;
    tqk_begin_sums_avx2(bias, bias_bytes, rows, acc);
    for (uint32_t word = w->outer; word > 0; word--) {
        TQK_UNROLL
        for (uint32_t i = 0; i < inner; i++) {
            tqk_unit_avx2(&p, w, units, bits, values, i, rows, acc, &ahead);
        }
        if (units != TQK_NEXT)
            ahead += inner * bits * 16;
        tqk_step_avx2(&p, w, units, bits, rows);
    }
    w->ahead = ahead;
    w->at += 2 * p.column;
    *kept = p.kept;
}

/* What most calls are: head dim 128 and whole blocks of 64 tokens of pages that have no fewer, in
 * formats whose words have a slab each. Steps and places are constants there, beside a few
 * registers: the number of instructions counts as much as their kind. */
enum {
    TQK_WHOLE_DIM_AVX2 = 128,
    TQK_WHOLE_WORDS_AVX2 = TQK_WHOLE_DIM_AVX2 / 32, /* of a lane in a group */
    TQK_WHOLE_GROUP_AVX2 = 32,                      /* tokens */
    TQK_WHOLE_SLAB_AVX2 = TQK_WHOLE_GROUP_AVX2 * 16
};
TQK_INLINE bool tqk_is_whole_avx2(const struct tqi_layout *l) {
    return l->dim_pad == TQK_WHOLE_DIM_AVX2 && l->group == TQK_WHOLE_GROUP_AVX2;
}

/* What stays the same over such a block, and where the next of it is. */
struct tqk_whole_avx2 {
    __m256i table;
    const uint8_t *codes, *ahead;
    ptrdiff_t far;
    uint8_t *kept;
};

/* acc[] as tqk_dot_avx2(), of the two columns `at` bytes on. */
TQK_INLINE void tqk_dot_whole_avx2(const struct tqk_whole_avx2 *b, size_t at,
                                   enum tqk_units_avx2 units, uint32_t bits, bool values,
                                   uint8_t *kept, const char *row, size_t row_bytes,
                                   const int32_t *bias, size_t bias_bytes, uint32_t rows,
                                   const uint8_t **ahead, __m256i *acc) {
    const uint32_t slabs = bits == 8 ? 2 : 1, inner = TQK_WHOLE_GROUP_AVX2 / 8;
    uint32_t words = values ? TQK_BLOCK_AVX2 / TQK_WHOLE_GROUP_AVX2 : TQK_WHOLE_WORDS_AVX2;
    const size_t step = (size_t)(values ? TQK_WHOLE_WORDS_AVX2 : 1) * slabs * TQK_WHOLE_SLAB_AVX2;
    struct tqk_walk_avx2 w;
    struct tqk_at_avx2 p;
    w.second = values ? TQK_WHOLE_WORDS_AVX2 : 1;
    w.far = b->far;
    p.codes.at = b->codes + at;
    p.codes.slab = TQK_WHOLE_SLAB_AVX2;
    p.codes.apart = 16 * inner;
    p.codes.table = b->table;
    p.at = p.word = 0;
    p.column = 32 * inner;
    p.kept = kept;
    tqk_begin_sums_avx2(bias, bias_bytes, rows, acc);
    TQK_KEEP_ADDRESS(words); /* or compilers unroll two words, whose sums no register has */
    do {
        TQK_UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            p.row[i] = row + i * row_bytes;
        }
        TQK_UNROLL
        for (uint32_t i = 0; i < inner; i++) {
            if (rows * TQK_PARTS_AVX2 >= 16 && units != TQK_NEXT) {
                TQK_KEEP_ADDRESS(b); /* as with masks, the table is no register's all the time */
                p.codes.table = b->table;
            }
            tqk_unit_avx2(&p, &w, units, bits, values, i, rows, acc, ahead);
        }
        row += 16 * inner;
        TQK_KEEP_ADDRESS(row);
        p.kept += units == TQK_ALONE ? 0 : (size_t)TQK_COLUMNS_AVX2 * TQK_UNIT_AVX2 * inner;
        TQK_KEEP_ADDRESS(p.kept);
        p.codes.at += step;
        *ahead += units == TQK_NEXT ? 0 : inner * bits * 16;
    } while (--words > 0);
}

/* Rows that decode units, of n; then, as often as it takes, rows that use them, of those left. As
 * many sums as hide the latency of a multiply, and no more than registers hold. */
static inline uint32_t tqk_first_rows_avx2(uint32_t n) {
#ifdef __AVXVNNI__
    return n % 3 == 2 || n > 7 ? 2 : 1;
#else
    return n >= 4 ? 4 : n >= 2 ? 2 : 1;
#endif
}
static inline uint32_t tqk_next_rows_avx2(uint32_t left) {
#ifdef __AVXVNNI__
    return left >= 5 || left == 3 ? 3 : left >= 2 ? 2 : 1;
#else
    return tqk_first_rows_avx2(left);
#endif
}

/* A function of its own for every number of rows, so that each has all registers: wants
 * ROWS(name, units, inner, bits, rows), which makes one, and their type rows_fn. */
#ifdef __AVXVNNI__
#define TQK_FIRST_OF_AVX2(ROWS, rows_fn, name, inner, bits) \
    ROWS(name, ALONE, inner, bits, 1)                       \
    ROWS(name, ALONE, inner, bits, 2)                       \
    ROWS(name, FIRST, inner, bits, 1)                       \
    ROWS(name, FIRST, inner, bits, 2)                       \
    static rows_fn *const name[2][TQK_ROWS_AVX2 + 1] = {    \
        {NULL, name##_ALONE_1, name##_ALONE_2, NULL, NULL}, \
        {NULL, name##_FIRST_1, name##_FIRST_2, NULL, NULL}};
#define TQK_NEXT_OF_AVX2(ROWS, rows_fn, name, inner)                                     \
    ROWS(name, NEXT, inner, 0, 1)                                                        \
    ROWS(name, NEXT, inner, 0, 2)                                                        \
    ROWS(name, NEXT, inner, 0, 3)                                                        \
    static rows_fn *const name[TQK_ROWS_AVX2 + 1] = {NULL, name##_NEXT_1, name##_NEXT_2, \
                                                     name##_NEXT_3, NULL};
#else
#define TQK_FIRST_OF_AVX2(ROWS, rows_fn, name, inner, bits)           \
    ROWS(name, ALONE, inner, bits, 1)                                 \
    ROWS(name, ALONE, inner, bits, 2)                                 \
    ROWS(name, ALONE, inner, bits, 4)                                 \
    ROWS(name, FIRST, inner, bits, 2)                                 \
    ROWS(name, FIRST, inner, bits, 4)                                 \
    static rows_fn *const name[2][TQK_ROWS_AVX2 + 1] = {              \
        {NULL, name##_ALONE_1, name##_ALONE_2, NULL, name##_ALONE_4}, \
        {NULL, NULL, name##_FIRST_2, NULL, name##_FIRST_4}};
#define TQK_NEXT_OF_AVX2(ROWS, rows_fn, name, inner)                                           \
    ROWS(name, NEXT, inner, 0, 1)                                                              \
    ROWS(name, NEXT, inner, 0, 2)                                                              \
    ROWS(name, NEXT, inner, 0, 4)                                                              \
    static rows_fn *const name[TQK_ROWS_AVX2 + 1] = {NULL, name##_NEXT_1, name##_NEXT_2, NULL, \
                                                     name##_NEXT_4};
#endif
#define TQK_FIRST_AVX2(name, inner, bits) TQK_FIRST_OF_AVX2(ROWS, rows_fn, name, inner, bits)
#define TQK_NEXT_AVX2(name, inner) TQK_NEXT_OF_AVX2(ROWS, rows_fn, name, inner)

/* The same of whole blocks: wants struct whole and run_whole(). run_all_rows() runs one of
 * whole_<format> on the first rows of a block, which keep its codes, and whole_next on the others.
 */
#define TQK_WHOLE_AVX2(name, units, inner, bits, rows)                                             \
    static __attribute__((noinline)) void name##_##units##_##rows(struct whole *w, uint32_t row) { \
        run_whole(w, TQK_##units, bits, row, rows);                                                \
    }
#define TQK_WHOLES_AVX2                                                                          \
    typedef void whole_fn(struct whole *w, uint32_t row);                                        \
    TQK_FIRST_OF_AVX2(TQK_WHOLE_AVX2, whole_fn, whole_lm4, 4, 4)                                 \
    TQK_FIRST_OF_AVX2(TQK_WHOLE_AVX2, whole_fn, whole_int8, 4, 8)                                \
    TQK_NEXT_OF_AVX2(TQK_WHOLE_AVX2, whole_fn, whole_next, 4)                                    \
    TQK_INLINE void run_all_rows(whole_fn *const by_rows[2][TQK_ROWS_AVX2 + 1], struct whole *w, \
                                 uint32_t n_rows) {                                              \
        const uint32_t first = tqk_first_rows_avx2(n_rows);                                      \
        by_rows[first < n_rows][first](w, 0);                                                    \
        for (uint32_t r = first, rows; r < n_rows; r += rows) {                                  \
            rows = tqk_next_rows_avx2(n_rows - r);                                               \
            whole_next[rows](w, r);                                                              \
        }                                                                                        \
    }

#endif
