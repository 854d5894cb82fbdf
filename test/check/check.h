/* tq-check: every kernel of kernels.def against the reference, on awkward sizes. */
#ifndef TQ_CHECK_H
#define TQ_CHECK_H

#include "kernel/kernel.h"

/* ---- memory.c: memory that notices a wrong access ----------------------------------------- */

/* `bytes` (a multiple of 64) that end at a page no one may touch; cleared. */
void *guard_alloc(size_t bytes);
void guard_free(void *memory, size_t bytes);

/* ---- random.c ----------------------------------------------------------------------------- */

void seed_random(uint64_t seed);
uint64_t next_random(void);
double uniform(void);  /* [0, 1) */
double gaussian(void); /* mean 0, deviation 1 */

/* ---- page.c: one page of a pair of formats, filled by the reference ----------------------- */

struct page {
    struct tqi_page_layout layout;
    struct tqi_rows k, v;
    uint32_t *flips;
    uint8_t *blob;
};

void make_page(struct page *p, tq_format k, tq_format v, uint32_t dim, uint32_t tokens);
/* Random rows; all bytes of the page are noise before. */
void fill_page(struct page *p, uint32_t tokens);
void free_page(struct page *p);

/* ---- results ------------------------------------------------------------------------------ */

struct result {
    unsigned passed, failed;
    double worst; /* error in tolerances */
};
/* Counts one comparison and reports it when it fails. */
void judge(struct result *r, bool ok, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Levels of this machine, by name; NULL when it lacks the instructions. */
const struct tqi_level *find_level(const char *name);

/* ---- the checks --------------------------------------------------------------------------- */

void check_attend(struct result *r, const struct tqi_level *level, tq_format k, tq_format v);
void check_encode(struct result *r, const struct tqi_level *level, tq_format f, unsigned rows);
/* Stages widen and store. */
void check_caller_rows(struct result *r, const struct tqi_level *level);
/* Of a level (NULL = all), of formats with `text` in their names. */
void bench_kernels(const char *only, const char *text);

#endif
