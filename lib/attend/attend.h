/* The read path on the CPU: query rows over the pages of one sequence. */
#ifndef TQI_ATTEND_ATTEND_H
#define TQI_ATTEND_ATTEND_H

#include "base/executor.h"
#include "base/heap.h"
#include "kernel/layer.h"
#include "page/view.h"

struct tqi_attend_job {
    const struct tqi_layer *layer;
    struct tqi_page_view view;
    uint32_t n_queries, group; /* query heads per kv head */
    uint32_t causal;           /* bottom-right */
    uint32_t window;           /* last tokens that a query sees; 0 = all */
    double scale;
    double softcap;  /* of logits, 0 = off */
    tq_rows_in q;    /* strides resolved */
    tq_rows_out out; /* strides resolved */
    float *lse;      /* [n_queries][n_q_heads] or NULL */
    /* Filled by the CPU device: */
    const struct tqi_executor *executor;
    const struct tqi_heap *heap; /* hooks for scratch */
};

tq_status tqi_attend(const struct tqi_attend_job *job);

#endif
