#define _POSIX_C_SOURCE 200809L
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define UNDER_MSAN 1
#endif
#endif

void fuzz_fail(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: does not hold: %s (last error: %s)\n", file, line, condition,
            tq_last_error());
    abort();
}

/* ---- input ----------------------------------------------------------------------------- */

struct input input_of(const uint8_t *data, size_t size) {
    struct input in = {data, data + size};
    return in;
}

size_t input_left(const struct input *in) {
    return (size_t)(in->end - in->at);
}

uint8_t take8(struct input *in) {
    return in->at < in->end ? *in->at++ : 0;
}

uint16_t take16(struct input *in) {
    uint16_t low = take8(in);
    return (uint16_t)(low | take8(in) << 8);
}

uint32_t take32(struct input *in) {
    uint32_t low = take16(in);
    return low | (uint32_t)take16(in) << 16;
}

uint64_t take64(struct input *in) {
    uint64_t low = take32(in);
    return low | (uint64_t)take32(in) << 32;
}

uint32_t take_below(struct input *in, uint32_t n) {
    return (n > 256 ? take16(in) : take8(in)) % n;
}

/* ---- memory ---------------------------------------------------------------------------- */

void *fuzz_alloc(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    MUST(p != NULL);
    return p;
}

static int refuses(struct fuzz_heap *heap, size_t size) {
    if (heap->refuse_at && --heap->refuse_at == 0)
        return 1;
    return size > heap->limit - heap->live;
}

static void *take(void *user, size_t size, size_t alignment, tq_memory space) {
    struct fuzz_heap *heap = user;
    void *p = NULL;
    MUST(space == TQ_MEM_HOST && size > 0);
    MUST(alignment >= 16 && (alignment & (alignment - 1)) == 0);
    if (refuses(heap, size)) {
        heap->refused++;
        return NULL;
    }
    /* Not aligned_alloc(), which would round the size up and hide a byte beyond it. */
    MUST(posix_memalign(&p, alignment, size) == 0);
#ifndef UNDER_MSAN
    memset(p, 0xcd, size); /* contents may be arbitrary */
#endif
    heap->live += size;
    heap->blocks++;
    return p;
}

static void give(void *user, void *ptr, size_t size, size_t alignment, tq_memory space) {
    struct fuzz_heap *heap = user;
    MUST(ptr && space == TQ_MEM_HOST && alignment >= 16);
    MUST(size <= heap->live && heap->blocks > 0);
    heap->live -= size;
    heap->blocks--;
    free(ptr);
}

tq_allocator fuzz_allocator(struct fuzz_heap *heap) {
    tq_allocator hooks = {.struct_size = sizeof hooks, .user = heap, .alloc = take, .free = give};
    return hooks;
}

uint64_t fuzz_features_disabled(uint32_t level) {
    static const uint64_t kept[] = {0, TQ_CPU_AVX2, TQ_CPU_AVX2 | TQ_CPU_AVX512 | TQ_CPU_AVX512VNNI,
                                    UINT64_MAX};
#ifdef UNDER_MSAN
    level = 0;
#endif
    return ~kept[level];
}

tq_context *fuzz_context(struct fuzz_heap *heap, const tq_executor *executor, uint64_t disabled) {
    tq_allocator hooks = fuzz_allocator(heap);
    tq_context_config config = {.struct_size = sizeof config,
                                .cpu_features_disabled = disabled,
                                .allocator = &hooks,
                                .executor = executor};
    tq_context *ctx = NULL;
    MUST(tq_context_create(&config, &ctx) == TQ_OK);
    return ctx;
}

void fuzz_near(const float *got, const double *want, size_t n, double tolerance) {
    double error = 0, energy = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        energy += want[i] * want[i];
    }
    MUST(sqrt(error) <= tolerance * sqrt(energy));
}
