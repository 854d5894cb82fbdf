/* What a driver sees of a sequence in one layer: pages to read or write, nothing to
 * allocate or count. */
#ifndef TQI_PAGE_VIEW_H
#define TQI_PAGE_VIEW_H

#include <stddef.h>
#include <stdint.h>

struct tqi_page_view {
    uint8_t *const *chunks; /* memory of the pool */
    uint64_t chunk_pages;
    size_t layer_offset; /* of the layer in a chunk, bytes */
    size_t layer_bytes;  /* of a page in the layer: heads * blob_bytes */
    size_t blob_bytes;   /* of one kv head of a page */
    const uint32_t *pages;
    uint32_t page_tokens;
    uint64_t length; /* tokens of the sequence in the layer */
};

/* A page by its number in the pool: blobs of all kv heads. */
static inline uint8_t *tqi_view_page(const struct tqi_page_view *v, uint64_t page) {
    return v->chunks[page / v->chunk_pages] + v->layer_offset +
           (size_t)(page % v->chunk_pages) * v->layer_bytes;
}

/* Blob of one kv head in page `index` of the sequence. */
static inline uint8_t *tqi_view_blob(const struct tqi_page_view *v, uint64_t index, uint32_t head) {
    return tqi_view_page(v, v->pages[index]) + head * v->blob_bytes;
}

enum { TQI_EXACT_TOKENS = 16 }; /* of a page of rows in 16 bits */

/* Tokens of a sequence that are kept in 16 bits, in one layer: [0, sinks) and [start, length). */
struct tqi_exact_view {
    const uint32_t *pages; /* numbers [0, n_head), then those from `first` on */
    uint32_t n_head;
    uint64_t first;
    uint64_t sinks, start; /* sinks <= start */
};

/* Page of a number that is kept. */
static inline uint32_t tqi_exact_page(const struct tqi_exact_view *v, uint64_t number) {
    return v->pages[number < v->n_head ? number : v->n_head + number - v->first];
}

#endif
