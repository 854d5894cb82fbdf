/* Joining attention over disjoint sets of tokens. */
#ifndef TQI_ATTEND_MERGE_H
#define TQI_ATTEND_MERGE_H

#include "base/executor.h"

struct tqi_merge_job {
    uint32_t n_tokens, n_heads, dim;
    tq_rows_in part[2];                  /* strides resolved */
    const float *lse[2];                 /* [n_tokens][n_heads] */
    tq_rows_out out;                     /* strides resolved; may be a part */
    float *lse_out;                      /* NULL = not wanted; may be that of a part */
    const struct tqi_executor *executor; /* filled by the CPU device */
};

void tqi_merge(const struct tqi_merge_job *job);

#endif
