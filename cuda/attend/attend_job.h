/*
 * The read path: query rows of a ragged batch over the pages of their sequences. Four kernels:
 * the plan (once per step and way of cutting), queries to operands (prepare), pages to partial
 * states (stream), partial states to rows (merge).
 *
 * Everything that changes from step to step lies in device memory at fixed places, so that
 * launches depend on the maxima of a batch only.
 */
#ifndef TQI_CUDA_ATTEND_ATTEND_H
#define TQI_CUDA_ATTEND_ATTEND_H

#include "attend/schedule.h"
#include "host.h"
#include "params.h"

namespace tqi {

/* Counts of a step. */
struct StepHead {
    const uint32_t *table;     /* page ids of all sequences; can move from step to step */
    uint32_t n_rows;           /* query rows */
    uint32_t n_groups, n_runs; /* pieces of appends, encode_job.h */
    uint32_t n_tiles;          /* of query rows, prefill_job.h */
    uint32_t n_kept;           /* runs of tokens kept in 16 bits, exact_job.h */
    uint32_t reserved;
};

/* The step in device memory. */
struct StepView {
    StepHead *head;
    tqi_segment *segments;
    uint32_t *row_segment;   /* [query row] its segment */
    uint32_t *block_segment; /* [block of query rows, one more] its first segment */
};

/* Tokens of a segment that nobody sees among the codes, because they are kept in 16 bits: the first
 * ones and the last. Segments have what is hidden in all layers. */
struct Hidden {
    uint32_t front, back;
};

/* One launch's cut in device memory; the plan kernel writes it. */
struct Schedule {
    tqi_division *share;
    tqi_cut *cuts;       /* by segment of the step */
    tqi_work *work;      /* by worker */
    tqi_pieces *pieces;  /* by item */
    tqi_row_place *rows; /* by query row of the launch */
};

/* Query rows of the step that a launch takes. */
struct RowRange {
    uint32_t first_row, n_rows; /* at most; the step may have fewer */
};

/* A "row" of an item is one query head of one query token; the rows of a kv head in a segment
 * are numbered query token first. */
struct AttendJob {
    Side k, v;
    Pages pages;
    RowsIn q;
    RowsOut out;
    float *lse; /* [query row][n_q_heads] or NULL */
    uint32_t n_heads, group;
    uint32_t causal;
    uint32_t item_rows;
    uint32_t aligned, out_aligned; /* rows can be read and written four elements at a time */
    uint32_t overlap;              /* launches may overlap their predecessors */
    uint64_t window;               /* last tokens that a query sees; 0 = all */
    double scale, softcap;         /* softcap: 0 = off */
    const float *sinks;            /* [n_q_heads] logits; NaN = none */
    StepView step;
    const Hidden *hidden; /* [segment of the step] of the layer; NULL: what the segments say */
    Schedule schedule;
    RowRange range;
    uint32_t n_blocks; /* persistent blocks */
    /* Workspace, by item and row of the item: */
    float *queries;     /* generic path: [query_floats()] */
    float *shift;       /* scale * q.mean */
    float *partial;     /* [piece][row of the item][v dim] */
    float2 *partial_ml; /* [piece][row of the item]: maximum in powers of two, sum */
    float v_unit;       /* of partial */
};

/* Floats of a row for the generic path: the rotated row, then its projection for formats with a
 * sketch. */
__host__ __device__ inline uint32_t query_floats(const Side &k) {
    return k.layout.dim * (k.sketch_flips ? 2 : 1);
}

/* ---- the plan ------------------------------------------------------------------------------- */

/* The cuts of launches [first_launch, first_launch + n_launches). */
struct PlanJob {
    tqi_way way;
    StepView step;
    Schedule schedule;   /* of launch 0 */
    size_t launch_bytes; /* from a launch's to the next; 0 = one place for all */
    uint32_t first_launch, n_launches;
    uint32_t launch_blocks; /* of a launch, in block_segment */
    uint32_t launch_rows;
    uint32_t overlap;
};

__host__ __device__ inline Schedule schedule_of(const PlanJob &job, uint32_t launch) {
    size_t at = launch * job.launch_bytes;
    Schedule s;
    s.share =
        reinterpret_cast<tqi_division *>(reinterpret_cast<uint8_t *>(job.schedule.share) + at);
    s.cuts = reinterpret_cast<tqi_cut *>(reinterpret_cast<uint8_t *>(job.schedule.cuts) + at);
    s.work = reinterpret_cast<tqi_work *>(reinterpret_cast<uint8_t *>(job.schedule.work) + at);
    s.pieces =
        reinterpret_cast<tqi_pieces *>(reinterpret_cast<uint8_t *>(job.schedule.pieces) + at);
    s.rows = reinterpret_cast<tqi_row_place *>(reinterpret_cast<uint8_t *>(job.schedule.rows) + at);
    return s;
}

/* Cuts the segments of a step. */
tq_status plan_step(const PlanJob &job, cudaStream_t stream);
/* The same for a step of one segment that travels as a parameter and is written to the step;
 * ids: its first page ids, put into the table. */
tq_status plan_one(const PlanJob &job, const tqi_segment &segment, uint32_t *table,
                   const PageIds &ids, uint32_t n_ids, cudaStream_t stream);
/* Copies page ids to the table. */
tq_status upload_table(const uint32_t *ids, uint64_t n, uint32_t *table, cudaStream_t stream);

/* ---- any format, head dim, page size and group ---------------------------------------------- */

enum { ANY_ROWS = 8, ANY_BLOCKS_PER_SM = 4 };

/* Allows shared memory for these rows; once per device and layer. */
tq_status attend_any_prepare(uint32_t k_dim, uint32_t v_dim);
tq_status attend_any(const AttendJob &job, cudaStream_t stream);
tq_status merge_pieces(const AttendJob &job, cudaStream_t stream);

} /* namespace tqi */

#endif
