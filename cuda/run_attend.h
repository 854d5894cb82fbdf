/* Attention for run_attend.cu (one sequence) and batch.cu (many). */
#ifndef TQI_CUDA_RUN_ATTEND_H
#define TQI_CUDA_RUN_ATTEND_H

#include "attend/fast_job.h"
#include "state.h"

namespace tqi {

/* What a call asks of a layer, whatever the step. */
struct AttendCall {
    const tqi_layer *layer;
    tqi_page_view view; /* pages and length are not used */
    uint32_t group, causal;
    uint32_t fixed;    /* the same bits in every batch */
    uint32_t few_rows; /* most query rows of the launch */
    uint32_t window;
    double scale, softcap;
    tq_rows_in q;
    tq_rows_out out;
    float *lse;
};

/* A call ready to launch, but for its schedule and rows. */
struct Attend {
    const FastKernel *fast; /* NULL: the generic path */
    FastJob job;
    tqi_way way;
};

tq_status make_attend(const State *s, const Room *room, const AttendCall &call, Attend *out);
/* The same for many rows: NULL in *kernel where the call has to go without. */
void make_prefill(const State *s, const Room *room, const AttendCall &call,
                  const PrefillKernel **kernel, PrefillJob *job);
/* Over the rows of job.call.range by the plan in job.call.schedule. */
tq_status run_launch(const Attend &attend, cudaStream_t stream);

} /* namespace tqi */

#endif
