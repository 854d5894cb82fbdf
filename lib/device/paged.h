/* Calls over pages, tables and lengths that belong to the caller (tq/paged.h). Arrays are in
 * the device's memory; checked asks for a look at them first. */
#ifndef TQI_DEVICE_PAGED_H
#define TQI_DEVICE_PAGED_H

#include "attend/call.h"

struct tqi_paged_append {
    const struct tqi_layer *layer;
    struct tqi_page_view view; /* chunk_pages is above any page id */
    uint64_t n_pages;
    uint32_t checked;
    uint32_t n_tokens;
    const int64_t *slots; /* [n_tokens] page * page_tokens + token; negative = skip */
    tq_rows_in k, v;      /* strides resolved */
};

enum { TQI_PLAN_WORDS = 16 };

struct tqi_paged_attend {
    struct tqi_attend_call call; /* its view as above */
    uint64_t n_pages;
    uint32_t checked;
    uint32_t n_seqs, n_queries, max_length;
    const int32_t *table; /* page ids */
    int64_t table_stride;
    const int32_t *lengths; /* [n_seqs] */
    const int32_t *starts;  /* [n_seqs + 1] query rows */
    void *workspace;        /* as large as paged_workspace() says */
    uint64_t *planned;      /* [TQI_PLAN_WORDS] of the step, the device's; zeros at first. NULL:
                               a step of its own */
};

#endif
