/*
 * Attention of many query rows over pages: a block takes 128 rows of a kv head, decodes every page
 * that they see once into shared memory, and writes finished rows. Where there are fewer such items
 * than multiprocessors, an item's pages are cut into parts, a block for each, and the last block to
 * finish joins what they leave, warp by warp and in order.
 */
#ifndef TQI_CUDA_PREFILL_JOB_H
#define TQI_CUDA_PREFILL_JOB_H

#include "attend/attend_job.h"

namespace tqi {

enum { TILE_ROWS = 128, TILE_WARPS = TILE_ROWS / 16, TILE_TOKENS = 64, LEAST_TILE_ROWS = 128 };

/* 128 rows (or what is left) of every kv head, of a sequence's query tokens in a step. A "row" is
 * one query head of one query token; rows of a kv head are numbered query token first. */
struct alignas(16) RowTile {
    tqi_segment segment; /* all query tokens of the sequence */
    uint32_t first_row;
    uint32_t reserved[3];
};

struct PrefillJob {
    AttendJob call;       /* range, schedule and workspace are not used */
    const RowTile *tiles; /* NULL: those of `segment`, a parameter */
    const uint32_t *n_tiles;
    tqi_segment segment;
    const uint32_t *table; /* page ids, with a segment that is a parameter */
    uint32_t most_tiles;   /* of the launch */
    float k_step;          /* of the integers of K, 1 for others */
    float sketch_rate;     /* of signs of the projected query over its length, in k_step */
    uint32_t workers;      /* blocks that run at a time */
    /* Workspace for `workers` parts, by part and warp of 16 rows: */
    float *partial;    /* [v dim / 2][lane] */
    float4 *states;    /* [lane]: references and sums of its two rows */
    uint32_t *arrived; /* by item and warp; zeros between launches */
};

struct PrefillKernel {
    uint32_t k_format, v_format, dim;
    const char *name;
    bool (*runs)(); /* on the current device, with the code of this build */
    tq_status (*prepare)();
    tq_status (*run)(const PrefillJob &job, cudaStream_t stream);
};

/* The kernel for a layer on the current device, once per layer; NULL when there is none: then the
 * kernels for few rows serve. */
tq_status open_prefill(const Side &k, const Side &v, const PrefillKernel **out);

/* Whether there are kernels for the current device. */
bool has_prefill();

/* Whether a sequence's query tokens go in tiles: fewer rows leave most of a tile empty. */
__host__ __device__ inline bool takes_tiles(uint64_t n_queries, uint32_t group) {
    return n_queries * group >= LEAST_TILE_ROWS;
}

/* Parts of each of `items` tiles of rows. */
__host__ __device__ inline uint32_t parts_of_tile(uint32_t items, uint32_t workers) {
    return items && items < workers ? workers / items : 1;
}

/* Blocks for up to `items` tiles of rows: fewer may have more parts. */
inline uint64_t blocks_of_tiles(uint64_t items, uint32_t workers) {
    return items < workers ? workers : items;
}

/* Tiles of a sequence's query tokens. */
__host__ __device__ inline uint32_t row_tiles(uint64_t n_queries, uint32_t group) {
    return (uint32_t)tqi_ceil(n_queries * group, TILE_ROWS);
}

} /* namespace tqi */

#endif
