/* An engine that owns pages: pools, block tables and slots on the host for the CPU cache of a
 * pair and on the GPU for the other, and steps that both take (tq/paged.h). */
#ifndef TEST_CUDA_ENGINE_H
#define TEST_CUDA_ENGINE_H

#include "gpu.h"
#include "tq/paged.h"

enum { ENGINE_SEQS = 16 };

struct engine {
    struct pair *pair;
    uint32_t n_pages, table_stride, max_rows;
    size_t stride; /* of pages, more than they need */
    uint8_t *host_pool, *pool;
    int32_t *host_table, *table; /* [ENGINE_SEQS][table_stride] */
    int32_t host_lengths[ENGINE_SEQS], host_starts[ENGINE_SEQS + 1];
    int32_t *lengths, *starts;
    int64_t *host_slots, *slots; /* [max_rows] */
    int32_t *order;              /* page ids in the order in which they are taken */
    uint32_t taken;
    /* Rows of a step, which stay where they are, as graphs know them. */
    void *host_k, *host_v, *host_q, *k, *v, *q;
    float *host_out, *host_lse, *out, *lse;
    uint8_t *host_work, *work;
    size_t host_work_size, work_size;
    void *graph; /* cudaGraphExec_t of append and attend, or NULL */
};

struct engine_step {
    uint32_t n_seqs;
    uint32_t n_append[ENGINE_SEQS], n_query[ENGINE_SEQS];
    tq_attend_params params;
    int mixed; /* rows of sequences are mixed, so that runs of slots are short */
};

/* Pages in a random order, all bytes 0xFF. */
int engine_open(struct engine *e, struct pair *p, uint32_t n_pages, uint32_t table_stride,
                uint32_t max_rows);
void engine_close(struct engine *e);
/* Appends and attends on both, by the graph where there is one; compares pools, out and lse.
 * capture: this step's calls become the graph. Ahead of it, max_rows rows and ENGINE_SEQS
 * sequences are given where fixed is set, most of which are nobody's. */
void engine_step(struct engine *e, const struct engine_step *s, int fixed, int capture,
                 const char *what);
tq_paged_pool engine_pool(const struct engine *e, int on_gpu, uint32_t flags);
tq_paged_seqs engine_seqs(const struct engine *e, int on_gpu, uint32_t n_seqs, uint32_t n_queries);

#endif
