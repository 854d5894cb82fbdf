/*
 * Sequences: generation-tagged ids, page tables, lengths per layer, fork, truncate. Pages
 * are shared by reference count and copied when a sequence is about to write into a shared
 * one: room.h makes room before an append.
 */
#ifndef TQI_PAGE_SEQ_H
#define TQI_PAGE_SEQ_H

#include "page/exact.h"
#include "page/pool.h"

struct tqi_seq {
    uint32_t generation; /* of the slot; changes when a sequence of the slot dies */
    uint32_t alive;
    uint32_t next_free; /* of a dead slot: the next dead one plus 1, 0 = end */
    uint32_t marked;    /* during a call that takes a list: named already */
    uint32_t *pages;    /* page table */
    uint64_t n_pages, page_capacity;
    uint64_t *lengths; /* [n_layers] tokens */
    struct tqi_exact exact;
    const void *step; /* the planned batch that it is part of, NULL = none */
};

struct tqi_seqs {
    struct tqi_heap *heap;
    struct tqi_pool *pool;
    struct tqi_exact_rules exact; /* pool NULL until the owner sets them */
    uint32_t n_layers, page_tokens, max_seqs;
    uint32_t n_slots, slot_capacity; /* slots ever used; room */
    uint32_t n_alive;
    uint32_t first_free; /* dead slot plus 1, 0 = none */
    struct tqi_seq *slots;
};

void tqi_seqs_init(struct tqi_seqs *seqs, struct tqi_heap *heap, struct tqi_pool *pool,
                   uint32_t page_tokens, uint32_t max_seqs);
void tqi_seqs_destroy(struct tqi_seqs *seqs);
/* Ends all sequences; resets the pool. */
void tqi_seqs_reset(struct tqi_seqs *seqs);

/* NULL with a message when the id is unknown. */
struct tqi_seq *tqi_seq_find(const struct tqi_seqs *seqs, tq_seq id);
tq_status tqi_seqs_create(struct tqi_seqs *seqs, tq_seq *out);
void tqi_seqs_end(struct tqi_seqs *seqs, struct tqi_seq *seq);
tq_status tqi_seqs_fork(struct tqi_seqs *seqs, struct tqi_seq *src, uint64_t n_tokens, tq_seq *out);
tq_status tqi_seqs_truncate(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t n_tokens);
/* All layers end at n_tokens, which pages of the sequence cover; pages beyond go back. */
void tqi_seq_set_length(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t n_tokens);

/* Room for `pages` entries in the page table. */
tq_status tqi_seq_grow_table(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t pages);

/* Whether tokens [0, n) exist in every layer: TQ_OK, else the status with its message. */
tq_status tqi_seq_check_prefix(const struct tqi_seqs *seqs, const struct tqi_seq *seq, uint64_t n);
/* The same for tokens [first, first + n). */
tq_status tqi_seq_check_range(const struct tqi_seqs *seqs, const struct tqi_seq *seq,
                              uint64_t first, uint64_t n);
/* n, or for UINT64_MAX all tokens from first on. */
uint64_t tqi_seq_rest(const struct tqi_seqs *seqs, const struct tqi_seq *seq, uint64_t first,
                      uint64_t n);
/* Replaces a shared page of the table by a copy of its own; a free page must be reserved. */
void tqi_seq_unshare(struct tqi_seqs *seqs, struct tqi_seq *seq, uint64_t index);

uint64_t tqi_seq_shortest(const struct tqi_seqs *seqs, const struct tqi_seq *seq);
uint64_t tqi_seq_longest(const struct tqi_seqs *seqs, const struct tqi_seq *seq);

#endif
