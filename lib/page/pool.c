#include "page/pool.h"

#include <string.h>

#include "base/checked.h"

/* A growing pool asks for about this much at a time. */
#define CHUNK_BYTES ((size_t)1 << 20)

static tq_status too_large(void) {
    return tqi_fail(TQ_ERR_OUT_OF_MEMORY, "out of memory: the page pool's size overflows");
}

static tq_status measure(struct tqi_pool *pool, const struct tqi_pool_config *config) {
    size_t total = 0;
    for (uint32_t l = 0; l < pool->n_layers; l++) {
        pool->layer_bytes[l] = config->layer_bytes[l];
        pool->layer_offset[l] = total;
        if (!tqi_add_size(total, config->layer_bytes[l], &total))
            return too_large();
    }
    pool->page_bytes = total;
    return TQ_OK;
}

/* Room for `pages` entries in the arrays that describe pages. */
static tq_status grow_tables(struct tqi_pool *pool, uint64_t pages) {
    if (pages <= pool->page_capacity)
        return TQ_OK;
    uint64_t capacity = pool->page_capacity * 2 > pages ? pool->page_capacity * 2 : pages;
    uint32_t *references = tqi_calloc(pool->heap, capacity, sizeof *references);
    uint32_t *free_pages = tqi_calloc(pool->heap, capacity, sizeof *free_pages);
    if (!references || !free_pages) {
        tqi_free(pool->heap, references, capacity, sizeof *references, TQ_MEM_HOST);
        tqi_free(pool->heap, free_pages, capacity, sizeof *free_pages, TQ_MEM_HOST);
        return TQ_ERR_OUT_OF_MEMORY;
    }
    if (pool->page_capacity) {
        memcpy(references, pool->references, pool->n_pages * sizeof *references);
        memcpy(free_pages, pool->free_pages, pool->n_free * sizeof *free_pages);
    }
    tqi_free(pool->heap, pool->references, pool->page_capacity, sizeof *references, TQ_MEM_HOST);
    tqi_free(pool->heap, pool->free_pages, pool->page_capacity, sizeof *free_pages, TQ_MEM_HOST);
    pool->references = references;
    pool->free_pages = free_pages;
    pool->page_capacity = capacity;
    return TQ_OK;
}

static tq_status grow_chunk_list(struct tqi_pool *pool) {
    if (pool->n_chunks < pool->chunk_capacity)
        return TQ_OK;
    uint32_t capacity = pool->chunk_capacity ? pool->chunk_capacity * 2 : 8;
    uint8_t **chunks = tqi_calloc(pool->heap, capacity, sizeof *chunks);
    if (!chunks)
        return TQ_ERR_OUT_OF_MEMORY;
    if (pool->n_chunks)
        memcpy(chunks, pool->chunks, pool->n_chunks * sizeof *chunks);
    tqi_free(pool->heap, pool->chunks, pool->chunk_capacity, sizeof *chunks, TQ_MEM_HOST);
    pool->chunks = chunks;
    pool->chunk_capacity = capacity;
    return TQ_OK;
}

/* Free pages are taken from the end: put the new ones so that low numbers go first. */
static void add_free(struct tqi_pool *pool, uint64_t first, uint64_t n) {
    for (uint64_t i = n; i-- > 0;)
        pool->free_pages[pool->n_free++] = (uint32_t)(first + i);
}

static tq_status no_more(void) {
    return tqi_fail(TQ_ERR_OUT_OF_PAGES, "out of pages: %llu is the most a pool can have",
                    (unsigned long long)UINT32_MAX);
}

static tq_status add_chunk(struct tqi_pool *pool) {
    if (pool->n_pages + pool->chunk_pages > UINT32_MAX)
        return no_more();
    TQI_TRY(grow_tables(pool, pool->n_pages + pool->chunk_pages));
    TQI_TRY(grow_chunk_list(pool));
    uint8_t *chunk = tqi_alloc(pool->heap, pool->chunk_pages, pool->page_bytes, pool->space);
    if (!chunk)
        return TQ_ERR_OUT_OF_MEMORY;
    pool->chunks[pool->n_chunks++] = chunk;
    add_free(pool, pool->n_pages, pool->chunk_pages);
    pool->n_pages += pool->chunk_pages;
    return TQ_OK;
}

static tq_status fill(struct tqi_pool *pool, const struct tqi_pool_config *config) {
    pool->layer_bytes = tqi_calloc(pool->heap, pool->n_layers, sizeof(size_t));
    pool->layer_offset = tqi_calloc(pool->heap, pool->n_layers, sizeof(size_t));
    if (!pool->layer_bytes || !pool->layer_offset)
        return TQ_ERR_OUT_OF_MEMORY;
    TQI_TRY(measure(pool, config));
    if (config->max_pages) {
        size_t bytes;
        if (!tqi_mul_size(pool->page_bytes, config->max_pages, &bytes))
            return too_large();
        pool->chunk_pages = config->max_pages;
        return add_chunk(pool);
    }
    /* Never empty: there is a layer at least. NOLINTNEXTLINE(clang-analyzer-core.DivideZero) */
    pool->chunk_pages = pool->page_bytes >= CHUNK_BYTES ? 1 : CHUNK_BYTES / pool->page_bytes;
    if (config->chunk_pages)
        pool->chunk_pages = config->chunk_pages;
    return TQ_OK;
}

tq_status tqi_pool_init(struct tqi_pool *pool, struct tqi_heap *heap,
                        const struct tqi_pool_config *config) {
    memset(pool, 0, sizeof *pool);
    pool->heap = heap;
    pool->n_layers = config->n_layers;
    pool->max_pages = config->max_pages;
    pool->space = config->space;
    pool->copy = config->copy;
    pool->copy_user = config->copy_user;
    tq_status status = fill(pool, config);
    if (status != TQ_OK)
        tqi_pool_destroy(pool);
    return status;
}

void tqi_pool_destroy(struct tqi_pool *pool) {
    for (uint32_t c = 0; c < pool->n_chunks; c++)
        tqi_free(pool->heap, pool->chunks[c], pool->chunk_pages, pool->page_bytes, pool->space);
    tqi_free(pool->heap, pool->chunks, pool->chunk_capacity, sizeof *pool->chunks, TQ_MEM_HOST);
    tqi_free(pool->heap, pool->references, pool->page_capacity, sizeof *pool->references,
             TQ_MEM_HOST);
    tqi_free(pool->heap, pool->free_pages, pool->page_capacity, sizeof *pool->free_pages,
             TQ_MEM_HOST);
    tqi_free(pool->heap, pool->layer_bytes, pool->n_layers, sizeof(size_t), TQ_MEM_HOST);
    tqi_free(pool->heap, pool->layer_offset, pool->n_layers, sizeof(size_t), TQ_MEM_HOST);
    memset(pool, 0, sizeof *pool);
}

void tqi_pool_reset(struct tqi_pool *pool) {
    if (!pool->n_pages)
        return;
    memset(pool->references, 0, pool->n_pages * sizeof *pool->references);
    pool->n_free = 0;
    add_free(pool, 0, pool->n_pages);
}

/* Takes back the newest chunk, whose pages are all free and on top of the stack. */
static void drop_chunk(struct tqi_pool *pool) {
    pool->n_chunks--;
    pool->n_pages -= pool->chunk_pages;
    pool->n_free -= pool->chunk_pages;
    tqi_free(pool->heap, pool->chunks[pool->n_chunks], pool->chunk_pages, pool->page_bytes,
             pool->space);
}

void tqi_pool_shrink(struct tqi_pool *pool, uint32_t n_chunks) {
    while (pool->n_chunks > n_chunks)
        drop_chunk(pool);
}

tq_status tqi_pool_reserve(struct tqi_pool *pool, uint64_t n) {
    uint32_t before = pool->n_chunks;
    while (pool->n_free < n) {
        if (pool->max_pages)
            return tqi_fail(TQ_ERR_OUT_OF_PAGES, "out of pages: %llu needed, %llu of %llu are free",
                            (unsigned long long)n, (unsigned long long)pool->n_free,
                            (unsigned long long)pool->max_pages);
        tq_status status =
            n - pool->n_free > UINT32_MAX - pool->n_pages ? no_more() : add_chunk(pool);
        if (status != TQ_OK) {
            tqi_pool_shrink(pool, before);
            return status;
        }
    }
    return TQ_OK;
}

uint32_t tqi_pool_take(struct tqi_pool *pool) {
    uint32_t page = pool->free_pages[--pool->n_free];
    pool->references[page] = 1;
    return page;
}

void tqi_pool_share(struct tqi_pool *pool, uint32_t page) {
    pool->references[page]++;
}

void tqi_pool_release(struct tqi_pool *pool, uint32_t page) {
    if (--pool->references[page] == 0)
        pool->free_pages[pool->n_free++] = page;
}

void tqi_pool_copy_page(struct tqi_pool *pool, uint32_t to, uint32_t from) {
    for (uint32_t l = 0; l < pool->n_layers; l++)
        pool->copy(pool->copy_user, tqi_pool_page(pool, l, to), tqi_pool_page(pool, l, from),
                   pool->layer_bytes[l]);
}
