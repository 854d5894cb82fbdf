/* A batch on the CPU and one on the GPU that plan the same steps over a pair of caches. */
#ifndef TEST_CUDA_BATCHES_H
#define TEST_CUDA_BATCHES_H

#include "gpu.h"

enum { BATCH_SEQS = 64 };

struct batches {
    struct pair *pair;
    tq_batch *cpu, *gpu;
    uint32_t max_seqs, max_tokens;
    /* Rows of a step; the device's stay where they are, as graphs know them. */
    void *host_k, *host_v, *host_q, *k, *v, *q;
    float *host_out, *host_lse, *out, *lse;
    void *graph; /* cudaGraphExec_t of append and attend, or NULL */
    uint32_t flags;
};

struct step {
    uint32_t n;
    tq_seq seqs[BATCH_SEQS];
    uint32_t n_append[BATCH_SEQS], n_query[BATCH_SEQS];
};

int batches_open(struct batches *b, struct pair *p, uint32_t max_seqs, uint32_t max_tokens);
void batches_close(struct batches *b);
/* Captures append and attend of the step at hand, which has been planned. */
void batches_capture(struct batches *b);
/* Plans, appends, attends (by the graph where there is one), compares, commits all tokens but
 * `drop` of each sequence. capture: this step's calls become the graph. */
void batches_step(struct batches *b, const struct step *s, uint32_t drop, int capture,
                  const char *what);
/* n sequences; the first steps append what makes them ragged, pages interleaved. */
void batches_start(struct batches *b, struct step *s, uint32_t n, const uint32_t *lengths);
/* Another order, other counts. */
void step_shuffle(struct step *s, uint32_t max_append, uint32_t max_query);
/* A token and a query of every sequence. */
void step_decode(struct step *s);
/* Compares the pages of all sequences. */
void batches_check_pages(struct batches *b, const struct step *s, const char *what);
/* Rows of the step's queries. */
uint32_t step_rows(const uint32_t *counts, uint32_t n);

#endif
