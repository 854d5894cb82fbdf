/*
 * Tokens kept in 16 bits beside their codes (lib/page/exact.h): rows to their pages, attention over
 * them. Their pool grows, so that a page is named by the address of its chunk and its number in it,
 * and a graph that is replayed finds new chunks in the table of the step.
 */
#ifndef TQI_CUDA_EXACT_EXACT_JOB_H
#define TQI_CUDA_EXACT_EXACT_JOB_H

#include "attend/attend_job.h"
#include "encode/encode_job.h"
#include "page/view.h"

namespace tqi {

/* A page, in a table. */
struct KeptPage {
    uint64_t chunk; /* address */
    uint64_t page;  /* of the chunk */
};

/* New tokens of one page. */
struct KeptRun {
    KeptPage page;
    uint32_t slot, n; /* of the first token; tokens */
    uint32_t row;     /* of the first token in the caller's rows */
    uint32_t reserved;
};

/* A layer in a chunk. */
struct KeptLayer {
    uint64_t offset;
    uint64_t page_bytes;
    uint32_t blob_bytes; /* of a kv head */
};

/* Pages of a sequence in a table: numbers [0, n_head), then those from `first` on. */
struct KeptSeq {
    int64_t ids;    /* of the first, counted in pages from the table's start */
    uint64_t first; /* at least n_head */
    uint32_t n_head;
    uint32_t reserved[3];
};

/* Runs and pages that travel as a parameter. */
enum { KEPT_RUNS = 64, KEPT_PAGES = 64 };

/* A sequence that is alone. */
struct KeptOnly {
    KeptSeq seq;
    const KeptPage *table; /* on the device; NULL: the pages are in `list` */
    KeptPage list[KEPT_PAGES];
};

struct KeepJob {
    Side side[2]; /* of the formats in 16 bits */
    RowsIn rows[2];
    KeptLayer pages;
    uint32_t n_heads;
    uint32_t overlap;
    uint32_t max_runs;
    const KeptRun *runs; /* on the device, as many as *n_runs; NULL: max_runs of those here */
    const uint32_t *n_runs;
    KeptRun list[KEPT_RUNS];
};

tq_status keep_rows(const KeepJob &job, cudaStream_t stream);

/* Attention over kept tokens, joined with what attention over the codes of the others gave. */
struct ExactJob {
    Side k, v; /* of the formats in 16 bits */
    KeptLayer pages;
    RowsIn q;
    RowsIn part; /* of the others: rows as in out */
    const float *part_lse;
    RowsOut out;
    float *lse; /* or NULL */
    uint32_t n_heads, group;
    uint32_t causal;
    uint32_t block_tokens; /* query tokens of a block */
    uint32_t out_aligned;  /* four elements can be written at a time */
    uint32_t overlap;
    uint64_t window;
    double scale, softcap;
    const float *sinks; /* [n_q_heads] logits; NaN = none */
    StepView step;
    RowRange range;
    const KeptSeq *seqs;  /* by segment, with the table of the step; NULL: one segment, `only` */
    const Hidden *hidden; /* what is kept, as in AttendJob */
    KeptOnly only;
};

tq_status attend_exact(const ExactJob &job, cudaStream_t stream);

/* Where a page is. */
static inline KeptPage kept_page_of(const tqi_page_view &view, uint32_t page) {
    return KeptPage{(uint64_t)(uintptr_t)view.chunks[page / view.chunk_pages],
                    page % view.chunk_pages};
}

} /* namespace tqi */

#endif
