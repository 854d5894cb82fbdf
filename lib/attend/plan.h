/*
 * How a call is cut into tasks. Query rows are taken in blocks whose states fit in a fixed
 * room; a block has a piece of each of its sequences, a piece has tasks of (kv heads, tile of
 * query rows, split of tokens). Splits lie at fixed tokens, so that results depend neither on
 * the number of workers nor on what else is in the call.
 */
#ifndef TQI_ATTEND_PLAN_H
#define TQI_ATTEND_PLAN_H

#include "attend/attend.h"
#include "base/checked.h"
#include "base/heap.h"

enum {
    TQI_TILE_ROWS = 32,        /* query rows that a task scores together */
    TQI_SPLIT_TOKENS = 2048,   /* multiple of the largest page */
    TQI_STATES_BYTES = 1 << 25 /* of a block, when a single query does not take more */
};

/* Tokens [first, last). */
struct tqi_range {
    uint64_t first, last;
};

/* Tokens of a sequence in one form: as codes, or kept in 16 bits. Pages of the view begin with
 * token `base`. */
struct tqi_part {
    const struct tqi_layer *layer;
    struct tqi_page_view view;
    uint64_t base;
    uint64_t written; /* slots of tokens before it hold anything */
    struct tqi_range tokens;
    uint32_t first_split, n_splits; /* those that some query of the sequence sees */
    uint32_t at;                    /* of its first split in the piece */
};

/* Query rows of one sequence in a block. */
struct tqi_piece {
    const struct tqi_attend_seq *seq;
    struct tqi_part parts[4]; /* codes first */
    uint32_t n_parts;
    uint32_t first_query, n_queries;  /* of the sequence's */
    uint32_t rows, tiles;             /* query rows of a kv head; tiles of them */
    uint32_t n_splits;                /* of all parts */
    uint32_t task_heads, head_blocks; /* kv heads of a task; tasks over the heads */
    uint32_t first_task, first_join;  /* numbers of its first tasks, see below */
    char *states;                     /* [kv head][split][row] */
};

/* Sizes of one call and the block at hand. */
struct tqi_attend_plan {
    const struct tqi_attend_job *job;
    size_t query_bytes, state_bytes, scores_bytes, scratch_bytes, worker_bytes;
    char *workers;            /* [worker] */
    struct tqi_piece *pieces; /* room for n_seqs */
    char *states;
    uint32_t n_pieces;
    uint32_t n_tasks;              /* that walk pages */
    uint32_t n_joins;              /* that join the splits of a tile, where there are several */
    uint32_t next_seq, next_query; /* where the next block begins */
};

/* Whose prepared rows a worker has, at the head of its memory; all 0: nobody's. */
struct tqi_held {
    const struct tqi_piece *piece;
    const struct tqi_layer *layer; /* of the part: its form decides that of the rows */
    uint32_t head, first_row;
};

static inline struct tqi_held *tqi_held_by(const struct tqi_attend_plan *plan, uint32_t worker) {
    return (struct tqi_held *)(void *)(plan->workers + worker * plan->worker_bytes);
}

void tqi_attend_start(struct tqi_attend_plan *plan, const struct tqi_attend_job *job);
/* Cuts the next block; 0 when there is none. */
int tqi_attend_next_block(struct tqi_attend_plan *plan);
/* The piece of a task or join. */
const struct tqi_piece *tqi_piece_of_task(const struct tqi_attend_plan *plan, uint32_t task);
const struct tqi_piece *tqi_piece_of_join(const struct tqi_attend_plan *plan, uint32_t join);

/* Tokens that a query of a sequence sees. */
static inline struct tqi_range tqi_seen_by(const struct tqi_attend_job *job,
                                           const struct tqi_attend_seq *seq, uint32_t query) {
    uint64_t after =
        job->call.causal ? seq->n_queries - 1 - query : 0; /* queries behind this one */
    struct tqi_range seen = {0, seq->length > after ? seq->length - after : 0};
    if (job->call.window && seen.last > job->call.window)
        seen.first = seen.last - job->call.window;
    return seen;
}

#endif
