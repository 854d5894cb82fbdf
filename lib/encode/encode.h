/* The write path: the caller's rows to codes in pages. */
#ifndef TQI_ENCODE_ENCODE_H
#define TQI_ENCODE_ENCODE_H

#include "base/executor.h"
#include "kernel/layer.h"
#include "page/view.h"

/* Tokens of one sequence to code. */
struct tqi_encode_seq {
    const uint32_t *pages; /* for all tokens, not shared */
    uint64_t length;       /* tokens before this job */
    uint32_t n_tokens;
    uint32_t first_row;  /* in k and v */
    uint32_t first_item; /* filled by tqi_encode_number() */
    /* Tokens kept in 16 bits: those before keep_until and those from keep_from on. */
    const struct tqi_exact_view *exact;
    uint64_t keep_until, keep_from;
};

struct tqi_encode_job {
    const struct tqi_layer *layer;
    struct tqi_page_view view;          /* length = tokens before this job */
    struct tqi_page_view exact_view;    /* of pages for layer->exact; pages and length unused */
    uint32_t n_tokens;                  /* pages for them exist and are not shared */
    const struct tqi_exact_view *exact; /* as in tqi_encode_seq */
    uint64_t keep_until, keep_from;
    tq_rows_in k, v; /* strides resolved */
    /* Filled by the CPU device. The sequences replace n_tokens, and pages and length of the
     * view. */
    const struct tqi_encode_seq *seqs;
    uint32_t n_seqs, n_items;
    const struct tqi_executor *executor;
    float *scratch; /* tqi_encode_scratch() floats for every worker */
    size_t scratch_floats;
    struct tqi_nonfinite *counts; /* one per worker, added to */
};

/* Floats that one worker needs. */
size_t tqi_encode_scratch(const struct tqi_layer *layer);
/* Numbers the pages that sequences write to; returns their count, n_items of the job. */
uint32_t tqi_encode_number(struct tqi_encode_seq *seqs, uint32_t n_seqs, uint32_t page_tokens);
void tqi_encode(const struct tqi_encode_job *job);
/* Row `row` of k and v, one head, into a token of a blob. */
void tqi_encode_token(const struct tqi_encode_job *job, uint64_t row, uint32_t head, uint8_t *blob,
                      uint32_t token, uint32_t worker);

/* Address of row (token, head). */
static inline const void *tqi_row_in(const tq_rows_in *rows, uint64_t token, uint32_t head) {
    size_t size = rows->dtype == TQ_F32 ? 4 : 2;
    int64_t at = (int64_t)token * rows->token_stride + (int64_t)head * rows->head_stride;
    return (const char *)rows->data + at * (int64_t)size;
}

#endif
