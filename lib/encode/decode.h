/* Stored rows back in the caller's basis, for inspection and format changes. */
#ifndef TQI_ENCODE_DECODE_H
#define TQI_ENCODE_DECODE_H

#include "base/heap.h"
#include "kernel/layer.h"
#include "page/view.h"

struct tqi_decode_job {
    const struct tqi_layer *layer;
    struct tqi_page_view view;
    struct tqi_page_view exact_view;    /* of pages for layer->exact; pages and length unused */
    const struct tqi_exact_view *exact; /* tokens kept in 16 bits, which are read as they are; or
                                           NULL */
    uint64_t first;                     /* token */
    uint32_t n_tokens;
    const tq_rows_out *k, *v;    /* strides resolved; NULL = not wanted */
    const struct tqi_heap *heap; /* filled by the CPU device */
};

tq_status tqi_decode(const struct tqi_decode_job *job);

#endif
