/* A model of sequences made of plain lists: which tokens each layer of each sequence holds, and
 * which pages each sequence shares. */
#ifndef TEST_COMMON_SEQ_MODEL_H
#define TEST_COMMON_SEQ_MODEL_H

#include "tq/tq.h"

enum { MODEL_LAYERS = 3, MODEL_TOKENS = 300, MODEL_PAGES = 1024 };

struct model_seq {
    tq_seq id; /* 0 = no sequence here */
    uint32_t list[MODEL_LAYERS][MODEL_TOKENS], n[MODEL_LAYERS];
    uint8_t exact[MODEL_LAYERS][MODEL_TOKENS]; /* kept in 16 bits */
    uint32_t pages[MODEL_TOKENS], n_pages;     /* numbers of the model, not of the library */
};

struct model_pool {
    uint32_t references[MODEL_PAGES]; /* of each page */
    uint32_t page_tokens;
    uint64_t max_pages; /* 0 = as many as are wanted */
    uint32_t sink_tokens, recent_tokens;
};

uint32_t model_shortest(const struct model_seq *s);
uint32_t model_longest(const struct model_seq *s);
uint32_t model_pages_for(const struct model_pool *p, uint32_t n);
uint32_t model_pages_used(const struct model_pool *p);
uint32_t model_pages_shared(const struct model_pool *p);

/* Puts tokens behind those of a layer, whose pages have been taken. */
void model_append(const struct model_pool *p, struct model_seq *s, uint32_t layer,
                  const uint32_t *list, uint32_t n);
/* Gives back pages from number n on. */
void model_keep_pages(struct model_pool *p, struct model_seq *s, uint32_t n);
/* Whether pages [first, last) can be written; takes them when they can. */
int model_make_room(struct model_pool *p, struct model_seq *s, uint32_t first, uint32_t last);
/* The same for n_tokens[i] more tokens of each of n sequences, whose layers have one length: for
 * all of them or, when pages are short, for none. */
int model_make_rooms(struct model_pool *p, uint32_t n, struct model_seq *const *seqs,
                     const uint32_t *n_tokens);
void model_truncate(struct model_pool *p, struct model_seq *s, uint32_t n);
/* A new sequence with the first n tokens of another; its id is the caller's business. */
void model_share(struct model_pool *p, const struct model_seq *from, struct model_seq *to,
                 uint32_t n);
/* Whether the pages that have to be written can be had; takes the tokens out when they can. */
int model_remove(struct model_pool *p, struct model_seq *s, uint32_t first, uint32_t n);
/* Whether pages can be had for tokens [first, + n) of another sequence behind those of this one,
 * whose layers have one length; adds them when they can. */
int model_add_range(struct model_pool *p, struct model_seq *to, const struct model_seq *from,
                    uint32_t first, uint32_t n);
/* Sequences of one length each; ids stay. */
void model_reorder(struct model_pool *p, uint32_t n, struct model_seq *const *seqs,
                   const uint32_t *parents);

#endif
