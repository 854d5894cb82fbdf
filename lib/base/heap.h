/* The caller's allocator with an account of what is held through it. Every object
 * keeps its own heap, so that tq_cache_stats can tell its true bytes. */
#ifndef TQI_BASE_HEAP_H
#define TQI_BASE_HEAP_H

#include "base/status.h"

struct tqi_heap {
    tq_allocator hooks;
    uint64_t host_bytes;
    uint64_t device_bytes;
};

enum { TQI_ALIGNMENT = 64 };

/* The C library's aligned allocation as hooks: NULL for other memory spaces. */
void *tqi_host_alloc(void *user, size_t size, size_t alignment, tq_memory space);
void tqi_host_free(void *user, void *ptr, size_t size, size_t alignment, tq_memory space);

/* A heap with the hooks of `config`, or of the C library for NULL. */
tq_status tqi_heap_init(struct tqi_heap *heap, const tq_allocator *config);
/* An empty heap with the same hooks. */
struct tqi_heap tqi_heap_like(const struct tqi_heap *heap);

/* count * size bytes, aligned to TQI_ALIGNMENT, not cleared; NULL when the product
 * overflows or the allocator fails (then the message is set). A product of 0 gives
 * a valid pointer. */
void *tqi_alloc(struct tqi_heap *heap, size_t count, size_t size, tq_memory space);
/* The same in host memory and cleared. */
void *tqi_calloc(struct tqi_heap *heap, size_t count, size_t size);
/* NULL is allowed; count, size and space are those of the allocation. */
void tqi_free(struct tqi_heap *heap, void *ptr, size_t count, size_t size, tq_memory space);

#endif
