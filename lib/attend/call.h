/* What a call for attention asks of a layer, whatever the sequences: the same for one sequence
 * (attend.h), for a step (device/step.h) and for pages of the caller (device/paged.h). */
#ifndef TQI_ATTEND_CALL_H
#define TQI_ATTEND_CALL_H

#include "kernel/layer.h"
#include "page/view.h"

struct tqi_attend_call {
    const struct tqi_layer *layer;
    struct tqi_page_view view;       /* of the layer; pages and length are the sequences' */
    struct tqi_page_view exact_view; /* of pages for layer->exact; pages and length unused */
    uint32_t group;                  /* query heads per kv head */
    uint32_t causal;                 /* bottom-right */
    uint32_t invariant;              /* the same bits in any batch; on the CPU always */
    uint32_t window;                 /* last tokens that a query sees; 0 = all */
    double scale;
    double softcap;  /* of logits, 0 = off */
    tq_rows_in q;    /* strides resolved */
    tq_rows_out out; /* strides resolved */
    float *lse;      /* [query row][n_q_heads] or NULL */
};

#endif
