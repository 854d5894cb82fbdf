/*
 * A serving engine's scheduler over a pool of pages of fixed size, step by step: requests arrive,
 * prompts go in by chunks, answers grow by a token a step, pages run out. How long a step takes
 * is the business of whoever calls: measured kernel times (times.h) or real steps on this machine
 * (live.c).
 */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include <stdint.h>

/* ---- load.c ------------------------------------------------------------------------------------
 */

/* Log-normal lengths: exp of a normal number. */
struct lengths {
    double median, sigma;
    uint32_t most;
};

/* How requests come: so many a second as a Poisson process, or all at once. */
struct load {
    const char *name;
    double rate; /* 0: all at time 0 */
    uint32_t n;
    struct lengths prompt, answer;
    uint64_t seed;
};

struct request {
    double arrival;
    uint32_t prompt, answer; /* tokens, 1 at least */
    /* what became of it */
    uint32_t stored;      /* tokens in the cache */
    uint32_t made;        /* of the answer */
    uint32_t pages;       /* that it holds */
    uint32_t preemptions; /* times its pages were taken away */
    uint32_t refused;     /* it would not fit into an empty pool */
    double first, last;   /* when the first and the last token of the answer were there */
};

/* Requests in order of arrival; the same for the same seed. The caller frees them. */
struct request *make_requests(const struct load *load);

/* ---- scheduler.c -------------------------------------------------------------------------------
 */

struct limits {
    uint64_t pages;
    uint64_t reserve; /* that stay free when another request starts beside others */
    uint32_t page_tokens;
    uint32_t most_running;
    uint32_t step_tokens; /* of a step, answers first, then chunks of prompts */
};

/* A request's part of a step. */
struct item {
    uint32_t request;
    uint32_t before;  /* tokens in the cache */
    uint32_t append;  /* new ones, which all have a query */
    uint32_t answers; /* 1: the last of them yields a token of the answer */
};

struct step {
    const struct item *items;
    uint32_t n;
};

/* Seconds that a step takes. gone(): the request's tokens leave the cache. */
struct engine {
    double (*run)(void *arg, const struct step *step);
    void (*gone)(void *arg, uint32_t request);
    void *arg;
};

struct outcome {
    uint32_t finished, refused, preemptions, steps;
    uint32_t most_running;
    uint64_t most_pages, answers; /* tokens of all answers */
    double seconds;               /* until the last answer was complete */
    double mean_running;          /* over time */
    uint64_t pages_left;          /* held when all is over: 0 */
};

/* Runs all requests to their end. Returns 0, or -1 without memory. */
int replay(const struct limits *limits, struct request *requests, uint32_t n,
           const struct engine *engine, struct outcome *out);

/* Pages that a request needs for so many tokens. */
static inline uint64_t pages_for(const struct limits *l, uint64_t tokens) {
    return (tokens + l->page_tokens - 1) / l->page_tokens;
}

/* ---- what users notice ------------------------------------------------------------------------
 */

struct latency {
    double first_p50, first_p99; /* seconds to the first token */
    double token_p50, token_p99; /* per token after the first */
    double tokens_per_second;
};

/* Of the requests that finished. Returns 0, or -1 without memory. */
int latency_of(const struct request *requests, uint32_t n, const struct outcome *o,
               struct latency *out);

#endif
