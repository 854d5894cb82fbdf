/* Launching the write path: rows to codes in pages. */
#ifndef TQI_CUDA_ENCODE_ENCODE_H
#define TQI_CUDA_ENCODE_ENCODE_H

#include "host.h"
#include "params.h"
#include "tq/tq.h"

struct tqi_layer;
struct tqi_page_view;

namespace tqi {

struct State;

/* New tokens that lie one behind another in one page. */
struct AppendPiece {
    uint32_t page; /* id */
    uint32_t slot; /* of the first token in the page */
    uint32_t n;    /* tokens */
    uint32_t row;  /* of the first token in the caller's rows */
};

/* Rows for a run of consecutive pages of one sequence, pieces of many sequences, or slots. */
struct EncodeJob {
    Side side[2];
    RowsIn rows[2];
    Pages pages;
    uint32_t n_heads;
    uint32_t n_sms;
    uint32_t overlap;    /* the launch may overlap its predecessor */
    uint64_t *counts;    /* replaced NaNs, infinities */
    uint32_t rounds[2];  /* format that elements are rounded to before they are coded; 0 = none */
    uint32_t aligned;    /* bit side: rows can be read 16 bytes at a time */
    uint32_t n_pages;    /* of this launch */
    uint64_t first_page; /* index in the sequence */
    uint64_t length;     /* tokens before the append */
    uint64_t end;        /* and after */
    /* Pieces that plan() left in device memory; NULL: pages `ids`. No piece crosses a token
     * group (encode_takes_groups()) or else a page. Their number lies on the device as well. */
    const AppendPiece *pieces;
    const uint32_t *n_pieces;
    uint32_t max_pieces;
    uint64_t max_rows; /* of the pieces */
    /* Or slots of the caller, one for each of max_pieces rows, on the device (slots.cuh); only
     * those in [0, n_slots) are written. */
    const int64_t *slots;
    uint64_t n_slots;
    PageIds ids;
};

/* What appends to a layer have in common; rows, pages or pieces are the caller's. */
EncodeJob encode_job_of(const State *s, const tqi_layer *layer, const tqi_page_view &view,
                        const tq_rows_in &k, const tq_rows_in &v);
/* Whether the build has code for the current GPU. */
bool encode_any_runs();
/* Allows the shared memory that rows of these layers need; once per device and layer. */
tq_status encode_any_prepare(uint32_t dim);
tq_status encode_fast_prepare(const Side side[2]);
/* The fastest kernels for the layer. */
tq_status encode(const EncodeJob &job, cudaStream_t stream);
/* Whether encode() wants pieces cut at token groups (else at pages only): the job's sides and
 * rounds decide. */
bool encode_takes_groups(const EncodeJob &job);
/* Name of the fast kernel, NULL when encode_any() serves. */
const char *fast_encoder_name(uint32_t k_format, uint32_t v_format, const tqi_layout &k,
                              const tqi_layout &v);
/* Any format, head dim and page size. */
tq_status encode_any(const EncodeJob &job, cudaStream_t stream);

} /* namespace tqi */

#endif
