/*
 * The interface of the kernels: raw pointers, sizes and struct tqi_rows. Kernels do
 * not allocate, know no sequences and never fail.
 *
 * A *level* is an instruction set. It brings its own scratch types: query rows,
 * scores, probabilities and accumulators are opaque bytes to the drivers, so that the
 * reference can work in double and a SIMD level in 16-bit integers. For a pair of
 * formats the driver takes the highest level that has both the score kernel of the K
 * format and the accumulate kernel of the V format.
 */
#ifndef TQI_KERNEL_KERNEL_H
#define TQI_KERNEL_KERNEL_H

#include <stdbool.h>

#include "spec/rows.h"

/* Counts of replaced elements, added to. */
struct tqi_nonfinite {
    uint64_t nan, inf;
};

/* One row of `dim` elements of type `dtype` to binary32: NaN to 0, infinities to the
 * largest finite value of the type, then minus `mean` (NULL = none), clamped to the
 * largest finite binary32. */
typedef void tqi_load_fn(const void *row, tq_dtype dtype, uint32_t dim, const float *mean,
                         float *out, struct tqi_nonfinite *count);
/* The same elements as they are. */
typedef void tqi_widen_fn(const void *row, tq_dtype dtype, uint32_t dim, float *out);
/* Writes one row with nearest-even rounding. */
typedef void tqi_store_fn(const double *row, uint32_t dim, tq_dtype dtype, void *out);

/* Codes one row into `token` of a blob. x has room for the level's encode_scratch()
 * floats, the row first; of lm and int8 it ends as the rotated row, times a power of two where it
 * was out of range, else it is destroyed. scale: of fp8, its reciprocal. */
typedef void tqi_encode_fn(const struct tqi_rows *rows, float inv_scale, float *x, uint8_t *blob,
                           uint32_t token);

/* Tokens [first, last) of one page; scale of fp8. next: the page that will be read after
 * this one, and after: that behind it where keys and values are alike, for prefetching; NULL = not
 * known. */
struct tqi_tile {
    const uint8_t *blob;
    uint32_t first, last;
    float scale;
    const uint8_t *next, *after;
};

/* Around all scores and sums of a level by one thread with the same number of query rows: sets up
 * and gives back what the level keeps in the thread. NULL = nothing. */
typedef void tqi_enter_fn(uint32_t n_rows);
typedef void tqi_leave_fn(void);

/* One query row to the level's form, in the basis of the codes. */
typedef void tqi_prepare_fn(const struct tqi_rows *k, const float *row, void *query);
/* Scores q.k of n_rows query rows (query_bytes() apart) and the tile's tokens, not
 * scaled: row r, token t at r * score_stride + t - first, in the level's score type. */
typedef void tqi_score_fn(const struct tqi_rows *k, const struct tqi_tile *tile,
                          const void *queries, uint32_t n_rows, uint32_t score_stride, void *scores,
                          void *scratch);
/* Caps the scores: cap * tanh((scale * score + shift[r]) / cap), to which softmax must then
 * be given the scale 1. A score that is not finite spoils its row as without cap. */
typedef void tqi_softcap_fn(void *scores, uint32_t score_stride, const double *shift,
                            uint32_t n_rows, uint32_t n_tokens, double scale, double cap);
/* The tokens [first, last) of a tile that a query row sees, counted from the tile's first. */
struct tqi_sight {
    uint32_t first, last;
};
static inline bool tqi_sight_empty(struct tqi_sight s) {
    return s.first >= s.last;
}
/* Online softmax of row r over the scores of its span: they become probabilities
 * exp(scale * score - max), others 0; the states (state_bytes() apart) take in the new
 * maximum and sum and note the factor of what they accumulated. A state sees one scale
 * only, and no negative one. */
typedef void tqi_softmax_fn(void *states, size_t state_bytes, void *scores, uint32_t score_stride,
                            const struct tqi_sight *spans, uint32_t n_rows, uint32_t n_tokens,
                            double scale);
/* states.acc = states.acc * factor + sum over the tile of probability * value. */
typedef void tqi_accumulate_fn(const struct tqi_rows *v, const struct tqi_tile *tile,
                               const void *probabilities, uint32_t n_rows, uint32_t score_stride,
                               void *states, size_t state_bytes, void *scratch);
/* An empty state; joining `from` into `into`; the end: out[dim] in the caller's basis
 * plus mean (NULL = none), and lse. An empty state gives zeros and -infinity. */
typedef void tqi_state_clear_fn(const struct tqi_rows *v, void *state);
typedef void tqi_state_merge_fn(const struct tqi_rows *v, void *into, const void *from);
typedef void tqi_state_finish_fn(const struct tqi_rows *v, const void *state, const float *mean,
                                 double *out, double *lse, void *scratch);

/* Decodes one token into the caller's basis, without mean. */
typedef void tqi_decode_fn(const struct tqi_rows *rows, const struct tqi_tile *tile, uint32_t token,
                           double *out, void *scratch);

struct tqi_named_encode {
    tqi_encode_fn *run;
    const char *name;
};
struct tqi_named_score {
    tqi_score_fn *run;
    const char *name;
};
struct tqi_named_accumulate {
    tqi_accumulate_fn *run;
    const char *name;
};

struct tqi_level {
    const char *name;
    uint64_t features;                               /* TQ_CPU_* bits it needs */
    size_t score_size;                               /* bytes of a score, a float or a double */
    double score_unit;                               /* a score is stored divided by this */
    size_t (*query_bytes)(const struct tqi_rows *k); /* of a prepared row; multiple of 64 */
    size_t (*state_bytes)(const struct tqi_rows *v);
    size_t (*scratch_bytes)(
        const struct tqi_rows *rows); /* for score, accumulate, finish, decode */
    size_t (*encode_scratch)(const struct tqi_rows *rows); /* floats */
    /* The level that is faster for up to few_rows query rows, with the same formats, states and
     * bits of the result; NULL and 0 = none. */
    const struct tqi_level *(*few)(void);
    uint32_t few_rows;
    tqi_enter_fn *enter;
    tqi_leave_fn *leave;
    tqi_load_fn *load;
    tqi_widen_fn *widen;
    tqi_store_fn *store;
    tqi_prepare_fn *prepare;
    tqi_softcap_fn *softcap;
    tqi_softmax_fn *softmax;
    tqi_state_clear_fn *state_clear;
    tqi_state_merge_fn *state_merge;
    tqi_state_finish_fn *state_finish;
    tqi_decode_fn *decode;
    struct tqi_named_encode encode[TQI_FORMAT_LIMIT]; /* by format id */
    struct tqi_named_score score[TQI_FORMAT_LIMIT];
    struct tqi_named_accumulate accumulate[TQI_FORMAT_LIMIT];
};

enum { TQI_LEVEL_LIMIT = 8 };

/* The levels a context uses, best first; the last is the reference. */
struct tqi_kernels {
    uint32_t n_levels;
    const struct tqi_level *level[TQI_LEVEL_LIMIT];
};

/* What runs for so many query rows where a level has been picked. */
static inline const struct tqi_level *tqi_level_for(const struct tqi_level *level,
                                                    uint32_t n_rows) {
    return n_rows <= level->few_rows ? level->few() : level;
}
static inline void tqi_level_enter(const struct tqi_level *level, uint32_t n_rows) {
    if (level->enter)
        level->enter(n_rows);
}
static inline void tqi_level_leave(const struct tqi_level *level) {
    if (level->leave)
        level->leave();
}

/* Fills the table with the levels whose features are all in `features`. */
void tqi_kernels_select(struct tqi_kernels *kernels, uint64_t features);
/* Level for coding rows of a format / for attention over a pair; NULL when no level
 * can, which the caller refuses at create. */
const struct tqi_level *tqi_kernels_encode(const struct tqi_kernels *kernels, tq_format f);
const struct tqi_level *tqi_kernels_attend(const struct tqi_kernels *kernels, tq_format k,
                                           tq_format v);
/* The levels. */
const struct tqi_level *tqi_level_ref(void);
const struct tqi_level *tqi_level_amx(void);     /* x86-64 only, TQI_HAVE_AMX */
const struct tqi_level *tqi_level_avx512(void);  /* x86-64 only */
const struct tqi_level *tqi_level_avxvnni(void); /* x86-64 only, TQI_HAVE_AVXVNNI */
const struct tqi_level *tqi_level_avx2(void);    /* x86-64 only */
const struct tqi_level *tqi_level_i8mm(void);    /* AArch64 only, TQI_HAVE_I8MM */
const struct tqi_level *tqi_level_neon(void);    /* AArch64 only */

#endif
