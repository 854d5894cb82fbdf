/*
 * The fast read path: tensor cores on the codes, a page of 64 tokens at a time. Three kernels:
 * queries to operands (prepare), pages to partial states (stream), partial states to rows
 * (merge).
 *
 * An *item* is a kv head and a tile of 4 NT of its query rows; its *tiles* are the pages.
 */
#ifndef TQI_CUDA_ATTEND_FAST_JOB_H
#define TQI_CUDA_ATTEND_FAST_JOB_H

#include "attend/attend_job.h"

namespace tqi {

/* Pieces of the fast path beyond one per item come from its workers: rows of them per
 * multiprocessor, warps times rows of an item. */
enum { PIECE_ROWS_PER_SM = 128 };

/* How items are spread over workers; a worker's piece of an item leaves a partial state. */
enum Schedule {
    SCHEDULE_BLOCK, /* a block of threads per piece, all items cut into the same `parts` */
    SCHEDULE_WARP   /* all tiles of all items in a row, cut evenly over warps */
};

struct FastJob {
    AttendJob call;          /* queries, shift and states are not used */
    uint32_t heads_per_item; /* 4 NT */
    uint32_t items_per_head;
    uint32_t n_items;
    uint32_t n_tiles; /* pages of the sequence */
    uint32_t schedule;
    uint32_t parts;        /* SCHEDULE_BLOCK: pieces of an item */
    uint32_t workers;      /* SCHEDULE_WARP */
    uint32_t warps, slots; /* of a block; page slots of a warp */
    uint32_t overlap;      /* launches may overlap their predecessors */
    float k_step, v_step;  /* of the integers of K and V, 1 for float formats */
    uint32_t table[2][2];  /* K, V: values of the book as bytes */
    /* Workspace: */
    uint32_t *fragments; /* [item][NT][word][lane] */
    float *q_scale;      /* [item][head of the item] */
    int32_t *q_half;     /* the same: half the sum of the query's integers */
    float *shift;        /* the same: scale * q.mean */
    float *partial;      /* [piece][head of the item][v dim] */
    float2 *partial_ml;  /* [piece][head of the item]: maximum in powers of two, sum */
};

/* A kernel for one pair of formats, head dim and tile height. */
struct FastKernel {
    uint32_t k_format, v_format, dim, heads; /* heads of an item */
    uint32_t max_warps;
    const char *name;
    uint32_t blob_bytes;
    /* Shared memory of a block. */
    size_t (*shared)(uint32_t warps, uint32_t slots);
    tq_status (*prepare)(); /* once per device */
    tq_status (*run)(const FastJob &job, cudaStream_t stream);
};

/* The kernel for a layer, NULL when there is none: then attend_any() serves. */
const FastKernel *find_fast(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                            const tqi_layout &v, uint32_t rows);
/* Once per device and layer. */
tq_status prepare_fast(const Side &k, const Side &v);

/* Words of 4 bytes that a lane holds of an item's query, per NT. */
__host__ __device__ inline uint32_t fragment_words(uint32_t k_format, uint32_t dim) {
    return dim / 32 * (k_format >= TQ_FORMAT_INT8 ? 2 : 4);
}

/* Piece of (worker, item): consecutive pieces differ in the worker, the item or both. */
__host__ __device__ inline uint64_t warp_piece(uint64_t worker, uint64_t item) {
    return worker + item;
}

/* First tile of a share of n things cut into `of` even shares. */
__host__ __device__ inline uint64_t share_begin(uint64_t n, uint64_t share, uint64_t of) {
    return n * share / of; /* products stay below 2^64: tiles below 2^40, shares below 2^20 */
}

/* ids: of the first n_ids pages, which are put into the table. */
tq_status prepare_queries(const FastJob &job, const PageIds &ids, uint32_t n_ids,
                          cudaStream_t stream);
/* Whether the code that runs here waits for its predecessor by itself. */
bool code_overlaps();
tq_status merge_pieces(const FastJob &job, cudaStream_t stream);

} /* namespace tqi */

#endif
