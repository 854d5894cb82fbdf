/* Speed of the library on this machine through tq.h, beside a plain read and other
 * libraries. */
#ifndef TQ_BENCH_H
#define TQ_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include "tq/tq.h"

enum {
    WORKING_SET = 192 << 20, /* bytes that calls go round in: beyond any cache */
    BLOCK = 4096,            /* tokens of an append */
    THREADS_LIMIT = 64
};

/* The last `queries` tokens of `context` tokens, one for a decode step. */
struct shape {
    uint32_t dim, context, heads, group, threads, queries;
};

/* ---- memory.c ----------------------------------------------------------------------------- */

double now(void); /* seconds */
/* Values like a model's: unit scale, a fixed pseudo-random sequence, bf16. */
uint16_t *make_rows(size_t n);
void *must_take(size_t bytes); /* huge pages; give back with give() */
void give(void *p);
/* Hooks that ask for huge pages, as an engine with large pools would. */
extern const tq_allocator huge_pages;
/* GB/s of a plain read of `bytes` bytes by the executor's threads, the fastest of many parts. */
double plain_read(const tq_executor *executor, size_t bytes);

/* Seconds of the fastest of many calls(arg, i); i goes round in n. */
double fastest(void (*call)(void *arg, uint32_t i), void *arg, uint32_t n);

/* ---- ours.c ------------------------------------------------------------------------------- */

/* What is measured: names separated by commas, NULL = all. */
struct selection {
    const char *variants, *levels;
};
int is_listed(const char *list, const char *name);
/* Reports all selected levels and variants; append too where asked for. */
void bench_ours(const struct selection *selection, const struct shape *shape, int append);
const tq_executor *executor_of(uint32_t threads);
void must(tq_status status);
void ours_close(void);

/* ---- peer_ggml.c or peer_none.c ------------------------------------------------------------ */

const char *peer_version(void); /* NULL = no peer in this build */
void bench_peer(const struct selection *selection, const struct shape *shape);

/* ---- report.c: a table on standard output, the same numbers as JSON ----------------------- */

void report_open(const char *json_path); /* NULL = no file */
void report_read(uint32_t threads, double gbs);
/* "decode" or "prefill". */
const char *attention_of(const struct shape *shape);
/* One measurement: seconds, and bytes that it reads (and writes) at least. */
void report(const char *what, const char *level, const char *variant, const struct shape *shape,
            double seconds, double bytes);
void report_close(void);

#endif
