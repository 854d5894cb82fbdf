#include "base/heap.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

void *tqi_host_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    if (space != TQ_MEM_HOST)
        return NULL;
    if (size > SIZE_MAX - alignment)
        return NULL;
    return aligned_alloc(alignment, tqi_align_up(size, alignment));
}

void tqi_host_free(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    (void)user;
    (void)size;
    (void)alignment;
    (void)space;
    free(ptr);
}

tq_status tqi_heap_init(struct tqi_heap *heap, const tq_allocator *config) {
    memset(heap, 0, sizeof *heap);
    heap->hooks.alloc = tqi_host_alloc;
    heap->hooks.free = tqi_host_free;
    if (!config)
        return TQ_OK;
    TQI_REQUIRE(config->reserved == 0, "allocator: reserved must be 0");
    TQI_REQUIRE(!config->alloc == !config->free,
                "allocator: alloc and free must both be given, or neither");
    if (!config->alloc)
        return TQ_OK;
    heap->hooks = *config;
    return TQ_OK;
}

struct tqi_heap tqi_heap_like(const struct tqi_heap *heap) {
    struct tqi_heap copy = {.hooks = heap->hooks};
    return copy;
}

static uint64_t *account(struct tqi_heap *heap, tq_memory space) {
    return space == TQ_MEM_DEVICE ? &heap->device_bytes : &heap->host_bytes;
}

/* Allocators need not know about empty blocks. */
static size_t at_least_one(size_t bytes) {
    return bytes ? bytes : 1;
}

void *tqi_alloc(struct tqi_heap *heap, size_t count, size_t size, tq_memory space) {
    size_t bytes;
    if (!tqi_mul_size(count, size, &bytes)) {
        (void)tqi_fail(TQ_ERR_OUT_OF_MEMORY, "out of memory: %zu x %zu bytes overflow", count,
                       size);
        return NULL;
    }
    bytes = at_least_one(bytes);
    void *ptr = heap->hooks.alloc(heap->hooks.user, bytes, TQI_ALIGNMENT, space);
    if (!ptr) {
        (void)tqi_fail(TQ_ERR_OUT_OF_MEMORY, "out of memory: the allocator refused %zu bytes",
                       bytes);
        return NULL;
    }
    *account(heap, space) += bytes;
    return ptr;
}

void *tqi_calloc(struct tqi_heap *heap, size_t count, size_t size) {
    void *ptr = tqi_alloc(heap, count, size, TQ_MEM_HOST);
    if (ptr)
        memset(ptr, 0, count * size);
    return ptr;
}

void tqi_free(struct tqi_heap *heap, void *ptr, size_t count, size_t size, tq_memory space) {
    if (!ptr)
        return;
    size_t bytes = at_least_one(count * size);
    *account(heap, space) -= bytes;
    heap->hooks.free(heap->hooks.user, ptr, bytes, TQI_ALIGNMENT, space);
}
