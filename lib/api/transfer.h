/* Tokens between pages of any cache and bytes in host memory, as they are coded. What is left of
 * a page is zero, so that nothing an earlier sequence wrote comes along. */
#ifndef TQI_API_TRANSFER_H
#define TQI_API_TRANSFER_H

#include "api/objects.h"

/* Memory of a call: pages of the widest layer, all heads. */
struct tqi_scratch {
    struct tqi_heap heap; /* of the call, so that calls on a const cache don't meet */
    uint8_t *pages;       /* the page at hand, then two that are read, of a device with memory */
    size_t page_bytes, n_pages;
    uint8_t *rows; /* two pages of rows in 16 bits; NULL where none are kept */
    size_t rows_bytes;
};
tq_status tqi_scratch_open(struct tqi_scratch *s, const tq_cache *cache);
void tqi_scratch_close(struct tqi_scratch *s);

/* Where tokens of one layer come from: pages in a row, or a sequence. */
struct tqi_source {
    const struct tqi_page_layout *layout;
    uint32_t n_heads;
    size_t page_bytes;    /* all heads */
    const uint8_t *bytes; /* the pages, or NULL */
    const tq_cache *cache;
    struct tqi_page_view view;
    uint8_t *staging;   /* two pages; NULL where pages are in host memory */
    uint64_t staged[2]; /* their numbers plus 1 */
};
struct tqi_source tqi_source_of_bytes(const tq_cache *cache, uint32_t layer, const uint8_t *bytes);
struct tqi_source tqi_source_of_seq(const tq_cache *cache, const struct tqi_seq *seq,
                                    uint32_t layer, const struct tqi_scratch *scratch);

/* Tokens [from, from + n) of a source become tokens [to, to + n) of a target. */
struct tqi_span {
    uint64_t from, to, n;
};

/* Makes page `index` of the target of the tokens that belong there; bits of others stay. */
tq_status tqi_compose_page(struct tqi_source *source, struct tqi_span span, uint64_t index,
                           uint8_t *page);
/* The same for all pages of a layer of a sequence, which must have room and own its pages. Tokens
 * before span.to stay, what follows the last is zero. */
tq_status tqi_write_tokens(tq_cache *cache, const struct tqi_seq *seq, uint32_t layer,
                           struct tqi_source *source, struct tqi_span span,
                           const struct tqi_scratch *scratch);

/* Waits until pages may be copied and written outside of any stream. */
tq_status tqi_wait_to_edit(const tq_cache *cache);
/* Room for n tokens at the end of a sequence whose layers have one length, then its new length:
 * n, or 0 to give the room back. What of them is exact has been set before. */
tq_status tqi_begin_tokens(tq_cache *cache, struct tqi_seq *seq, uint64_t n);
void tqi_end_tokens(tq_cache *cache, struct tqi_seq *seq, uint64_t n);

#endif
