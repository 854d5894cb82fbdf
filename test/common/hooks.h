/* Allocators and executors that tests put behind the library. */
#ifndef TEST_COMMON_HOOKS_H
#define TEST_COMMON_HOOKS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

/* Counts, checks and fails. Blocks lie between canaries and are filled with noise, so that
 * what nobody wrote is NaN; size, alignment and space given back must be those asked for.
 * Zero it, set what is not zero, then take hooks over it with test_allocator(). */
struct test_heap {
    uint64_t fail_at;  /* the call of alloc that gets NULL, from 1; 0 = none */
    int fail_for_ever; /* so do all calls behind it */
    int zero_fill;     /* zeros instead of noise */
    uint64_t calls;    /* of alloc, also of those that failed */
    uint64_t live_blocks, live_bytes;
    uint64_t errors; /* wrong frees, dead canaries, calls out of executor tasks */
    pthread_mutex_t lock;
};
/* Hooks over h, which must outlive all that is allocated through them. */
tq_allocator test_allocator(struct test_heap *h);
/* Makes the n-th allocation from now on fail (1 = the next one); 0 = none. */
void test_heap_fail(struct test_heap *h, uint64_t n);

/* Memory that is mapped and not there until it is written; no noise, no canaries. */
tq_allocator sparse_allocator(void);

/* Runs tasks on `n_workers` threads of its own, in an order that differs each time. Looks
 * at the rules of tq_executor from the other side: the library must have finished all its
 * work in the tasks. */
struct test_threads {
    uint32_t n_workers;
    _Atomic uint64_t calls, tasks; /* counted */
};
tq_executor test_executor(struct test_threads *t);

/* Which kernels tests run on: TQ_TEST_LEVEL=best those of this CPU, =avx512, =avxvnni, =avx2 none
 * above, =ref or nothing the reference; anything else ends the program. Value for
 * tq_context_config.cpu_features_disabled. */
uint64_t test_features_disabled(void);
/* Largest relative error of an attention call at that level (docs/TESTING.md). */
double test_attend_tolerance(void);

#endif
