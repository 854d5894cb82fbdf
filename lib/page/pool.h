/*
 * The page pool: memory in chunks, reference counts, a free list. A page holds
 * page_tokens tokens of all layers and heads; the pool moves bytes and knows no numbers.
 *
 * A chunk is one allocation, [layer][page of the chunk][head][blob], so that the pages of
 * a layer lie together. With a fixed size there is one chunk; a growing pool adds chunks
 * and never moves one.
 */
#ifndef TQI_PAGE_POOL_H
#define TQI_PAGE_POOL_H

#include "base/heap.h"

/* Copies bytes inside the pool's memory space. */
typedef void tqi_copy_fn(void *user, void *to, const void *from, size_t bytes);

struct tqi_pool_config {
    uint32_t n_layers;
    const size_t *layer_bytes; /* [n_layers] bytes of a page in a layer; copied */
    uint64_t max_pages;        /* 0 = grow on demand */
    uint64_t chunk_pages;      /* by which a growing pool grows; 0 = about a megabyte */
    tq_memory space;
    tqi_copy_fn *copy;
    void *copy_user;
};

struct tqi_pool {
    struct tqi_heap *heap;
    uint32_t n_layers;
    size_t *layer_bytes;
    size_t *layer_offset; /* [n_layers] sum of layer_bytes before the layer */
    size_t page_bytes;    /* all layers */
    uint64_t max_pages;
    uint64_t chunk_pages;
    uint32_t n_chunks, chunk_capacity;
    uint8_t **chunks;
    uint64_t n_pages, page_capacity; /* pages with memory; room in the arrays below */
    uint32_t *references;            /* 0 = free */
    uint32_t *free_pages;            /* stack */
    uint64_t n_free;
    tq_memory space;
    tqi_copy_fn *copy;
    void *copy_user;
};

/* heap must outlive the pool. */
tq_status tqi_pool_init(struct tqi_pool *pool, struct tqi_heap *heap,
                        const struct tqi_pool_config *config);
void tqi_pool_destroy(struct tqi_pool *pool);
/* Frees every page; memory is kept. */
void tqi_pool_reset(struct tqi_pool *pool);

/* Makes sure that n pages are free, growing if the pool may. A pool that can't get them
 * all keeps none. */
tq_status tqi_pool_reserve(struct tqi_pool *pool, uint64_t n);
/* Takes back chunks added by the last reserve, before a page of them was taken. */
void tqi_pool_shrink(struct tqi_pool *pool, uint32_t n_chunks);
/* Takes a free page, with one reference; one must have been reserved. */
uint32_t tqi_pool_take(struct tqi_pool *pool);
void tqi_pool_share(struct tqi_pool *pool, uint32_t page);
void tqi_pool_release(struct tqi_pool *pool, uint32_t page);
/* Copies all layers. */
void tqi_pool_copy_page(struct tqi_pool *pool, uint32_t to, uint32_t from);

static inline uint8_t *tqi_pool_page(const struct tqi_pool *pool, uint32_t layer, uint32_t page) {
    uint64_t in_chunk = page % pool->chunk_pages;
    return pool->chunks[page / pool->chunk_pages] +
           pool->layer_offset[layer] * (size_t)pool->chunk_pages +
           pool->layer_bytes[layer] * (size_t)in_chunk;
}

#endif
