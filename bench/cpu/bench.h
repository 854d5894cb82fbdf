/* Speed of the library on this machine through tq.h. */
#ifndef TQ_BENCH_H
#define TQ_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

double now(void); /* seconds */

/* ---- pool.c: threads behind tq_executor --------------------------------------------------- */

struct pool;
/* n threads, the caller included. */
struct pool *pool_create(uint32_t n);
void pool_destroy(struct pool *pool);
/* tq_executor::parallel_for; user is the pool. */
void pool_run(void *user, uint32_t n_tasks,
              void (*task)(void *arg, uint32_t index, uint32_t worker), void *arg);

/* ---- memory.c ----------------------------------------------------------------------------- */

/* Hooks that ask for huge pages, as an engine with large pools would. */
extern const tq_allocator huge_pages;
/* GB/s of a plain read of `bytes` bytes by the pool's threads, best of some passes. */
double plain_read(struct pool *pool, uint32_t threads, size_t bytes);

/* ---- report.c: a table on standard output, the same numbers as JSON ----------------------- */

void report_open(const char *json_path); /* NULL = no file */
/* One measurement: GB/s of the codes that it touches. */
void report(const char *what, const char *level, const char *variant, uint32_t group,
            uint32_t threads, double ms, double gbs, double percent_of_read);
void report_close(void);

#endif
