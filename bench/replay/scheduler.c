/*
 * First come, first served. A request starts when the pages of all it has to store at once are
 * free, and a reserve beside them. A step takes one token of every answer, then chunks of prompts,
 * oldest first, up to its limit of tokens. When an answer needs a page and none is free, the
 * youngest request gives its pages back, and begins again at the head of the queue with the tokens
 * it had made as part of its prompt.
 */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

struct scheduler {
    const struct limits *limits;
    struct request *requests;
    const struct engine *engine;
    uint32_t n;
    uint32_t *running, n_running; /* oldest first */
    uint32_t *waiting, n_waiting; /* next one last */
    uint32_t arrived;             /* requests that have come */
    uint64_t free_pages;
    double now;
    struct item *items;
    uint32_t n_items;
    struct outcome *out;
};

/* Tokens that a request must have stored before it yields the next one of its answer: its
 * prompt and, all but the last, those it has made. */
static uint32_t needed(const struct request *r) {
    return r->prompt + r->made;
}

/* ---- coming and going ------------------------------------------------------------------------ */

/* Requests wait in order of arrival, those that gave way first. */
static void put_first(struct scheduler *s, uint32_t request) {
    s->waiting[s->n_waiting++] = request;
}

static void put_last(struct scheduler *s, uint32_t request) {
    memmove(s->waiting + 1, s->waiting, s->n_waiting * sizeof *s->waiting);
    s->waiting[0] = request;
    s->n_waiting++;
}

static void take_arrivals(struct scheduler *s) {
    for (; s->arrived < s->n && s->requests[s->arrived].arrival <= s->now; s->arrived++) {
        struct request *r = &s->requests[s->arrived];
        if (pages_for(s->limits, (uint64_t)r->prompt + r->answer) > s->limits->pages) {
            r->refused = 1;
            s->out->refused++;
        } else {
            put_last(s, s->arrived);
        }
    }
}

static void hold(struct scheduler *s, struct request *r, uint64_t pages) {
    s->free_pages -= pages - r->pages;
    r->pages = (uint32_t)pages;
    uint64_t used = s->limits->pages - s->free_pages;
    s->out->most_pages = used > s->out->most_pages ? used : s->out->most_pages;
}

static void release(struct scheduler *s, uint32_t request) {
    struct request *r = &s->requests[request];
    s->free_pages += r->pages;
    r->pages = 0;
    r->stored = 0;
    s->engine->gone(s->engine->arg, request);
}

static void admit(struct scheduler *s) {
    while (s->n_waiting && s->n_running < s->limits->most_running) {
        uint32_t next = s->waiting[s->n_waiting - 1];
        struct request *r = &s->requests[next];
        uint64_t pages = pages_for(s->limits, needed(r));
        if (pages + (s->n_running ? s->limits->reserve : 0) > s->free_pages)
            return;
        s->n_waiting--;
        hold(s, r, pages);
        s->running[s->n_running++] = next;
    }
    if (s->n_running > s->out->most_running)
        s->out->most_running = s->n_running;
}

static void preempt_youngest(struct scheduler *s) {
    uint32_t request = s->running[--s->n_running];
    release(s, request);
    s->requests[request].preemptions++;
    s->out->preemptions++;
    put_first(s, request);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void add_item(struct scheduler *s, uint32_t request, uint32_t append) {
    struct request *r = &s->requests[request];
    s->items[s->n_items++] =
        (struct item){request, r->stored, append, r->stored + append == needed(r)};
}

/* Answers need a page for their next token; the youngest gives way while there is none. */
static void hold_answers(struct scheduler *s) {
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct request *r = &s->requests[s->running[i]];
        uint64_t pages = pages_for(s->limits, needed(r));
        while (pages - r->pages > s->free_pages && s->n_running > i)
            preempt_youngest(s);
        if (s->n_running > i)
            hold(s, r, pages);
    }
}

static void make_step(struct scheduler *s) {
    uint32_t left = s->limits->step_tokens;
    s->n_items = 0;
    hold_answers(s);
    for (int prompts = 0; prompts < 2; prompts++)
        for (uint32_t i = 0; i < s->n_running && left; i++) {
            const struct request *r = &s->requests[s->running[i]];
            uint32_t lacks = needed(r) - r->stored, append = lacks < left ? lacks : left;
            if ((lacks > 1) != prompts)
                continue;
            add_item(s, s->running[i], append);
            left -= append;
        }
}

/* Items came in the order of running requests, answers and prompts apart. */
static void finish_step(struct scheduler *s) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_items; i++) {
        struct request *r = &s->requests[s->items[i].request];
        r->stored += s->items[i].append;
        if (!s->items[i].answers)
            continue;
        if (r->made++ == 0)
            r->first = s->now;
        r->last = s->now;
        s->out->answers++;
    }
    for (uint32_t i = 0; i < s->n_running; i++) {
        uint32_t request = s->running[i];
        if (s->requests[request].made == s->requests[request].answer) {
            release(s, request);
            s->out->finished++;
            s->out->seconds = s->now;
        } else {
            s->running[kept++] = request;
        }
    }
    s->n_running = kept;
}

static void run_all(struct scheduler *s) {
    double weighted = 0;
    while (s->out->finished + s->out->refused < s->n) {
        take_arrivals(s);
        admit(s);
        if (s->n_running == 0) {
            if (s->arrived < s->n) /* nothing to do until the next one comes */
                s->now = s->requests[s->arrived].arrival;
            continue;
        }
        make_step(s);
        double seconds = s->engine->run(s->engine->arg, &(struct step){s->items, s->n_items});
        s->now += seconds;
        weighted += seconds * s->n_running;
        s->out->steps++;
        finish_step(s);
    }
    s->out->mean_running = s->out->seconds > 0 ? weighted / s->out->seconds : 0;
    s->out->pages_left = s->limits->pages - s->free_pages;
}

int replay(const struct limits *limits, struct request *requests, uint32_t n,
           const struct engine *engine, struct outcome *out) {
    struct scheduler s = {.limits = limits,
                          .requests = requests,
                          .engine = engine,
                          .n = n,
                          .free_pages = limits->pages,
                          .out = out};
    memset(out, 0, sizeof *out);
    s.running = calloc((size_t)n + 1, sizeof *s.running);
    s.waiting = calloc((size_t)n + 1, sizeof *s.waiting);
    s.items = calloc((size_t)n + 1, sizeof *s.items);
    int status = s.running && s.waiting && s.items ? 0 : -1;
    if (status == 0)
        run_all(&s);
    free(s.running);
    free(s.waiting);
    free(s.items);
    return status;
}

/* ---- what users notice ------------------------------------------------------------------------
 */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The least number that so large a part of the others do not exceed. */
static double quantile(double *x, uint32_t n, double part) {
    if (n == 0)
        return 0;
    qsort(x, n, sizeof *x, ascending);
    double at = part * n;
    uint32_t rank = (uint32_t)at + (at > (uint32_t)at);
    return x[rank ? rank - 1 : 0];
}

int latency_of(const struct request *requests, uint32_t n, const struct outcome *o,
               struct latency *out) {
    double *first = calloc((size_t)n + 1, sizeof *first);
    double *token = calloc((size_t)n + 1, sizeof *token);
    uint32_t n_first = 0, n_token = 0;
    for (uint32_t i = 0; first && token && i < n; i++) {
        const struct request *r = &requests[i];
        if (r->refused)
            continue;
        first[n_first++] = r->first - r->arrival;
        if (r->answer > 1)
            token[n_token++] = (r->last - r->first) / (r->answer - 1);
    }
    if (first && token)
        *out = (struct latency){quantile(first, n_first, 0.5), quantile(first, n_first, 0.99),
                                quantile(token, n_token, 0.5), quantile(token, n_token, 0.99),
                                o->seconds > 0 ? (double)o->answers / o->seconds : 0};
    int status = first && token ? 0 : -1;
    free(first);
    free(token);
    return status;
}
