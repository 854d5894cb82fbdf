/* What the fuzz targets share: bytes read as numbers, an allocator that refuses and counts,
 * and a check that ends the program. No test library: the targets also run under an engine
 * and under sanitizers that must see every line. */
#ifndef TEST_FUZZ_FUZZ_H
#define TEST_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

/* The target's name, which is also the name of its corpus folder. */
extern const char fuzz_name[];
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The condition holds; else says where and aborts, which an engine takes for a find. */
#define MUST(condition)                                \
    do {                                               \
        if (!(condition))                              \
            fuzz_fail(#condition, __FILE__, __LINE__); \
    } while (0)
_Noreturn void fuzz_fail(const char *condition, const char *file, int line);
/* The error of n numbers is at most `tolerance` of their size. */
void fuzz_near(const float *got, const double *want, size_t n, double tolerance);

/* Bytes of the input; zeros once they are used up. */
struct input {
    const uint8_t *at, *end;
};
struct input input_of(const uint8_t *data, size_t size);
size_t input_left(const struct input *in);
uint8_t take8(struct input *in);
uint16_t take16(struct input *in);
uint32_t take32(struct input *in);
uint64_t take64(struct input *in);
/* A number below n. */
uint32_t take_below(struct input *in, uint32_t n);

/* An allocator with a limit that can refuse a coming call. It fills what it gives, and checks
 * what it takes back. */
struct fuzz_heap {
    size_t live, limit; /* bytes */
    uint32_t blocks;
    uint32_t refuse_at; /* refuses the call that counts it down to 0, once; 0 = never */
    uint32_t refused;   /* calls since the start */
};
tq_allocator fuzz_allocator(struct fuzz_heap *heap);
/* TQ_CPU_* bits that leave reference kernels (0), AVX2 (1), AVX-512 (2) or everything (3);
 * always the reference where MemorySanitizer would have to know vector instructions. */
uint64_t fuzz_features_disabled(uint32_t level);
/* A context over the heap; executor may be NULL. Never fails: the heap must have room. */
tq_context *fuzz_context(struct fuzz_heap *heap, const tq_executor *executor, uint64_t disabled);

/* calloc that ends the program when memory is out. Exact sizes, so that
 * AddressSanitizer sees every byte beyond. */
void *fuzz_alloc(size_t bytes);

#endif
