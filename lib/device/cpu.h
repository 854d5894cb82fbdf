/* The CPU's state of a cache, and its batches. */
#ifndef TQI_DEVICE_CPU_H
#define TQI_DEVICE_CPU_H

#include "device/device.h"

struct tqi_cpu_state {
    struct tqi_heap *heap;
    const struct tqi_executor *executor;
    uint32_t n_q_heads, page_tokens;
    float *scratch; /* of append, for every worker */
    size_t scratch_floats;
    struct tqi_nonfinite *counts;   /* per worker */
    struct tqi_attend_sizes attend; /* over all layers */
};

/* Codes the tokens of sequences, n_items of tqi_encode_number(). */
void tqi_cpu_encode(const struct tqi_cpu_state *s, const struct tqi_encode_job *job,
                    const struct tqi_encode_seq *seqs, uint32_t n_seqs, uint32_t n_items);

/* Entries of the device's table. */
tq_status tqi_cpu_open_batch(void *state, uint32_t max_seqs, uint32_t max_tokens, void **batch);
void tqi_cpu_close_batch(void *batch);
tq_status tqi_cpu_plan(void *batch, const struct tqi_step *step, tq_stream stream);
tq_status tqi_cpu_batch_append(void *batch, const struct tqi_step_append *job, tq_stream stream);
tq_status tqi_cpu_batch_attend(void *batch, const struct tqi_step_attend *job, tq_stream stream);
tq_status tqi_cpu_paged_append(void *state, const struct tqi_paged_append *job, tq_stream stream);
tq_status tqi_cpu_paged_attend(void *state, const struct tqi_paged_attend *job, tq_stream stream);
size_t tqi_cpu_paged_workspace(void *state, uint32_t max_seqs, uint32_t max_queries,
                               uint32_t max_length);

#endif
