/* What is exact after tokens were put together or taken out: a token stays exact where it comes to
 * lie among the first tokens or in the window, and is what codes make of it elsewhere. Rows are
 * moved by the caller. */
#ifndef TQI_PAGE_EXACT_EDIT_H
#define TQI_PAGE_EXACT_EDIT_H

#include "page/exact.h"

/* Which of n tokens are exact: the first `head` and the last `tail` ones; head = tail = n when all
 * are. */
struct tqi_exact_runs {
    uint64_t head, tail;
};
/* Of tokens [first, first + n), which exist in the layer. */
struct tqi_exact_runs tqi_exact_runs_of(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, uint32_t layer, uint64_t first,
                                        uint64_t n);

/* Exact in a layer: [0, sinks) and [start, length). */
struct tqi_exact_state {
    uint64_t sinks, start;
};
/* After n tokens that are exact in `runs` have come behind the `length` of a layer. */
struct tqi_exact_state tqi_exact_joined(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, uint32_t layer, uint64_t length,
                                        struct tqi_exact_runs runs, uint64_t n);

/* Tokens [first, first + n) leave all layers, of lengths[] tokens before. */
struct tqi_exact_cut {
    uint64_t first, n;
    struct tqi_exact heir; /* what follows */
    struct tqi_exact_kept kept;
    uint32_t n_chunks; /* of the pool before */
};
/* Makes the heir's table and reserves its pages; changes nothing on failure. */
tq_status tqi_exact_cut_begin(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                              const uint64_t *lengths, struct tqi_exact_cut *cut);
/* Gives up what has begun. */
void tqi_exact_cut_cancel(const struct tqi_exact_rules *rules, struct tqi_exact_cut *cut);
/* The heir takes its pages: those whose tokens keep their slots are shared with the part as it
 * was, the others are new. */
void tqi_exact_cut_take(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                        struct tqi_exact_cut *cut);
/* Whether tokens have to be moved to the page of that number. */
int tqi_exact_cut_moves(const struct tqi_exact_cut *cut, uint64_t number);
/* The heir takes over. */
void tqi_exact_cut_end(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                       struct tqi_exact_cut *cut);

#endif
