/*
 * Device memory that attention works in: a step, its plans and partial states, for calls up to
 * some limits. A cache has one room for single sequences, every batch one of its own, whose
 * places never move, as captured graphs know them.
 */
#ifndef TQI_CUDA_ROOM_H
#define TQI_CUDA_ROOM_H

#include "attend/attend_job.h"
#include "attend/fast_job.h"
#include "encode/encode_job.h"
#include "exact/exact_job.h"
#include "prefill/prefill_job.h"

namespace tqi {

struct State;

/* A launch takes launch_rows query rows; where parts are fixed, block_rows of them, as they
 * make more pieces. */
struct Limits {
    uint32_t segments;
    uint32_t rows;        /* of a step */
    uint32_t launch_rows; /* a multiple of block_rows */
    uint32_t block_rows;
    uint32_t groups, runs; /* pieces of appends */
    uint32_t tiles;        /* of query rows for prefill kernels */
    uint32_t kept;         /* runs of tokens kept in 16 bits */
};

/* Kernels that the layers of a cache have, as far as they differ in their use of memory. */
struct KernelShape {
    uint32_t item_rows, workers; /* workers: of the row way */
};
enum { MAX_SHAPES = 8 }; /* heights of items */

/* Plans that are kept for the ways in which a step is attended, and one that is made anew. */
enum { KEPT_PLANS = 4, N_PLANS = KEPT_PLANS + 1 };

struct Room {
    Limits limits;
    char busy;        /* orders callers on the host */
    cudaEvent_t done; /* and their work on the device */
    uint8_t *memory;
    size_t bytes;
    size_t step_bytes; /* of what plan() uploads, at the start of memory */
    StepView step;
    AppendPiece *pieces[2]; /* cut at token groups, at pages */
    RowTile *tiles;
    /* Of caches that keep tokens in 16 bits, by segment and, in `hidden`, by layer first; behind
     * the last one those of a layer that keeps none: */
    KeptSeq *kept_seqs;
    Hidden *hidden;
    KeptRun *kept_runs;
    /* Of prefill kernels, where the batch has tiles: */
    float *tile_partial;
    float4 *tile_states;
    uint32_t *tile_arrived; /* zeros between launches */
    uint32_t n_tile_arrived;
    Schedule plans[N_PLANS]; /* of the first launch; the last has one launch only */
    size_t plan_bytes;       /* from launch to launch */
    tqi_way ways[KEPT_PLANS];
    uint32_t n_kept, n_ways; /* plans that can be kept, and are */
    /* Of a launch, where tokens are kept: attention over the codes, [query row][n_q_heads]. */
    float *part, *part_lse;
    /* Partial states and operands. */
    float *partial;
    float2 *partial_ml;
    float *queries;
    float *q_scale, *shift;
    int32_t *q_half;
    float2 *q_sketch;
    uint32_t *arrived; /* zeros between launches */
    uint32_t n_arrived;
};

uint32_t launches_of(const Limits &limits, uint32_t rows);
/* Limits of steps; segments end at multiples of block_rows, so that launches take whole
 * segments. */
Limits limits_of_steps(const State *s, uint32_t max_seqs, uint32_t max_tokens);

/* Gives every part of a room its place in `memory`, of room->bytes bytes; NULL: to learn them.
 * keeps: plans are kept from call to call. */
void place_room(const State *s, const Limits &limits, bool keeps, uint8_t *memory, Room *room);
tq_status open_room(State *s, const Limits &limits, Room *room);
/* The device must be idle. */
void close_room(State *s, Room *room);

/* Whether every launch has so few items that blocks take them whole. */
bool has_few_items(const State *s, const Limits &limits, uint32_t item_rows, uint32_t rows);
/* The job that makes plan `plan` of a room, for all its launches. */
PlanJob plan_of(const Room &room, uint32_t plan, const tqi_way &way, uint32_t overlap);

/* The room for work on a stream: take it, launch, give it back. */
tq_status take_room(Room *room, cudaStream_t stream);
tq_status give_room(Room *room, cudaStream_t stream);
tq_status is_capturing(cudaStream_t stream, bool *out);

} /* namespace tqi */

#endif
