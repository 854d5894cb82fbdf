/* Speed of the library on this machine through tq.h. */
#ifndef TQ_BENCH_H
#define TQ_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

double now(void); /* seconds */

/* ---- memory.c ----------------------------------------------------------------------------- */

/* Hooks that ask for huge pages, as an engine with large pools would. */
extern const tq_allocator huge_pages;
/* GB/s of a plain read of `bytes` bytes by the executor's threads, best of some passes. */
double plain_read(const tq_executor *executor, size_t bytes);

/* ---- report.c: a table on standard output, the same numbers as JSON ----------------------- */

void report_open(const char *json_path); /* NULL = no file */
/* One measurement: GB/s of the codes that it touches. */
void report(const char *what, const char *level, const char *variant, uint32_t group,
            uint32_t threads, double ms, double gbs, double percent_of_read);
void report_close(void);

#endif
