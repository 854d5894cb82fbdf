/* Attention for run_attend.cu (one sequence) and batch.cu (many). */
#ifndef TQI_CUDA_RUN_ATTEND_H
#define TQI_CUDA_RUN_ATTEND_H

#include "attend/fast_job.h"
#include "state.h"

namespace tqi {

/* A call ready to launch, but for its schedule and rows. */
struct Attend {
    const FastKernel *fast; /* NULL: the generic path */
    FastJob job;
    tqi_way way;
    bool keeps; /* tokens in 16 bits, which `exact` attends to and joins */
    ExactJob exact;
};

/* few_rows: most query rows of the launch. longest: tokens of the longest sequence. keeps: the
 * call's layer may keep tokens. */
tq_status make_attend(const State *s, const Room *room, const tqi_attend_call &call,
                      uint32_t few_rows, uint64_t longest, bool keeps, Attend *out);
/* run_exact.cu: attention over tokens in 16 bits behind that over codes, which then goes to the
 * room; where the rows of the next launch stand there. */
void make_exact(const State *s, const Room *room, const tqi_attend_call &call, uint32_t rows,
                Attend *attend);
void place_parts(Attend *attend);
/* The same for many rows: NULL in *kernel where the call has to go without. */
void make_prefill(const State *s, const Room *room, const tqi_attend_call &call,
                  const PrefillKernel **kernel, PrefillJob *job);
/* Over the rows of job.call.range by the plan in job.call.schedule. */
tq_status run_launch(Attend *attend, cudaStream_t stream);
/* Over the first `rows` rows of the room's step, launch by launch. A plan with one place for all
 * launches is made anew for each, unless the step has been planned. */
tq_status run_rows(const Room &room, PlanJob plan, bool planned, uint32_t rows, Attend *attend,
                   cudaStream_t stream);

} /* namespace tqi */

#endif
