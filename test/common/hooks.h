/* Allocators and executors that tests put behind the library. */
#ifndef TEST_COMMON_HOOKS_H
#define TEST_COMMON_HOOKS_H

#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

/* Counts, checks and fails. `fail_at` = n makes the n-th call (from 1) and, with
 * `fail_for_ever`, all later ones return NULL; 0 = never. Blocks are surrounded by
 * canaries and filled with noise; size and alignment given back must be those asked for. */
struct test_heap {
    uint64_t calls, fail_at;
    int fail_for_ever;
    uint64_t live_blocks, live_bytes, errors; /* errors: wrong free, broken canary */
};
/* Hook struct over h, which must outlive all that is allocated through it. */
tq_allocator test_allocator(struct test_heap *h);

/* Runs tasks on `n_workers` threads of its own, in an order that differs each time. */
struct test_threads {
    uint32_t n_workers;
};
tq_executor test_executor(struct test_threads *t);

#endif
