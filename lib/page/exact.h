/*
 * Tokens that are kept in 16 bits beside their codes: the first ones of a sequence, the sinks,
 * and the last ones, the window. Their rows lie in small pages from a pool of their own, which
 * are numbered by token and shared by forks like pages of codes. What is exact differs by layer:
 * tokens [0, sinks) and [start, length). A token that has left the window stays coded for ever.
 */
#ifndef TQI_PAGE_EXACT_H
#define TQI_PAGE_EXACT_H

#include "page/pool.h"
#include "page/view.h"

#define TQI_EXACT_NO_PAGE UINT32_MAX /* an entry of a table that has no page */

struct tqi_exact_rules {
    struct tqi_heap *heap;
    struct tqi_pool *pool; /* NULL: no token is kept */
    uint32_t n_layers;
    uint32_t sink_tokens; /* multiple of TQI_EXACT_TOKENS */
    uint32_t recent_tokens;
};

/* The part of one sequence. */
struct tqi_exact {
    uint32_t *pages; /* the sinks', then n_tail others from number `first` on */
    uint64_t first, n_tail, capacity;
    uint64_t *sinks, *starts; /* [n_layers] */
};

/* Tokens to come: n behind `length`. In a step all of them are kept, else the last ones. */
struct tqi_exact_append {
    uint64_t length, n;
    int step;
};

tq_status tqi_exact_init(const struct tqi_exact_rules *rules, struct tqi_exact *e);
/* Gives back pages and memory. */
void tqi_exact_end(const struct tqi_exact_rules *rules, struct tqi_exact *e);
/* Frees the memory only: the pool is reset or goes too. */
void tqi_exact_free(const struct tqi_exact_rules *rules, struct tqi_exact *e);
/* Fills an empty part with the first n tokens of another. Changes nothing on failure. */
tq_status tqi_exact_fork(const struct tqi_exact_rules *rules, const struct tqi_exact *from,
                         uint64_t n, struct tqi_exact *to);

/* First token of an append that the window keeps. */
uint64_t tqi_exact_keep_from(const struct tqi_exact_rules *rules, struct tqi_exact_append a);
/* Room for tokens to come: how many pages it may take from the pool; a table that can hold
 * them; then, with the pages reserved, taking them. */
uint64_t tqi_exact_count(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                         struct tqi_exact_append a);
tq_status tqi_exact_grow(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                         struct tqi_exact_append a);
void tqi_exact_take(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                    struct tqi_exact_append a);

/* The tokens are there, in one layer. */
void tqi_exact_appended(const struct tqi_exact_rules *rules, struct tqi_exact *e, uint32_t layer,
                        struct tqi_exact_append a);
/* Tokens leave the window and layers end where lengths[] says; pages without use go back. */
void tqi_exact_settle(const struct tqi_exact_rules *rules, struct tqi_exact *e,
                      const uint64_t *lengths);
/* Start of a window that began at `start`, when a layer has so many tokens. */
uint64_t tqi_exact_window_start(const struct tqi_exact_rules *rules, uint64_t start,
                                uint64_t length);

/* Tokens that some layer keeps: [0, sinks) and [from, to). */
struct tqi_exact_kept {
    uint64_t sinks, from, to;
};
/* Of layers that end `less` tokens before lengths[]. */
struct tqi_exact_kept tqi_exact_kept_of(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, const uint64_t *lengths,
                                        uint64_t less);
/* Whether a token of the page of that number is kept. */
int tqi_exact_keeps(const struct tqi_exact_kept *k, uint64_t number);
/* A page by its number, TQI_EXACT_NO_PAGE when there is none. */
uint32_t tqi_exact_page_at(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                           uint64_t number);
/* Its entry, which the table must cover. */
uint32_t *tqi_exact_entry(const struct tqi_exact_rules *rules, const struct tqi_exact *e,
                          uint64_t number);

/* What a driver sees of it in one layer. */
struct tqi_exact_view tqi_exact_view_of(const struct tqi_exact_rules *rules,
                                        const struct tqi_exact *e, uint32_t layer);
/* The same after an append that is to come, in a step. */
struct tqi_exact_view tqi_exact_view_after(const struct tqi_exact_rules *rules,
                                           const struct tqi_exact *e, uint32_t layer,
                                           struct tqi_exact_append a);

/* Pages that a sequence takes whose layers go in step; the pool's first size is made of it. */
uint64_t tqi_exact_pages(uint32_t sink_tokens, uint32_t recent_tokens);

#endif
