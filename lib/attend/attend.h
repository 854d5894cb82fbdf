/* The read path on the CPU: query rows over the pages of sequences. */
#ifndef TQI_ATTEND_ATTEND_H
#define TQI_ATTEND_ATTEND_H

#include "attend/call.h"
#include "base/executor.h"

/* Query rows of one sequence. */
struct tqi_attend_seq {
    const uint32_t *pages;
    uint64_t length; /* tokens, of which the last query row sees the last */
    uint32_t n_queries;
    uint32_t first_row;                 /* in q, out and lse */
    const struct tqi_exact_view *exact; /* tokens kept in 16 bits, or NULL */
    uint64_t n_exact;                   /* how many at most, in any layer that the memory is for */
};

struct tqi_attend_job {
    struct tqi_attend_call call;        /* pages and length of the view are the sequence's */
    const struct tqi_exact_view *exact; /* of the sequence, or NULL */
    uint32_t n_queries;
    /* Filled by the CPU device. The sequences replace n_queries, exact, and pages and length of
     * the view. */
    const struct tqi_attend_seq *seqs;
    uint32_t n_seqs;
    const struct tqi_executor *executor;
    void *memory; /* of tqi_attend_memory() bytes */
};

/* What a layer takes at work; over several layers the most. */
struct tqi_attend_sizes {
    size_t state_bytes;  /* of a query row and split */
    size_t worker_bytes; /* of a worker */
};

/* Raises the sizes to what a layer takes. */
void tqi_attend_measure(const struct tqi_layer *layer, struct tqi_attend_sizes *sizes);
/* Bytes, aligned to TQI_ALIGNMENT, for a job with any of the layers measured. */
size_t tqi_attend_memory(const struct tqi_attend_sizes *sizes, uint32_t n_q_heads,
                         const struct tqi_attend_seq *seqs, uint32_t n_seqs, uint32_t n_workers);
/* The same for sequences that are not known yet: a bound that grows with every number. */
size_t tqi_attend_memory_bound(const struct tqi_attend_sizes *sizes, uint32_t n_q_heads,
                               uint32_t max_seqs, uint32_t max_queries, uint64_t max_length,
                               uint32_t n_workers);
void tqi_attend(const struct tqi_attend_job *job);

#endif
