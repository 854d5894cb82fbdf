/* Sequences whose tokens are 32-bit tags, written into pages and read back as bytes. */
#ifndef TEST_UNIT_SEQS_H
#define TEST_UNIT_SEQS_H

#include "page/room.h"
#include "unit/pool.h"

enum { UNIT_PAGE_TOKENS = 16, UNIT_LAYERS = 3 };

struct unit_seqs {
    struct unit_pool pool;
    struct tqi_seqs seqs;
};

static inline void unit_seqs_init(struct unit_seqs *s, uint64_t max_pages, uint32_t max_seqs) {
    const size_t tags = UNIT_PAGE_TOKENS * sizeof(uint32_t);
    const size_t bytes[UNIT_LAYERS] = {tags, 2 * tags, tags}; /* the second has two heads */
    assert_int_equal(unit_pool_init(&s->pool, UNIT_LAYERS, bytes, max_pages, 0), TQ_OK);
    tqi_seqs_init(&s->seqs, &s->pool.heap, &s->pool.pool, UNIT_PAGE_TOKENS, max_seqs);
}

static inline void unit_seqs_end(struct unit_seqs *s) {
    tqi_seqs_destroy(&s->seqs);
    unit_pool_end(&s->pool);
}

static inline uint32_t *unit_slot(const struct unit_seqs *s, tq_seq id, uint32_t layer,
                                  uint64_t token) {
    const struct tqi_seq *seq = tqi_seq_find(&s->seqs, id);
    assert_non_null(seq);
    assert_true(token / UNIT_PAGE_TOKENS < seq->n_pages);
    void *page = tqi_pool_page(&s->pool.pool, layer, seq->pages[token / UNIT_PAGE_TOKENS]);
    return (uint32_t *)page + token % UNIT_PAGE_TOKENS;
}

/* Appends as the library does: room, then tokens, then the length. */
static inline tq_status unit_append(struct unit_seqs *s, tq_seq id, uint32_t layer, uint32_t n,
                                    const uint32_t *tags) {
    struct tqi_seq *seq = tqi_seq_find(&s->seqs, id);
    assert_non_null(seq);
    tq_status status = tqi_seq_make_room(&s->seqs, seq, layer, n);
    if (status != TQ_OK)
        return status;
    for (uint32_t i = 0; i < n; i++)
        *unit_slot(s, id, layer, seq->lengths[layer] + i) = tags[i];
    seq->lengths[layer] += n;
    return TQ_OK;
}

static inline tq_seq unit_create(struct unit_seqs *s) {
    tq_seq id = 0;
    assert_int_equal(tqi_seqs_create(&s->seqs, &id), TQ_OK);
    return id;
}

static inline struct tqi_seq *unit_find(struct unit_seqs *s, tq_seq id) {
    struct tqi_seq *seq = tqi_seq_find(&s->seqs, id);
    assert_non_null(seq);
    return seq;
}

/* n tokens in one layer, tags from `first` on. */
static inline tq_status unit_append_run(struct unit_seqs *s, tq_seq id, uint32_t layer, uint32_t n,
                                        uint32_t first) {
    uint32_t tags[256];
    assert_true(n <= 256);
    for (uint32_t i = 0; i < n; i++)
        tags[i] = first + i;
    return unit_append(s, id, layer, n, tags);
}

/* The same in all layers, tags 1000 apart. */
static inline void unit_append_all(struct unit_seqs *s, tq_seq id, uint32_t n, uint32_t first) {
    for (uint32_t l = 0; l < UNIT_LAYERS; l++)
        assert_int_equal(unit_append_run(s, id, l, n, first + 1000 * l), TQ_OK);
}

static inline void unit_check_tags(struct unit_seqs *s, tq_seq id, uint32_t layer, uint64_t from,
                                   uint64_t to, uint32_t first) {
    for (uint64_t t = from; t < to; t++)
        CHECK(*unit_slot(s, id, layer, t) == first + (uint32_t)(t - from), "layer %u token %d",
              layer, (int)t);
}

static inline tq_seq unit_fork(struct unit_seqs *s, tq_seq src, uint64_t n) {
    tq_seq id = 0;
    assert_int_equal(tqi_seqs_fork(&s->seqs, unit_find(s, src), n, &id), TQ_OK);
    return id;
}

static inline uint64_t unit_used_pages(const struct unit_seqs *s) {
    return s->pool.pool.n_pages - s->pool.pool.n_free;
}

#endif
