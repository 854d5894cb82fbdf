/* An allocator for tests: counts, fails on demand, hands out dirty memory and checks that
 * blocks come back with the size they were asked for. */
#ifndef TEST_UNIT_HEAP_H
#define TEST_UNIT_HEAP_H

#include <stdlib.h>

#include "base/heap.h"
#include "unit/unit.h"

struct unit_heap {
    uint64_t calls;         /* of alloc, also failed ones */
    uint64_t fail_at;       /* call that fails, from 1; 0 = none */
    uint64_t fail_from;     /* and all calls from this one on; 0 = none */
    uint64_t blocks, bytes; /* alive */
};

/* Stands in front of every block, in a piece of `alignment` bytes. */
struct unit_block {
    size_t size, alignment;
    tq_memory space;
};

static inline void *unit_alloc(void *user, size_t size, size_t alignment, tq_memory space) {
    struct unit_heap *heap = user;
    assert_true(size > 0 && alignment >= sizeof(struct unit_block));
    heap->calls++;
    if (heap->calls == heap->fail_at || (heap->fail_from && heap->calls >= heap->fail_from))
        return NULL;
    size_t whole = (size + 2 * alignment - 1) / alignment * alignment;
    char *memory = size >> 32 ? NULL : aligned_alloc(alignment, whole);
    if (!memory)
        return NULL;
    memset(memory, 0xA5, whole);
    struct unit_block block = {size, alignment, space};
    memcpy(memory, &block, sizeof block);
    heap->blocks++;
    heap->bytes += size;
    return memory + alignment;
}

static inline void unit_free(void *user, void *ptr, size_t size, size_t alignment,
                             tq_memory space) {
    struct unit_heap *heap = user;
    struct unit_block block;
    memcpy(&block, (char *)ptr - alignment, sizeof block);
    CHECK(block.size == size && block.alignment == alignment && block.space == space,
          "%zu bytes come back as %zu", block.size, size);
    heap->blocks--;
    heap->bytes -= size;
    free((char *)ptr - alignment);
}

/* A heap of the library over a fresh test allocator. */
static inline struct tqi_heap unit_heap_make(struct unit_heap *unit) {
    struct tqi_heap heap;
    tq_allocator hooks = {.struct_size = sizeof hooks, .user = unit};
    hooks.alloc = unit_alloc;
    hooks.free = unit_free;
    memset(unit, 0, sizeof *unit);
    assert_int_equal(tqi_heap_init(&heap, &hooks), TQ_OK);
    return heap;
}

#endif
