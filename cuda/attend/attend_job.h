/* Launching the read path: query rows over the pages of one sequence. */
#ifndef TQI_CUDA_ATTEND_ATTEND_H
#define TQI_CUDA_ATTEND_ATTEND_H

#include "host.h"
#include "params.h"

namespace tqi {

/* Splits of the tokens that one launch can have; their states are merged in order. */
enum { MAX_SPLITS = 64 };

/* One call, or a block of its queries. A "row" is one query head of one query token; the
 * rows of a kv head are numbered query token first. */
struct AttendJob {
    Side k, v;
    Pages pages;
    RowsIn q;
    RowsOut out;
    float *lse; /* [n_queries][n_q_heads] or NULL */
    uint32_t n_heads, group;
    uint32_t n_queries;   /* of the call */
    uint32_t first_query; /* of the block */
    uint32_t rows;        /* of a kv head in the block */
    uint32_t causal;
    uint32_t window; /* last tokens that a query sees; 0 = all */
    uint64_t length;
    double scale, softcap; /* softcap: 0 = off */
    const float *sinks;    /* [n_q_heads] logits; NaN = none */
    uint64_t first_token;  /* that some row of the block sees, rounded down to a split */
    uint32_t n_splits;     /* from first_token on */
    uint64_t split_tokens; /* multiple of the page */
    /* Workspace: */
    uint32_t *table; /* page ids of the sequence */
    float *queries;  /* [kv head][row][k dim], rotated */
    float *shift;    /* [kv head][row] scale * q.mean */
    float *states;   /* [kv head][split][row]: maximum, sum, v dim accumulators */
};

/* Bytes of a workspace that serves every call of a cache; the table is apart. */
struct WorkspaceShape {
    uint32_t n_q_heads, k_dim, v_dim;
};

/* Copies page ids to job.table. */
tq_status upload_table(const uint32_t *ids, uint64_t n, uint32_t *table, cudaStream_t stream);
/* Allows shared memory for these rows; once per device and layer. */
tq_status attend_any_prepare(uint32_t k_dim, uint32_t v_dim);
/* Any format, head dim, page size and group. */
tq_status attend_any(const AttendJob &job, cudaStream_t stream);

} /* namespace tqi */

#endif
