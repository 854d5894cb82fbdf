/*
 * A step over many sequences, as the api plans it and a device runs it: once per step the
 * plan, then in every layer one append and one attend over all its sequences.
 *
 * Rows of all sequences lie one behind another in the caller's arrays, in the order of the
 * step: k and v hold the append rows, q, out and lse the query rows. A query row sees what
 * its sequence has after the step's append; causal is bottom-right in the sequence.
 *
 * On a GPU, calls of a planned batch may be captured into a graph and replayed after later
 * plans of the same batch. So launch shapes depend on the maxima of open_batch() only, and
 * kernels read counts, lengths and page tables from device memory that plan() fills.
 */
#ifndef TQI_DEVICE_STEP_H
#define TQI_DEVICE_STEP_H

#include "attend/call.h"
#include "page/pool.h"

/* One sequence of a step. */
struct tqi_step_seq {
    const uint32_t *pages; /* cover length + n_append tokens; none of the new ones is shared */
    uint64_t n_pages;
    uint64_t length; /* tokens before the step, the same in all layers */
    uint32_t n_append, n_query;
    uint32_t append_row, query_row; /* first rows in the caller's arrays */
    /* [n_layers] tokens kept in 16 bits, after the append; NULL = none. In a layer with exact
     * formats the append keeps tokens before keep_until and from keep_from on. */
    const struct tqi_exact_view *exact;
    uint64_t keep_until, keep_from;
    uint64_t n_exact; /* tokens that are kept, in the layer with the most */
};

/* What plan() gets. It and what it points at stay as they are until the next plan. */
struct tqi_step {
    const struct tqi_step_seq *seqs;
    uint32_t n_seqs;                   /* at most max_seqs of open_batch() */
    uint32_t append_rows, query_rows;  /* of all sequences; each at most max_tokens */
    const struct tqi_pool *exact_pool; /* of tokens kept in 16 bits; NULL = none are */
};

struct tqi_step_append {
    const struct tqi_layer *layer;
    uint32_t layer_index;
    struct tqi_page_view view;       /* of the layer; pages and length are the step's */
    struct tqi_page_view exact_view; /* of pages for layer->exact */
    tq_rows_in k, v;                 /* strides resolved */
};

struct tqi_step_attend {
    struct tqi_attend_call call;
    uint32_t layer_index;
};

#endif
