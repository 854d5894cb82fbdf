/* What the files of bench_cuda share. */
#ifndef BENCH_CUDA_BENCH_H
#define BENCH_CUDA_BENCH_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>

#include "plain_read.h"
#include "tq/paged.h"

enum { HEADS = 8, MAX_SETS = 16 };

/* ---- measure.c ------------------------------------------------------------------------------ */

void must(int ok, const char *what);
#define TQ(call) must((call) == TQ_OK, #call)
#define CUDA(call) must((call) == cudaSuccess, #call)

extern cudaStream_t stream;

typedef void launch_fn(void *arg, uint32_t set);

/* Milliseconds of a launch inside a graph of n back-to-back ones; sets are taken in turn. */
double time_graph(launch_fn *launch, void *arg, uint32_t sets, uint32_t n);
/* Of the fastest way to read n blobs of some bytes, in memory of its own. */
double time_read(uint64_t n, uint32_t bytes, uint32_t sets, uint32_t launches);

/* Gaussian bf16 rows for HEADS kv heads; token strides are small, so that rows overlap. */
void make_data(void);
tq_rows_in rows_at(uint32_t dim, size_t offset);
/* n elements one behind another, from another place for every set while places last. */
tq_rows_in fresh_rows(size_t n, uint32_t set);
/* A copy of n elements. */
void *copy_data(size_t n);

/* ---- run.c ---------------------------------------------------------------------------------- */

extern uint32_t context_flags;              /* TQ_CONTEXT_* of the runs to come */
extern uint32_t sink_tokens, recent_tokens; /* kept in 16 bits in them */

struct bench {
    const char *variant;
    uint32_t batch, group, dim;
    uint64_t tokens;  /* of every sequence; of the longest of a ragged batch */
    uint32_t ragged;  /* sequence i of n has (i + 1) / n of the tokens */
    uint32_t queries; /* query tokens of a sequence, causal; 0 = one */
};

/* A cache with sets of sequences in pages of random order, and a batch for every set. */
struct run {
    struct bench b;
    tq_context *context;
    tq_cache *cache;
    tq_batch *batches[MAX_SETS];
    tq_seq *seqs; /* [set][batch] */
    uint32_t sets;
    uint32_t new_tokens;   /* of a sequence in a planned step */
    uint64_t blobs, pages; /* of a set */
    size_t blob;
    double bytes; /* of a set */
    tq_rows_in q;
    tq_rows_out out;
};

/* new_tokens: that every sequence of a planned step appends. */
void open_run(struct run *r, struct bench b, uint32_t new_tokens);
void close_run(struct run *r);
launch_fn attend_once; /* the layer's attention of a set's planned step */
launch_fn append_once; /* its append */
launch_fn step_once;   /* both */
launch_fn call_once;   /* tq_attend() of the set's first sequence */
/* Tokens of a sequence of a set; rows that it gets from token t on. */
uint64_t run_length(const struct bench *b, uint32_t index);
tq_rows_in run_rows(const struct bench *b, uint64_t t, size_t salt, int is_v);

/* ---- paged.c -------------------------------------------------------------------------------- */

/* The run's sequences and steps in pages of an engine. */
struct paged {
    struct run *run;
    uint32_t page_tokens, stride; /* of the table: pages of a sequence */
    tq_paged_pool pool;
    int32_t *table, *lengths, *starts;
    int64_t *slots;
    uint8_t *work; /* a workspace for calls alone, then one a set */
    size_t work_size;
    tq_paged_step steps[MAX_SETS];
};

void open_paged(struct paged *p, struct run *r);
void close_paged(struct paged *p);
launch_fn paged_attend_once, paged_layer_once, paged_append_once, paged_step_once;

/* ---- run_logits.c --------------------------------------------------------------------------- */

/* Logits of one query token over 4-bit keys: milliseconds, and those of plain reads of the same
 * keys in 4, 16 and 32 bits, which write nothing. */
struct logits_row {
    uint32_t batch, tokens, group;
    double ms, read_ms, bf16_ms, f32_ms, key_bytes, logit_bytes, error;
};
typedef void logits_row_fn(const struct logits_row *r);
/* batch sequences of tokens, a multiple of 4096; group at most 8. */
void run_logits(uint32_t batch, uint32_t tokens, uint32_t group, logits_row_fn *print);

#endif
